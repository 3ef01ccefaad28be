"""The published preconditioner, as its formulas stand."""

import math

import numpy as np

from harness.natural_gradient import Preconditioner


class DenseOracle:
    """The published method with D by D matrices: nothing factored, nothing kept of W.

    One replica, numpy. The subspace is the only thing that a step of the method takes from
    the step before besides F, so R is kept as the leading eigenvectors it stands for.
    """

    def __init__(self, options: Preconditioner, width: int) -> None:
        self.options, self.width = options, width
        self.rank = min(options.rank, width - 1)
        r = np.zeros((self.rank, width))
        for column in range(width):
            r[column % self.rank, column] = 1.1 if column < self.rank else 1.0
        self.r = r / np.linalg.norm(r, axis=1, keepdims=True)
        eps = options.epsilon
        self.d, self.rho = np.full(self.rank, eps), eps
        self.calls = 0

    @property
    def f(self) -> np.ndarray:
        return self.r.T @ np.diag(self.d) @ self.r + self.rho * np.eye(self.width)

    def __call__(self, x: np.ndarray) -> np.ndarray:
        if self.calls == 0:
            for _ in range(3):
                self.update(x)
        f = self.f
        g = f + self.options.alpha / self.width * np.trace(f) * np.eye(self.width)
        hat = np.linalg.solve(g, x.T).T
        hat *= np.linalg.norm(x) / np.linalg.norm(hat)
        if self.calls < 10 or (self.calls - 9) % self.options.period == 0:
            self.update(x)
        self.calls += 1
        return hat

    def update(self, x: np.ndarray) -> None:
        eta = min(0.9, 1 - math.exp(-len(x) / self.options.history))
        t = eta / len(x) * x.T @ x + (1 - eta) * self.f
        y = self.r @ t
        u, root, v = np.linalg.svd(y, full_matrices=False)
        del u
        self.r = v
        rho = (np.trace(t) - root.sum()) / (self.width - self.rank)
        least = max(self.options.epsilon, self.options.delta * root.max())
        self.d, self.rho = np.maximum(root - rho, least), max(rho, least)

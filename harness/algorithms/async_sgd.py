"""Asynchronous stochastic gradient descent: the server adds each gradient as it arrives.

Dean et al. 2012 (Downpour SGD); paper 1, section 2.2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from harness.algorithms.contract import Gradient, Minibatch, Server

Scaling = Literal["plain", "memory_of_one"]


@dataclass(frozen=True)
class AsyncSgd:
    """``theta <- theta - rate * g``, whatever g's staleness.

    Args:
        scaling: ``"plain"``, or ``"memory_of_one"``: paper 1's equation 2 with tau = t,
            an Adagrad that remembers only the present gradient, so that parameter ij moves
            by ``rate * g_ij / sqrt(K + g_ij^2)``.
        k: K of equation 2.
    """

    scaling: Scaling = "plain"
    k: float = 1.0

    def start(self, model: Tensor) -> Server:
        """A server that holds a copy of ``model [P]``."""
        return Server(model.clone())

    def contribute(
        self, gradient: Gradient, replicas: Tensor, minibatch: Minibatch, out: Tensor
    ) -> Tensor:
        """Each worker's summed gradient at its replica, into ``out [W, P]``; losses ``[W]``."""
        return gradient(replicas, *minibatch, out)

    def fold(self, server: Server, contribution: Tensor, *, staleness: int, rate: float) -> None:
        """Take one step along ``contribution [P]``; staleness does not matter here."""
        del staleness
        if self.scaling == "plain":
            server.model.sub_(contribution, alpha=rate)
        else:
            size = contribution.square().add_(self.k).sqrt_()
            server.model.addcdiv_(contribution, size, value=-rate)
        server.version += 1

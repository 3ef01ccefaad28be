"""Muon as a local optimizer: the momentum of every weight matrix, orthogonalised.

Jordan et al. 2024 (kellerjordan.github.io/posts/muon); directions are scaled to the size of
AdamW's as in Liu et al. (arXiv 2502.16982), section 2.2, so that one rate serves weights and
biases.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from harness.algorithms.adamw import AdamW
from harness.algorithms.local_optimizer import LocalOptimizer, State
from harness.base.settings import setting
from harness.networks.contract import Network

QUINTIC = 3.4445, -4.7750, 2.0315
"""Jordan's ``a x + b x^3 + c x^5``: five times of it bring singular values to about 1."""


@dataclass(frozen=True)
class Muon(LocalOptimizer):
    """Weights go along ``0.2 sqrt(max(rows, columns)) orthogonal(g + momentum m)``.

    ``m <- momentum m + (1 - momentum) g``. Biases go by ``rest``.

    Args:
        momentum: how much of m stays.
        iterations: of the polynomial.
        rest: what moves the biases.
    """

    momentum: float = setting(0.95, at_least=0.0, at_most=1.0)
    iterations: int = setting(5, at_least=1, at_most=100)
    rest: AdamW = field(default_factory=AdamW)

    def start(self, replicas: Tensor) -> State:
        """A momentum of zero, and what ``rest`` begins with."""
        return {"momentum": torch.zeros_like(replicas), **self.rest.start(replicas)}

    def direct_(self, gradients: Tensor, replicas: Tensor, state: State, network: Network) -> None:
        """See `LocalOptimizer`."""
        momentum = state["momentum"].lerp_(gradients, 1.0 - self.momentum)
        ahead = gradients.lerp(momentum, self.momentum)
        self.rest.direct_(gradients, replicas, state, network)
        places = zip(*(network.matrices(stack) for stack in (gradients, ahead)), strict=True)
        for weight, slope in places:
            size = 0.2 * max(slope.shape[1:]) ** 0.5
            weight.copy_(orthogonal(slope, self.iterations).mul_(size))


def orthogonal(matrices: Tensor, iterations: int) -> Tensor:
    """``U p(p(...(S))) V'`` of each of ``matrices [W, n, m]`` ``U S V'``, divided by its norm."""
    a, b, c = QUINTIC
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.transpose(1, 2) if tall else matrices
    x = x / x.square().sum((1, 2), keepdim=True).sqrt().clamp(min=1e-7)
    for _ in range(iterations):
        gram = torch.bmm(x, x.transpose(1, 2))
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x.transpose(1, 2) if tall else x).contiguous()

"""Delayed Nesterov: an asynchronous outer loop whose momentum moves every N arrivals only.

Liu et al. (arXiv 2401.09135), algorithm 3: asynchronous DiLoCo.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from harness.algorithms.contract import Server
from harness.algorithms.differences import PENDING, Differences
from harness.algorithms.local_descent import PLAIN, Descent
from harness.algorithms.outer_step import MOMENTUM
from harness.base.settings import setting


@dataclass(frozen=True)
class DelayedNesterov(Differences):
    """Between momentum steps ``theta <- theta - outer_rate (c momentum m + D / N)``.

    At every N-th arrival ``m <- momentum m + (mean of the last N)``, and then
    ``theta <- theta - outer_rate ((1 - c N + c) momentum m + D / N)``.

    Args:
        descent: makes the local steps.
        every: N.
        momentum: beta.
        outer_rate: epsilon.
        spread: c, the momentum's part in every step; from 0 to 1 / N.
    """

    descent: Descent = PLAIN
    every: int = setting(4, at_least=1)
    momentum: float = setting(0.9, at_least=0.0, at_most=1.0)
    outer_rate: float = setting(0.7, above=0.0)
    spread: float = setting(0.0, at_least=0.0, at_most=1.0)

    def start(self, model: Tensor) -> Server:
        """As any difference's, with a momentum of zero."""
        server = super().start(model)
        server.tensors[MOMENTUM] = torch.zeros_like(model)
        return server

    def fold(
        self,
        server: Server,
        contributions: Tensor,
        staleness: Sequence[int],
        rate: float,
        workers: Sequence[int] = (),
        weights: Sequence[float] = (),
    ) -> None:
        """A step along each of ``contributions [W, P]``, and what the momentum has to add."""
        del staleness, rate, workers, weights
        pending, momentum = server.tensors[PENDING], server.tensors[MOMENTUM]
        n, share = self.every, self.spread
        pending.add_(contributions.mean(0))
        server.version += 1
        if server.folds % n == 0:
            momentum.mul_(self.momentum).add_(pending, alpha=1.0 / n)
            pending.zero_()
            share = 1.0 - self.spread * n + self.spread
        step = contributions.mean(0).div_(n).add_(momentum, alpha=share * self.momentum)
        server.model.sub_(step, alpha=self.outer_rate)

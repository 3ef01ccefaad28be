"""Asynchronous SGD whose steps are the shorter the staler their gradients are.

Zhang, Gupta, Lian and Liu (arXiv 1511.05950): the rate is divided by the staleness.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from harness.algorithms.contract import Server
from harness.algorithms.gradients import Gradients


@dataclass(frozen=True)
class StalenessAware(Gradients):
    """``theta <- theta - rate / max(1, tau) g`` of a gradient tau versions old."""

    def fold(
        self,
        server: Server,
        contributions: Tensor,
        staleness: Sequence[int],
        rate: float,
        workers: Sequence[int] = (),
        weights: Sequence[float] = (),
    ) -> None:
        """One step along each of ``contributions [W, P]``."""
        del workers, weights
        for contribution, tau in zip(contributions, staleness, strict=True):
            server.model.sub_(contribution, alpha=rate / max(1, tau))
        server.version += 1

"""FedBuff: asynchronous outer steps, each along the mean of a buffer of differences.

Nguyen et al. (arXiv 2106.06639), a difference weighted by 1 / sqrt(1 + tau).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from harness.algorithms.contract import Server
from harness.algorithms.differences import PENDING, Differences
from harness.algorithms.local_descent import PLAIN, Descent
from harness.base.settings import setting


@dataclass(frozen=True)
class FedBuff(Differences):
    """Every ``buffer`` arrivals ``theta <- theta - outer_rate mean((1 + tau)^-discount D)``.

    Every arrival makes a version; tau counts the steps of the model between read and arrival. For
    a difference that began before a failure of the server it counts the arrivals that were lost,
    and the restart as one more.

    Args:
        descent: makes the local steps.
        buffer: K, arrivals for a step.
        outer_rate: of a step; 1 moves the model to the mean of what was trained.
        discount: 0.5 in the paper; 0 for none.
    """

    descent: Descent = PLAIN
    buffer: int = setting(4, at_least=1)
    outer_rate: float = setting(1.0, above=0.0)
    discount: float = setting(0.5, at_least=0.0)

    def fold(
        self,
        server: Server,
        contributions: Tensor,
        staleness: Sequence[int],
        rate: float,
        workers: Sequence[int] = (),
        weights: Sequence[float] = (),
    ) -> None:
        """Buffer each of ``contributions [W, P]``; a step when the buffer is full."""
        del rate, workers, weights
        pending, now = server.tensors[PENDING], server.folds
        for difference, tau in zip(contributions, staleness, strict=True):
            steps = now // self.buffer - (now - tau) // self.buffer
            pending.add_(difference, alpha=(1.0 + steps) ** -self.discount)
        server.version += 1
        if server.folds % self.buffer == 0:
            server.model.sub_(pending, alpha=self.outer_rate / (self.buffer * len(contributions)))
            pending.zero_()

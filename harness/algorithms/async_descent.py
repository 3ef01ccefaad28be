"""Asynchronous steps along the directions of any local optimizer.

``theta <- theta - rate U(g(theta_read))``, where U is what a worker's optimizer makes of its
gradients: how staleness and optimizer go together (arXiv 2606.30634 for a staleness of 1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from harness.algorithms.contract import Memory
from harness.algorithms.gradients import PlainFolds
from harness.algorithms.local_descent import PLAIN, Descent, local_direction
from harness.networks.contract import Minibatch, Network


@dataclass(frozen=True)
class AsyncDescent(PlainFolds):
    """A contribution is the mean direction of its minibatches at what was read.

    Rates are of the mean gradient (see `local_descent`). The optimizer's state is the worker's.

    Args:
        descent: what makes a direction of a gradient.
    """

    descent: Descent = PLAIN

    def contribute(
        self,
        network: Network,
        replicas: Tensor,
        minibatches: Sequence[Minibatch],
        out: Tensor,
        rate: float,
        memory: Memory,
    ) -> Tensor:
        """The directions into ``out [W, P]``; losses ``[W]``."""
        direction, losses = local_direction(
            self.descent, network, replicas, minibatches, rate, memory
        )
        out.copy_(direction)
        return losses

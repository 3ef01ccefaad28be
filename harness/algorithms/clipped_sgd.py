"""Asynchronous SGD with clipped gradients: no step is longer than a limit, however stale.

Erickson and Johansson (arXiv 2606.13287), whose bound does not depend on the largest delay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from harness.algorithms.async_sgd import AsyncSgd
from harness.algorithms.contract import Memory
from harness.algorithms.gradients import PlainFolds
from harness.base.settings import setting
from harness.networks.contract import Minibatch, Network


@dataclass(frozen=True)
class ClippedSgd(PlainFolds):
    """``theta <- theta - rate min(1, limit / |g|) g``, where |g| is the norm of the mean gradient.

    The worker clips, so that every shard of a server folds its part of one clipped gradient.

    Args:
        limit: of the norm of a gradient's mean over the frames of its contribution.
    """

    remembers: ClassVar[bool] = False

    limit: float = setting(1.0, above=0.0)

    def contribute(
        self,
        network: Network,
        replicas: Tensor,
        minibatches: Sequence[Minibatch],
        out: Tensor,
        rate: float,
        memory: Memory,
    ) -> Tensor:
        """Clipped gradients summed over frames, into ``out [W, P]``; losses ``[W]``."""
        losses = AsyncSgd().contribute(network, replicas, minibatches, out, rate, memory)
        frames = sum(minibatch.targets.shape[1] for minibatch in minibatches)
        norms = out.square().sum(1, keepdim=True).sqrt_()
        out.mul_((self.limit * frames / norms).clamp_(max=1.0))
        return losses

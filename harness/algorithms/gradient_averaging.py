"""Gradient averaging: every worker's gradient at one model, and one step along their mean.

Paper 2, section 3. Rates are of the mean gradient of a minibatch (see `local_descent`). Shape
letters as there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from harness.algorithms.contract import Algorithm, Memory, Server
from harness.algorithms.local_descent import PLAIN, Descent, Restart, local_direction
from harness.networks.contract import Minibatch, Network


@dataclass(frozen=True)
class GradientAveraging(Algorithm):
    """A contribution is a mean gradient; a fold goes one step along the mean of them all.

    Several minibatches of a contribution are all seen from the model that was read.

    Args:
        descent: what makes a direction of a gradient; `PLAIN` leaves it as it is.
        restart: when workers forget what the descent remembers.
    """

    rounds: ClassVar[bool] = True

    descent: Descent = PLAIN
    restart: Restart = "never"

    def start(self, model: Tensor) -> Server:
        """A server that holds a copy of ``model [P]``."""
        return Server(model.clone())

    def contribute(
        self,
        network: Network,
        replicas: Tensor,
        minibatches: Sequence[Minibatch],
        out: Tensor,
        rate: float,
        memory: Memory,
    ) -> Tensor:
        """The mean direction a frame over each worker's minibatches, into ``out [W, P]``."""
        direction, losses = local_direction(
            self.descent, network, replicas, minibatches, rate, memory, self.restart
        )
        out.copy_(direction)
        return losses

    def fold(
        self,
        server: Server,
        contributions: Tensor,
        staleness: Sequence[int],
        rate: float,
        workers: Sequence[int] = (),
        weights: Sequence[float] = (),
    ) -> None:
        """One step along the mean of ``contributions [W, P]``; staleness does not matter here."""
        del staleness, workers, weights
        server.model.sub_(torch.mean(contributions, 0), alpha=rate)
        server.version += 1

"""Hogwild in parts: of every gradient only some components enter the model, drawn at random.

Niu, Recht, Ré and Wright (arXiv 1106.5730): an update of one component drawn from those of a
gradient, times their number, is the gradient in the mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from harness.algorithms.contract import Server
from harness.algorithms.gradients import Gradients
from harness.base.seeds import stream
from harness.base.settings import setting
from harness.networks.contract import uploaded


@dataclass(frozen=True)
class PartialFolds(Gradients):
    """``theta_i <- theta_i - rate / share g_i`` for each i with probability ``share``.

    Reads that find other versions at other components are those of a server in shards.

    Args:
        share: of the components.
        seed: of the draws, which are by version.
    """

    share: float = setting(0.5, above=0.0, at_most=1.0)
    seed: int = setting(0, at_least=0)

    def fold(
        self,
        server: Server,
        contributions: Tensor,
        staleness: Sequence[int],
        rate: float,
        workers: Sequence[int] = (),
        weights: Sequence[float] = (),
    ) -> None:
        """A step along the drawn components of each of ``contributions [W, P]``."""
        del staleness, workers, weights
        drawn = stream(self.seed, "partial folds", server.version)
        for contribution in contributions:
            enters = torch.as_tensor(drawn.random(len(contribution)) < self.share)
            part = contribution * uploaded(enters, contribution.device)
            server.model.sub_(part, alpha=rate / self.share)
        server.version += 1

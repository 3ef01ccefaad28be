"""Model averaging: workers train on their own for n minibatches, then all become their mean.

Povey, Zhang and Khudanpur (arXiv 1410.7455), section 2; paper 2, section 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from harness.algorithms.contract import Gradient, Minibatch, Server


@dataclass(frozen=True)
class ModelAveraging:
    """A contribution is the parameters after local steps; a fold replaces the model by their mean.

    With one local step of plain SGD a fold equals one step along the mean gradient.
    """

    def start(self, model: Tensor) -> Server:
        """A server that holds a copy of ``model [P]``."""
        return Server(model.clone())

    def contribute(
        self,
        gradient: Gradient,
        replicas: Tensor,
        minibatches: Sequence[Minibatch],
        out: Tensor,
        rate: float,
    ) -> Tensor:
        """Descend from each replica over its minibatches; parameters into ``out [W, P]``."""
        out.copy_(replicas)
        slope = torch.empty_like(out)
        losses = out.new_zeros(len(out))
        for minibatch in minibatches:
            losses = losses + gradient(out, *minibatch, slope)
            out.sub_(slope, alpha=rate)
        return losses

    def fold(
        self, server: Server, contributions: Tensor, staleness: Sequence[int], rate: float
    ) -> None:
        """The model becomes the mean of ``contributions [W, P]``."""
        del staleness, rate
        torch.mean(contributions, 0, out=server.model)
        server.version += 1

"""Model averaging: workers train on their own for n minibatches, then agree on one model.

Povey, Zhang and Khudanpur (arXiv 1410.7455), section 2; paper 2, section 3. Who agrees on
their mean averages models; an outer step with a momentum makes it BMUF or DiLoCo.

Rates are of the mean gradient of a minibatch (see `local_descent`). Shape letters as there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from harness.algorithms.contract import Memory, Server
from harness.algorithms.local_descent import PLAIN, Descent, Restart, local_steps
from harness.algorithms.outer_step import BlockMomentum, Mean, OuterNesterov
from harness.algorithms.repeating import Repeating
from harness.networks.contract import Minibatch, Network

BEFORE = "before"
"""The server's vector that holds the model of the version before."""


@dataclass(frozen=True)
class ModelAveraging(Repeating):
    """A contribution is the parameters after local steps; a fold moves the model to their mean.

    With one local step of plain SGD a fold equals one step along the mean gradient. Where
    workers go on while their parameters travel, a contribution began at the version before:
    it then counts as the distance it went from there.

    Args:
        descent: the local steps: `PLAIN`, natural gradient, or a `LocalOptimizer`.
        restart: when workers forget what the descent remembers.
        outer: what is made of the way from the model to the mean.
    """

    rounds: ClassVar[bool] = True

    descent: Descent = PLAIN
    restart: Restart = "never"
    outer: Mean | BlockMomentum | OuterNesterov = field(default_factory=Mean)

    def start(self, model: Tensor) -> Server:
        """A server that holds a copy of ``model [P]``, and its outer step's momentum."""
        momenta = {BEFORE: model.clone(), **self.outer.start(model)}
        return Server(model.clone(), tensors=momenta)

    def contribute(
        self,
        network: Network,
        replicas: Tensor,
        minibatches: Sequence[Minibatch],
        out: Tensor,
        rate: float,
        memory: Memory,
    ) -> Tensor:
        """Descend from each replica over its minibatches; parameters into ``out [W, P]``."""
        out.copy_(replicas)
        return local_steps(self.descent, network, out, minibatches, rate, memory, self.restart)

    def fold(
        self,
        server: Server,
        contributions: Tensor,
        staleness: Sequence[int],
        rate: float,
        workers: Sequence[int] = (),
        weights: Sequence[float] = (),
    ) -> None:
        """Move the model to the mean of ``contributions [W, P]``, by the outer step.

        Raises:
            ValueError: a contribution began more than one version ago.
        """
        del rate, workers, weights
        mean = torch.mean(contributions, 0)
        if any(staleness):
            mean += server.model - _begun_at(server, staleness)
        self._move(server, mean)
        server.version += 1

    @property
    def repeats(self) -> bool:
        """Where workers remember nothing."""
        return self.descent == PLAIN

    def numbers(self, server: Server, rate: float) -> tuple[float, ...]:
        """None."""
        del rate
        server.version += 1
        return ()

    def fold_from(
        self, server: Server, before: Tensor, contributions: Tensor, numbers: Tensor
    ) -> None:
        """Move to the mean of ``contributions [W, P]``, by the outer step."""
        del numbers
        server.model.copy_(before)
        self._move(server, torch.mean(contributions, 0))

    def _move(self, server: Server, mean: Tensor) -> None:
        server.tensors[BEFORE].copy_(server.model)
        self.outer.step(server, mean)


def _begun_at(server: Server, staleness: Sequence[int]) -> Tensor:
    """The mean ``[P]`` of the models at which contributions began."""
    if max(staleness) > 1:
        raise ValueError(f"a contribution {max(staleness)} versions old meets a memory of one")
    return torch.lerp(server.model, server.tensors[BEFORE], sum(staleness) / len(staleness))

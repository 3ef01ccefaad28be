"""Averaged SGD over any descent: the model deployed is an average of the iterates.

Polyak and Juditsky 1992; Xu 2011 (arXiv 1107.2490); paper 1, sections 2.3 and 2.4.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from harness.algorithms.async_sgd import AsyncSgd
from harness.algorithms.blocks import step_and_average
from harness.algorithms.contract import Memory, Server
from harness.algorithms.fused import step_and_draw
from harness.algorithms.repeating import Repeating
from harness.algorithms.turns import FoldsInARow, Turns, one_by_one
from harness.networks.contract import Minibatch, Network


@dataclass(frozen=True)
class AveragedSgd(FoldsInARow, Repeating):
    """A running average at first, and from the switch on the average of all iterates.

    Until the switch: ``average <- (1 - eta) average + eta theta``. From it on, with n
    iterates averaged so far (the running average counts as the first):
    ``average <- average + (theta - average) / (n + 1)``.

    Args:
        descent: what moves theta.
        eta: the running average's rate; 0.01 throughout paper 1.
        considers: how often in a pass the switch is considered. The sooner, the more early
            iterates stay in the average for good; the paper does not say.
    """

    remembers: ClassVar[bool] = False

    descent: AsyncSgd = field(default_factory=AsyncSgd)
    eta: float = 0.01
    considers: int = 10  # pyright: ignore[reportIncompatibleVariableOverride]

    def start(self, model: Tensor) -> Server:
        """Iterate and average both start from ``model [P]``; no switch yet."""
        server = self.descent.start(model)
        server.vectors["average"] = model.clone()
        server.numbers["averaged"] = 0.0
        return server

    def contribute(
        self,
        network: Network,
        replicas: Tensor,
        minibatches: Sequence[Minibatch],
        out: Tensor,
        rate: float,
        memory: Memory,
    ) -> Tensor:
        """As the descent contributes."""
        return self.descent.contribute(network, replicas, minibatches, out, rate, memory)

    def fold(
        self,
        server: Server,
        contributions: Tensor,
        staleness: Sequence[int],
        rate: float,
        workers: Sequence[int] = (),
        weights: Sequence[float] = (),
    ) -> None:
        """Move theta, then draw the average towards it."""
        self.descent.fold(server, contributions, staleness, rate, workers, weights)
        server.vectors["average"].lerp_(server.model, self._weight(server))

    def fold_turns(self, server: Server, turns: Turns, rate: float) -> None:
        """The bytes of ``one_by_one``, in one pass over memory where steps are plain."""
        if not self.descent.in_blocks(server.model):
            one_by_one(self, server, turns, rate)
            return
        weights = [self._weight(server) for _ in turns.order]
        step_and_average(server.model, server.vectors["average"], turns, rate, weights)
        server.version += len(turns.order)

    @property
    def repeats(self) -> bool:
        """Where the descent does."""
        return self.descent.repeats

    def numbers(self, server: Server, rate: float) -> tuple[float, ...]:
        """The rate, and the iterate's weight in the average."""
        return (*self.descent.numbers(server, rate), self._weight(server))

    def fold_from(
        self, server: Server, before: Tensor, contributions: Tensor, numbers: Tensor
    ) -> None:
        """Move theta and draw the average towards it, as one operation."""
        step_and_draw(before, contributions, numbers, server.model, server.vectors["average"])

    def _weight(self, server: Server) -> float:
        """The next iterate's weight in the average; from the switch on, the iterate is counted."""
        averaged = server.numbers["averaged"]
        if not averaged:
            return self.eta
        server.numbers["averaged"] = averaged + 1.0
        return 1.0 / (averaged + 1.0)

    def consider(self, server: Server, errors: Mapping[str, float]) -> dict[str, float]:
        """Begin the full average once the running one beats the iterate on the development set."""
        if server.numbers["averaged"] or not errors["average"] < errors["iterate"]:
            return {}
        server.numbers["averaged"] = 1.0
        return {"switch": 1.0}

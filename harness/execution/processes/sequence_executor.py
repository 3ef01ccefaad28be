"""What executes a sequence training whose timing is not simulated: processes, or their record."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from torch import Tensor

from harness.execution.data.decoding import Seen
from harness.execution.processes.sequence_recorder import Told
from harness.execution.replay.state import Arrays, Facts
from harness.simulator import Timeline


class Step(NamedTuple):
    """What an executor did.

    Attributes:
        segment: when.
        seen: what decoders came across, in the order of telling.
        ended: whether nothing is left to do.
    """

    segment: Timeline
    seen: list[Seen]
    ended: bool


class SequenceExecutor(Protocol):
    """The replicas and the server of one sequence training."""

    told: Told

    @property
    def version(self) -> int:
        """Folds so far."""
        ...

    @property
    def now_s(self) -> float:
        """Seconds on the run's clock."""
        ...

    @property
    def model(self) -> Tensor:
        """The server's parameters [P'] of the trained half."""
        ...

    def state(self) -> Arrays:
        """Nothing: `capture` has it all."""
        ...

    def advance(self, rate: float, until: int) -> Step:
        """Fold at one rate, until a fold finds so many utterances told of, or to the end."""
        ...

    def capture(self) -> tuple[Arrays, Facts]:
        """Everything a resume needs."""
        ...

    def reinstate(self, arrays: Arrays, facts: Facts) -> None:
        """Undo `capture`."""
        ...

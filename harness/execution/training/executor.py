"""What executes a run's contributions and folds, and says when they happened.

Training decides at boundaries and leaves the way between them to an executor: a simulated
cluster whose timeline is replayed on one device, a recorded timeline, or real workers.
"""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple, Protocol

from harness.algorithms.contract import Server
from harness.execution.data.decoding import Seen
from harness.execution.replay.state import Arrays, Facts
from harness.simulator import Timeline


class Executor(Protocol):
    """The workers and the server of one run."""

    @property
    def server(self) -> Server:
        """The model, and how often it was folded into."""
        ...

    @property
    def now_s(self) -> float:
        """Seconds on the run's clock."""
        ...

    def capture(self) -> tuple[Arrays, Facts]:
        """Everything a resume needs."""
        ...

    def reinstate(self, arrays: Arrays, facts: Facts) -> None:
        """Undo `capture`."""
        ...


class FrameExecutor(Executor, Protocol):
    """Of training on frames, whose boundaries are folds."""

    @property
    def loss(self) -> float:
        """Loss of everything computed so far, summed over frames, in nats."""
        ...

    def advance(self, folds: int, *, drain: bool, handing_out: int | None, rate: float) -> Timeline:
        """Execute so many further folds at one rate.

        Args:
            folds: how many.
            drain: whether nothing is to be in flight afterwards.
            handing_out: contributions that may be handed out, counted from the first of these
                folds; None for as many as there are folds.
            rate: of folds and local steps.
        """
        ...

    def pause(self, seconds: float, kind: str) -> Timeline:
        """Let everybody wait, idle, while something else takes so long on the cluster."""
        ...

    def begin_stage(self) -> None:
        """The minibatches have begun their next stage, and nothing is in flight."""
        ...


class Step(NamedTuple):
    """What an executor of sequence training did.

    Attributes:
        happened: when, as successive segments.
        seen: what decoders came across, in the order of telling.
        ended: whether nothing is left to do.
    """

    happened: list[Timeline]
    seen: list[Seen]
    ended: bool


class Record(Protocol):
    """What is known of a sequence training that really happened, besides its timeline."""

    lost_frames: int
    """Kept frames that were lost with whoever held them."""
    restarts: list[int]
    """The minibatches with whose number all replicas began anew with empty slots."""

    def arrays(self) -> Arrays:
        """All of it, as columns."""
        ...


class SequenceExecutor(Executor, Protocol):
    """Of sequence training, whose boundaries are shares of a pass as its decoders count."""

    @property
    def epoch(self) -> float:
        """Passes over the training utterances so far."""
        ...

    @property
    def record(self) -> Record | None:
        """What a replay needs besides the timeline; None where the configuration says it all."""
        ...

    def advance(self, rate: float, until: Fraction) -> Step:
        """Go on at one rate, as far as suits the executor but not beyond so many passes."""
        ...

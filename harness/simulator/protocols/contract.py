"""What a protocol is: who waits for whom, as state and one function that moves it.

A protocol is a frozen settings class (one file in this folder, one line in `PROTOCOLS` of
`harness.simulator.simulation`). Its state is a named tuple of numpy arrays and nested ones,
so it can be handed to a compiled kernel, saved, and restored. Every state has a ``clock``: an
array of one record with at least `CLOCK_FIELDS`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

import numpy as np

from harness.simulator.cluster import Cluster
from harness.simulator.costs import Costs
from harness.simulator.timeline import Contributions, Timeline

__all__ = [
    "ASKS",
    "CLOCK_FIELDS",
    "DONE",
    "FULL",
    "GONE",
    "STUCK",
    "Handing",
    "Limits",
    "TimingProtocol",
]

CLOCK_FIELDS = (
    *(("now_s", np.float64), ("version", np.int64)),
    *(("dispatched", np.int64), ("busy", np.int64)),
)
"""What every protocol's clock has: the time, folds so far, minibatches handed out so far, and
workers that are not idle."""

DONE, FULL, STUCK, GONE, ASKS = range(5)
"""Why `advance` returned: a limit is reached, the room is used up, time does not move on, no
worker is left, the next event needs to be told something."""


class Limits(NamedTuple):
    """Where a segment ends; each is an absolute figure.

    Attributes:
        version: stop when it is reached.
        time_s: stop before the first event after this.
        dispatch: hand out no minibatch once so many contributions are folded or under way.
        dispatch_s: hand out no minibatch after this instant.
        standing: so many events at one instant mean that time will not move on.
    """

    version: int
    time_s: float
    dispatch: int
    dispatch_s: float
    standing: int


class Handing(NamedTuple):
    """How a protocol hands out the data of a pass, as training on frames needs to know.

    Attributes:
        rounds: whether a fold takes the contributions of all workers, or of one.
        own: minibatches of a contribution where each worker has its own part of the data; None
            where one counter hands out the minibatches of all.
        a_fold: minibatches that this counter hands out for a fold.
        under_way: contributions that may be under way at once.
        missed: whether a fold may lack a worker's contribution without any failure.
    """

    rounds: bool
    own: int | None
    a_fold: int
    under_way: int
    missed: bool = False


class TimingProtocol(ABC):
    """The interface `Simulation` drives; whatever derives from it can be named in a run file."""

    name: ClassVar[str]
    """On the command line and in messages."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Its settings as plain data, by which runs are known: equal settings, equal data."""

    @abstractmethod
    def start(self, cluster: Cluster, workers: int) -> Any:
        """The state in which all workers are idle at time 0, version 0.

        Args:
            cluster: what it all costs.
            workers: how many.
        """

    @abstractmethod
    def wake(self, state: Any) -> None:
        """Idle workers are about to read; called as a segment begins."""

    @abstractmethod
    def advance(
        self, state: Any, costs: Costs, limits: Limits, room: int, spans: bool
    ) -> tuple[int, Timeline]:
        """Move the state in place.

        Args:
            state: as `start` made it.
            costs: seconds of copies, computing and folds, drawn by worker and step.
            limits: where the segment ends.
            room: folds that may be recorded.
            spans: whether busy times are recorded.

        Returns:
            Why it stopped (`DONE`, `FULL`, `STUCK`, `GONE` or `ASKS`), and what happened.
        """

    @abstractmethod
    def in_flight(self, state: Any) -> Contributions:
        """What has been read and not yet folded."""

    def begin_epoch(self, state: Any, minibatches: int) -> None:
        """Begin an epoch of so many minibatches a worker, where workers count their own.

        Args:
            state: as `start` made it, with nothing under way; moved in place.
            minibatches: of each worker until the next epoch begins.
        """
        del state, minibatches

    def handing(self, workers: int) -> Handing | None:
        """How it hands out data; None if frames cannot be trained on in its order."""
        del workers
        return None

    def untrained(self) -> tuple[str, str] | None:
        """A setting that can be timed but not trained with: (key, what is wrong, what allowed)."""
        return None

"""What a protocol is: who waits for whom, as state and one function that moves it.

A protocol is a frozen settings class (one file in this folder, one line in `PROTOCOLS` of
`harness.simulator.simulation`). Its state is a named tuple of numpy arrays and nested ones,
so it can be handed to a compiled kernel, saved, and restored. Every state has a ``clock``: an
array of one record with at least `CLOCK_FIELDS`.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np

from harness.simulator.cluster import Cluster
from harness.simulator.costs import Costs
from harness.simulator.timeline import Contributions, Timeline

__all__ = ["ASKS", "CLOCK_FIELDS", "DONE", "FULL", "GONE", "STUCK", "Limits", "TimingProtocol"]

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


class TimingProtocol(Protocol):
    """The interface `Simulation` drives."""

    @property
    def name(self) -> str:
        """Its name in files and on the command line."""
        ...

    def to_dict(self) -> dict[str, Any]:
        """Its settings as plain data."""
        ...

    def start(self, cluster: Cluster, workers: int) -> Any:
        """The state in which all workers are idle at time 0, version 0."""
        ...

    def wake(self, state: Any) -> None:
        """Idle workers are about to read; called as a segment begins."""
        ...

    def advance(
        self, state: Any, costs: Costs, limits: Limits, room: int, spans: bool
    ) -> tuple[int, Timeline]:
        """Move the state; returns why it stopped, and up to ``room`` folds that happened."""
        ...

    def in_flight(self, state: Any) -> Contributions:
        """What has been read and not yet folded."""
        ...

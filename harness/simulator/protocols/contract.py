"""The contract of a timing protocol: a state, and a function that advances it.

A protocol is a frozen settings class in a file of its own, and a line under ``[protocols]`` of
``harness/registry.toml``, or an entry point ``lagbench.protocols`` of another package. The
``Attributes`` of its docstring describe its settings: the options of `lagbench simulate` and the
page of keys are generated from them. Its state is a named tuple of numpy arrays and nested tuples,
so it can be passed to a compiled kernel, saved, and restored. Every state has a ``clock``: an array
of one record with at least `CLOCK_FIELDS`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, cast, get_args

import numpy as np

from harness.base.errors import name_error
from harness.simulator.cluster import Cluster
from harness.simulator.costs import Costs, Way
from harness.simulator.events import kernel
from harness.simulator.timeline import Contributions, Timeline

CLOCK_FIELDS = (
    *(("now_s", np.float64), ("version", np.int64)),
    *(("dispatched", np.int64), ("busy", np.int64)),
)
"""Fields of every protocol's clock: the time, folds so far, minibatches handed out so far, and
number of workers that are not idle."""

DONE, FULL, STUCK, GONE, ASKS, DYING = range(6)
"""Reasons for which `advance` returns: a limit is reached, the room is used up, time does not
advance, no worker is left, the next event needs an answer, no round is ever folded."""

GOES_ON = -1
"""No reason to stop: the clock has moved to the next event."""

LOST_ROUNDS = 1000
"""Rounds lost to failures in a row after which a segment ends: none will ever be folded.

If one round in fifty is folded, 1,000 in a row are lost once in 10^9 folds, so a slow cluster that
still trains is not rejected."""


class Limits(NamedTuple):
    """Limits of a segment, as absolute figures.

    Attributes:
        version: stop at this version.
        time_s: stop before the first event after this instant.
        dispatch: hand out no minibatch once this many contributions are folded or in flight.
        dispatch_s: hand out no minibatch after this instant.
        standing: number of events at one instant from which on time counts as stuck.
    """

    version: int
    time_s: float
    dispatch: int
    dispatch_s: float
    standing: int

    @property
    def is_endless(self) -> bool:
        """Whether no instant ends the segment, so that it goes on until enough is folded."""
        return self.time_s == self.dispatch_s == math.inf


@kernel
def advance_clock(clock: Any, limits: Limits, time_s: float) -> int:
    """Move the clock to the next event, or return a reason to stop.

    Args:
        clock: [1] of a record with `CLOCK_FIELDS` and ``standing``, the events in a row at one
            instant; changed in place.
        limits: of the segment.
        time_s: instant of the next event, infinity if there is none. One that is overdue, e.g.
            after a pause or by rounding, happens now.

    Returns:
        `GOES_ON`; `DONE` at the limit of time, where the clock then stands; `GONE` without an
        event; `STUCK` after too many events at one instant, which mean that nothing costs time.
    """
    time_s = max(time_s, clock[0].now_s)
    if time_s > limits.time_s:
        clock[0].now_s = limits.time_s
        return DONE
    if time_s == np.inf:
        return GONE
    clock[0].standing = clock[0].standing + 1 if time_s == clock[0].now_s else 0
    if clock[0].standing > limits.standing:
        return STUCK
    clock[0].now_s = time_s
    return GOES_ON


class Handing(NamedTuple):
    """A protocol's distribution of the data of a pass, for training on frames.

    Attributes:
        rounds: whether a fold takes the contributions of all workers, or of one.
        own: minibatches of a contribution if each worker has its own part of the data; None
            if one counter hands out the minibatches of all.
        a_fold: minibatches that this counter hands out for a fold.
        under_way: largest number of contributions in flight at once.
        missed: whether a fold may lack a worker's contribution without any failure.
    """

    rounds: bool
    own: int | None
    a_fold: int
    under_way: int
    missed: bool = False


Ability = Literal[
    "faults",
    "network",
    "compression",
    "notice",
    "checkpoints",
    "jobs",
    "epochs",
    "questions",
    "processes",
]
"""Optional abilities of a protocol. The first six support a part of a cluster file:
``[[faults]]``, ``[network.server]``, ``[compression]``, a fault's ``notice_s``, ``[checkpoints]``,
``[[jobs]]``. With ``epochs`` each worker counts its own minibatches (`HasEpochs`), with
``questions`` the simulation needs answers on the way (`asked`, `answer`). With ``processes`` real
processes do the same, except for the settings of `simulated_only`; a subclass that lets other
workers wait for each other leaves it out."""


class HasEpochs(Protocol):
    """What a protocol with ``epochs`` has besides the methods of `TimingProtocol`."""

    def epoch_folds(self, cluster: Cluster, workers: int) -> int:
        """Number of folds in one epoch of a cluster's data; 0 if that has no epochs."""
        ...

    def begin_epoch(self, state: Any, minibatches: int) -> None:
        """Begin an epoch.

        Args:
            state: between two folds; changed in place.
            minibatches: of each worker until the next epoch begins.
        """
        ...


class TimingProtocol(ABC):
    """Base class of protocols for `Simulation`; a run file can name any subclass.

    A class declares optional abilities in ``can``, and overrides their methods. `Simulation`
    rejects a cluster that needs an undeclared ability, and names it.
    """

    name: ClassVar[str]
    """Name in options, run files and messages; by default the class's name, which also works."""
    can: ClassVar[frozenset[Ability]] = frozenset()
    """Optional abilities; see `Ability`."""
    way: ClassVar[Way] = "link"
    """Route of its messages; see `Way`."""
    unit: ClassVar[str] = "minibatches"
    """Name of contributions in titles; with another name ``[workload]`` describes none of them."""

    def __init_subclass__(cls) -> None:
        """Check the declared abilities, and set the default name.

        Raises:
            UserError: ``can`` contains an unknown ability.
        """
        super().__init_subclass__()
        # A misspelt ability would otherwise only show when a cluster file needs it.
        if not hasattr(cls, "name"):
            cls.name = cls.__name__
        for ability in cls.can - set(get_args(Ability)):
            raise name_error(f"{cls.__name__}.can", ability, get_args(Ability))

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Its settings as plain data, for the identity of runs: equal settings, equal data."""

    @abstractmethod
    def start(self, cluster: Cluster, workers: int) -> Any:
        """The initial state: all workers idle at time 0, version 0.

        Args:
            cluster: the machine.
            workers: number of workers.

        Raises:
            UserError: it cannot be simulated on the cluster, or with so many workers.
        """

    @abstractmethod
    def wake(self, state: Any) -> None:
        """Let idle workers read next; called at the beginning of a segment."""

    @abstractmethod
    def advance(
        self, state: Any, costs: Costs, limits: Limits, room: int, spans: bool
    ) -> tuple[int, Timeline]:
        """Advance the state, in place.

        Args:
            state: from `start`.
            costs: seconds of copies, computing and folds, drawn by worker and step.
            limits: limits of the segment.
            room: largest number of folds to record.
            spans: whether to record busy times.

        Returns:
            The reason for stopping (`DONE`, `FULL`, `STUCK`, `GONE`, `DYING`, or `ASKS` with
            ``questions``), and the timeline.
        """

    @abstractmethod
    def in_flight(self, state: Any) -> Contributions:
        """Contributions read and not yet folded, by first step."""

    def promised(self, state: Any) -> int:
        """Number of folds once all contributions in flight are folded.

        By default every minibatch that was handed out is a fold.
        """
        return int(state.clock[0]["dispatched"])

    @property
    def trains_minibatches(self) -> bool:
        """Whether its contributions are minibatches of the cluster's ``[workload]``."""
        return self.unit == "minibatches"

    def measure(self, timeline: Timeline, workers: int) -> dict[str, float]:
        """Figures of its own by title, which `lagbench simulate` prints below its table.

        Args:
            timeline: with spans.
            workers: number of workers.
        """
        del timeline, workers
        return {}

    def restorable(self, state: Any) -> int:
        """Version to which a restart now would revert, or a later one."""
        return int(state.clock[0]["version"])

    def asked(self, state: Any) -> Any:
        """Open questions of a protocol with ``questions``; a segment ends before it needs answers.

        Returns:
            Arrays in a class of the protocol's own, empty without open questions.

        Raises:
            ValueError: the protocol has no questions.
        """
        raise ValueError(f"protocol {self.name!r} does not declare 'questions'")

    def answer(self, state: Any, who: Any, values: Any) -> None:
        """Answer open questions, so that the simulation can continue.

        Args:
            state: changed in place.
            who: [U] workers with a question.
            values: [U] an answer for each.

        Raises:
            ValueError: the protocol has no questions, or no such question.
        """
        raise ValueError(f"protocol {self.name!r} does not declare 'questions'")

    def handing(self, workers: int) -> Handing | None:
        """Its distribution of data; None if it does not support training on frames."""
        del workers
        return None

    def simulated_only(self) -> tuple[str, str] | None:
        """A setting that ``processes`` do not have: (key, what is wrong, what allowed)."""
        return None


def epoch_folds(protocol: TimingProtocol, cluster: Cluster, workers: int) -> int:
    """Number of folds in one epoch of a cluster's data; 0 without epochs."""
    has_epochs = "epochs" in protocol.can
    return cast(HasEpochs, protocol).epoch_folds(cluster, workers) if has_epochs else 0

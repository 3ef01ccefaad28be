"""What a protocol is: who waits for whom, as state and one function that moves it.

A protocol is a frozen settings class in a file of its own, and a line under ``[protocols]`` of
``harness/registry.toml``, or an entry point ``lagbench.protocols`` of another package. The
``Attributes`` of its docstring say what each setting means: options of `lagbench simulate` and the
page of keys are made of them. Its state is a named tuple of numpy arrays and nested ones, so it
can be handed to a compiled kernel, saved, and restored. Every state has a ``clock``: an array of
one record with at least `CLOCK_FIELDS`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar, Literal, NamedTuple, get_args

import numpy as np

from harness.base.errors import name_error
from harness.simulator.cluster import Cluster
from harness.simulator.costs import Costs
from harness.simulator.timeline import Contributions, Timeline

__all__ = [
    "ASKS",
    "CLOCK_FIELDS",
    "DONE",
    "DYING",
    "FULL",
    "GONE",
    "LOST_ROUNDS",
    "STUCK",
    "Ability",
    "Handing",
    "Limits",
    "TimingProtocol",
    "UnitCosts",
    "Way",
]

CLOCK_FIELDS = (
    *(("now_s", np.float64), ("version", np.int64)),
    *(("dispatched", np.int64), ("busy", np.int64)),
)
"""What every protocol's clock has: the time, folds so far, minibatches handed out so far, and
workers that are not idle."""

DONE, FULL, STUCK, GONE, ASKS, DYING = range(6)
"""Why `advance` returned: a limit is reached, the room is used up, time does not move on, no
worker is left, the next event needs to be told something, no round is ever folded."""

LOST_ROUNDS = 1000
"""Rounds in a row, lost to failures, that mean none will ever be folded.

Where one round in fifty is folded, so many in a row are lost once in 10^9 folds: a cluster that
trains at all, however slowly, is never taken for one that does not."""


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

    @property
    def is_endless(self) -> bool:
        """Whether no instant ends the segment, so that it goes on until enough is folded."""
        return self.time_s == self.dispatch_s == math.inf


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


class UnitCosts(NamedTuple):
    """Processor seconds and bytes that simulating a protocol takes, as measured on one core.

    Attributes:
        worker_s, worker_bytes: of a worker, until it has read for the first time.
        contribution_s: of a contribution.
        rounds: whether workers fold together.
        present_s: of a worker in a fold, whether it contributes or not.
        messages_s, messages_bytes: of all messages of a fold, and of their table.
    """

    worker_s: float = 2e-6
    worker_bytes: float = 450.0
    contribution_s: float = 1e-6
    rounds: bool = False
    present_s: float = 0.0
    messages_s: float = 0.0
    messages_bytes: float = 0.0


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
"""What only some protocols can do. The first six are simulated with that part of a cluster file:
``[[faults]]``, ``[network.server]``, ``[compression]``, a fault's ``notice_s``, ``[checkpoints]``,
``[[jobs]]``. With ``epochs`` each worker counts its own minibatches (`epoch_folds`,
`begin_epoch`), with ``questions`` the protocol asks while it is simulated (`asked`, `answer`).
With ``processes`` real processes do the same, but for the settings of `simulated_only`; a class
that inherits it and lets other workers wait for each other leaves it out."""

Way = Literal["link", "network", "workers"]
"""Where messages go: to the server over ``[link]``, or over ``[network]`` if that has a table
``server``; to the server over any ``[network]``; to other workers over any ``[network]``."""


class TimingProtocol(ABC):
    """The interface `Simulation` drives; whatever derives from it can be named in a run file.

    A class that can do more than the least declares it in ``can``, and has the methods that belong
    to it. What a user asks for beyond that is refused, with the name of the missing ability.
    """

    name: ClassVar[str]
    """In options, run files and messages; the class's own name goes, too, and is the default."""
    can: ClassVar[frozenset[Ability]] = frozenset()
    """What it is simulated with; see `Ability`."""
    way: ClassVar[Way] = "link"
    """Where its messages go; see `Way`."""

    def __init_subclass__(cls) -> None:
        """Refuse an ability that does not exist, as the one that was meant would be missing.

        Raises:
            UserError: ``can`` has one.
        """
        super().__init_subclass__()
        if not hasattr(cls, "name"):
            cls.name = cls.__name__
        for ability in cls.can - set(get_args(Ability)):
            raise name_error(f"{cls.__name__}.can", ability, get_args(Ability))

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
            Why it stopped (`DONE`, `FULL`, `STUCK`, `GONE`, `DYING`, or `ASKS` with
            ``questions``), and what happened.
        """

    @abstractmethod
    def in_flight(self, state: Any) -> Contributions:
        """What has been read and not yet folded."""

    def promised(self, state: Any) -> int:
        """The number of folds once everything that is under way has been folded.

        By default every minibatch that was handed out is a fold.
        """
        return int(state.clock[0]["dispatched"])

    def restorable(self, state: Any) -> int:
        """The version that a server which failed now would go back to, or a later one."""
        return int(state.clock[0]["version"])

    def asked(self, state: Any) -> Any:
        """Open questions of a protocol with ``questions``: a segment ends before it needs them.

        Returns:
            Arrays in a class of the protocol's own, empty where nothing is asked.

        Raises:
            ValueError: the protocol asks nothing.
        """
        raise ValueError(f"protocol {self.name!r} does not declare 'questions'")

    def answer(self, state: Any, who: Any, values: Any) -> None:
        """Answer open questions, so that the simulation can go on.

        Args:
            state: moved in place.
            who: [U] the workers that ask.
            values: [U] an answer for each.

        Raises:
            ValueError: the protocol asks nothing, or not this.
        """
        raise ValueError(f"protocol {self.name!r} does not declare 'questions'")

    def epoch_folds(self, cluster: Cluster, workers: int) -> int:
        """Folds in one epoch of a cluster's data with ``epochs``; 0 where there are none."""
        del cluster, workers
        return 0

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

    def with_shards(self, shards: int) -> TimingProtocol:
        """The same for a server in so many shards, where it has a server that can be cut."""
        del shards
        return self

    def without_effect(self, cluster: Cluster, workers: int) -> Iterator[tuple[str, str]]:
        """Dotted keys of the cluster file that cannot move its timelines, and why.

        Only what its own settings decide: what follows from ``way`` is known.
        """
        del cluster, workers
        return iter(())

    def effort(self, cluster: Cluster, workers: int) -> UnitCosts:
        """What its simulation takes; by default that of a parameter server."""
        del cluster, workers
        return UnitCosts()

    def is_enough(self, workers: int) -> bool:
        """Whether it can be simulated with so few workers."""
        del workers
        return True

    def simulated_only(self) -> tuple[str, str] | None:
        """A setting that ``processes`` do not have: (key, what is wrong, what allowed)."""
        return None

    def untrained(self) -> tuple[str, str] | None:
        """A setting that can be timed but not trained with: (key, what is wrong, what allowed)."""
        return None

"""The contract of an application: a configuration, and the object that reads, times and replays it.

A configuration (`TaskConfig`) defines a run: an `Experiment` of a task that trains by folds, or
one of a training with a loop of its own. An `Application` reads configurations from run files and
stored runs, times and replays them; of a task that trains by folds it is made from the task's
class, which the registry names. The core imports no application.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeVar, cast

import numpy as np

from harness.base.errors import UserError
from harness.base.files import cluster_file
from harness.base.settings import build
from harness.simulator import Cluster, Timeline, Workload, load_cluster
from harness.simulator.full_run import Whole
from harness.simulator.protocols.contract import TimingProtocol
from harness.simulator.timeline import Lag, inner_lag
from harness.store import Run, Store

Table = dict[str, Any]

OPTIMIZED = "optimized"
"""Key of a stored configuration, but no field: that the server has the optimizer."""

EXECUTED = "executed"
"""Key of a stored configuration for runs not executed on a simulated cluster, and how instead."""

TASK, IMPORT = "task", "import"
"""Keys of a run file common to all applications: the task's table, and modules to import."""

SHARED = frozenset(
    {
        *("cluster", "workers", "seed", "passes", "evaluations", "shards", "shuffling", "stages"),
        *("algorithm", "schedule", "protocol", "chunk", "tested", "tested_models"),
    }
)
"""Keys of a run file that stand at its top; those that a task alone has are in ``[task]``."""


@dataclass(frozen=True)
class Progress:
    """Progress of a run.

    Attributes:
        run: hash of the run.
        done: passes so far.
        passes: largest number of passes.
        measured: name and last value of the judged metric, formatted for the user; empty for a
            run that trains nothing.
        unit: the word for a pass, where a run counts something else, such as updates.
    """

    run: str
    done: float
    passes: float
    measured: str = ""
    unit: str = "passes"


Watch = Callable[[Progress], None]


def ignore(progress: object) -> None:
    """Watch nothing."""
    del progress


Say = Callable[[str], None]
"""Prints one line to the user."""

Reads = Mapping[str, Callable[[Timeline], Lag]]
"""Kinds of parameter reads by name, each with the function from a timeline to their lags."""


class Configuration(Protocol):
    """A computation that a store keeps: an experiment, or what executes itself.

    What is no experiment has ``execute(store, watch)``, which gives its run.
    """

    @property
    def effort(self) -> float:
        """Amount of work, to order the runs of a grid; 0 for a run of seconds."""
        return 0.0

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values: what the run's identity hashes."""
        ...


class TaskConfig(ABC):
    """Configuration of one training run: task, cluster and training settings."""

    cluster: Cluster
    seed: int
    device: str
    passes: int

    @property
    @abstractmethod
    def kind(self) -> str:
        """Name of its task in run files."""

    @property
    def effort(self) -> float:
        """See `Configuration`: passes, times the weights that are trained if these differ."""
        return float(self.passes)

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, canonical: what the run's identity hashes."""

    @property
    def count(self) -> int:
        """Number of workers that train: by default the field ``workers``."""
        return cast(Any, self).workers

    def with_cluster(self, cluster: Cluster | None = None, count: int | None = None) -> Self:
        """A copy with another cluster or number of workers; None keeps the present one."""
        config: Any = self
        return replace(config, cluster=cluster or self.cluster, workers=count or self.count)

    @property
    @abstractmethod
    def timed(self) -> TimingProtocol:
        """The protocol that the simulator runs for this configuration."""

    @abstractmethod
    def workload(self, number: int = 0) -> Workload:
        """The workload of one minibatch in stage ``number``: operations and bytes sent."""

    @property
    @abstractmethod
    def judged(self) -> str:
        """Name of the metric that settings are compared by, without a candidate."""

    @property
    def example_weight(self) -> float:
        """Change of the judged metric by one development example; 0 if there is no fixed one."""
        return 0.0

    @property
    def is_share(self) -> bool:
        """Whether the judged metric is a share, from 0 to 1."""
        return True

    def show(self, error: float) -> str:
        """Format an error of the judged metric for the user."""
        return f"{error:.2%}"

    @property
    def metric(self) -> str:
        """The name of the judged metric, for people to read."""
        return self.judged.removeprefix("dev_").replace("_", " ")

    def reads(self) -> Reads:
        """The kinds of reads that staleness is measured of; ``inner`` are the trainer's."""
        return {"inner": inner_lag}


Config = TypeVar("Config", bound=TaskConfig)


class Application(ABC, Generic[Config]):
    """Reads, trains, times and replays the runs of one task.

    Attributes:
        config: class of its configurations. One that is no experiment is executed by the
            application's ``execute(config, store, watch)``.
        worker: the word for a worker, in messages.
        tables: further classes whose fields are keys of its run files.
        follows: fields that are derived from the rest of a run file, and rejected in it.
    """

    config: type[Config]
    worker: str = "worker"
    tables: Sequence[type[Any]] = ()
    follows: Sequence[str] = ()

    @property
    def stored_name(self) -> str:
        """Name of its configurations in the store."""
        return self.config.__name__

    @property
    def keys(self) -> frozenset[str]:
        """Every key of its run files."""
        tables = (cast(Any, self.config), *self.tables)

        names = {entry.name for table in tables for entry in fields(table)}
        return frozenset(names.difference(self.follows))

    @abstractmethod
    def read(self, asked: RunRequest) -> Config:
        """Build the configuration of a run file.

        Raises:
            UserError: a mistake in the file or in its data.
        """

    def restore(
        self, run: Run, table: Table, where: str, named: TaskConfig | None = None
    ) -> Config:
        """Build the configuration of a stored run, which names no code.

        Args:
            run: the run.
            table: its stored configuration, without `EXECUTED` and `OPTIMIZED`.
            where: the file it is from, for messages.
            named: configuration of the run file that the user names for the run's code.

        Raises:
            UserError: it is no configuration of this application, or needs such a run file.
        """
        return build(cast(Any, self.config), table, where)

    def replay(self, config: Config, recorded: Run, store: Store, watch: Watch) -> Run:
        """Execute a recorded run again on one device, in its recorded order.

        Raises:
            UserError: by default: a timeline does not determine runs of this task.
        """
        raise UserError(f"{recorded.dir}: a run of {config.kind} has no record to replay")

    @abstractmethod
    def pieces(self, config: Config, say: Say) -> Any:
        """The part of the training data that timing depends on: start and length of each piece.

        Raises:
            UserError: the data are missing, or differ from those the run was configured with.
        """

    @abstractmethod
    def time(self, config: Config, pieces: Any, share: float, most: int) -> Whole:
        """Time a whole run on the simulated cluster, without training it.

        Args:
            config: configuration of the run.
            pieces: its training data, see `pieces`.
            share: the share of the data that enters minibatches.
            most: largest number of folds that are simulated.

        Raises:
            UserError: too many workers for the data, or a run that cannot be predicted.
        """

    def time_again(self, config: Config, pieces: Any, run: Run, timeline: Timeline) -> Timeline:
        """Simulate the timeline of a recorded run, over the same data.

        Args:
            config: configuration of the run, on the cluster to simulate.
            pieces: its training data, see `pieces`.
            run: the recorded run.
            timeline: its recorded timeline.

        Raises:
            UserError: by default: runs of this task are simulated only.
        """
        raise UserError(f"{run.dir}: a run of {config.kind} has no record to compare with")

    def sampled(self, config: Config) -> tuple[Config, int]:
        """A copy with one worker and no faults, and the number of its folds to time."""
        return config, WITHOUT_LIMIT

    def share(self, config: Config, finished: Run | None, asked: float | None) -> float:
        """The share of the data that enters minibatches; 1 unless decoders leave some out.

        Args:
            config: configuration of the run.
            finished: a finished run of the same settings, or None.
            asked: the share from the command line, or None.

        Raises:
            UserError: ``asked`` is given, and the application leaves no data out.
        """
        if asked is not None:
            raise UserError(f"--kept {asked}: for sequence training; this run is none")
        return 1.0

    @abstractmethod
    def describe(self, config: Config, share: float) -> Iterator[tuple[str, str]]:
        """Lines of a prediction about the timed workload: label and value."""


WITHOUT_LIMIT = 10**9


def key_in_file(key: str) -> str:
    """The dotted name of a configuration's key in a run file."""
    return key if key in SHARED else f"{TASK}.{key}"


@contextmanager
def name_keys(place: str) -> Generator[None]:
    """Prefix an error that begins with a key by the place of the key, unless it has one.

    Raises:
        UserError: the error of the block, prefixed.
    """
    try:
        yield
    except UserError as error:
        # What a key names may have been read from another place, and its error then says so.
        file, message = place.partition(": ")[0], str(error)
        raise UserError(message if message.startswith(file) else place + message) from error


@dataclass(frozen=True)
class RunRequest:
    """A run file, parsed, with the options of the command that reads it.

    Args:
        path: the file.
        table: its keys, with those of ``[task]`` merged in.
        device: device that executes the run.
        say: receives progress while data are made.
    """

    path: Path
    table: Table
    device: str
    say: Say

    @property
    def task(self) -> str:
        """What precedes the keys of ``[task]`` in messages."""
        return f"{self.path}: {TASK}."

    def refuse(self, names: Sequence[str]) -> None:
        """Reject keys that are derived from the rest of the file.

        Raises:
            UserError: ``names`` is not empty.
        """
        if names:
            raise UserError(f"{self.path}: {names[0]}: not allowed; it follows from the rest")

    def word(self, key: str) -> str:
        """The value of a key, a string.

        Raises:
            UserError: it is missing or something else.
        """
        value = self.table.get(key)
        if not isinstance(value, str):
            state = "missing" if value is None else f"{value!r} is not a string"
            raise UserError(f"{self.path}: {key_in_file(key)}: {state}; needed: a string")
        return value

    def whole(self, key: str) -> int:
        """The value of a key, a whole number from 0.

        Raises:
            UserError: it is something else.
        """
        value = self.table[key]
        if type(value) is not int or value < 0:  # an int itself: True is one of a subclass
            allowed = f"{value!r} is not allowed; allowed: a whole number from 0"
            raise UserError(f"{self.path}: {key_in_file(key)}: {allowed}")
        return value

    def cluster(self) -> Cluster:
        """Load the cluster that the file names; its path is relative to the run file.

        Raises:
            UserError: an unknown name, or a mistake in the cluster file.
        """
        with name_keys(f"{self.path}: "):
            path = cluster_file(self.word("cluster"), self.path.parent)
        return load_cluster(path)  # outside: its mistakes are of another file, and name it


class EvaluationResult(NamedTuple):
    """Measurements of a model on the test sets.

    Attributes:
        measured: values by the name that they are logged under.
        word_errors: for each test set the word errors ``[utterances]`` and the numbers of words
            spoken ``[utterances]``; empty without recognition.
    """

    measured: Mapping[str, float]
    word_errors: Mapping[str, tuple[np.ndarray, np.ndarray]] = {}

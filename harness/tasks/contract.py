"""The contract of an application: what is trained, on which data, and how it is measured.

An application has three parts. Its configuration (`TaskConfig`) says what a run is and holds no
tensor. The `Task` is the same opened: network, data and measures, for training by folds. The
`Application` is one object, found by name in the registry, that reads configurations from run
files and stored runs, loads their data, and trains, times and replays them. The core imports no
application.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, Self, TypeVar, cast

import numpy as np
from torch import Tensor

from harness.base.errors import UserError, name_error
from harness.base.files import cluster_file
from harness.base.registry import entries, load
from harness.base.settings import KIND, build
from harness.networks.contract import Network
from harness.simulator import Cluster, Timeline, Workload, load_cluster
from harness.simulator.protocols.contract import TimingProtocol
from harness.simulator.timeline import Lag
from harness.simulator.whole import Whole
from harness.store import Run, Store
from harness.tasks.order import Minibatches

Table = dict[str, Any]

EXECUTED = "executed"
"""Key of a stored configuration that says the run was not executed on a simulated cluster."""

TASK, IMPORT = "task", "import"
"""Keys of a run file that are no application's: what is trained, and modules to import."""

DEFAULT = "frames"
"""The task of a run file that names none."""


@dataclass(frozen=True)
class Progress:
    """Where a run is.

    Attributes:
        run: its name.
        done: passes so far.
        passes: at most.
        measured: the last value of the judged metric, with the metric's name, for people to read;
            empty for a run that trains nothing.
    """

    run: str
    done: float
    passes: float
    measured: str = ""


Watch = Callable[[Progress], None]

Say = Callable[[str], None]
"""Receives a line for people to read."""

Reads = Mapping[str, Callable[[Timeline], Lag]]
"""The reads of a run by name, each as a function that takes its lags from a timeline."""


class Configuration(Protocol):
    """A computation that a grid executes and a store keeps."""

    @property
    def effort(self) -> float:
        """How much there is to do, beside others of a grid; 0 for what takes seconds."""
        return 0.0

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values: what the run's identity hashes."""
        ...

    def execute(self, store: Store, watch: Watch) -> Run:
        """The finished run: the stored one, or made now, or gone on with.

        Args:
            store: where it is kept.
            watch: receives progress.

        Raises:
            UserError: the run met bad input.
        """
        ...


class TaskConfig(ABC):
    """One training as it is configured: what is trained, on which cluster, by which rules."""

    task: ClassVar[str]
    """The name of its application in the registry."""
    charge: ClassVar[str]
    """What time is charged for in place of the cluster file's ``[workload]``, in words."""
    cluster: Cluster
    seed: int
    device: str
    passes: int

    @property
    def application(self) -> Application[Any, Any]:
        """The application that trains it."""
        return load("tasks", self.task)

    @property
    def effort(self) -> float:
        """See `Configuration`: passes, times the weights that are trained if these differ."""
        return float(self.passes)

    def execute(self, store: Store, watch: Watch) -> Run:
        """See `Configuration`."""
        return self.application.execute(self, store, watch)

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, canonical: what the run's identity hashes."""

    @property
    @abstractmethod
    def count(self) -> int:
        """How many workers train."""

    @abstractmethod
    def with_cluster(self, cluster: Cluster | None = None, count: int | None = None) -> Self:
        """The same on another cluster, or with another number of workers; None keeps its own."""

    @property
    @abstractmethod
    def timed(self) -> TimingProtocol:
        """The protocol in which the simulator times it."""

    @abstractmethod
    def workload(self, number: int = 0) -> Workload:
        """What the cluster is charged for a minibatch in a stage."""

    @property
    @abstractmethod
    def judged(self) -> str:
        """The metric, without a candidate's name, that settings are judged by: less is better."""

    def show(self, error: float) -> str:
        """An error of the judged metric, for people to read."""
        return f"{error:.2%}"

    @property
    def metric(self) -> str:
        """The name of the judged metric, for people to read."""
        return self.judged.removeprefix("dev_").replace("_", " ")

    @abstractmethod
    def reads(self) -> Reads:
        """The reads whose staleness is measured; ``inner`` is the trainer's."""

    @abstractmethod
    def idle(self) -> Iterator[tuple[str, str]]:
        """Keys of the run file without effect on this run, each with the reason."""


class Serving(NamedTuple):
    """What rank 0 trains a run with.

    Attributes:
        asked: the command line of `harness.train`.
        watch: receives progress.
        how: what sets the record apart from a simulated run, as part of its identity.
        begin: announces the run, and makes its executor by a function, whose ``close`` sends the
            others home at the end; not called where the store has the run.
    """

    asked: Any
    watch: Watch
    how: Mapping[str, object]
    begin: Callable[[Callable[[], Any]], Any]


class Roles(NamedTuple):
    """What the real processes of an application do once all of them have read the same run.

    Attributes:
        check: refuses what they cannot do, of a configuration, the command line and the number of
            processes.
        serve: rank 0: of a configuration and its data, the finished run.
        take_part: another rank, of a configuration, its data, the rank, the command line and
            whether it comes late; the exit code. A `ServerGone` passes through.
        name: of a configuration and a rank, the process in words.
    """

    check: Callable[[Any, Any, int], None]
    serve: Callable[[Any, Any, Serving], Run]
    take_part: Callable[[Any, Any, int, Any, bool], int]
    name: Callable[[Any, int], str]


Config = TypeVar("Config", bound=TaskConfig)
Data = TypeVar("Data")


class Application(ABC, Generic[Config, Data]):
    """How the runs of one task are read, trained, timed and replayed.

    Attributes:
        config: the class of its configurations.
        worker: one of those that train, in words.
        workers: the key of a run file that says how many there are.
        usual: keys that a run file may leave out, besides those with a default.
        tables: further classes whose fields are keys of its run files.
        follows: fields that follow from the rest of a run file, and are refused there.
    """

    config: type[Config]
    worker: str = "worker"
    workers: str = "workers"
    usual: Mapping[str, Any] = {}
    tables: Sequence[type[Any]] = ()
    follows: Sequence[str] = ()

    @property
    def own_keys(self) -> frozenset[str]:
        """Keys of its run files that are no fields of a configuration."""
        return frozenset(entry.name for table in self.tables for entry in fields(table))

    @property
    def keys(self) -> frozenset[str]:
        """Every key of its run files."""
        named = {entry.name for entry in fields(cast(Any, self.config))}
        return (self.own_keys | named).difference(self.follows)

    @abstractmethod
    def read(self, asked: RunRequest) -> tuple[Config, Data]:
        """The configuration that a run file asks for, and its data.

        Raises:
            UserError: a mistake in the file or in its data.
        """

    @abstractmethod
    def load(self, config: Config, say: Say) -> Data:
        """The data that a configuration names.

        Raises:
            UserError: they cannot be had, or are not those that the run was configured with.
        """

    def restore(self, run: Run, table: Table, where: str) -> Config:
        """The configuration of a stored run.

        Args:
            run: the run.
            table: its configuration, without what says how it was executed.
            where: the file it is from, for messages.

        Raises:
            UserError: it is none of this application's.
        """
        del run
        return build(cast(Any, self.config), table, where)

    @abstractmethod
    def execute(self, config: Config, store: Store, watch: Watch) -> Run:
        """See `Configuration`."""

    @abstractmethod
    def replay(self, config: Config, data: Data, run: Run, store: Store, watch: Watch) -> Run:
        """A recorded run, executed again on one device in its recorded order."""

    @abstractmethod
    def pieces(self, config: Config, data: Data) -> Any:
        """The training data as far as timing needs them: which pieces there are."""

    @abstractmethod
    def time(self, config: Config, pieces: Any, share: float, most: int) -> Whole:
        """A run from its beginning to its end in simulated time, without training it.

        Args:
            config: of the run.
            pieces: its training data, see `pieces`.
            share: the share of the data that enters minibatches.
            most: folds that are simulated.

        Raises:
            UserError: too many workers for the data, or a run that cannot be predicted.
        """

    @abstractmethod
    def time_again(self, config: Config, pieces: Any, run: Run, timeline: Timeline) -> Timeline:
        """A recorded run as its cluster is simulated, over the same data.

        Args:
            config: of the run, on the cluster that predicts.
            pieces: its training data.
            run: the record.
            timeline: the recorded one.
        """

    def sampled(self, config: Config) -> tuple[Config, int]:
        """The same run with one healthy worker, and how many of its folds say enough."""
        return config, WITHOUT_LIMIT

    def share(self, config: Config, finished: Run | None, asked: float | None) -> float:
        """The share of the data that enters minibatches; 1 unless decoders leave some out.

        Args:
            config: of the run.
            finished: a run of the same settings, where there is one.
            asked: the share that the user says.

        Raises:
            UserError: the application leaves nothing out and a share is asked for.
        """
        del config, finished
        if asked is not None:
            raise UserError(f"--kept {asked}: for sequence training; this run is none")
        return 1.0

    @abstractmethod
    def describe(self, config: Config, share: float) -> Iterator[tuple[str, str]]:
        """Lines of a prediction that say what is timed: label and value."""

    def roles(self) -> Roles | None:
        """What its real processes do; None for a server that folds and its workers."""
        return None


WITHOUT_LIMIT = 10**9


def application_of(table: Mapping[str, object], where: str) -> Application[Any, Any]:
    """The application of a run file, or of a stored run.

    A file names its task in ``[task]``; a stored run, and a file of before, the class of its
    configuration.

    Args:
        table: the file's.
        where: the file, for messages.

    Raises:
        UserError: no application has the name.
    """
    task = table.get(TASK)
    if isinstance(task, Mapping):
        keys = cast(Mapping[str, object], task)
        if (named := keys.get(KIND)) is None:
            return _default_application(keys, where)
        if named not in entries("tasks"):
            raise name_error(f"{where}: {TASK}.{KIND}", str(named), entries("tasks"))
        return load("tasks", str(named))
    if (named := table.get(KIND)) is None:
        return load("tasks", DEFAULT)
    applications = [load("tasks", name) for name in entries("tasks")]
    for each in applications:
        if each.config.__name__ == named:
            return each
    allowed = ", ".join(each.config.__name__ for each in applications)
    raise UserError(f"{where}: {KIND}: {named!r} is not allowed; allowed: {allowed}")


def _default_application(task: Mapping[str, object], where: str) -> Application[Any, Any]:
    """The application of a table ``[task]`` that names none.

    Raises:
        UserError: a key of it belongs to another application alone.
    """
    found = load("tasks", DEFAULT)
    for name in entries("tasks"):
        others = load("tasks", name).keys - found.keys
        if key := next((key for key in task if key in others), None):
            told = f"missing; needed: {KIND} = {name!r}, which has the key {key!r}"
            raise UserError(f"{where}: {TASK}.{KIND}: {told}")
    return found


@dataclass(frozen=True)
class Place:
    """Where the keys of a run file stand, for messages.

    Args:
        path: of the file.
        task: keys that belong into its table ``[task]``.
    """

    path: str
    task: frozenset[str] = frozenset()

    def locate(self, told: str) -> str:
        """A message that begins with a key, with the file and the key's table before it."""
        rest = told.removeprefix(f"{self.path}: ")
        key = re.match(r"[\w-]*", rest)
        table = f"{TASK}." if key is not None and key[0] in self.task else ""
        return f"{self.path}: {table}{rest}"

    @contextmanager
    def name_keys(self) -> Generator[None]:
        """Errors say where the key stands that they begin with.

        Raises:
            UserError: so.
        """
        try:
            yield
        except UserError as error:
            raise UserError(self.locate(str(error))) from error


@dataclass(frozen=True)
class RunRequest:
    """A run file as an application reads it.

    Args:
        path: the file.
        table: its keys, those of ``[task]`` among them.
        device: where the run is executed.
        say: receives progress while data are made.
        imports: modules that it imports for their algorithms and protocols.
        task: keys that belong into ``[task]``; none of a file without that table.
    """

    path: Path
    table: Table
    device: str
    say: Say
    imports: Sequence[str] = ()
    task: frozenset[str] = frozenset()

    @property
    def place(self) -> Place:
        """Where its keys stand."""
        return Place(str(self.path), self.task)

    def check_keys(self, application: Application[Any, Any]) -> None:
        """Refuse keys that follow from the rest, and those that the application does not have.

        Raises:
            UserError: there is one.
        """
        self.refuse([name for name in application.follows if name in self.table])
        for name in self.table:
            if name in self.task and name not in application.keys:
                allowed = application.own_keys or application.keys
                raise name_error(f"{self.path}: key in {TASK}", name, allowed)
            if name not in application.keys | {KIND}:
                raise name_error(f"{self.path}: key", name, self._top(application))

    def _top(self, application: Application[Any, Any]) -> frozenset[str]:
        """Keys that may stand at the top, but for those that belong into ``[task]``."""
        return application.keys - self.task | {TASK, IMPORT}

    def refuse(self, names: Sequence[str]) -> None:
        """Refuse keys that follow from the rest.

        Raises:
            UserError: there is one.
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
            shown = "missing" if value is None else f"{value!r} is not a string"
            raise UserError(f"{self.path}: {key}: {shown}; needed: a string")
        return value

    def whole(self, key: str) -> int:
        """The value of a key, a whole number from 0.

        Raises:
            UserError: it is something else.
        """
        value = self.table[key]
        if type(value) is not int or value < 0:
            told = f"{value!r} is not allowed; allowed: a whole number from 0"
            raise UserError(f"{self.path}: {key}: {told}")
        return value

    def cluster(self) -> Cluster:
        """The cluster that the file names, which may lie beside it.

        Raises:
            UserError: there is none of the name, or a mistake is in its file.
        """
        try:
            found = cluster_file(self.word("cluster"), self.path.parent)
        except UserError as error:
            if str(error).startswith(f"{self.path}: "):
                raise
            raise UserError(f"{self.path}: {error}") from error
        return load_cluster(found)


class Scores(Protocol):
    """What is measured of a model on one set."""

    @property
    def error(self) -> float:
        """What candidates are judged by; less is better."""
        ...

    @property
    def finite(self) -> bool:
        """Whether the model still computes numbers."""
        ...

    @property
    def measured(self) -> Mapping[str, float]:
        """Every measurement by its name."""
        ...


@dataclass(frozen=True)
class EvaluationResult:
    """What is measured of a model on the test sets.

    Attributes:
        measured: by the name under which it is logged.
        word_errors: for each test set the errors ``[utterances]`` and, as ``"lengths"``, the
            words that were said; none where nothing is recognised.
    """

    measured: Mapping[str, float]
    word_errors: Mapping[str, tuple[np.ndarray, np.ndarray]] = field(
        default_factory=dict[str, tuple[np.ndarray, np.ndarray]]
    )


class Task(Protocol):
    """A network, its data, and how its models are scored."""

    @property
    def network(self) -> Network:
        """What is trained."""
        ...

    @property
    def minibatches(self) -> Minibatches:
        """On what."""
        ...

    @property
    def unit(self) -> str:
        """Of the loss, in words."""
        ...

    def initial(self) -> Tensor:
        """The parameters ``[P]`` that training starts from."""
        ...

    def losses_in(self, minibatch: int) -> int:
        """How many losses are summed in a minibatch of so many rows."""
        ...

    def dev(self, model: Tensor) -> Scores:
        """Scores of ``model [P]`` on the development set."""
        ...

    def held_out_loss(self, model: Tensor) -> float:
        """Its loss on some of the development set, for schedules that ask often."""
        ...

    def tested(self, model: Tensor, name: str) -> EvaluationResult:
        """What a candidate of this name is worth on the test sets."""
        ...

"""A task: what is trained, as settings, and what it is once opened.

A `Task` is a frozen dataclass whose `open` gives a `Problem`, that is network, examples, and what
models are worth. An `OwnLoop` is a task with a loop of its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import fields, replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Protocol, Self, cast

import numpy as np
import torch
from torch import Tensor

from harness.base.errors import UserError
from harness.base.settings import build
from harness.experiment.contract import (
    TASK,
    EvaluationResult,
    RunRequest,
    Table,
    Watch,
    ignore,
)
from harness.networks.contract import Network, State
from harness.simulator.cluster import Workload
from harness.simulator.protocols.contract import TimingProtocol
from harness.simulator.protocols.parameter_server import ParameterServer
from harness.store import Run, RunWriter, Store
from harness.tasks.order import Examples, Minibatches


@contextmanager
def one_thread() -> Generator[None]:
    """Compute with one thread: the last bits of results depend on the number of threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class Pieces(Protocol):
    """Training data in pieces that stay together when workers share them, such as utterances."""

    @property
    def start(self) -> np.ndarray:
        """The first row of each piece."""
        ...

    @property
    def frames(self) -> np.ndarray:
        """Rows of each piece."""
        ...


class Judged(NamedTuple):
    """The measurement that decides between models and settings.

    Attributes:
        name: as `Problem.evaluate` names it.
        is_share: whether it is a share, from 0 to 1.
        maximise: whether more of it is better.
    """

    name: str = "loss"
    is_share: bool = False
    maximise: bool = False

    def error(self, measured: Mapping[str, float]) -> float:
        """The value of a model's measurements that less of is better."""
        return -measured[self.name] if self.maximise else measured[self.name]


class Opened:
    """An opened task: its training data, and how a process computes on them."""

    @cached_property
    def pieces(self) -> Pieces:
        """The training data, in pieces that are dealt to workers."""
        raise UserError(f"{type(self).__name__}: no pieces; needed: training data, e.g. Rows(x, y)")

    def computing(self, *, alone: bool) -> AbstractContextManager[object]:
        """Set up this process for computing: threads, rounding, random generators.

        Args:
            alone: whether no other thread uses the run's tensors.
        """
        return nullcontext()


class Problem(Opened, ABC):
    """An opened task that trains by folds: network, training data, and measurements of models.

    A subclass sets `network` and `pieces`, or computes them when they are first needed.
    """

    @cached_property
    def network(self) -> Network:
        """The network, which computes gradients of minibatches."""
        raise UserError(f"{type(self).__name__}: no network; needed: one with 'gradient'")

    @abstractmethod
    def initial(self) -> Tensor:
        """The parameters ``[P]`` that training starts from, on the run's device."""

    @abstractmethod
    def evaluate(self, model: Tensor) -> Mapping[str, float]:
        """Measurements of ``model [P]`` on development data by name; one of them is ``"loss"``."""

    @cached_property
    def examples(self) -> Examples:
        """The training data on the run's device, where they are other than `pieces`."""
        return cast(Examples, self.pieces)

    @cached_property
    def like(self) -> Tensor:
        """A tensor ``[P]`` with the type of the parameters, in host memory."""
        return self.initial().cpu()

    def losses_in(self, minibatch: int) -> int:
        """Number of losses that the network sums in a minibatch of so many rows."""
        return 1

    def evaluate_held_out(self, model: Tensor) -> float:
        """Loss of ``model [P]`` on some development data, for frequent evaluation."""
        return self.evaluate(model)["loss"]

    def test(self, model: Tensor, name: str) -> EvaluationResult:
        """Measurements of the candidate ``name``, ``model [P]``, on test data; none without."""
        return EvaluationResult({})

    def take_states(self, states: Callable[[], Mapping[int, State]]) -> None:
        """Take a function that returns the states of replicas known at the server, by worker."""
        del states

    def state(self) -> dict[str, np.ndarray]:
        """The state to store with the deployed model; empty if there is none."""
        return {}

    def minibatches(self, experiment: Any) -> Minibatches:
        """The minibatches of a run, equal for every executor."""
        return Minibatches(lambda stage: experiment.order(stage, self.pieces), self.examples)


class Task(ABC):
    """What is trained, as settings: a frozen dataclass, whose fields are part of identities."""

    kind: ClassVar[str] = ""
    """Name in run files, and in the registry; that of the class without one."""
    stored_as: ClassVar[str] = ""
    """Name in stored configurations; that of the class without one."""
    worker: ClassVar[str] = "worker"
    """The word for a worker, in messages."""
    protocol: ClassVar[type[TimingProtocol] | None] = None
    """The protocol of its run files where they name none; without it, that of the algorithm."""
    usual: ClassVar[Mapping[str, Any]] = {"protocol": {}}
    """Values of keys that its run files may omit; a protocol's class then follows."""
    follows: ClassVar[Sequence[str]] = ("device",)
    """Fields that are derived from the rest of a run file, and refused in it."""
    tables: ClassVar[Sequence[type[Any]]] = ()
    """Further classes whose fields are keys of its run files."""
    unit: ClassVar[str] = "examples"
    """The word for rows of training data, in messages."""
    drops_rest: ClassVar[bool] = False
    """Whether a pass in rounds leaves out what does not fill the last one. Then epochs are nominal
    parts of passes; otherwise they count the examples trained on."""

    @abstractmethod
    def open(self, experiment: Any, store: Store | None = None, watch: Watch = ignore) -> Any:
        """Open the task for a run; returns a `Problem`, or with `OwnLoop` any `Opened`.

        Args:
            experiment: the experiment, an `Experiment` of this task.
            store: store of other runs that it needs; None to open it for timing alone.
            watch: receives progress of these.

        Raises:
            UserError: data are missing, or differ from those of the experiment.
        """

    @abstractmethod
    def workload(self, experiment: Any, stage: int = 0) -> Workload:
        """Operations and bytes of one minibatch of a stage, for which the cluster is charged."""

    @property
    def judged(self) -> Judged:
        """The measurement that decides."""
        return Judged()

    @property
    def size(self) -> int:
        """About how many parameters are trained, to order runs by their length."""
        return 1

    def find_simulation_only(self) -> tuple[str, str] | None:
        """A setting without a counterpart on real processes: (key, mistake and allowed values)."""
        return None

    def example_weight(self, experiment: Any) -> float:
        """Change of the judged measurement by one development example; 0 without a fixed one."""
        return 0.0

    def check(self, experiment: Any) -> None:
        """Refuse settings that do not go together.

        Raises:
            UserError: they do not.
        """
        del experiment

    def timed(self, experiment: Any) -> TimingProtocol:
        """The protocol that the simulator runs, with the experiment's `shards`."""
        protocol = experiment.protocol or ParameterServer()
        if isinstance(protocol, ParameterServer):  # the others have no server that can be cut
            return replace(protocol, shards=experiment.shards)
        return protocol

    def name_keys(self) -> AbstractContextManager[None]:
        """A context in which errors name the run file, where the task knows it."""
        return nullcontext()

    def facts(self, experiment: Any) -> dict[str, Any]:
        """JSON values besides the fields, or in place of them, that are part of identities."""
        return {}

    def shares(self, workers: int, seed: int) -> Sequence[np.ndarray] | None:
        """The rows of each worker, where their data differ."""
        return None

    def describe_data(self, workers: int, seed: int) -> Mapping[str, float]:
        """Figures of the data for a run's summary, by name."""
        return {}

    @classmethod
    def read(cls, request: RunRequest, keys: Table) -> tuple[Self, Table]:
        """The task of a run file, and what it sets of the file's keys at the top.

        Args:
            request: the run file.
            keys: the keys of ``[task]``.

        Raises:
            UserError: a mistake in the file or in its data.
        """
        return build(cls, keys, str(request.path), TASK), {}

    @classmethod
    def restore(cls, run: Run, settings: Table, where: str, named: Any) -> Self:
        """The task of a stored run, which names no code.

        Args:
            run: the run.
            settings: the task's fields as stored.
            where: the file that they are from, for messages.
            named: configuration of the run file that the user names for the run's code.

        Raises:
            UserError: they are not allowed, or need such a run file.
        """
        return build(cls, settings, where)


class OwnLoop(Task):
    """A task with a training loop of its own, in place of folds of minibatches handed out."""

    @abstractmethod
    def train(self, writer: RunWriter, experiment: Any, problem: Any, watch: Watch) -> None:
        """Train to the end, and write the run.

        Args:
            writer: receives the run.
            experiment: the experiment.
            problem: its opened task.
            watch: receives progress.
        """


def split_table(kind: type[Task], table: Table) -> tuple[Table, Table]:
    """The entries of a table that are fields of a task, and those that are not."""
    names = {entry.name for entry in fields(cast(Any, kind))}
    settings = {name: value for name, value in table.items() if name in names}
    return settings, {name: value for name, value in table.items() if name not in names}

"""The configuration of training on a simulated cluster, and the boundaries of its stages.

`TrainingConfig` has the settings common to all training on a simulated cluster, for any task.

`Boundaries` cuts a stage at the folds at which training decides something. Training and prediction
cut in the same way, so that both request the same segments from the simulation.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass, replace
from math import ceil
from typing import Any, ClassVar, Generic, Literal, Protocol, Self, TypeVar, cast

import numpy as np
from torch import Tensor

from harness.algorithms.catalogue import Algorithm
from harness.algorithms.schedules import Schedule
from harness.algorithms.share_schedules import STEADY, Rates
from harness.base.errors import UserError
from harness.base.settings import setting
from harness.experiment.contract import OPTIMIZED, Reads, TaskConfig
from harness.experiment.order import (
    Consecutive,
    Examples,
    Laid,
    Minibatches,
    Order,
    Partition,
    Shuffling,
)
from harness.networks.contract import Network
from harness.simulator import (
    Cluster,
    ParameterServer,
    Simulation,
    compute_seconds,
    load_protocols,
    protocol_named,
)
from harness.simulator.protocols.contract import Handing, TimingProtocol
from harness.simulator.timeline import inner_lag

Tested = Literal["every pass", "first pass", "at the end", "never"]

Models = Literal["all", "deployed"]


@dataclass(frozen=True)
class Stage:
    """One stretch of training at one minibatch size; the last stage of a run repeats.

    Args:
        minibatch: number of frames in a minibatch.
        timed_minibatch: number of frames per minibatch whose time the cluster is charged for. A
            small corpus needs small minibatches for enough folds in a pass, while the timed
            cluster may compute larger ones.
        share: share of the training utterances that is used, in (0, 1].
    """

    minibatch: int = setting(at_least=1)
    timed_minibatch: int = setting(at_least=1)
    share: float = setting(1.0, above=0.0, at_most=1.0)


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


Data = TypeVar("Data", contravariant=True)


class HasIdentity(ABC):
    """A part of a configuration that enters identities by other values, such as digests."""

    @abstractmethod
    def to_identity(self) -> dict[str, Any]:
        """Plain JSON values."""


@dataclass(frozen=True, kw_only=True)
class TrainingConfig(TaskConfig, Generic[Data]):
    """One training on a simulated cluster; subclasses add the task.

    Args:
        algorithm: the training algorithm, which computes contributions and folds.
        schedule: the learning-rate schedule.
        stages: one stage for each pass, with the minibatch size and the share of the data; the
            last stage repeats.
        passes: largest number of passes over the training data.
        chunk: share of the training data for which a rate search chooses one learning rate, in
            (0, 1].
        evaluations: number of evaluations on the development data in each pass.
        cluster: the simulated cluster.
        workers: number of workers of the cluster that train.
        seed: seed of the initial parameters, the data order and the timing.
        device: ``"cpu"`` or ``"cuda"``; part of the identity, since results differ in their last
            bits.
        protocol: the timing protocol: `Averaging` in rounds, in which each worker has its own
            part of the data; `BackupWorkers`, which drops the slowest contributions;
            `ParameterServer` with settings; or another subclass of `TimingProtocol` that hands
            out data. Without it, a plain asynchronous server. In a file the class follows from
            the algorithm, unless it is named.
        tested: when the test sets are scored. Decoding takes long, and a search for settings on
            development data does not need it.
        tested_models: models that the test sets are scored with: all candidates (average and
            iterate), or only the one that would be deployed.
        shards: number of equal parts of the model, each with a server of its own. With more than
            one, workers wait for each other at every evaluation.
        shuffling: order of training frames: ``"full"`` permutes all frames; ``"none"`` keeps the
            order of utterances; ``"on the fly"`` takes one frame of each of several utterances,
            in slots that all workers share; ``"in blocks"`` shuffles pieces, and frames within
            each.

    Raises:
        UserError: settings that do not go together.
    """

    algorithm: Algorithm
    schedule: Schedule
    stages: tuple[Stage, ...]
    passes: int = setting(at_least=1)
    chunk: float = setting(above=0.0, at_most=1.0)
    evaluations: int = setting(at_least=1)
    cluster: Cluster
    workers: int = setting(at_least=1, at_most=1_000_000)
    seed: int = setting(at_least=0)
    device: str
    protocol: TimingProtocol | None = setting(None)
    tested: Tested = setting("every pass")
    tested_models: Models = setting("all")
    shards: int = setting(1, at_least=1, at_most=1000)
    shuffling: Shuffling = setting("full")

    unit: ClassVar[str] = "frames"
    """The word for rows of training data, in messages."""
    cut_by: ClassVar[str] = "stages"
    """The setting that cuts the data into minibatches, in messages."""
    counts_examples: ClassVar[bool] = False
    """Whether epochs count the examples trained on; otherwise nominal parts of passes."""

    @abstractmethod
    def network(self, data: Data) -> Network:
        """The network that is trained."""

    @abstractmethod
    def pieces(self, data: Data) -> Pieces:
        """The pieces of the training data."""

    @abstractmethod
    def zeros(self, data: Data) -> Tensor:
        """Zeros ``[P]`` with the shape and type of the parameters, in host memory."""

    @abstractmethod
    def examples(self, data: Data) -> Examples:
        """The training data on the run's device."""

    @abstractmethod
    def stage_name(self, fold: int) -> str:
        """The stage of the run after ``fold`` folds, in words."""

    def __post_init__(self) -> None:
        self._check_protocol()
        if self.rounds and self.schedule.searches:
            raise UserError("schedule: a search needs the parameter server")
        if not self.stages or (self.rounds and len(self.stages) != 1):
            allowed = "allowed with rounds: 1" if self.rounds else "allowed: at least one"
            raise UserError(f"stages: {len(self.stages)}; {allowed}")
        if self.rounds and self.shuffling not in ("full", "in blocks"):
            raise UserError(f"shuffling: {self.shuffling!r} is not allowed with rounds")
        kinds = {fault.kind for fault in self.cluster.faults}
        if self.rounds and (untrained := kinds & {"server", "message"}):
            told = f"{min(untrained)!r} is not supported with rounds"
            raise UserError(f"cluster.faults: {told}; allowed: faults of workers")
        coder = self.cluster.compression
        if coder is not None and coder.ratio != 1.0 and self.algorithm.sent != 1.0:
            told = f"its bytes are those that the coder of {type(self.algorithm).__name__} sends"
            raise UserError(f"cluster.compression.ratio: {coder.ratio:g}; {told}; allowed: 1")
        if self.shards > 1 and not self.algorithm.in_shards:
            name = type(self.algorithm).__name__
            raise UserError(f"shards: {self.shards} is not allowed with {name}; allowed: 1")
        if self.shards > 1 and (self.rounds or self.cluster.faults):
            found = "rounds" if self.rounds else "faults"
            raise UserError(f"shards: {self.shards} is not allowed with {found}; allowed: 1")

    def _check_protocol(self) -> None:
        """Reject a protocol that does not fit the algorithm, or can be timed but not trained.

        Raises:
            UserError: it is such a protocol.
        """
        protocol, name = self.protocol or ParameterServer(), type(self.algorithm).__name__
        handing = protocol.handing(self.workers)
        if handing is None or handing.rounds != self.rounds:
            allowed = " or ".join(self._protocols())
            if handing is None:
                told = f"{protocol.name!r} hands out no {self.unit} to train on"
                raise UserError(f"protocol: {told}; allowed: {allowed}")
            raise UserError(f"protocol: of another kind than {name}; allowed: {allowed}")
        if (trouble := self.algorithm.trouble(self.workers, handing.under_way)) is not None:
            raise UserError(f"{trouble[0]}: {trouble[1]}")
        if self.cluster.checkpoints is not None:
            told = "checkpoints: can be timed but not trained with; allowed: a file without"
            raise UserError(f"cluster {self.cluster.name!r}: {told}")
        if (untrained := protocol.untrained()) is not None:
            raise UserError(f"protocol.{untrained[0]}: {untrained[1]}")
        if not self.rounds and handing.a_fold > 1 and self.schedule.searches:
            told = f"{handing.a_fold} is not allowed with a search for rates; allowed: 1"
            raise UserError(f"protocol.push_every: {told}")

    def _protocols(self) -> Iterator[str]:
        """Names of the protocols that, with their defaults, fit the algorithm."""
        for name in load_protocols():
            with suppress(UserError):  # it has a setting without a default
                handing = protocol_named(name).handing(self.workers)
                if handing is not None and handing.rounds == self.rounds:
                    yield name

    @property
    def count(self) -> int:
        """See `TaskConfig`."""
        return self.workers

    def with_cluster(self, cluster: Cluster | None = None, count: int | None = None) -> Self:
        """See `TaskConfig`."""
        return replace(self, cluster=cluster or self.cluster, workers=count or self.workers)

    def with_algorithm(self, algorithm: Algorithm, protocol: TimingProtocol | None) -> Self:
        """A copy with another algorithm and its protocol."""
        return replace(self, algorithm=algorithm, protocol=protocol)

    def reads(self) -> Reads:
        """See `TaskConfig`."""
        return {"inner": inner_lag}

    def find_simulation_only(self) -> tuple[str, str] | None:
        """A setting without a counterpart on real processes: (key, mistake and allowed values)."""
        return None

    @property
    def rounds(self) -> bool:
        """Whether a fold takes the contributions of all workers."""
        return self.algorithm.rounds

    @property
    def timed(self) -> TimingProtocol:
        """The protocol that the simulator runs, with this configuration's `shards`."""
        return (self.protocol or ParameterServer()).with_shards(self.shards)

    @property
    def handing(self) -> Handing:
        """The protocol's rule for handing out the data of a pass."""
        found = self.timed.handing(self.workers)
        assert found is not None  # checked
        return found

    @property
    def missed_rounds(self) -> bool:
        """Whether a fold may lack the contributions of some workers."""
        return self.rounds and (bool(self.cluster.faults) or self.handing.missed)

    @property
    def counts_by_worker(self) -> bool:
        """Whether one counter hands out minibatches, and yet each worker has its own data."""
        return False

    def describe_data(self) -> Mapping[str, float]:
        """Figures of the run's data for its summary, by name."""
        return {}

    @property
    def may_be_lost(self) -> bool:
        """Whether a worker's memory may contain a contribution that is lost afterwards."""
        keeps = self.algorithm.remembers or self.has_replica_state
        return self.missed_rounds or (bool(self.cluster.faults) and keeps)

    @property
    def has_replica_state(self) -> bool:
        """Whether gradients change a worker's replica besides its parameters."""
        return False

    def stage(self, number: int) -> Stage:
        """The stage of a number, from 0."""
        return self.stages[min(number, len(self.stages) - 1)]

    def tests(self, number: int, last: bool) -> bool:
        """Whether the test sets are scored after the pass of a number, from 0."""
        due = {"every pass": True, "first pass": number == 0, "at the end": last, "never": False}
        return due[self.tested]

    def order(self, stage: int, train: Pieces) -> Laid:
        """The minibatches of a stage, for each worker.

        Raises:
            UserError: ``train``, or with averaging a worker's part of it, does not fill one fold.
        """
        return Consecutive(
            lambda number: self.lay_out(number, train), stage, self.stages_around(stage)
        )

    def waits_before(self, stage: int) -> bool:
        """Whether nothing is in flight when a stage begins; else workers go on from the last one.

        Workers are waited for where the minibatches change, where the schedule judges a pass or
        tries learning rates, and with shards.
        """
        schedule = self.schedule
        asks = schedule.judges_passes or schedule.searches or self.shards > 1
        inside = 0 < stage < self.passes
        return asks or not inside or self.stage(stage) != self.stage(stage - 1)

    def stages_around(self, stage: int) -> range:
        """The stages from the wait (`waits_before`) before ``stage``, or at it, to the next one."""
        begin, end = stage, stage + 1
        while not self.waits_before(begin):
            begin -= 1
        while not self.waits_before(end):
            end += 1
        return range(begin, end)

    def lay_out(self, stage: int, train: Pieces) -> Order | Partition:
        """The frames of a stage in order, without the last ones if they do not fill a fold.

        Raises:
            UserError: see `order`.
        """
        size, share = self.stage(stage).minibatch, self.stage(stage).share
        _, own, a_fold, *_ = self.handing
        if own is not None:
            between = (self.workers, size, own, share, self.shuffling, self.unit)
            return Partition(self.seed, stage, train.start, train.frames, *between)
        cut = (size, share, a_fold, self.shuffling)
        order = Order(self.seed, stage, train.start, train.frames, *cut)
        if not order.folds:
            several = f"{a_fold} minibatches" if a_fold > 1 else "a minibatch"
            need, there = f"{several} of {size} {self.unit}", int(train.frames.sum())
            raise UserError(f"{self.cut_by}: a fold takes {need}, which {there} do not fill")
        return order

    def rates(self, minibatches: Minibatches) -> Rates:
        """The learning rates of the run's folds and local steps.

        Args:
            minibatches: the minibatches of the run, from which the number of folds follows.
        """
        if not self.schedule.varies:
            return STEADY
        folds = sum(minibatches.order_of(stage).folds for stage in range(self.passes))
        return Rates(self.schedule, folds)

    def minibatches(self, data: Data, examples: Examples) -> Minibatches:
        """The minibatches of the run, equal for every executor.

        Args:
            data: its training data.
            examples: the same data on the run's device.
        """
        train = self.pieces(data)
        return Minibatches(lambda stage: self.order(stage, train), examples)

    def simulation(self, train: Pieces, cluster: Cluster | None = None) -> Simulation:
        """The run's simulation at time 0, at the beginning of the first stage.

        Args:
            train: the training data.
            cluster: replaces the run's own cluster; None keeps it.
        """
        machine = cluster or self.cluster
        found = Simulation(machine, self.timed, self.workload(0), self.workers, self.seed)
        self.begin_stage(found, 0, self.order(0, train))
        return found

    def begin_stage(self, simulation: Simulation, stage: int, order: Laid) -> None:
        """Begin a stage in a simulation.

        A cluster's epochs are the run's passes: the cost of an epoch is charged once a pass.

        Args:
            simulation: simulation of this run.
            stage: number of the stage, from 0.
            order: minibatches of the stage.
        """
        simulation.change(self.workload(stage))
        if self.handing.own is not None:
            simulation.begin_epoch(order.steps)

    def search_s(self, stage: int, chunk_steps: int, left: int) -> float:
        """Seconds that the search for a chunk's learning rate takes on the cluster; 0 without one.

        Each worker runs one rung of the ladder at a time: L rungs of s minibatches on W workers
        take ``ceil(L / W) * s`` minibatches' computing time.

        Args:
            stage: number of the present stage.
            chunk_steps: minibatches of a chunk.
            left: minibatches until the stage ends.
        """
        schedule = self.schedule
        if not (schedule.searches and schedule.tries(chunk_steps, left)):
            return 0.0
        steps = min(schedule.trial_steps(chunk_steps), left)
        rounds = ceil(len(schedule.ladder(schedule.rate)) / self.workers)
        return rounds * steps * compute_seconds(self.cluster, self.workload(stage))

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, canonical: what the run's identity hashes."""
        place = {OPTIMIZED: "in the server"} if self.algorithm.optimizes_in_server else {}
        return plain(self) | place


def plain(value: object) -> Any:
    """Dataclasses, mappings and sequences as JSON values; a dataclass carries its name."""
    if isinstance(value, Cluster):
        return value.to_dict()
    if isinstance(value, HasIdentity):
        return value.to_identity()
    if is_dataclass(value) and not isinstance(value, type):
        return {"is": type(value).__name__, **plain_fields(value)}
    if isinstance(value, Mapping):
        table = cast(Mapping[object, object], value)
        return {str(key): plain(item) for key, item in table.items()}
    if isinstance(value, tuple | list):
        return [plain(item) for item in cast(Sequence[object], value)]
    return value


def plain_fields(value: Any) -> dict[str, Any]:
    """The fields of a dataclass that are part of identities, as JSON values."""
    return {f.name: plain(getattr(value, f.name)) for f in fields(value)}


SEARCH = "search"
"""Kind of the cluster's pause for the search of the next chunk's learning rate."""


@dataclass(frozen=True)
class Segment:
    """The folds between two boundaries, as requested from the cluster.

    Attributes:
        begins, ends: first and last fold, counted from the beginning of the stage.
        drain: whether nothing is in flight at its end.
        handing_out: folds whose minibatches may be handed out, from ``begins``; None for those of
            the segment.
    """

    begins: int
    ends: int
    drain: bool
    handing_out: int | None

    @property
    def folds(self) -> int:
        """Number of folds in the segment."""
        return self.ends - self.begins


@dataclass(frozen=True)
class Boundaries:
    """The boundaries of one stage.

    Args:
        config: configuration of the run.
        order: minibatches of the stage.
        stage: number of the stage, from 0.
    """

    config: TrainingConfig[Any]
    order: Laid
    stage: int

    @property
    def evaluations(self) -> dict[int, float]:
        """The folds after which candidates are scored, and the share of a pass done by then."""
        return self._every(self.config.evaluations)

    @property
    def considerations(self) -> dict[int, float]:
        """The folds after which the algorithm receives the candidates' scores."""
        times = self.config.algorithm.considers
        return self._every(times) if times else {}

    @property
    def held_out_tests(self) -> dict[int, float]:
        """The folds after which the schedule receives a held-out loss."""
        times = self.config.schedule.held_out_tests
        return self._every(times) if times else {}

    @property
    def chunk_steps(self) -> int:
        """Minibatches in a chunk."""
        order = self.order
        return max(1, round(self.config.chunk * int(order.frames.sum()) / order.minibatch))

    def is_chunk(self, step: int) -> bool:
        """Whether a chunk begins after ``step`` folds, and with it a search for its rate."""
        return self.config.schedule.searches and step % self.chunk_steps == 0

    def segments(self, begun: int = 0) -> Iterator[Segment]:
        """The remaining segments of a stage after its first ``begun`` folds."""
        folds, chunk = self.order.folds, self.chunk_steps
        last = folds + self.order.ahead(self.config.handing.under_way)
        chunks = set(range(0, folds, chunk)) if self.config.schedule.searches else set[int]()
        asked = self.evaluations.keys() | self.considerations.keys() | self.held_out_tests.keys()
        ends = chunks | asked | {folds}
        for end in sorted(step for step in ends if step > begun):
            idle = next(step for step in sorted(chunks | {last}) if step > begun)
            if self.config.shards > 1:
                idle = end  # shards have one common version only when nothing is in flight
            yield Segment(begun, end, end == idle, None if end == idle else idle - begun)
            begun = end

    def _every(self, times: int) -> dict[int, float]:
        """Folds that divide a whole pass into ``times`` nearly equal parts, and the share done.

        The share is nominal: a subset of whole utterances has different numbers of frames for
        different seeds, and evaluations at the same share are compared between seeds.
        """
        parts = max(1, round(times * self.config.stage(self.stage).share))
        return {ceil(self.order.folds * (k + 1) / parts): (k + 1) / parts for k in range(parts)}

"""An experiment: a task, a cluster, and how it is trained there.

An `Experiment` is a `Task` with everything else that decides a run: cluster, protocol, algorithm,
schedule, number of workers and passes, seed. Its fields, and digests of the user's code in them,
are its run's identity.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property, lru_cache
from math import ceil
from typing import Any, Generic, Literal, Self, TypeVar, cast

from harness.algorithms.async_sgd import AsyncSgd
from harness.algorithms.averaging import GradientAveraging
from harness.algorithms.catalogue import Algorithm
from harness.algorithms.compression import Compressed
from harness.algorithms.schedules import STEADY, Halving, Rates, Schedule, Search
from harness.base import seeds
from harness.base.errors import UserError
from harness.base.settings import (
    KIND,
    build,
    check_settings_class,
    dataclasses_below,
    setting,
)
from harness.experiment.contract import (
    OPTIMIZED,
    TASK,
    Table,
)
from harness.experiment.digests import digest_of_code, from_outside
from harness.experiment.task import OwnLoop, Pieces, Task, split_table
from harness.simulator.cluster import Cluster, Workload
from harness.simulator.costs import compute_seconds
from harness.simulator.protocols.averaging import Averaging
from harness.simulator.protocols.contract import Handing, TimingProtocol
from harness.simulator.protocols.parameter_server import ParameterServer
from harness.simulator.simulation import Simulation, load_protocols, protocol_named
from harness.tasks.order import (
    Consecutive,
    ContinuousOrder,
    Laid,
    Minibatches,
    Order,
    Partition,
    Shares,
    Shuffling,
)

Tested = Literal["every pass", "first pass", "at the end", "never"]

Models = Literal["all", "deployed"]


@dataclass(frozen=True)
class Stage:
    """One stretch of training at one minibatch size; the last stage of a run repeats.

    Args:
        minibatch: number of rows in a minibatch.
        timed_minibatch: number of rows per minibatch whose time the cluster is charged for. A
            small corpus needs small minibatches for enough folds in a pass, while the timed
            cluster may compute larger ones.
        share: share of the training pieces that is used, in (0, 1].
    """

    minibatch: int = setting(at_least=1)
    timed_minibatch: int = setting(at_least=1)
    share: float = setting(1.0, above=0.0, at_most=1.0)


class HasIdentity(ABC):
    """A part of a configuration that enters identities by other values, such as digests."""

    @abstractmethod
    def to_identity(self) -> dict[str, Any]:
        """Plain JSON values."""


AnyTask = TypeVar("AnyTask", bound=Task)


@dataclass(frozen=True, kw_only=True)
class Experiment(HasIdentity, Generic[AnyTask]):
    """One training of a task on a simulated cluster.

    Args:
        task: what is trained.
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
        shuffling: order of training rows: ``"full"`` permutes all rows; ``"none"`` keeps the order
            of pieces, such as utterances; ``"on the fly"`` takes one row of each of several
            pieces, in slots that all workers share; ``"in blocks"`` shuffles pieces, and rows
            within each.

    Raises:
        UserError: settings that do not go together.
    """

    task: AnyTask
    algorithm: Algorithm
    schedule: Schedule
    stages: tuple[Stage, ...] = ()
    passes: int = setting(1, at_least=0)
    chunk: float = setting(1.0, above=0.0, at_most=1.0)
    evaluations: int = setting(10, at_least=1)
    cluster: Cluster
    workers: int = setting(at_least=1, at_most=1_000_000)
    seed: int = setting(0, at_least=0)
    device: str = setting("cpu")
    protocol: TimingProtocol | None = setting(None)
    tested: Tested = setting("every pass")
    tested_models: Models = setting("all")
    shards: int = setting(1, at_least=1, at_most=1000)
    shuffling: Shuffling = setting("full")

    def __post_init__(self) -> None:
        check_settings_class("task", self.task)
        # Identities have both kinds of fields side by side.
        settings, _ = split_table(type(self.task), {entry.name: "" for entry in fields(self)})
        for name in settings:
            raise UserError(f"task.{name}: not allowed; it is a field of every experiment")
        if from_outside(self.task):
            try:
                seeds.plain(plain_fields(self.task), TASK)
            except (TypeError, ValueError) as error:
                allowed = "numbers, text, and dataclasses, lists and tables of them"
                raise UserError(f"{error}; allowed: {allowed}") from error
        if not isinstance(self.task, OwnLoop):
            self._check_folds()
        self.task.check(self)

    def _check_folds(self) -> None:
        """Reject settings that do not go together in training by folds.

        Raises:
            UserError: there are some.
        """
        self._check_protocol()
        if not self.passes:
            raise UserError("passes: 0; allowed: at least 1")
        if not self.schedule.of_folds:
            kind = type(self.schedule).__name__
            raise UserError(f"schedule: {kind} needs a criterion; allowed with {self.kind}: others")
        if self.rounds and self.search:
            raise UserError("schedule: a search needs the parameter server")
        if not self.stages or (self.rounds and len(self.stages) != 1):
            allowed = "allowed with rounds: 1" if self.rounds else "allowed: at least one"
            raise UserError(f"stages: {len(self.stages)}; {allowed}")
        if self.rounds and self.shuffling not in ("full", "in blocks"):
            raise UserError(f"shuffling: {self.shuffling!r} is not allowed with rounds")
        kinds, name = {fault.kind for fault in self.cluster.faults}, type(self.algorithm).__name__
        if self.rounds and (untrained := kinds & {"server", "message"}):
            mistake = f"{min(untrained)!r} is not supported with rounds"
            raise UserError(f"cluster.faults: {mistake}; allowed: faults of workers")
        # What the algorithm's coder sends is compressed already: a ratio would count it twice.
        coder = self.cluster.compression
        if coder is not None and coder.ratio != 1.0 and self.algorithm.sent != 1.0:
            mistake = f"its bytes are those that the coder of {name} sends"
            raise UserError(f"cluster.compression.ratio: {coder.ratio:g}; {mistake}; allowed: 1")
        if self.shards > 1 and not self.algorithm.in_shards:
            raise UserError(f"shards: {self.shards} is not allowed with {name}; allowed: 1")
        if self.shards > 1 and (self.rounds or self.cluster.faults):
            trait = "rounds" if self.rounds else "faults"
            raise UserError(f"shards: {self.shards} is not allowed with {trait}; allowed: 1")

    def _check_protocol(self) -> None:
        """Reject a protocol that does not fit the algorithm, or can be timed but not trained.

        Raises:
            UserError: it is such a protocol.
        """
        protocol, name = self.protocol or ParameterServer(), type(self.algorithm).__name__
        handing = protocol.handing(self.workers)
        if handing is None or handing.rounds != self.rounds:
            mistake = f"of another kind than {name}"
            if handing is None:
                mistake = f"{protocol.name!r} hands out no {self.task.unit} to train on"
            raise UserError(f"protocol: {mistake}; allowed: {' or '.join(self._protocols())}")
        if (trouble := self.algorithm.trouble(self.workers, handing.under_way)) is not None:
            raise UserError(f"{trouble[0]}: {trouble[1]}")
        if isinstance(protocol, ParameterServer) and (trouble := protocol.untrained()):
            raise UserError(f"protocol.{trouble[0]}: {trouble[1]}")
        if not self.rounds and handing.a_fold > 1 and self.search:
            mistake = f"{handing.a_fold} is not allowed with a search for rates; allowed: 1"
            raise UserError(f"protocol.push_every: {mistake}")

    def _protocols(self) -> Iterator[str]:
        """Names of the protocols that, with their defaults, fit the algorithm."""
        for name in load_protocols():
            with suppress(UserError):  # it has a setting without a default
                handing = protocol_named(name).handing(self.workers)
                if handing is not None and handing.rounds == self.rounds:
                    yield name

    @property
    def kind(self) -> str:
        """Name of its task in run files."""
        return self.task.kind or type(self.task).__name__

    @property
    def judged(self) -> str:
        """Name of the metric that settings are compared by, without a candidate."""
        return f"dev_{self.task.judged.name}"

    @property
    def metric(self) -> str:
        """The name of the judged metric, for people to read."""
        return self.task.judged.name.replace("_", " ")

    @property
    def is_share(self) -> bool:
        """Whether the judged metric is a share, from 0 to 1."""
        return self.task.judged.is_share

    @property
    def example_weight(self) -> float:
        """Change of the judged metric by one development example; 0 if there is no fixed one."""
        return self.task.example_weight(self)

    def show(self, error: float) -> str:
        """Format an error of the judged metric: shares in percent, others as numbers."""
        judged = self.task.judged
        value = -error if judged.maximise else error
        return f"{value:.2%}" if judged.is_share else f"{value:.6g}"

    @property
    def effort(self) -> float:
        """See `Configuration`: passes, times the weights that are trained."""
        return float(self.passes * self.task.size)

    def workload(self, number: int = 0) -> Workload:
        """The workload of a minibatch in stage ``number``: operations and bytes sent.

        An algorithm may send fewer bytes than the parameters have.
        """
        work, sent = self.task.workload(self, number), self.algorithm.sent
        if sent == 1.0:  # itself: reads of a copy count for every workload with the value
            return work
        return replace(work, parameter_bytes=work.parameter_bytes * sent)

    def with_rate(self, rate: float) -> Self:
        """A copy with another initial learning rate."""
        return replace(self, schedule=replace(cast(Any, self.schedule), rate=rate))

    @property
    def search(self) -> Search | None:
        """The schedule, if it searches rates by trial descents; else None."""
        return self.schedule if isinstance(self.schedule, Search) else None

    @property
    def rounds(self) -> bool:
        """Whether a fold takes the contributions of all workers."""
        return self.algorithm.rounds

    @property
    def timed(self) -> TimingProtocol:
        """The protocol that the simulator runs."""
        return self.task.timed(self)

    @property
    def handing(self) -> Handing:
        """The protocol's rule for handing out the data of a pass."""
        handing = self.timed.handing(self.workers)
        assert handing is not None  # `_check_protocol` has refused such a protocol
        return handing

    @property
    def counts_by_worker(self) -> bool:
        """Whether one counter hands out minibatches, and yet each worker has its own data."""
        has_shares = self.task.shares(self.workers, self.seed) is not None
        return has_shares and self.handing.own is None

    def stage(self, number: int) -> Stage:
        """The stage of a number, from 0."""
        return self.stages[min(number, len(self.stages) - 1)]

    def order(self, stage: int, train: Pieces) -> Laid:
        """The minibatches of a stage, for each worker.

        Raises:
            UserError: ``train``, or with averaging a worker's part of it, does not fill one fold.
        """

        def rows_of(number: int) -> Order | Partition:
            with self.task.name_keys():
                return self.lay_out(number, train)

        # The stages that are trained without a wait in between: one's minibatches continue another.
        begin, end = stage, stage + 1
        while not self.waits_before(begin):
            begin -= 1
        while not self.waits_before(end):
            end += 1
        shares = self.task.shares(self.workers, self.seed)
        if shares is None and not (self.rounds and not self.task.drops_rest):
            return Consecutive(rows_of, stage, range(begin, end))
        cut = stage, self.passes, end, self.workers, self.handing.own, self.handing.a_fold
        if shares is None:
            return ContinuousOrder(rows_of, *cut)
        # Shares have unequal sizes: a worker counts the times that it has gone through its own one,
        # not the passes of the run.
        size = self.stage(stage).minibatch
        return ContinuousOrder(lambda times: Shares(self.seed, times, shares, size), *cut)

    def waits_before(self, stage: int) -> bool:
        """Whether nothing is in flight when a stage begins; else workers go on meanwhile."""
        schedule = self.schedule
        # These need one version of the whole model; other minibatches than those in flight need
        # other costs.
        asks = isinstance(schedule, Halving | Search) or self.shards > 1
        inside = 0 < stage < self.passes
        return asks or not inside or self.stage(stage) != self.stage(stage - 1)

    def lay_out(self, stage: int, train: Pieces) -> Order | Partition:
        """The rows of a stage in order, without the last ones if they do not fill a fold.

        Raises:
            UserError: see `order`.
        """
        size, share = self.stage(stage).minibatch, self.stage(stage).share
        data, handing = (self.seed, stage, train.start, train.frames), self.handing
        if handing.own is not None:
            words = self.task.unit, self.task.drops_rest
            return Partition(*data, self.workers, size, handing.own, share, self.shuffling, *words)
        order = Order(*data, size, share, handing.a_fold, self.shuffling)
        if not order.folds:
            minibatches = f"{handing.a_fold} minibatches" if handing.a_fold > 1 else "a minibatch"
            need, rows = f"{minibatches} of {size} {self.task.unit}", int(train.frames.sum())
            raise UserError(f"minibatch: a fold takes {need}, which {rows} do not fill")
        return order

    def rates(self, minibatches: Minibatches) -> Rates:
        """The learning rates of the run's folds and local steps.

        Args:
            minibatches: the minibatches of the run, from which the number of folds follows.
        """
        if not self.schedule.varies:
            return STEADY
        # Rates follow the share of all folds, of passes too that a schedule might not reach.
        folds = sum(minibatches.order_of(stage).folds for stage in range(self.passes))
        return Rates(self.schedule, folds)

    def new_simulation(self, protocol: TimingProtocol) -> Simulation:
        """A simulation of the run's cluster and workers under a protocol, at time 0."""
        return Simulation(self.cluster, protocol, self.workload(), self.workers, self.seed)

    def begin_stage(self, simulation: Simulation, stage: int, order: Laid) -> None:
        """Begin a stage in a simulation.

        Args:
            simulation: simulation of this run.
            stage: number of the stage, from 0.
            order: minibatches of the stage.
        """
        simulation.change(self.workload(stage))
        if self.handing.own is not None:
            # A cluster's epochs are the run's passes: an epoch's cost is charged once a pass.
            simulation.begin_epoch(order.steps)

    def search_s(self, stage: int, chunk_steps: int, steps_left: int) -> float:
        """Seconds that the search for a chunk's learning rate takes on the cluster; 0 without one.

        Args:
            stage: number of the present stage.
            chunk_steps: minibatches of a chunk.
            steps_left: minibatches until the stage ends.
        """
        search = self.search
        if search is None or not search.tries(chunk_steps, steps_left):
            return 0.0
        steps = min(search.trial_steps(chunk_steps), steps_left)
        # Each worker runs one rung of the ladder at a time, and nothing is sent meanwhile.
        rounds = ceil(len(search.ladder(search.rate)) / self.workers)
        return rounds * steps * compute_seconds(self.cluster, self.workload(stage))

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, canonical: what the run's identity hashes."""
        place = {OPTIMIZED: "in the server"} if self.algorithm.optimizes_in_server else {}
        return self.to_identity() | place | self._facts

    @cached_property
    def _facts(self) -> dict[str, Any]:
        """Digests of the user's code, and `Task.facts`.

        They are pickled, too, as another process may have a user's class otherwise.
        """
        parts = {"algorithm": self.algorithm, "protocol": self.protocol, "schedule": self.schedule}
        code = {
            name: digest for name, part in parts.items() if (digest := _digest_part(part, name))
        }
        if from_outside(self.task):  # its values are fields, and may not be hashable
            code[TASK] = digest_of_code(type(self.task), TASK)
        return {**({"code": code} if code else {}), **self.task.facts(self)}

    def to_identity(self) -> dict[str, Any]:
        """The fields of experiment and task side by side; no name is in both."""
        settings = {name: value for name, value in plain_fields(self).items() if name != TASK}
        name = self.task.stored_as or type(self.task).__name__
        return {"is": name, **settings, **plain_fields(self.task)}

    def vary(self, **changes: Any) -> Self:
        """A copy with other values of fields, of the experiment or of its task."""
        names = {entry.name for entry in fields(self)}
        settings = {name: changes.pop(name) for name in names & changes.keys()}
        if changes:
            settings[TASK] = replace(cast(Any, self.task), **changes)
        return replace(self, **settings)

    @classmethod
    def from_table(cls, kind: type[Task], table: Table, place: str, key: str = "") -> AnyExperiment:
        """An experiment from a table with the fields of a task beside its own.

        Args:
            kind: class of the task.
            table: the table.
            place: the file, for messages.
            key: the table's key in the file.

        Raises:
            UserError: a mistake in it.
        """
        settings, top = split_table(kind, table)
        top.pop(KIND, None)
        task = build(kind, settings, place, key)
        return build(cls, complete_protocol(top, kind, place) | {TASK: task}, place, key)


AnyExperiment = Experiment[Any]


@lru_cache(maxsize=64)
def _digest_part(part: Any, name: str) -> str | None:
    """Digest of a part in the user's code; None of one of ours."""
    return digest_of_code(part, name) if from_outside(part) else None


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


def complete_protocol(table: Table, kind: type[Task], place: str) -> Table:
    """Give a table ``protocol`` without ``is`` its class: the task's, or that of the algorithm."""
    if not isinstance(table.get("protocol"), dict) or KIND in table["protocol"]:
        return table
    settings: Table = table["protocol"]
    if kind.protocol is not None:
        return {**table, "protocol": build(kind.protocol, settings, place, "protocol")}
    algorithm = table.get("algorithm")
    choices = cast(Table, algorithm) if isinstance(algorithm, dict) else Table()
    kinds: dict[object, type[Algorithm]] = {k.__name__: k for k in dataclasses_below(Algorithm)}
    built, further = AsyncSgd(), Table()  # one that is missing or unknown is refused later
    if algorithm_kind := kinds.get(str(choices.get(KIND))):
        built = build(algorithm_kind, choices, place, "algorithm")
    usual = usual_protocol(built)
    if isinstance(getattr(built, "averaging", built), GradientAveraging):
        further["every"] = 1  # data-parallel training averages every gradient
    if isinstance(usual, Averaging):
        further["collective"] = usual.collective
    return {**table, "protocol": {KIND: type(usual).__name__, **further, **settings}}


def usual_protocol(algorithm: Algorithm, steps: int = 1) -> TimingProtocol:
    """The protocol of an algorithm with so many minibatches a contribution, if none is named."""
    if not algorithm.rounds:
        return ParameterServer(push_every=steps)
    adds_up = not isinstance(algorithm, Compressed) or algorithm.coder.adds_up
    return Averaging(steps, collective="ring" if adds_up else "gather")

"""The loop of a run, and executors on one device: of a simulated cluster, of a recorded timeline.

`Training` evaluates, goes from boundary to boundary, writes checkpoints and in the end the run.
`SimulationExecutor` simulates the cluster segment by segment, and replays each segment at once.
`TimelineExecutor` executes a recorded run again, in the recorded order.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import numpy as np
from safetensors import SafetensorError
from torch import Tensor

from harness.algorithms.contract import Server, start_server
from harness.algorithms.saved import Arrays, Saved, pack, to_array, unpack
from harness.base.errors import Damaged, UserError
from harness.base.log import LOG
from harness.base.seeds import SHORT
from harness.experiment.experiment import AnyExperiment
from harness.experiment.task import Problem
from harness.networks.contract import State, StatefulNetwork
from harness.replay.fold_replay import StaleReplay
from harness.replay.sharded_replay import ShardedReplay
from harness.simulator.simulation import Simulation
from harness.simulator.timeline import (
    IN_FLIGHT,
    LOST,
    Columns,
    Contributions,
    Spans,
    Timeline,
    concat,
)
from harness.simulator.timeline_file import save_timeline
from harness.store import RunWriter
from harness.store.files import (
    MetricRow,
    exists,
    load_arrays,
    make_folder,
    read_bytes,
    replacing,
    save_arrays,
)
from harness.store.schema import MODEL, TEST_ERRORS, TIMELINE, Outcome
from harness.tasks.order import Key, Minibatches


class Executor(Protocol):
    """The workers and the server of one run."""

    @property
    def server(self) -> Server:
        """The server's state: model, version (number of folds) and the algorithm's tensors."""
        ...

    @property
    def now_s(self) -> float:
        """Seconds on the run's clock."""
        ...

    def state(self) -> dict[str, Any]:
        """The state that a resume needs, as `pack` takes it."""
        ...

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `state` returned."""
        ...


class FoldExecutor(Executor, Protocol):
    """Executor of training by folds, whose boundaries are numbers of folds."""

    @property
    def loss(self) -> float:
        """Sum of the losses of all folded minibatches so far."""
        ...

    def advance(self, folds: int, *, handing_out: int | None, rate: float) -> Timeline:
        """Execute further folds at one learning rate.

        Args:
            folds: number of folds.
            handing_out: contributions that may be handed out, counted from the first of these
                folds; None for those of these folds alone, after which nothing is in flight.
            rate: learning rate of folds and local steps.
        """
        ...

    def pause(self, seconds: float, kind: str) -> Timeline:
        """Keep all workers idle for ``seconds`` of the run's clock, in a span named ``kind``."""
        ...

    def begin_stage(self) -> None:
        """Begin the next stage, which the minibatches have begun."""
        ...


@runtime_checkable
class StatefulExecutor(Protocol):
    """An executor whose workers send the state of their replicas with their contributions."""

    def states(self) -> Mapping[int, State]:
        """By worker, the state that came with its last folded contribution."""
        ...


CHECKPOINT_EVERY_S = 5.0

CHECKPOINT_SHARE = 0.02
"""Largest share of the time spent on checkpoints; the interval grows with the time of one."""

LAYOUT = 17
"""Version of the checkpoint's content; a checkpoint of another version is not resumed from.

The fields of a simulation's state are part of it: `tests/harness/experiment/test_layout.py`.
"""

Executing = TypeVar("Executing", bound=Executor)


class Diverged(Exception):  # noqa: N818 (an outcome of training, not an error)
    """The parameters give no finite error, or a far worse one than at the start."""


@dataclass
class Training(Saved, ABC, Generic[Executing]):
    """A run in progress.

    Args:
        writer: receives its metrics.

    Attributes:
        executor: executes the folds between boundaries.
        segments: timelines between boundaries, in order.
        test_errors: errors ``[examples]`` for each ``test/candidate/stage``, and lengths.
    """

    SAVED = ("segments", "test_errors", "executor")

    writer: RunWriter
    executor: Executing = field(init=False)
    segments: list[Timeline] = field(default_factory=list[Timeline], init=False)
    test_errors: dict[str, np.ndarray] = field(default_factory=dict[str, np.ndarray], init=False)

    # -- what a kind of training is ------------------------------------------------------

    @abstractmethod
    def step(self) -> bool:
        """Execute up to the next boundary and do its work; False if no boundary is left.

        Raises:
            Diverged: see `evaluate`.
        """

    @abstractmethod
    def evaluate(self) -> None:
        """Measure the present model.

        Raises:
            Diverged: its error is not finite, or far worse than at the start.
        """

    @property
    @abstractmethod
    def epoch(self) -> float:
        """Passes over the training set so far."""

    @abstractmethod
    def model_to_deploy(self) -> Tensor:
        """The parameters ``[P]`` that the run stores as its result."""

    @abstractmethod
    def summarise(self, status: Outcome, timeline: Timeline) -> tuple[dict[str, Any], str]:
        """The run's summary, and a note about its divergence, empty if it did not diverge.

        Args:
            status: the run's outcome.
            timeline: timeline of the whole run.
        """

    def attachments(self) -> dict[str, Arrays | bytes]:
        """Further files of the run, by name: arrays, or their content."""
        return {}

    def finish(self) -> None:
        """Do the work after the last boundary.

        Raises:
            Diverged: see `evaluate`.
        """

    # -- the way through a run -----------------------------------------------------------

    def run(self) -> None:
        """Train to the end, and write timeline, attachments, model and summary to the store."""
        status: Outcome = "done"
        self._next_save = time.monotonic() + CHECKPOINT_EVERY_S
        try:
            if not self.writer.rows():  # a resumed run has evaluated its initial model
                self.evaluate()
            while self.step():
                if time.monotonic() > self._next_save:
                    self._save()
            self.finish()
        except Diverged:  # a result, too: its rates and settings are known to fail
            status = "diverged"
        timeline = concat(self.segments)
        summary, note = self.summarise(status, timeline)
        with TemporaryDirectory() as folder:
            save_timeline(timeline, path := Path(folder) / TIMELINE)
            self.writer.attach(TIMELINE, path)
        for name, content in self.attachments().items():
            if isinstance(content, bytes):
                self.writer.attach(name, content)
            else:
                self.writer.attach_arrays(name, content)
        # The summary comes last: a run with a summary is finished.
        if self.test_errors:  # of a task that counts them by utterance
            self.writer.attach_arrays(TEST_ERRORS, self.test_errors)
        self.writer.attach_arrays(MODEL, {"model": to_array(self.model_to_deploy())})
        self.writer.finish(status, summary, note)

    def moment(self) -> Moment:
        """Folds, passes and time of the run so far."""
        return Moment(self.executor.server.version, self.epoch, self.executor.now_s)

    def log(self, name: str, value: float) -> None:
        """Log a measurement with the present fold, time and epoch."""
        moment = self.moment()
        self.writer.log(name, value, fold=moment.fold, time_s=moment.time_s, epoch=moment.passes)

    def last_measured(self) -> dict[str, float]:
        """The last value of each logged metric, by name."""
        return {row["name"]: row["value"] for row in self.writer.rows()}

    # -- resuming ------------------------------------------------------------------------

    def _save(self) -> None:
        """Write a checkpoint: timeline so far, measurements, executor and the loop's state."""
        begin_s = time.monotonic()
        timeline = concat(self.segments)
        tables = {name: Columns(rows.columns()) for name, rows in timeline.own.items()}
        # One segment, so that the next checkpoint joins only new ones.
        self.segments = [replace(timeline, own=tables)]
        arrays, state = pack(self)
        facts = {"layout": LAYOUT, "run": self.writer.hash, "rows": self.writer.rows()}
        save(self.writer.checkpoint, arrays, {**facts, "state": state})
        end_s = time.monotonic()
        self._next_save = end_s + max(CHECKPOINT_EVERY_S, (end_s - begin_s) / CHECKPOINT_SHARE)

    def resume(self) -> None:
        """Restore the last checkpoint, if there is one; called at the end of the set-up."""
        checkpoint = load(self.writer.checkpoint)
        if checkpoint is None:
            return
        arrays, facts = checkpoint
        # Begun again, not refused: the same bytes are computed, and a user need do nothing.
        if (facts.get("layout"), facts.get("run")) != (LAYOUT, self.writer.hash):
            reason = "another version's or another run's checkpoint; the run begins again"
            LOG.warning(f"{self.writer.checkpoint}: {reason}")
            return
        self.writer.restore_rows(facts["rows"])
        self.restore(unpack(arrays, facts["state"], self.executor.server.model.device))
        run, now = self.writer.hash[:SHORT], self.moment()
        LOG.info(f"run {run}: resumed at fold {now.fold}, pass {now.passes:.1f}")


NAME = "checkpoint.safetensors"

FOLDS = "segments/0/folds/time_s"
"""An array of a checkpoint with one element for each fold."""


def save(folder: Path, arrays: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> None:
    """Write arrays and JSON facts as the folder's checkpoint, replacing the last atomically."""
    make_folder(folder)
    text = json.dumps(facts)
    # One file for arrays and facts: two could belong to different checkpoints after a kill.
    metadata = {"facts": text, "sha256": _digest(arrays, text)}
    with replacing(folder / NAME) as file:
        save_arrays(file, arrays, metadata)


def load(folder: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]] | None:
    """The last checkpoint in ``folder``; None without one, or if it is damaged.

    A damaged checkpoint costs the work since the run began: the run starts again, with a warning,
    and computes the same bytes.

    Raises:
        UserError: the machine refuses to read it.
    """
    path = folder / NAME
    if not exists(path):
        return None
    try:
        arrays, metadata = load_arrays(read_bytes(path))
        if metadata["sha256"] != _digest(arrays, metadata["facts"]):
            raise ValueError("it does not match its digest")
        return arrays, json.loads(metadata["facts"])
    except (Damaged, SafetensorError, KeyError, ValueError) as error:
        LOG.warning(f"{path}: damaged ({error}); the run begins again")
        return None


def folds(folder: Path) -> int:
    """Number of folds in a checkpoint's timeline; 0 without a checkpoint."""
    checkpoint = load(folder)
    return 0 if checkpoint is None else len(checkpoint[0].get(FOLDS, ()))


def _digest(arrays: Mapping[str, np.ndarray], facts: str) -> str:
    """SHA-256 of the facts, and of names, types, shapes and content of the arrays."""
    digest = hashlib.sha256(facts.encode())
    for name in sorted(arrays):  # safetensors does not keep the order
        array = arrays[name]
        # Type and shape too: equal bytes may be another array.
        digest.update(f"\n{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(np.ascontiguousarray(array).data.cast("B") if array.size else b"")
    return digest.hexdigest()


@dataclass(frozen=True)
class Moment:
    """A moment of a run: folds and passes done, and seconds of its clock since it began."""

    fold: int
    passes: float
    time_s: float


def describe_divergence(
    stage: str, moment: Moment, rows: Sequence[MetricRow], metric: str, rate: float
) -> str:
    """Describe a divergence: stage, moment, last finite value of the criterion, learning rate.

    Args:
        stage: the stage in words.
        moment: time of the divergence.
        rows: all measurements of the run.
        metric: name of the criterion, without a candidate's.
        rate: the learning rate at that moment.

    Example:
        >>> row = {"name": "dev_loss/iterate", "value": 3.5, "fold": 40, "epoch": 0.1}
        >>> describe_divergence("AsyncSgd", Moment(1200, 0.25, 61.04), [row], "dev_loss", 0.02)
        'in AsyncSgd at fold 1,200 (pass 0.25, 61.0 s): loss 3.5 at fold 40, rate 0.02'
    """
    at = f"in {stage} at fold {moment.fold:,} (pass {moment.passes:.3g}, {moment.time_s:,.1f} s)"
    finite = [row for row in rows if math.isfinite(row["value"])]
    values = [row for row in finite if row["name"].partition("/")[0] == metric]
    latest = (
        f"{values[-1]['value']:.3g} at fold {int(values[-1]['fold']):,}"
        if values
        else "never a number"
    )
    return f"{at}: {metric.rpartition('_')[2]} {latest}, rate {rate:.3g}"


Replay = TypeVar("Replay", bound=StaleReplay | ShardedReplay)


class OnReplay(Saved, Generic[Replay]):
    """Base of executors on one device, where a replay computes and folds contributions."""

    SAVED = ("replay",)

    replay: Replay

    @property
    def server(self) -> Server:
        """See `Executor`."""
        return self.replay.server

    @property
    def loss(self) -> float:
        """See `FoldExecutor`."""
        return self.replay.loss.item()

    def states(self) -> Mapping[int, State]:
        """See `StatefulExecutor`."""
        return self.replay.states.tell()


class OnSimulation(OnReplay[Replay]):
    """Base of executors on a simulated cluster: a simulation for time, a replay for gradients."""

    SAVED = ("simulation", "replay")

    simulation: Simulation

    @property
    def now_s(self) -> float:
        """Simulated seconds."""
        return self.simulation.now_s


class SimulationExecutor(OnSimulation[StaleReplay | ShardedReplay]):
    """Executes folds on a simulated cluster; see `FoldExecutor`.

    `OnReplay` has its server, loss and states, `OnSimulation` its clock.

    Args:
        config: the experiment.
        problem: its opened task.
        model: initial parameters ``[P]``.
        minibatches: its minibatches.
    """

    SAVED = ("simulation", "replay", "_counts")

    def __init__(
        self, config: AnyExperiment, problem: Problem, model: Tensor, minibatches: Minibatches
    ) -> None:
        self._config, self._minibatches = config, minibatches
        self.simulation = config.new_simulation(config.timed)
        config.begin_stage(self.simulation, 0, minibatches.order)
        network, handing, faults = problem.network, config.handing, bool(config.cluster.faults)
        has_state = isinstance(network, StatefulNetwork) and bool(network.fresh_state())
        remembers = config.algorithm.remembers or has_state
        # A worker whose memory has a contribution that is lost is computed by itself, and so are
        # rounds that some workers may miss.
        alone = (config.rounds and handing.missed) or (faults and (config.rounds or remembers))
        self.replay = _replay(config, problem, model, minibatches, handing.under_way, alone=alone)
        self._counts = WorkerSteps() if config.counts_by_worker else None

    def advance(self, folds: int, *, handing_out: int | None, rate: float) -> Timeline:
        """See `FoldExecutor`."""
        segment = self.simulation.advance(
            folds=folds, drain=handing_out is None, handing_out=handing_out
        )
        if self._counts is not None:
            segment = self._counts.renumber(segment)
        self.replay.run(segment, rate, self.simulation.restorable)
        return segment

    def pause(self, seconds: float, kind: str) -> Timeline:
        """See `FoldExecutor`."""
        return self.simulation.pause(seconds, kind)

    def begin_stage(self) -> None:
        """See `FoldExecutor`."""
        self.replay.begin_pass()
        data = self._minibatches
        self._config.begin_stage(self.simulation, data.stage, data.order)


class WorkerSteps(Saved):
    """Each worker's own count of minibatches, in timelines of a counter that all workers share."""

    SAVED = ("_next", "_under_way")

    def __init__(self) -> None:
        self._next: dict[int, int] = {}
        self._under_way: dict[Key, int] = {}  # own first step by worker and shared first step

    def renumber(self, segment: Timeline) -> Timeline:
        """The next segment, with ``first_step`` counted by worker in the order of its reads."""
        rows = segment.contributions
        columns = (rows.worker, rows.first_step, rows.steps)
        workers, firsts, steps = (column.tolist() for column in columns)
        numbers = np.empty(len(rows), np.int64)
        for place in np.argsort(rows.first_step, kind="stable").tolist():
            worker = workers[place]
            # A contribution is in the segment of its read, and again in that of its fold.
            number = self._under_way.get((worker, firsts[place]))
            if number is None:
                number = self._next.get(worker, 0)
                self._next[worker] = number + steps[place]
            numbers[place] = number
        waiting = np.flatnonzero(rows.fold == IN_FLIGHT).tolist()
        self._under_way = {(workers[k], firsts[k]): int(numbers[k]) for k in waiting}
        return replace(segment, contributions=replace(rows, first_step=numbers))


def _replay(
    config: AnyExperiment,
    problem: Problem,
    model: Tensor,
    minibatches: Minibatches,
    slots: int,
    *,
    alone: bool,
) -> StaleReplay | ShardedReplay:
    server, rates = start_server(config.algorithm, model), config.rates(minibatches)
    parts = config.algorithm, problem.network, server, minibatches.fetch
    if config.shards > 1:
        return ShardedReplay(*parts, config.shards, rates)
    return StaleReplay(*parts, slots=slots, alone=alone, rates=rates)


class TimelineExecutor(OnReplay[StaleReplay | ShardedReplay]):
    """Executes the folds of a recorded timeline; see `FoldExecutor`.

    On the CPU the parameters are equal bit for bit. The exception are sums over more than two
    workers, which were taken in the order of the all-reduce.

    Args:
        config: the experiment of the recorded run.
        problem: its opened task.
        model: initial parameters ``[P]``.
        minibatches: its minibatches.
        timeline: the recorded timeline.
    """

    def __init__(
        self,
        config: AnyExperiment,
        problem: Problem,
        model: Tensor,
        minibatches: Minibatches,
        timeline: Timeline,
    ) -> None:
        self.timeline = timeline
        # Real workers may have had more under way than the protocol has in a simulation.
        slots = max(2 * config.workers, config.handing.under_way)
        # Computed alone, as on its worker: the last bits depend on what else is in a batch.
        self.replay = _replay(config, problem, model, minibatches, slots, alone=True)

    @property
    def now_s(self) -> float:
        """The recorded time of the last fold."""
        version = self.server.version
        return float(self.timeline.folds.time_s[version - 1]) if version else 0.0

    def advance(self, folds: int, *, handing_out: int | None, rate: float) -> Timeline:
        """See `FoldExecutor`; contributions in flight are taken from the record.

        Raises:
            UserError: the record has fewer folds.
        """
        begin = self.server.version
        if begin + folds > len(self.timeline.folds):
            raise UserError(f"timeline: ends after {len(self.timeline.folds)} folds")
        segment = slice_timeline(self.timeline, begin, begin + folds)
        self.replay.run(segment, rate)
        return segment

    def pause(self, seconds: float, kind: str) -> Timeline:
        """Do nothing: the recorded times contain the pause."""
        return Timeline()

    def begin_stage(self) -> None:
        """See `FoldExecutor`."""
        self.replay.begin_pass()


def slice_timeline(timeline: Timeline, begin: int, end: int) -> Timeline:
    """The segment of a timeline from fold ``begin`` to before fold ``end``, without its spans."""
    rows, folds = timeline.contributions, timeline.folds
    entering = (rows.fold >= begin) & (rows.fold < end)
    # Read in this segment but folded later: in flight. Lost contributions change no parameter.
    under_way = (rows.fold >= end) & (rows.read_version < end) & (rows.fold != LOST)
    segment: Contributions = rows.where(entering | under_way)
    segment = replace(segment, fold=np.where(segment.fold >= end, IN_FLIGHT, segment.fold))
    inside = (folds.fold >= begin) & (folds.fold < end)
    pieces = timeline.pieces
    pieces = pieces.where((pieces.fold >= begin) & (pieces.fold < end))
    return Timeline(folds.where(inside), segment, Spans(), timeline.kinds, pieces=pieces)

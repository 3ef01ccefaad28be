"""Executors on one device: of a simulated cluster, and of a recorded timeline.

`SimulationExecutor` simulates the cluster segment by segment, and replays each segment at once.
`TimelineExecutor` executes a recorded run again, in the recorded order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Generic, TypeVar

import numpy as np
from torch import Tensor

from harness.algorithms.contract import Server, start_server
from harness.algorithms.saved import Saved
from harness.base.errors import UserError
from harness.experiment.experiment import AnyExperiment
from harness.experiment.task import Problem
from harness.networks.contract import State, StatefulNetwork
from harness.replay.fold_replay import StaleReplay
from harness.replay.sharded_replay import ShardedReplay
from harness.simulator import LOST, Simulation, Timeline
from harness.simulator.timeline import IN_FLIGHT, Contributions, Spans
from harness.tasks.order import Key, Minibatches

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
        self.simulation = config.simulation(problem.pieces)
        network, handing, faults = problem.network, config.handing, bool(config.cluster.faults)
        has_state = isinstance(network, StatefulNetwork) and bool(network.fresh_state())
        remembers = config.algorithm.remembers or has_state
        # A worker whose memory has a contribution that is lost is computed by itself, and so are
        # rounds that some workers may miss.
        alone = (config.rounds and handing.missed) or (faults and (config.rounds or remembers))
        self.replay = _replay(config, problem, model, minibatches, handing.under_way, alone=alone)
        self._counts = WorkerSteps() if config.counts_by_worker else None

    def advance(self, folds: int, *, drain: bool, handing_out: int | None, rate: float) -> Timeline:
        """See `FoldExecutor`."""
        segment = self.simulation.advance(folds=folds, drain=drain, handing_out=handing_out)
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

    def advance(self, folds: int, *, drain: bool, handing_out: int | None, rate: float) -> Timeline:
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
        """See `Executor`."""
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

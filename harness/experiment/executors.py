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
from harness.algorithms.share_schedules import Rates
from harness.base.errors import UserError
from harness.experiment.experiment import AnyExperiment, Problem
from harness.experiment.order import Key, Minibatches
from harness.networks.contract import Network, State, StatefulNetwork
from harness.replay import fold_replay as resume
from harness.replay.fold_replay import Arrays, Facts, StaleReplay
from harness.replay.sharded_replay import ShardedReplay
from harness.simulator import LOST, Simulation, Timeline
from harness.simulator.timeline import IN_FLIGHT, Contributions, Spans

Replay = TypeVar("Replay", bound=StaleReplay | ShardedReplay)


class OnSimulation(Generic[Replay]):
    """Base of executors on a simulated cluster: a simulation for time, a replay for gradients."""

    simulation: Simulation
    replay: Replay

    @property
    def server(self) -> Server:
        """See `Executor`."""
        return self.replay.server

    @property
    def now_s(self) -> float:
        """Simulated seconds."""
        return self.simulation.now_s

    def states(self) -> Mapping[int, State]:
        """See `StatefulExecutor`."""
        return self.replay.states.tell()


class SimulationExecutor(OnSimulation[StaleReplay | ShardedReplay]):
    """Executes folds on a simulated cluster; see `FrameExecutor`.

    Args:
        config: the experiment.
        problem: its opened task.
        model: initial parameters ``[P]``.
        minibatches: its minibatches.
    """

    def __init__(
        self, config: AnyExperiment, problem: Problem, model: Tensor, minibatches: Minibatches
    ) -> None:
        self._config, self._minibatches = config, minibatches
        self.simulation = config.simulation(problem.pieces)
        rates = config.rates(minibatches)
        self.replay = _replay(config, problem.network, model, minibatches, rates)
        self._counts = WorkerSteps() if config.counts_by_worker else None

    @property
    def loss(self) -> float:
        """See `FrameExecutor`."""
        return self.replay.loss.item()

    def advance(self, folds: int, *, drain: bool, handing_out: int | None, rate: float) -> Timeline:
        """See `FrameExecutor`."""
        segment = self.simulation.advance(folds=folds, drain=drain, handing_out=handing_out)
        if self._counts is not None:
            segment = self._counts.renumber(segment)
        if isinstance(self.replay, ShardedReplay):
            self.replay.run(segment, rate)
        else:
            self.replay.run(segment, rate, self.simulation.restorable)
        return segment

    def pause(self, seconds: float, kind: str) -> Timeline:
        """See `FrameExecutor`."""
        return self.simulation.pause(seconds, kind)

    def begin_stage(self) -> None:
        """See `FrameExecutor`."""
        self.replay.begin_pass()
        data = self._minibatches
        self._config.begin_stage(self.simulation, data.stage, data.order)

    def capture(self) -> tuple[Arrays, Facts]:
        """See `Executor`."""
        arrays, facts = self.replay.capture()
        simulation = resume.add_prefix(self.simulation.state(), "simulation/")
        if self._counts is not None:
            facts["counts"] = self._counts.capture()
        return {**resume.add_prefix(arrays, "replay/"), **simulation}, facts

    def reinstate(self, arrays: Arrays, facts: Facts) -> None:
        """See `Executor`."""
        self.replay.reinstate(resume.part(arrays, "replay/"), facts)
        self.simulation = self.simulation.with_state(resume.part(arrays, "simulation/"))
        if self._counts is not None:
            self._counts = WorkerSteps.from_facts(facts["counts"])


class WorkerSteps:
    """Each worker's own count of minibatches, in timelines of a counter that all workers share."""

    def __init__(self) -> None:
        self._next: dict[int, int] = {}
        self._under_way: dict[Key, int] = {}  # own first step by worker and shared first step

    def renumber(self, segment: Timeline) -> Timeline:
        """The next segment, with ``first_step`` counted by worker in the order of its reads."""
        rows = segment.contributions
        columns = (rows.worker, rows.first_step, rows.steps)
        workers, firsts, steps = (column.tolist() for column in columns)
        found = np.empty(len(rows), np.int64)
        for place in np.argsort(rows.first_step, kind="stable").tolist():
            worker = workers[place]
            known = self._under_way.get((worker, firsts[place]))
            if known is None:
                known = self._next.get(worker, 0)
                self._next[worker] = known + steps[place]
            found[place] = known
        waiting = np.flatnonzero(rows.fold == IN_FLIGHT).tolist()
        self._under_way = {(workers[k], firsts[k]): int(found[k]) for k in waiting}
        return replace(segment, contributions=replace(rows, first_step=found))

    def capture(self) -> Facts:
        """State for `from_facts`."""
        under_way = [[*key, own] for key, own in self._under_way.items()]
        return {"next": list(self._next.items()), "under_way": under_way}

    @classmethod
    def from_facts(cls, facts: Facts) -> WorkerSteps:
        """Restore the state of `capture`."""
        found = cls()
        found._next = dict(map(tuple, facts["next"]))
        found._under_way = {(who, first): own for who, first, own in facts["under_way"]}
        return found


def _replay(
    config: AnyExperiment, network: Network, model: Tensor, minibatches: Minibatches, rates: Rates
) -> StaleReplay | ShardedReplay:
    algorithm, server = config.algorithm, start_server(config.algorithm, model)
    parts = algorithm, network, server, minibatches.fetch
    if config.shards > 1:
        return ShardedReplay(*parts, config.shards, rates)
    # A worker whose memory has a contribution that is lost is computed by itself.
    has_state = isinstance(network, StatefulNetwork) and bool(network.fresh_state())
    keeps = algorithm.remembers or has_state
    alone = config.missed_rounds or (bool(config.cluster.faults) and keeps)
    return StaleReplay(*parts, slots=config.handing.under_way, alone=alone, rates=rates)


class TimelineExecutor:
    """Executes the folds of a recorded timeline; see `FrameExecutor`.

    Every contribution is computed by itself, as on its worker, so that on the CPU the parameters
    are equal bit for bit. The exception are sums over more than two workers, which were taken in
    the order of the all-reduce.

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
        self.timeline, rates = timeline, config.rates(minibatches)
        parts = (
            config.algorithm,
            problem.network,
            start_server(config.algorithm, model),
            minibatches.fetch,
        )
        self.replay = (
            ShardedReplay(*parts, config.shards, rates)
            if config.shards > 1
            else StaleReplay(
                *parts,
                slots=max(2 * config.workers, config.handing.under_way),
                alone=True,
                rates=rates,
            )
        )
        self.server = self.replay.server

    @property
    def now_s(self) -> float:
        """The recorded time of the last fold."""
        done = self.server.version
        return float(self.timeline.folds.time_s[done - 1]) if done else 0.0

    @property
    def loss(self) -> float:
        """See `Executor`."""
        return self.replay.loss.item()

    def states(self) -> Mapping[int, State]:
        """See `StatefulExecutor`."""
        return self.replay.states.tell()

    def advance(self, folds: int, *, drain: bool, handing_out: int | None, rate: float) -> Timeline:
        """See `FrameExecutor`; contributions in flight are taken from the record.

        Raises:
            UserError: the record has fewer folds.
        """
        del drain, handing_out
        first = self.server.version
        if first + folds > len(self.timeline.folds):
            raise UserError(f"timeline: ends after {len(self.timeline.folds)} folds")
        segment = slice_timeline(self.timeline, first, first + folds)
        self.replay.run(segment, rate)
        return segment

    def pause(self, seconds: float, kind: str) -> Timeline:
        """Do nothing: the recorded times contain the pause."""
        del seconds, kind
        return Timeline()

    def begin_stage(self) -> None:
        """See `Executor`."""
        self.replay.begin_pass()

    def capture(self) -> tuple[Arrays, Facts]:
        """See `Executor`."""
        return self.replay.capture()

    def reinstate(self, arrays: Arrays, facts: Facts) -> None:
        """See `Executor`."""
        self.replay.reinstate(arrays, facts)


def slice_timeline(timeline: Timeline, first: int, end: int) -> Timeline:
    """The segment of a timeline from fold ``first`` to before fold ``end``, without its spans."""
    rows, folds = timeline.contributions, timeline.folds
    entering = (rows.fold >= first) & (rows.fold < end)
    # Read in this segment but folded later: in flight. Lost contributions change no parameter.
    under_way = (rows.fold >= end) & (rows.read_version < end) & (rows.fold != LOST)
    kept: Contributions = rows.where(entering | under_way)
    kept = replace(kept, fold=np.where(kept.fold >= end, IN_FLIGHT, kept.fold))
    inside = (folds.fold >= first) & (folds.fold < end)
    pieces = timeline.pieces
    pieces = pieces.where((pieces.fold >= first) & (pieces.fold < end))
    return Timeline(folds.where(inside), kept, Spans(), timeline.kinds, pieces=pieces)

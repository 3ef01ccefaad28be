"""Model averaging: rounds of local minibatches, then all-reduces of the parameters.

Every worker computes ``every`` minibatches and joins the all-reduce; when each has the average of
all parameters, the fold is complete. An average costs a copy to host memory if buffers are
pageable, the all-reduce, and the copy back. A single worker pays for its minibatches and
epochs only.

With a barrier, all workers read the new version at the instant of the fold and continue. With
overlap, a worker continues at once from the newest complete version while its parameters are sent.
All-reduces do not overlap each other: each starts after the previous fold, so a contribution is one
fold stale.

Each worker counts its own minibatches, which come from its own partition. An epoch ends with a
shorter round if ``every`` does not divide a worker's minibatches. A training may set the length of
each epoch (`begin_epoch`); by default all have the cluster's.
With buckets, the gradients of a round's last minibatch are sent while the rest of them is computed
(see `harness.simulator.protocols.all_reduce`).
The cost of a contribution's computation is fixed at its read; that of the all-reduce when its last
contribution has been read and the previous fold is complete.

A round waits for the workers that are present. The contribution of a worker that dies before the
fold is complete is lost: the others notice at once, and repeat the all-reduce with their
parameters. A preempted worker finishes its round. A worker that returns, or joins late, takes part
from the next fold on. If no worker is left, the next round begins when one returns.

With `[checkpoints]` no round begins without a missing worker. After ``every_folds`` folds all
workers pause until a checkpoint is written. When a worker dies, the present round is lost, and so
are all folds since the last complete checkpoint; when all workers are present again, they restart
from it. A death during the restart makes it start over. A worker that is going to leave (it is
preempted, or has notice of its death) causes a checkpoint of the newest version, which counts if it
is complete before the worker dies.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from harness.base.errors import UserError
from harness.base.settings import Spec, setting
from harness.simulator.cluster import Checkpoints, Cluster
from harness.simulator.collectives import EXCHANGES, AllReduce, Ring, follow
from harness.simulator.costs import Costs
from harness.simulator.events import kernel
from harness.simulator.protocols import absences, all_reduce, rounds
from harness.simulator.protocols.contract import Handing, Limits
from harness.simulator.protocols.neighbours import Neighbours, new_neighbours
from harness.simulator.protocols.record import Stage, contributions_of, spans_of
from harness.simulator.protocols.rounds import TASK, InRounds, Record
from harness.simulator.timeline import IN_FLIGHT, Contributions, Spans

WELL, MISSED, RESTARTING = range(3)

CLOCK = np.dtype(
    [
        *rounds.ROUND_FIELDS,
        *((name, np.int64) for name in ("later_begun", "step", "epoch_step", "epoch_steps")),
        *((name, np.int64) for name in ("saved_version", "writing", "health")),
        *((name, np.float64) for name in ("pause_s", "size_bytes")),
    ]
)
"""Besides the fields of all rounds: whether the next round has begun, number of minibatches handed
to each worker, first minibatch and length of the present epochs (0: there are none); version of the
last complete checkpoint, whether one is being written, whether a worker is missing or all restart,
and the end of the present pause; size of the present all-reduce."""

BEFORE = (Stage(rounds.EPOCH, "read_at_s", "start_s"), Stage("compute", "start_s", "compute_end_s"))

AFTER = (
    Stage(rounds.AVERAGE, "compute_end_s", "join_s"),
    Stage("push", "join_s", "pushed_s"),
    Stage(rounds.REDUCE, "pushed_s", "reduced_s"),
    Stage("fetch", "reduced_s", "fetched_s"),
)


class RoundState(NamedTuple):
    """The state of the protocol, and its network.

    Attributes:
        clock: [1] of `CLOCK`.
        tasks: [N] of `TASK`, the present round.
        later: [N] of `TASK`, the next round, which overlapped workers begin before the fold.
        machine: the cluster.
        collective: the all-reduce on its network.
        absences: state of the faults of workers.
        buckets: bytes of each bucket of gradients, empty without buckets.
        neighbours: other jobs on the network.
    """

    clock: Any
    tasks: Any
    later: Any
    machine: Cluster
    collective: AllReduce
    absences: absences.Absences
    buckets: list[float]
    neighbours: Neighbours | None


@dataclass(frozen=True)
class Averaging(Spec, InRounds):
    """Timing of model averaging.

    Attributes:
        every: minibatches between two averages.
        overlap: whether workers continue while their parameters are averaged.
        collective: the all-reduce algorithm, such as ring or recursive-doubling, or ``gather`` for
            contributions that cannot be added up on their way.
        buckets: bytes of each bucket of gradients that is sent while others are computed, in
            order of computation; the last one named stands for all that follow. Without any,
            nothing is sent before all is computed.

    Examples:
        >>> Averaging(every=5, overlap=True).handing(workers=4).under_way
        8
    """

    name = "averaging"
    can = frozenset(
        {"faults", "network", "compression", "notice", "checkpoints", "jobs", "epochs", "processes"}
    )
    way = "workers"
    stages = BEFORE + AFTER

    every: int = setting(10, at_least=1, at_most=2**30)
    overlap: bool = setting(False)
    collective: str = setting("ring", one_of=tuple(EXCHANGES))
    buckets: tuple[float, ...] = setting((), at_least=1.0, at_most=1e21)

    def trouble(self) -> tuple[str, str] | None:
        """Buckets together with overlap: a worker waits for its buckets."""
        if self.buckets and self.overlap:
            return "buckets", "not allowed with overlap; allowed: one of the two"
        return None

    def handing(self, workers: int) -> Handing:
        """Rounds, with a part of the data for every worker."""
        under_way = workers * (2 if self.overlap else 1)
        return Handing(rounds=True, own=self.every, a_fold=1, under_way=under_way)

    def simulated_only(self) -> tuple[str, str] | None:
        """Real workers wait for each other at the end of a round."""
        if not self.overlap:
            return None
        return "overlap", "true is simulated only; allowed here: false"

    def begin_epoch(self, state: RoundState, minibatches: int) -> None:
        """See `HasEpochs`; the epoch's last round may be shorter."""
        clock = state.clock[0]
        # With overlap the epoch's first round has begun before the last one of the epoch before.
        step = state.later["first_step"][0] if clock["later_begun"] else clock["step"]
        clock["epoch_step"], clock["epoch_steps"] = step, minibatches

    def epoch_folds(self, cluster: Cluster, workers: int) -> int:
        """Number of rounds in one epoch of a cluster's data; 0 if there are no epochs."""
        minibatches = math.ceil(cluster.parallel.epoch_minibatches / workers)
        return math.ceil(minibatches / self.every)

    def start(self, cluster: Cluster, workers: int) -> RoundState:
        """All workers idle at time 0, version 0.

        Raises:
            UserError: a fault that does not concern workers, or a combination of settings that is
                not simulated.
        """
        if self.overlap and cluster.checkpoints:
            raise UserError("checkpoints: not simulated with overlap; allowed: without")
        if self.buckets and cluster.host.staging == "pageable":
            raise UserError("buckets: not allowed with host.staging 'pageable'; allowed: 'pinned'")
        plain = self.collective == "ring" and not (self.overlap or self.buckets or cluster.faults)
        if cluster.jobs and not plain:
            allowed = "a ring without overlap, buckets and faults"
            raise UserError(f"jobs: not simulated with these settings; allowed: {allowed}")
        network, wiring = all_reduce.network_of(cluster), all_reduce.build_wiring(cluster, workers)
        clock = np.zeros(1, CLOCK)
        clock["end_s"] = np.inf
        clock["epoch_steps"] = math.ceil(cluster.parallel.epoch_minibatches / workers)
        return RoundState(
            clock=clock,
            tasks=rounds.new_tasks(workers),
            later=rounds.new_tasks(workers),
            machine=cluster,
            collective=AllReduce(self.collective, wiring, network.nearby),
            absences=absences.new_absences(cluster, workers, self.name),
            buckets=list(self.buckets),
            neighbours=new_neighbours(cluster, network, workers),
        )

    def restorable(self, state: RoundState) -> int:
        """Version of the last complete checkpoint."""
        return int(state.clock[0]["saved_version"])

    def in_flight(self, state: RoundState) -> Contributions:
        """Contributions read and not yet folded, by first step."""
        tasks = np.concatenate([state.tasks, state.later])
        return contributions_of(tasks[tasks["is_read"] == 1])

    def spans_of(self, record: Record) -> Spans:
        """With overlap each all-reduce is a span of the server: its workers compute meanwhile."""
        if not self.overlap or not record.ends_s:
            return super().spans_of(record)
        rows, sizes = np.concatenate(record.rows), [len(part) for part in record.rows]
        # The last row of each round stands for the server, whose span follows those of workers.
        behind = np.cumsum(sizes)
        start_s = np.minimum.reduceat(rows["join_s"], behind[:-1])
        rows["pushed_s"] = rows["fetched_s"] = 0.0
        rows["pushed_s"][behind[1:] - 1], rows["fetched_s"][behind[1:] - 1] = start_s, record.ends_s
        stages = (*BEFORE, Stage(rounds.REDUCE, "pushed_s", "fetched_s", True))
        return spans_of(rows, stages, rounds.SPAN_KINDS)

    def on_reads(self, state: RoundState, costs: Costs, limits: Limits, record: Record) -> bool:
        """Begin a round with all present workers; with overlap let those go on that have joined."""
        clock = state.clock[0]
        if not clock["begun"] and not (clock["later_begun"] and _take_over(state, costs)):
            if clock["dispatched"] >= limits.dispatch or clock["now_s"] > limits.dispatch_s:
                clock["busy"] = 0
                return False
            self._begin(state, costs, limits, record)
        # Overlapped reads happen between events: settle those before the next one.
        if self.overlap and clock["begun"]:
            self._go_on(state, costs, limits)
        return True

    def on_death(self, state: RoundState, costs: Costs, worker: int, record: Record) -> None:
        """The others repeat the all-reduce from now on; with checkpoints the round is lost."""
        clock, tasks = state.clock[0], state.tasks
        if state.machine.checkpoints:
            _stop(clock)
            record.lose(tasks, slice(None))
            # A death while no round has begun counts as a lost round, too.
            record.barren += 1 - int(clock["begun"])
            clock["end_s"] = -np.inf  # there is nothing to wait for
            return
        is_in_round = clock["begun"] and tasks["is_read"][worker]
        record.lose(tasks, [worker])
        # With overlap the worker may have two contributions: one on its way, one being computed.
        record.lose(state.later, [worker])
        tasks["join_s"][worker] = np.inf
        if is_in_round and tasks["is_read"].any():
            all_reduce.reduce(state, clock["now_s"])
        elif is_in_round:
            clock["end_s"] = -np.inf
            # A worker that had gone on had a part in this round, too: none is left in the next one.
            clock["dispatched"] -= clock["later_begun"]
            clock["later_begun"] = 0

    def on_fold(self, state: RoundState) -> None:
        """Begin to write a checkpoint if one is due."""
        clock, rules = state.clock[0], state.machine.checkpoints
        if rules and clock["version"] - clock["saved_version"] >= rules.every_folds:
            _write(clock, rules)

    def _begin(self, state: RoundState, costs: Costs, limits: Limits, record: Record) -> None:
        """Begin a round with all present workers.

        With no worker present, the next event is a return. With checkpoints the round waits for
        missing workers, and for the end of a pause.
        """
        clock, until_s, rules = state.clock[0], state.absences.until_s, state.machine.checkpoints
        if rules:
            clock["end_s"] = _pause_end_s(state, rules, record)
            if clock["end_s"] > clock["now_s"]:
                return
        ready = np.ones(len(state.tasks), np.bool_)
        absences.select_readers(state.absences, clock["now_s"], ready)
        if rules and not ready.all():
            # A preempted worker has left just now: wait for it, and restart.
            _stop(clock)
            clock["end_s"] = until_s.max()
        elif not ready.any():
            clock["end_s"] = until_s.min()
        elif not self._pass_rounds(state, costs, limits, np.flatnonzero(ready), record):
            clock["begun"] = 1
            self._hand_out(state, state.tasks)
            _read(state, costs, state.tasks, ready, clock["now_s"])
            all_reduce.plan(state, costs.parameter_bytes, state.tasks["compute_end_s"])

    def _pass_rounds(
        self, state: RoundState, costs: Costs, limits: Limits, members: Any, record: Record
    ) -> bool:
        """Pass rounds on a ring up to the next fault, return or checkpoint; false if there is none.

        Such rounds are most of a long run; one by one, those of one worker take 300 times as long.
        """
        clock, until_s, rules = state.clock[0], state.absences.until_s, state.machine.checkpoints
        version = int(clock["version"])
        clock["size_bytes"] = costs.parameter_bytes
        ring = all_reduce.ring_of(state, members)
        # Before the first average there is a longer pause.
        if ring is None or version == 0 or self.overlap or self.buckets or state.neighbours:
            return False
        room = min(record.room - len(record.ends_s), limits.version - version)
        room = min(room, limits.dispatch - int(clock["dispatched"]))
        if rules:
            room = min(room, rules.every_folds - version + int(clock["saved_version"]))
        struck_s = absences.next_strike_s(state.absences)
        back_s = float(until_s[until_s > clock["now_s"]].min(initial=struck_s))
        pauses_s = all_reduce.pauses_s(state)
        course = Course(members, back_s, struck_s, self.every, _pace(state), pauses_s, ring)
        rows = np.empty((room, len(members)), TASK)
        count = pass_rounds(state.clock, costs, limits, course, rows)
        if count == 0:
            return False
        record.add(rows["fetched_s"][:count].max(axis=1).tolist(), rows[:count].reshape(-1))
        clock["end_s"] = clock["now_s"]  # then the next one begins
        self.on_fold(state)
        return True

    def _hand_out(self, state: RoundState, tasks: Any) -> None:
        """Begin a round's tasks with the next minibatches of each worker."""
        clock, steps = state.clock[0], steps_of_round(state.clock, self.every)
        tasks["first_step"], tasks["steps"] = clock["step"], steps
        clock["step"] += steps
        clock["dispatched"] += 1

    def _go_on(self, state: RoundState, costs: Costs, limits: Limits) -> None:
        """Let workers that have joined the all-reduce read and begin the next round."""
        clock, later, join_s = state.clock[0], state.later, state.tasks["join_s"]
        # A read at the instant of the fold is left to `_take_over`: it reads the folded version.
        end_s = min(clock["end_s"], absences.next_strike_s(state.absences))
        # Preempted workers leave at their next read, which `_take_over` gives them.
        stays = state.absences.leave_s == 0.0
        due = (join_s <= limits.time_s) & (join_s < end_s) & stays
        if not due.any():
            return
        if not clock["later_begun"]:
            if clock["dispatched"] >= limits.dispatch or join_s.min() > limits.dispatch_s:
                return
            self._hand_out(state, later)
            clock["later_begun"] = 1
        due &= later["is_read"] == 0
        _read(state, costs, later, due, join_s[due])


def _take_over(state: RoundState, costs: Costs) -> bool:
    """Make the next round, which has begun, the present one; false if it has no worker left."""
    clock, later = state.clock[0], state.later
    # Workers that had not joined before the fold read the new version now.
    late = later["is_read"] == 0
    absences.select_readers(state.absences, clock["now_s"], late)
    _read(state, costs, later, late, clock["now_s"])
    state.tasks[:] = later
    later["is_read"], clock["later_begun"] = 0, 0
    if not state.tasks["is_read"].any():
        clock["dispatched"] -= 1
        return False
    clock["begun"] = 1
    # All-reduces do not overlap: this one starts now or later.
    ready_s = np.maximum(state.tasks["compute_end_s"], clock["now_s"])
    all_reduce.plan(state, costs.parameter_bytes, ready_s)
    return True


def _read(state: RoundState, costs: Costs, tasks: Any, due: Any, at_s: Any) -> None:
    """Let the workers that are ``due`` [N] read the present version and begin to compute."""
    tasks["read_at_s"][due] = at_s
    begin_tasks(state.clock, costs, tasks, due, *_pace(state))


def _pace(state: RoundState) -> tuple[float, float]:
    """Cost of an epoch in seconds, and the slowdown of a minibatch in the parallel program.

    A single worker runs the serial program.
    """
    parallel = state.machine.parallel
    return parallel.epoch_s, parallel.slowdown if len(state.tasks) > 1 else 1.0


@kernel
def steps_of_round(clock: Any, every: int) -> int:
    """Minibatches of the next round, which never crosses the end of an epoch."""
    length = clock[0].epoch_steps
    if length == 0:
        return every
    return min(every, length - (clock[0].step - clock[0].epoch_step) % length)


@kernel
def begin_task(clock: Any, costs: Costs, task: Any, epoch_s: float, slowdown: float) -> None:
    """Let a worker read the present version at ``read_at_s``, and compute its minibatches."""
    task.is_read, task.fold, task.read_version = 1, IN_FLIGHT, clock[0].version
    task.start_s, length = task.read_at_s, clock[0].epoch_steps
    if length > 0 and (task.first_step - clock[0].epoch_step) % length == 0:
        task.start_s += epoch_s
    rounds.compute(costs, task, slowdown)


@kernel
def begin_tasks(
    clock: Any, costs: Costs, tasks: Any, due: Any, epoch_s: float, slowdown: float
) -> None:
    """Begin the tasks of the workers that are ``due`` [N]."""
    for worker in range(len(tasks)):
        if due[worker]:
            begin_task(clock, costs, tasks[worker], epoch_s, slowdown)


class Course(NamedTuple):
    """What does not change while rounds pass without events.

    Attributes:
        members: [M] workers that are present.
        back_s: instant at which another one returns, or of the next fault if that is earlier.
        struck_s: instant of the next fault.
        every: minibatches between two averages.
        pace: see `_pace`.
        pauses_s: see `harness.simulator.protocols.all_reduce`.
        ring: the all-reduce.
    """

    members: Any
    back_s: float
    struck_s: float
    every: int
    pace: tuple[float, float]
    pauses_s: tuple[float, float, float, float]
    ring: Ring


@kernel
def pass_rounds(clock: Any, costs: Costs, limits: Limits, course: Course, rows: Any) -> int:
    """Pass rounds until something else happens, or as many as there is room for.

    Args:
        clock: [1] of `CLOCK`; changed in place.
        costs: durations.
        limits: of the segment.
        course: what all rounds have in common.
        rows: [R, M] of `TASK`, empty; the first ones become those of the rounds.

    Returns:
        The number of rounds.
    """
    now_s, (epoch_s, slowdown) = course.ring.now_s, course.pace
    pause_s, stage_s, encode_s, back_s = course.pauses_s
    for number in range(len(rows)):
        start_s = end_s = clock[0].now_s
        if start_s >= course.back_s or start_s > limits.dispatch_s:
            return number
        steps = steps_of_round(clock, course.every)
        for place in range(len(now_s)):
            task = rows[number, place]
            task.worker, task.read_at_s = course.members[place], start_s
            task.first_step, task.steps = clock[0].step, steps
            begin_task(clock, costs, task, epoch_s, slowdown)
            task.fold = task.read_version
            task.join_s = task.compute_end_s + pause_s
            task.pushed_s = now_s[place] = task.join_s + stage_s + encode_s
        follow(course.ring)
        for place in range(len(now_s)):
            task = rows[number, place]
            task.reduced_s, task.fetched_s = now_s[place], now_s[place] + back_s
            end_s = max(end_s, task.fetched_s)
        # At one instant the fold comes before a fault; without time between folds, all may stand.
        if end_s == start_s or end_s > min(course.struck_s, limits.time_s):
            return number
        clock[0].now_s = end_s
        clock[0].standing = 0
        clock[0].step += steps
        clock[0].dispatched += 1
        clock[0].version += 1
    return len(rows)


def _pause_end_s(state: RoundState, rules: Checkpoints, record: Record) -> float:
    """Instant at which a round may begin, or at which to ask again; the present one if it may."""
    clock, leave_s = state.clock[0], state.absences.leave_s
    now_s, back_s = float(clock["now_s"]), float(state.absences.until_s.max())
    while clock["pause_s"] <= now_s:
        version, saved = int(clock["version"]), int(clock["saved_version"])
        if clock["writing"]:  # the pause is over, so the checkpoint is complete
            clock["writing"], clock["saved_version"] = 0, version
        if back_s > now_s:
            return back_s
        if clock["health"] == MISSED:  # all are present again: restart
            clock["health"], clock["pause_s"] = RESTARTING, now_s + rules.restart_s
        elif clock["health"] == RESTARTING:
            # With what is saved, whichever worker is going to leave. Minibatches of undone folds
            # are not handed out again.
            record.restarts.append((now_s, version, saved))
            record.undone += 1
            # Version numbers continue: the newest version now has the saved model.
            clock["health"], clock["saved_version"] = WELL, version
            return now_s
        elif leave_s.max() > 0.0 and version > clock["saved_version"]:
            _write(clock, rules)
        else:
            return now_s
    return float(clock["pause_s"])


def _write(clock: Any, rules: Checkpoints) -> None:
    """Begin to write a checkpoint of the newest version."""
    clock["writing"], clock["pause_s"] = 1, clock["now_s"] + rules.write_s


def _stop(clock: Any) -> None:
    """Stop after a worker has left: a checkpoint that is being written is void."""
    # Until 0 ends any pause, also that of a restart, which then starts over.
    clock["writing"], clock["pause_s"], clock["health"] = 0, 0.0, MISSED

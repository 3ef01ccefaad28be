"""Synchronous SGD with backup workers.

All workers compute a gradient at the same version. The server takes the first N − b that
arrive, one after the other, and makes one fold of them; it drops the gradients of the b slowest
(Chen et al., "Revisiting distributed synchronous SGD", 2016). A dropped contribution is recorded
as lost.

When a worker reads again depends on its contribution. If it was taken, or dropped after the
server had enough, the worker reads when the fold is complete, in order of arrival. If it was
dropped before the server had enough, the worker reads at once: it may still be among the first.

A round waits only for workers that are present: where there are fewer than N − b, for all of
them. A worker that dies loses what it has not handed in. A worker that returns, or joins late,
reads as one whose contribution was dropped.

Of events at one instant the fold comes first, then arrivals, faults, and returns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from harness.base.errors import UserError
from harness.base.settings import Spec, setting
from harness.simulator.cluster import Cluster
from harness.simulator.costs import Costs, computation_s, folding_s
from harness.simulator.events import WHO, WHO_BITS, enter, kernel, new_tournament, scratch
from harness.simulator.protocols.absences import (
    NOBODY,
    Absences,
    begin,
    new_absences,
    next_strike_s,
    strike,
)
from harness.simulator.protocols.contract import (
    CLOCK_FIELDS,
    DONE,
    FULL,
    GONE,
    STUCK,
    Handing,
    Limits,
    TimingProtocol,
    UnitCosts,
)
from harness.simulator.timeline import (
    IN_FLIGHT,
    LOST,
    SERVER,
    Contributions,
    Folds,
    Spans,
    Timeline,
)

__all__ = ["BackupWorkers"]

PARKED, COMPUTING, TAKEN, LATE, AWAY = range(5)
"""A worker: idle; under way; arrived, and part of the coming fold or dropped; not there."""

RETURN = 1 << 37
"""Returns come after arrivals of the same instant, of which there are fewer than this."""

CLOCK = np.dtype(
    [
        *CLOCK_FIELDS,
        *((name, np.int64) for name in ("standing", "under_way", "taken", "coming")),
        *((name, np.int64) for name in ("arrived", "ready")),
        *(("server_free_s", np.float64), ("fold_s", np.float64)),
    ]
)
"""Beside the common fields: events in a row at one instant, folds under way (0 or 1),
contributions taken for it, those of its version that are being made, workers that wait for it,
whether it has all, and its end."""

TASK = np.dtype(
    [(name, np.int64) for name in ("worker", "phase", "step", "read_version", "first_step", "fold")]
    + [(name, np.float64) for name in ("copy_s", "read_at_s", "fetch_end_s", "compute_end_s")]
    + [(name, np.float64) for name in ("push_end_s", "fold_start_s", "fold_end_s")]
)


class State(NamedTuple):
    """Everything that moves.

    Attributes:
        clock: [1] of `CLOCK`.
        arrivals: [2N] tournament of arrivals at the server, and of returns.
        tasks: [N] of `TASK`.
        order: [N] workers that wait for the fold, by arrival.
        absences: who is away, and when the next one goes.
    """

    clock: Any
    arrivals: Any
    tasks: Any
    order: Any
    absences: Absences


class Record(NamedTuple):
    """[F] ends of folds, [T] contributions taken, [L] dropped, and how many there are of each."""

    folds: Any
    taken: Any
    dropped: Any
    counts: Any


@dataclass(frozen=True)
class BackupWorkers(Spec, TimingProtocol):
    """Synchronous SGD that does not wait for the slowest.

    Attributes:
        backups: contributions of each round that are not waited for, of N workers at most
            N − 1; with 0 it is plain synchronous SGD. One worker alone is waited for.
    """

    name = "backup_workers"
    can = frozenset({"faults"})

    backups: int = setting(0, at_least=0, at_most=10_000_000)

    def handing(self, workers: int) -> Handing:
        """A minibatch for every worker and fold, also for those whose contribution is dropped."""
        return Handing(rounds=True, own=None, a_fold=workers, under_way=workers, missed=True)

    def is_enough(self, workers: int) -> bool:
        """More than its backups, or one alone, with which the others are compared."""
        return workers == 1 or workers > self.backups

    def promised(self, state: State) -> int:
        """A fold takes the contributions of a round, and one at most is under way."""
        clock = state.clock[0]
        return int(clock["version"] + clock["under_way"])

    def effort(self, cluster: Cluster, workers: int) -> UnitCosts:
        """See `TimingProtocol`."""
        return UnitCosts(1e-6, 400.0, 0.9e-6, rounds=True)

    def start(self, cluster: Cluster, workers: int) -> State:
        """All workers idle at time 0, version 0.

        Raises:
            UserError: the workers share a link, a fault does not happen to workers, or there are
                as many backups as workers.
        """
        if not self.is_enough(workers):
            allowed = f"at most {workers - 1}"
            raise UserError(
                f"backups: {self.backups} is not allowed with {workers} workers; allowed: {allowed}"
            )
        if cluster.link.sharing != "none":
            raise UserError("link.sharing: backup workers need 'none', a link for every worker")
        tasks = np.zeros(workers, TASK)
        tasks["worker"] = np.arange(workers)
        return State(
            clock=np.zeros(1, CLOCK),
            arrivals=new_tournament(workers),
            tasks=tasks,
            order=np.arange(workers),
            absences=new_absences(cluster, workers, self.name),
        )

    def wake(self, state: State) -> None:
        """Idle workers wait for a fold that is complete already."""
        clock, tasks = state.clock, state.tasks
        idle = np.flatnonzero(tasks["phase"] == PARKED)
        if len(idle):
            arrived = int(clock[0]["arrived"])
            state.order[arrived : arrived + len(idle)] = idle
            tasks["phase"][idle] = LATE
            clock["arrived"] += len(idle)
            clock["busy"] += len(idle)

    def advance(
        self, state: State, costs: Costs, limits: Limits, room: int, spans: bool
    ) -> tuple[int, Timeline]:
        """Run until a limit or until ``room`` folds are recorded: (why it stopped, what was)."""
        workers = len(state.tasks)
        needed = max(1, workers - self.backups)
        room = max(1, min(room, (1 << 18) // workers))
        first = int(state.clock[0]["version"])
        record = Record(
            folds=np.empty(room),
            taken=np.empty(room * needed, TASK),
            dropped=np.empty((room + 1) * workers, TASK),
            counts=np.zeros(3, np.int64),
        )
        why = run(state, costs, limits, needed, record)
        folds, taken, dropped = (
            rows[:count] for rows, count in zip(record[:3], record.counts.tolist(), strict=True)
        )
        numbers = np.arange(first, first + len(folds), dtype=np.int64)
        fates = np.concatenate([taken["fold"], np.full(len(dropped), LOST, np.int64)])
        return why, Timeline(
            folds=Folds(numbers, folds.copy()),
            contributions=_contributions(fates, np.concatenate([taken, dropped])),
            spans=_spans(taken) if spans else Spans(),
        )

    def in_flight(self, state: State) -> Contributions:
        """Contributions read and not yet folded or dropped, by first step."""
        phase = state.tasks["phase"]
        rows = state.tasks[(phase == COMPUTING) | (phase == TAKEN)]
        ordered = rows[np.argsort(rows["first_step"])]
        return _contributions(np.full(len(ordered), IN_FLIGHT, np.int64), ordered)


def _contributions(folds: np.ndarray, tasks: np.ndarray) -> Contributions:
    return Contributions(
        fold=folds,
        worker=tasks["worker"].astype(np.int32),
        read_version=tasks["read_version"].copy(),
        read_time_s=tasks["read_at_s"].copy(),
        first_step=tasks["first_step"].copy(),
        steps=np.ones(len(tasks), np.int32),
    )


def _spans(tasks: np.ndarray) -> Spans:
    """Fetch, compute, push of each contribution taken, and what it adds to the fold."""
    starts = ("read_at_s", "fetch_end_s", "compute_end_s", "fold_start_s")
    ends = ("fetch_end_s", "compute_end_s", "push_end_s", "fold_end_s")
    start_s = np.stack([tasks[name] for name in starts], axis=1).reshape(-1)
    end_s = np.stack([tasks[name] for name in ends], axis=1).reshape(-1)
    worker = np.repeat(tasks["worker"].astype(np.int32), 4)
    worker[3::4] = SERVER
    kind = np.tile(np.arange(4, dtype=np.int32), len(tasks))
    busy = end_s > start_s
    return Spans(worker[busy], kind[busy], start_s[busy], end_s[busy])


@kernel
def run(state: State, costs: Costs, limits: Limits, needed: int, record: Record) -> int:
    """Move ``state`` until a limit is met or the record is full; returns why it stopped."""
    clock, counts, absences = state.clock[0], record.counts, state.absences
    faulty = len(absences.begun) > 0
    if faulty and absences.begun[0] == 0:
        begin(absences, costs.faults, clock.now_s)
    while clock.version < limits.version:
        if counts[0] == len(record.folds) or counts[2] == len(record.dropped):
            return FULL
        if clock.ready == 0 and clock.taken == 0 and clock.arrived > 0:
            read_all(state, costs, limits)
        used_up = clock.version >= limits.dispatch or clock.now_s > limits.dispatch_s
        if clock.busy == 0 and (used_up or not faulty):
            return DONE
        fold_s = clock.fold_s if clock.ready == 1 else np.inf
        arrival_s = state.arrivals[1].time_s
        struck_s = next_strike_s(absences)
        if state.arrivals[1].key >> WHO_BITS >= RETURN and arrival_s == struck_s:
            arrival_s = np.inf
        time_s = max(min(fold_s, arrival_s, struck_s), clock.now_s)
        if time_s > limits.time_s:
            clock.now_s = limits.time_s
            return DONE
        if time_s == np.inf:
            return GONE
        clock.standing = clock.standing + 1 if time_s == clock.now_s else 0
        if clock.standing > limits.standing:
            return STUCK
        clock.now_s = time_s
        if fold_s <= min(arrival_s, struck_s):
            fold(state, record)
        elif struck_s < arrival_s:
            suffer(state, costs, needed, record)
        else:
            arrive(state, costs, limits, needed, record, state.arrivals[1].key & WHO)
    return DONE


@kernel
def read_all(state: State, costs: Costs, limits: Limits) -> None:
    """Everybody who waited for the fold reads, in order of arrival."""
    clock = state.clock[0]
    for place in range(clock.arrived):
        read(state, costs, limits, state.order[place])
    clock.arrived = 0


@kernel
def read(state: State, costs: Costs, limits: Limits, who: int) -> None:
    """Take the snapshot and the next minibatch; or stay idle if there is none."""
    clock, task = state.clock[0], state.tasks[who]
    if len(state.absences.begun) > 0 and is_away(state, who):
        clock.busy -= 1
        go(state, who)
        return
    if clock.version >= limits.dispatch or clock.now_s > limits.dispatch_s:
        task.phase = PARKED
        clock.busy -= 1
        return
    task.phase = COMPUTING
    task.read_version = clock.version
    task.read_at_s = clock.now_s
    task.first_step = clock.dispatched
    task.fetch_end_s = clock.now_s + costs.copy_s + costs.latency_s
    task.compute_end_s = task.fetch_end_s + computation_s(costs, who, task.step)
    task.push_end_s = task.compute_end_s + costs.copy_s + costs.latency_s
    task.step += 1
    clock.dispatched += 1
    clock.coming += 1
    clock.under_way = 1
    enter(state.arrivals, who, task.push_end_s, task.first_step)


@kernel
def arrive(
    state: State, costs: Costs, limits: Limits, needed: int, record: Record, who: int
) -> None:
    """A contribution is at the server: taken if it is of this version and still needed.

    Or a worker is back; it is too late for a fold that has all it needs.
    """
    clock, task = state.clock[0], state.tasks[who]
    scratch(state.arrivals, who)
    if task.phase == AWAY:
        clock.busy += 1
        task.phase = LATE
        if clock.ready == 0:
            read(state, costs, limits, who)
            return
    elif task.read_version < clock.version or clock.ready == 1:
        clock.coming -= task.read_version == clock.version
        task.phase = LATE
        task.fold_end_s = clock.now_s
        drop(record, task)
        if clock.ready == 0:
            read(state, costs, limits, who)
            return
    else:
        task.phase = TAKEN
        task.fold = clock.version
        task.fold_start_s = max(clock.now_s, clock.server_free_s)
        task.fold_end_s = task.fold_start_s + folding_s(costs, who, task.step - 1)
        clock.server_free_s = task.fold_end_s
        clock.taken += 1
        clock.coming -= 1
        check_complete(state, needed)
    state.order[clock.arrived] = who
    clock.arrived += 1


@kernel
def drop(record: Record, task: Any) -> None:
    """A contribution enters no fold."""
    record.dropped[record.counts[2]] = task
    record.counts[2] += 1


@kernel
def check_complete(state: State, needed: int) -> None:
    """See whether the fold has all that it needs, or all that there will be."""
    clock = state.clock[0]
    coming = needed - clock.taken
    if len(state.absences.begun) > 0:
        coming = clock.coming if clock.taken < needed else 0
    if coming == 0 and clock.taken > 0 and clock.ready == 0:
        clock.ready = 1
        clock.fold_s = max(clock.server_free_s, clock.now_s)
    elif coming == 0 and clock.taken == 0:
        clock.under_way = 0


@kernel
def is_away(state: State, who: int) -> bool:
    """Whether a worker that is about to read is not there; a preempted one goes now."""
    absences, now_s = state.absences, state.clock[0].now_s
    if absences.leave_s[who] > 0.0:
        absences.until_s[who] = now_s + absences.leave_s[who]
        absences.leave_s[who] = 0.0
    return absences.until_s[who] > now_s


@kernel
def go(state: State, who: int) -> None:
    """A worker is away for as long as its absence says."""
    state.tasks[who].phase = AWAY
    until_s = state.absences.until_s[who]
    scratch(state.arrivals, who)
    if until_s < np.inf:
        enter(state.arrivals, who, until_s, RETURN + who)


@kernel
def suffer(state: State, costs: Costs, needed: int, record: Record) -> None:
    """A fault happens; what its worker has not handed in is lost."""
    clock = state.clock[0]
    who = strike(state.absences, costs.faults, clock.now_s)
    if who != NOBODY and state.tasks[who].phase == COMPUTING:
        state.tasks[who].fold_end_s = clock.now_s
        clock.coming -= state.tasks[who].read_version == clock.version
        drop(record, state.tasks[who])
        clock.busy -= 1
        go(state, who)
        check_complete(state, needed)


@kernel
def fold(state: State, record: Record) -> None:
    """The fold of all that were taken is complete."""
    clock, counts = state.clock[0], record.counts
    record.folds[counts[0]] = clock.now_s
    counts[0] += 1
    for place in range(clock.arrived):
        task = state.tasks[state.order[place]]
        if task.phase == TAKEN:
            record.taken[counts[1]] = task
            counts[1] += 1
            task.phase = LATE
    clock.version += 1
    clock.taken = clock.coming = clock.ready = clock.under_way = 0

"""Synchronous SGD with backup workers.

All workers compute a gradient at the same version. The server takes the first N − b that
arrive, one after the other, and makes one fold of them; it drops the gradients of the b slowest
(Chen et al., "Revisiting distributed synchronous SGD", 2016). A dropped contribution is recorded
as lost.

A worker with a contribution that was taken, or dropped after the server had enough, reads again
when the fold is complete, in order of arrival. If its contribution was dropped before the server
had enough, the worker reads at once: its next one may still be among the first.

A round waits only for workers that are present: for all of them, if they are fewer than N − b. A
worker that dies loses its contribution unless it has arrived. A worker that returns, or joins late,
reads like one with a dropped contribution.

Of events at one instant the fold comes first, then arrivals, faults, and returns. Workers that
have waited for the fold read after the faults of its instant.
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

PARKED, COMPUTING, TAKEN, LATE, AWAY = range(5)
"""States of a worker: idle; computing or sending; its contribution taken for the coming fold;
waiting for the fold without one; absent."""

RETURN = 1 << 37
"""Offset in the order of returns, which come after arrivals of the same instant; a number above
that of any minibatch."""

CLOCK = np.dtype(
    [
        *CLOCK_FIELDS,
        *((name, np.int64) for name in ("standing", "under_way", "taken", "coming")),
        *((name, np.int64) for name in ("arrived", "ready")),
        *(("server_free_s", np.float64), ("fold_s", np.float64)),
    ]
)
"""Besides the common fields: events in a row at one instant, folds under way (0 or 1),
contributions taken for it, contributions of its version in flight, workers that wait for it,
whether it is complete but for its end, the instant at which the server is free, and that end."""

TASK = np.dtype(
    [(name, np.int64) for name in ("worker", "phase", "step", "read_version", "first_step", "fold")]
    + [(name, np.float64) for name in ("copy_s", "read_at_s", "fetch_end_s", "compute_end_s")]
    + [(name, np.float64) for name in ("push_end_s", "fold_start_s", "fold_end_s")]
)


class BackupState(NamedTuple):
    """The state of the protocol.

    Attributes:
        clock: [1] of `CLOCK`.
        arrivals: [2N] tournament of arrivals at the server, and of returns.
        tasks: [N] of `TASK`.
        order: [N] workers that wait for the fold, by arrival.
        absences: state of the faults of workers.
    """

    clock: Any
    arrivals: Any
    tasks: Any
    order: Any
    absences: Absences


class BackupRecord(NamedTuple):
    """[F] ends of folds, [T] contributions taken, [L] dropped, and the number of each."""

    folds: Any
    taken: Any
    dropped: Any
    counts: Any


@dataclass(frozen=True)
class BackupWorkers(Spec, TimingProtocol):
    """Synchronous SGD that does not wait for the slowest.

    Attributes:
        backups: number of slowest contributions that each round drops, for N workers at most
            N − 1; with 0 it is plain synchronous SGD. A single worker is never dropped.

    Examples:
        >>> BackupWorkers(backups=2).handing(workers=8).missed
        True
    """

    name = "backup_workers"
    can = frozenset({"faults"})

    backups: int = setting(0, at_least=0, at_most=10_000_000)

    def handing(self, workers: int) -> Handing:
        """A minibatch for every worker and fold, also for dropped contributions."""
        return Handing(rounds=True, own=None, a_fold=workers, under_way=workers, missed=True)

    def is_enough(self, workers: int) -> bool:
        """More than its backups, or one alone, with which the others are compared."""
        return workers == 1 or workers > self.backups

    def promised(self, state: BackupState) -> int:
        """The version and the fold under way: a round makes one fold."""
        clock = state.clock[0]
        return int(clock["version"] + clock["under_way"])

    def start(self, cluster: Cluster, workers: int) -> BackupState:
        """All workers idle at time 0, version 0.

        Raises:
            UserError: the workers share a link, a fault does not concern workers, or there are
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
        return BackupState(
            clock=np.zeros(1, CLOCK),
            arrivals=new_tournament(workers),
            tasks=tasks,
            order=np.arange(workers),
            absences=new_absences(cluster, workers, self.name),
        )

    def wake(self, state: BackupState) -> None:
        """Let idle workers read next, as if they had waited for the last fold."""
        clock, tasks = state.clock, state.tasks
        # Appended to those that already wait, so the order of reads is that of arrivals.
        idle = np.flatnonzero(tasks["phase"] == PARKED)
        if len(idle):
            arrived = int(clock[0]["arrived"])
            state.order[arrived : arrived + len(idle)] = idle
            tasks["phase"][idle] = LATE
            clock["arrived"] += len(idle)
            clock["busy"] += len(idle)

    def advance(
        self, state: BackupState, costs: Costs, limits: Limits, room: int, spans: bool
    ) -> tuple[int, Timeline]:
        """Run until a limit or until ``room`` folds are recorded; see `TimingProtocol`."""
        workers = len(state.tasks)
        needed = max(1, workers - self.backups)
        # Bounded memory for many workers: the segment then has several parts.
        room = max(1, min(room, (1 << 18) // workers))
        start = int(state.clock[0]["version"])
        record = BackupRecord(
            folds=np.empty(room),
            taken=np.empty(room * needed, TASK),
            dropped=np.empty((room + 1) * workers, TASK),
            counts=np.zeros(3, np.int64),
        )
        reason = run(state, costs, limits, needed, record)
        folds, entries, dropped = (
            rows[:count] for rows, count in zip(record[:3], record.counts.tolist(), strict=True)
        )
        numbers = np.arange(start, start + len(folds), dtype=np.int64)
        fates = np.concatenate([entries["fold"], np.full(len(dropped), LOST, np.int64)])
        return reason, Timeline(
            folds=Folds(numbers, folds.copy()),
            contributions=_contributions(fates, np.concatenate([entries, dropped])),
            spans=_spans(entries) if spans else Spans(),
        )

    def in_flight(self, state: BackupState) -> Contributions:
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
    """Fetch, compute and push of each contribution taken, and its part of the fold."""
    starts = ("read_at_s", "fetch_end_s", "compute_end_s", "fold_start_s")
    ends = ("fetch_end_s", "compute_end_s", "push_end_s", "fold_end_s")
    start_s = np.stack([tasks[name] for name in starts], axis=1).reshape(-1)
    end_s = np.stack([tasks[name] for name in ends], axis=1).reshape(-1)
    # Four spans per contribution; the fourth is the server's.
    worker = np.repeat(tasks["worker"].astype(np.int32), 4)
    worker[3::4] = SERVER
    kind = np.tile(np.arange(4, dtype=np.int32), len(tasks))
    busy = end_s > start_s
    return Spans(worker[busy], kind[busy], start_s[busy], end_s[busy])


@kernel
def run(state: BackupState, costs: Costs, limits: Limits, needed: int, record: BackupRecord) -> int:
    """Advance ``state`` until a limit is met or the record is full; returns the reason."""
    clock, counts, absences = state.clock[0], record.counts, state.absences
    faulty = len(absences.begun) > 0
    if faulty and absences.begun[0] == 0:
        begin(absences, costs.faults, clock.now_s)
    while clock.version < limits.version:
        if counts[0] == len(record.folds) or counts[2] == len(record.dropped):
            return FULL
        # Right after a fold, or at the start of a segment: the waiting workers read.
        struck_s = next_strike_s(absences)
        waits = clock.ready == 0 and clock.taken == 0 and clock.arrived > 0
        is_struck = waits and struck_s <= clock.now_s
        if waits and not is_struck:
            read_all(state, costs, limits)
        used_up = clock.version >= limits.dispatch or clock.now_s > limits.dispatch_s
        if clock.busy == 0 and (used_up or not faulty):
            return DONE
        fold_s = clock.fold_s if clock.ready == 1 else np.inf
        arrival_s = state.arrivals[1].time_s
        # A return comes after faults of its instant, an arrival before them.
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
        if is_struck:
            suffer(state, costs, needed, record)
        elif fold_s <= min(arrival_s, struck_s):
            fold(state, record)
        elif struck_s < arrival_s:
            suffer(state, costs, needed, record)
        else:
            arrive(state, costs, limits, needed, record, state.arrivals[1].key & WHO)
    return DONE


@kernel
def read_all(state: BackupState, costs: Costs, limits: Limits) -> None:
    """Let all workers that waited for the fold read, in order of arrival."""
    clock = state.clock[0]
    for place in range(clock.arrived):
        read(state, costs, limits, state.order[place])
    clock.arrived = 0


@kernel
def read(state: BackupState, costs: Costs, limits: Limits, worker: int) -> None:
    """Take a snapshot and the next minibatch; or become idle if the limits allow none."""
    clock, task = state.clock[0], state.tasks[worker]
    if len(state.absences.begun) > 0 and is_away(state, worker):
        clock.busy -= 1
        go(state, worker)
        return
    if clock.version >= limits.dispatch or clock.now_s > limits.dispatch_s:
        task.phase = PARKED
        clock.busy -= 1
        return
    # Every worker has a link of its own, so the arrival is known now.
    task.phase = COMPUTING
    task.read_version = clock.version
    task.read_at_s = clock.now_s
    task.first_step = clock.dispatched
    task.fetch_end_s = clock.now_s + costs.copy_s + costs.latency_s
    task.compute_end_s = task.fetch_end_s + computation_s(costs, worker, task.step)
    task.push_end_s = task.compute_end_s + costs.copy_s + costs.latency_s
    task.step += 1
    clock.dispatched += 1
    clock.coming += 1
    clock.under_way = 1
    enter(state.arrivals, worker, task.push_end_s, task.first_step)


@kernel
def arrive(
    state: BackupState, costs: Costs, limits: Limits, needed: int, record: BackupRecord, worker: int
) -> None:
    """Take an arriving contribution if it is of this version and needed, or drop it.

    Or let a worker that has returned read, or wait if the fold is complete but for its end.
    """
    clock, task = state.clock[0], state.tasks[worker]
    scratch(state.arrivals, worker)
    if task.phase == AWAY:
        clock.busy += 1
        task.phase = LATE
        if clock.ready == 0:
            read(state, costs, limits, worker)
            return
    elif task.read_version < clock.version or clock.ready == 1:
        # Too late. Before the next fold has all it needs, the worker reads at once.
        clock.coming -= task.read_version == clock.version
        task.phase = LATE
        task.fold_end_s = clock.now_s
        drop(record, task)
        if clock.ready == 0:
            read(state, costs, limits, worker)
            return
    else:
        task.phase = TAKEN
        task.fold = clock.version
        task.fold_start_s = max(clock.now_s, clock.server_free_s)
        task.fold_end_s = task.fold_start_s + folding_s(costs, worker, task.step - 1)
        clock.server_free_s = task.fold_end_s
        clock.taken += 1
        clock.coming -= 1
        check_complete(state, needed)
    state.order[clock.arrived] = worker
    clock.arrived += 1


@kernel
def drop(record: BackupRecord, task: Any) -> None:
    """Record a contribution that enters no fold."""
    record.dropped[record.counts[2]] = task
    record.counts[2] += 1


@kernel
def check_complete(state: BackupState, needed: int) -> None:
    """Complete the fold if it has all contributions that it needs or that can still come."""
    clock = state.clock[0]
    coming = needed - clock.taken
    # With faults fewer than ``needed`` may come: then all present workers are waited for.
    if len(state.absences.begun) > 0:
        coming = clock.coming if clock.taken < needed else 0
    if coming == 0 and clock.taken > 0 and clock.ready == 0:
        clock.ready = 1
        clock.fold_s = max(clock.server_free_s, clock.now_s)
    elif coming == 0 and clock.taken == 0:
        clock.under_way = 0


@kernel
def is_away(state: BackupState, worker: int) -> bool:
    """Whether a worker that is about to read is absent; a preempted one leaves now."""
    absences, now_s = state.absences, state.clock[0].now_s
    if absences.leave_s[worker] > 0.0:
        absences.until_s[worker] = now_s + absences.leave_s[worker]
        absences.leave_s[worker] = 0.0
    return absences.until_s[worker] > now_s


@kernel
def go(state: BackupState, worker: int) -> None:
    """Let a worker leave, and schedule its return."""
    state.tasks[worker].phase = AWAY
    until_s = state.absences.until_s[worker]
    scratch(state.arrivals, worker)
    if until_s < np.inf:
        enter(state.arrivals, worker, until_s, RETURN + worker)


@kernel
def suffer(state: BackupState, costs: Costs, needed: int, record: BackupRecord) -> None:
    """Execute a fault; a contribution of its worker that has not arrived is lost."""
    clock = state.clock[0]
    worker = strike(state.absences, costs.faults, clock.now_s)
    # Workers that wait for the fold notice their death when they would read (`is_away`).
    if worker != NOBODY and state.tasks[worker].phase == COMPUTING:
        state.tasks[worker].fold_end_s = clock.now_s
        clock.coming -= state.tasks[worker].read_version == clock.version
        drop(record, state.tasks[worker])
        clock.busy -= 1
        go(state, worker)
        check_complete(state, needed)


@kernel
def fold(state: BackupState, record: BackupRecord) -> None:
    """Complete the fold of all contributions taken."""
    clock, counts = state.clock[0], record.counts
    record.folds[counts[0]] = clock.now_s
    counts[0] += 1
    for place in range(clock.arrived):
        task = state.tasks[state.order[place]]
        if task.phase == TAKEN:
            record.taken[counts[1]] = task
            counts[1] += 1
            task.phase = LATE
    # Contributions of the old version that are still in flight count as too late from now on.
    clock.version += 1
    clock.taken = clock.coming = clock.ready = clock.under_way = 0

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
    is_present,
    new_absences,
    next_strike_s,
    strike,
)
from harness.simulator.protocols.contract import (
    CLOCK_FIELDS,
    DONE,
    FULL,
    GOES_ON,
    Handing,
    Limits,
    TimingProtocol,
    advance_clock,
)
from harness.simulator.protocols.rows import ROW, Stage, contributions_of, rows_under_way, spans_of
from harness.simulator.timeline import IN_FLIGHT, KINDS, LOST, Contributions, Folds, Spans, Timeline

PARKED, COMPUTING, TAKEN, LATE, AWAY = range(5)
"""States of a worker: idle; computing or sending; its contribution taken for the coming fold;
waiting for the fold without one; absent."""

RETURN = 1 << 37
"""Offset in the order of returns, which come after arrivals of the same instant; a number above
that of any minibatch."""

CLOCK = np.dtype(
    [
        *CLOCK_FIELDS,
        *((name, np.int64) for name in ("standing", "needed", "taken", "coming", "waiting")),
        *(("server_free_s", np.float64), ("fold_s", np.float64)),
    ]
)
"""Besides the common fields: events in a row at one instant, contributions that complete a fold,
those taken for the coming one, those of its version in flight, workers that wait for it, the
instant at which the server is free, and the fold's end, infinite until the fold is complete but for
that."""

TASK = np.dtype(
    [*ROW, ("phase", np.int64), ("step", np.int64)]
    + [(name, np.float64) for name in ("fetch_end_s", "compute_end_s", "push_end_s")]
    + [(name, np.float64) for name in ("fold_start_s", "fold_end_s")]
)
"""A worker's contribution, its state, the number of its minibatches so far, and the instants."""

STAGES = (
    Stage("fetch", "read_at_s", "fetch_end_s"),
    Stage("compute", "fetch_end_s", "compute_end_s"),
    Stage("push", "compute_end_s", "push_end_s"),
    Stage("fold", "fold_start_s", "fold_end_s", is_servers=True),
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

    def promised(self, state: BackupState) -> int:
        """The version and the fold under way: a round makes one fold."""
        clock = state.clock[0]
        return int(clock["version"] + (clock["taken"] + clock["coming"] > 0))

    def start(self, cluster: Cluster, workers: int) -> BackupState:
        """All workers idle at time 0, version 0.

        Raises:
            UserError: the workers share a link, a fault does not concern workers, or there are
                as many backups as workers.
        """
        if 1 < workers <= self.backups:  # one alone is what the others are compared with
            allowed = f"at most {workers - 1}"
            raise UserError(
                f"backups: {self.backups} is not allowed with {workers} workers; allowed: {allowed}"
            )
        if cluster.link.sharing != "none":
            raise UserError("link.sharing: backup workers need 'none', a link for every worker")
        tasks, clock = np.zeros(workers, TASK), np.zeros(1, CLOCK)
        tasks["worker"], tasks["steps"] = np.arange(workers), 1
        clock["needed"], clock["fold_s"] = max(1, workers - self.backups), np.inf
        return BackupState(
            clock=clock,
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
        waiting = int(clock[0]["waiting"])
        state.order[waiting : waiting + len(idle)] = idle
        tasks["phase"][idle] = LATE
        clock["waiting"] += len(idle)
        clock["busy"] += len(idle)

    def advance(
        self, state: BackupState, costs: Costs, limits: Limits, room: int, spans: bool
    ) -> tuple[int, Timeline]:
        """Run until a limit or until ``room`` folds are recorded; see `TimingProtocol`."""
        workers, needed = len(state.tasks), int(state.clock[0]["needed"])
        # Bounded memory for many workers: the segment then has several parts.
        room = max(1, min(room, (1 << 18) // workers))
        start = int(state.clock[0]["version"])
        record = BackupRecord(
            folds=np.empty(room),
            taken=np.empty(room * needed, TASK),
            dropped=np.empty((room + 1) * workers, TASK),
            counts=np.zeros(3, np.int64),
        )
        reason = run(state, costs, limits, record)
        folds, taken, dropped = (
            rows[:count] for rows, count in zip(record[:3], record.counts.tolist(), strict=True)
        )
        return reason, Timeline(
            folds=Folds(np.arange(start, start + len(folds), dtype=np.int64), folds.copy()),
            contributions=contributions_of(np.concatenate([taken, dropped])),
            spans=spans_of(taken, STAGES, KINDS) if spans else Spans(),
        )

    def in_flight(self, state: BackupState) -> Contributions:
        """Contributions read and not yet folded or dropped, by first step."""
        return rows_under_way(state.tasks, (COMPUTING, TAKEN))


@kernel
def run(state: BackupState, costs: Costs, limits: Limits, record: BackupRecord) -> int:
    """Advance ``state`` until a limit is met or the record is full; returns the reason."""
    clock, counts, absences = state.clock[0], record.counts, state.absences
    begin(absences, costs.faults, clock.now_s)
    while clock.version < limits.version:
        if counts[0] == len(record.folds) or counts[2] == len(record.dropped):
            return FULL
        # Right after a fold, or at the start of a segment: the waiting workers read.
        waits = clock.fold_s == np.inf and clock.taken == 0 and clock.waiting > 0
        is_struck = waits and next_strike_s(absences) <= clock.now_s
        if waits and not is_struck:
            for place in range(clock.waiting):
                read(state, costs, limits, state.order[place])
            clock.waiting = 0
        if clock.busy == 0 and not may_read(state, limits):
            return DONE
        event, struck_s = state.arrivals[1], next_strike_s(absences)
        arrival_s, is_return = event.time_s, event.key >> WHO_BITS >= RETURN
        reason = advance_clock(state.clock, limits, min(clock.fold_s, arrival_s, struck_s))
        if reason != GOES_ON:
            return reason
        if clock.fold_s <= min(arrival_s, struck_s):
            on_fold(state, record)
        # A return comes after faults of its instant, an arrival before them.
        elif is_struck or struck_s < arrival_s or (struck_s == arrival_s and is_return):
            on_fault(state, costs, record)
        else:
            on_arrival(state, costs, limits, record, event.key & WHO)
    return DONE


@kernel
def may_read(state: BackupState, limits: Limits) -> bool:
    """Whether the limits allow another minibatch."""
    return state.clock[0].version < limits.dispatch and state.clock[0].now_s <= limits.dispatch_s


@kernel
def read(state: BackupState, costs: Costs, limits: Limits, worker: int) -> None:
    """Take a snapshot and the next minibatch; or become idle if the limits allow none."""
    clock, task = state.clock[0], state.tasks[worker]
    if not is_present(state.absences, worker, clock.now_s):
        leave(state, worker)
        return
    if not may_read(state, limits):
        task.phase = PARKED
        clock.busy -= 1
        return
    # Every worker has a link of its own, so the arrival is known now.
    task.phase = COMPUTING
    task.fold = IN_FLIGHT
    task.read_version = clock.version
    task.read_at_s = clock.now_s
    task.first_step = clock.dispatched
    task.fetch_end_s = clock.now_s + costs.copy_s + costs.latency_s
    task.compute_end_s = task.fetch_end_s + computation_s(costs, worker, task.step)
    task.push_end_s = task.compute_end_s + costs.copy_s + costs.latency_s
    task.step += 1
    clock.dispatched += 1
    clock.coming += 1
    enter(state.arrivals, worker, task.push_end_s, task.first_step)


@kernel
def leave(state: BackupState, worker: int) -> None:
    """Let a worker leave, and schedule its return."""
    state.clock[0].busy -= 1
    state.tasks[worker].phase = AWAY
    until_s = state.absences.until_s[worker]
    scratch(state.arrivals, worker)
    if until_s < np.inf:
        enter(state.arrivals, worker, until_s, RETURN + worker)


@kernel
def on_arrival(
    state: BackupState, costs: Costs, limits: Limits, record: BackupRecord, worker: int
) -> None:
    """Take an arriving contribution if it is of this version and needed, or drop it.

    The worker then waits for the fold. With a dropped contribution, or back from an absence, it
    reads at once unless the fold is complete but for its end.
    """
    clock, task = state.clock[0], state.tasks[worker]
    scratch(state.arrivals, worker)
    if task.phase == COMPUTING and task.read_version == clock.version and clock.fold_s == np.inf:
        task.phase = TAKEN
        task.fold_start_s = max(clock.now_s, clock.server_free_s)
        task.fold_end_s = task.fold_start_s + folding_s(costs, worker, task.step - 1)
        clock.server_free_s = task.fold_end_s
        clock.taken += 1
        clock.coming -= 1
        check_complete(state)
    else:
        if task.phase == COMPUTING:
            drop(state, record, task)
        else:
            clock.busy += 1
        task.phase = LATE
        if clock.fold_s == np.inf:
            read(state, costs, limits, worker)
            return
    state.order[clock.waiting] = worker
    clock.waiting += 1


@kernel
def drop(state: BackupState, record: BackupRecord, task: Any) -> None:
    """Record a contribution that enters no fold."""
    state.clock[0].coming -= task.read_version == state.clock[0].version
    task.fold = LOST
    record.dropped[record.counts[2]] = task
    record.counts[2] += 1


@kernel
def check_complete(state: BackupState) -> None:
    """Complete the fold if it has all contributions that it needs or that can still come."""
    clock = state.clock[0]
    if clock.taken == clock.needed or (clock.coming == 0 and clock.taken > 0):
        clock.fold_s = min(clock.fold_s, max(clock.server_free_s, clock.now_s))


@kernel
def on_fault(state: BackupState, costs: Costs, record: BackupRecord) -> None:
    """Execute a fault; a contribution of its worker that has not arrived is lost."""
    worker = strike(state.absences, costs.faults, state.clock[0].now_s)
    # Workers that wait for the fold notice their death when they would read (`is_present`).
    if worker != NOBODY and state.tasks[worker].phase == COMPUTING:
        drop(state, record, state.tasks[worker])
        leave(state, worker)
        check_complete(state)


@kernel
def on_fold(state: BackupState, record: BackupRecord) -> None:
    """Complete the fold of all contributions taken."""
    clock, counts = state.clock[0], record.counts
    record.folds[counts[0]] = clock.now_s
    counts[0] += 1
    for place in range(clock.waiting):
        task = state.tasks[state.order[place]]
        if task.phase == TAKEN:
            task.fold = clock.version
            task.phase = LATE
            record.taken[counts[1]] = task
            counts[1] += 1
    # Contributions of the old version that are still in flight count as too late from now on.
    clock.version += 1
    clock.taken = clock.coming = 0
    clock.fold_s = np.inf

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
(see `harness.simulator.protocols.rounds`).
The cost of a contribution's computation is fixed at its read; that of the all-reduce when its last
contribution has been read and the previous fold is complete.

A round waits for the workers that are present. The contribution of a worker that dies before the
fold is complete is lost: the others notice at once, and repeat the all-reduce with their
parameters. With `[checkpoints]` they wait for the worker instead, and restart from a checkpoint
(see `harness.simulator.protocols.absences`). A preempted worker finishes its round. A worker that
returns, or joins late, takes part from the next fold on. If no worker is left, the next round
begins when one returns.
Of events at one instant, folds come before faults, faults before returns, returns before reads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from harness.base.errors import UserError
from harness.base.settings import Spec, setting
from harness.simulator.cluster import Cluster
from harness.simulator.collectives import EXCHANGES, RINGS, AllReduce, needs_table
from harness.simulator.costs import Costs, computation_s
from harness.simulator.events import kernel
from harness.simulator.protocols.absences import (
    NOBODY,
    Absences,
    begin,
    concat_restarts,
    fail,
    finish_restart,
    new_absences,
    new_saving,
    next_strike_s,
    on_fold,
    pause_end_s,
    select_readers,
    strike,
)
from harness.simulator.protocols.contract import (
    CLOCK_FIELDS,
    DONE,
    DYING,
    FULL,
    GONE,
    LOST_ROUNDS,
    STUCK,
    Handing,
    Limits,
    TimingProtocol,
)
from harness.simulator.protocols.rounds import (
    AFTER,
    BEFORE,
    LOST_TASK,
    TASK,
    RoundState,
    build_wiring,
    contributions_in_flight,
    network_of,
    new_neighbours,
    plan,
    reduce,
    round_timeline,
)
from harness.simulator.timeline import Contributions, Restarts, Timeline

CLOCK = np.dtype(
    [
        *CLOCK_FIELDS,
        *(("standing", np.int64), ("begun", np.int64), ("later_begun", np.int64)),
        *(("step", np.int64), ("fold_s", np.float64)),
        *(("epoch_step", np.int64), ("epoch_steps", np.int64)),
    ]
)
"""Besides the contract's fields (``dispatched`` counts rounds): events in a row at one instant,
whether the present and the next round have begun, number of minibatches handed to each worker,
instant of the present round's fold, and first minibatch and length of the epoch that a training
has begun (0: epochs are the cluster's)."""

MOST_ROWS = 1 << 18
"""Largest number of contributions recorded at a time, which limits memory with many workers."""


@dataclass(frozen=True)
class Averaging(Spec, TimingProtocol):
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
        """See `TimingProtocol`; the epoch's last round may be shorter."""
        clock = state.clock[0]
        # With overlap the epoch's first round has begun before the last one of the epoch before.
        step = state.later["first_step"][0] if clock["later_begun"] else clock["step"]
        clock["epoch_step"], clock["epoch_steps"] = step, minibatches

    def epoch_folds(self, cluster: Cluster, workers: int) -> int:
        """Number of rounds in one epoch of a cluster's data; 0 if there are no epochs."""
        minibatches = math.ceil(cluster.parallel.epoch_minibatches / workers)
        return math.ceil(minibatches / self.every)

    def memory_bytes(self, cluster: Cluster, workers: int) -> float:
        """With the table of messages, which rings of full-duplex links do without."""
        size = super().memory_bytes(cluster, workers)
        if workers == 1 or not needs_table(self.collective, build_wiring(cluster, workers)):
            return size
        group = math.gcd(workers, network_of(cluster).nearby)
        return size + MESSAGE_BYTES * count_messages(self.collective, workers, group)

    def start(self, cluster: Cluster, workers: int) -> RoundState:
        """All workers idle at time 0, version 0.

        Raises:
            UserError: a fault that does not concern workers, or a combination of settings that is
                not simulated.
        """
        _check(cluster, self)
        network = network_of(cluster)
        clock = np.zeros(1, CLOCK)
        clock["fold_s"] = np.inf
        return RoundState(
            clock=clock,
            tasks=np.zeros(workers, TASK),
            later=np.zeros(workers, TASK),
            machine=cluster,
            collective=AllReduce(self.collective, build_wiring(cluster, workers), network.nearby),
            absences=new_absences(cluster, workers, self.name),
            buckets=list(self.buckets),
            saving=new_saving(cluster.checkpoints),
            neighbours=new_neighbours(cluster, network, workers),
        )

    def wake(self, state: RoundState) -> None:
        """Let idle workers read at the present time."""
        state.clock[0]["busy"] = len(state.tasks)

    def advance(
        self, state: RoundState, costs: Costs, limits: Limits, room: int, spans: bool
    ) -> tuple[int, Timeline]:
        """Run until a limit or until ``room`` folds are recorded; see `TimingProtocol`."""
        clock, rounds, lost = state.clock[0], list[Any](), list[Any]()
        restarts, rounds_lost, restarts_seen = list[Restarts](), 0, 0
        start = int(clock["version"])
        room = max(1, min(room, MOST_ROWS // len(state.tasks)))
        reason = DONE
        _schedule(state, costs)
        while clock["version"] < limits.version:
            if len(rounds) == room:
                reason = FULL
                break
            if max(rounds_lost, len(restarts) - restarts_seen) >= LOST_ROUNDS and limits.is_endless:
                reason = DYING
                break
            # Faults of this instant come before its reads, with which a worker may escape one.
            is_struck = not clock["begun"] and _next_strike_s(state.absences) <= clock["now_s"]
            if not (clock["begun"] or is_struck or self._begin(state, costs, limits, restarts)):
                break
            struck_s = _next_strike_s(state.absences)
            # Overlapped reads happen between events: settle those before the next one.
            if self.overlap and clock["begun"]:
                self._go_on(state, costs, limits, struck_s)
            # ``fold_s`` may also be the instant of a return, or the end of a pause (`_begin`).
            if min(clock["fold_s"], struck_s) > limits.time_s:
                clock["now_s"] = limits.time_s
                break
            if is_struck or struck_s < clock["fold_s"]:  # at one instant, the fold comes first
                clock["now_s"] = max(clock["now_s"], struck_s)
                struck = _strike(state, costs)
                lost += struck
                rounds_lost += bool(struck) and not clock["begun"]
                continue
            if clock["fold_s"] == np.inf:
                reason = GONE
                break
            if not clock["begun"]:
                clock["now_s"] = clock["fold_s"]
                continue
            # Too many folds at one instant mean that nothing costs time.
            clock["standing"] = clock["standing"] + 1 if clock["fold_s"] == clock["now_s"] else 0
            if clock["standing"] > limits.standing:
                reason = STUCK
                break
            rounds.append(state.tasks.copy())
            rounds_lost, restarts_seen = 0, len(restarts)
            _fold(state)
        losses = np.concatenate([np.zeros(0, LOST_TASK), *lost])
        # With overlap the all-reduce runs beside computing, so workers have no spans of it.
        stages = BEFORE if self.overlap else BEFORE + AFTER
        timeline = round_timeline(start, rounds, losses, spans, stages, self.overlap)
        return reason, replace(timeline, restarts=concat_restarts(restarts))

    def in_flight(self, state: RoundState) -> Contributions:
        """Contributions read and not yet folded, by first step."""
        clock = state.clock[0]
        return contributions_in_flight(
            [
                *([state.tasks] if clock["begun"] else []),
                *([state.later] if clock["later_begun"] else []),
            ]
        )

    def _begin(
        self, state: RoundState, costs: Costs, limits: Limits, restarts: list[Restarts]
    ) -> bool:
        """Begin a round with all present workers; false if the limits allow none.

        With no worker present, the next event is a return and not a fold. With checkpoints the
        round waits for missing workers.
        """
        clock = state.clock[0]
        if clock["later_begun"] and _take_over(state, costs):
            return True
        if clock["dispatched"] >= limits.dispatch or clock["now_s"] > limits.dispatch_s:
            clock["busy"] = 0
            return False
        if state.machine.checkpoints and not _may_begin(state, restarts):
            return True
        ready = select_readers(state.absences, clock["now_s"], np.ones(len(state.tasks), np.bool_))
        if state.machine.checkpoints and not ready.all():
            # A preempted worker has left just now: wait for it, and restart.
            fail(state.saving)
            clock["fold_s"] = state.absences.until_s.max()
            return True
        if not ready.any():
            clock["fold_s"] = state.absences.until_s.min()
            return True
        self._hand_out(state, state.tasks)
        clock["begun"] = 1
        state.tasks["read_at_s"] = clock["now_s"]
        _read(state, costs, state.tasks, ready)
        plan(state, costs, state.tasks["compute_end_s"])
        return True

    def _hand_out(self, state: RoundState, tasks: Any) -> None:
        """Begin a round's tasks with the next minibatches of each worker."""
        clock, steps = state.clock[0], self.every
        start, length = _epoch(state)
        # A round never crosses the end of an epoch.
        if length:
            steps = min(steps, length - (int(clock["step"]) - start) % length)
        tasks["is_read"] = 0
        tasks["first_step"] = clock["step"]
        tasks["steps"] = steps
        clock["step"] += steps
        clock["dispatched"] += 1

    def _go_on(self, state: RoundState, costs: Costs, limits: Limits, struck_s: float) -> None:
        """Let workers that have joined the all-reduce read and begin the next round."""
        clock, later = state.clock[0], state.later
        join_s = state.tasks["join_s"]
        # A read at the instant of the fold is left to `_fold`: it reads the folded version.
        due = (join_s <= limits.time_s) & (join_s < min(clock["fold_s"], struck_s))
        if len(state.absences.leave_s):
            # Preempted workers leave at their next read, which `_take_over` gives them.
            due &= state.absences.leave_s == 0.0
        if not due.any():
            return
        if not clock["later_begun"]:
            if clock["dispatched"] >= limits.dispatch or join_s.min() > limits.dispatch_s:
                return
            self._hand_out(state, later)
            clock["later_begun"] = 1
        due &= later["is_read"] == 0
        later["read_at_s"][due] = join_s[due]
        _read(state, costs, later, due)


MESSAGE_BYTES = 64.0
"""Bytes of a message in a table: measured, about 50."""


def count_messages(collective: str, workers: int, group: int) -> int:
    """Largest number of messages of an all-reduce, with groups of ``group`` for two levels."""
    if collective in RINGS:
        return RINGS[collective] * (workers - 1) * workers
    if collective == "two-level":
        return 2 * (group + workers // group - 2) * workers
    return 2 * math.ceil(math.log2(workers)) * workers


def _check(cluster: Cluster, rules: Averaging) -> None:
    """Reject combinations of settings that are not simulated."""
    if rules.overlap and cluster.checkpoints:
        raise UserError("checkpoints: not simulated with overlap; allowed: without")
    if rules.buckets and cluster.host.staging == "pageable":
        raise UserError("buckets: not allowed with host.staging 'pageable'; allowed: 'pinned'")
    plain = rules.collective == "ring" and not (rules.overlap or rules.buckets or cluster.faults)
    if cluster.jobs and not plain:
        allowed = "a ring without overlap, buckets and faults"
        raise UserError(f"jobs: not simulated with these settings; allowed: {allowed}")


def _epoch(state: RoundState) -> tuple[int, int]:
    """First minibatch of the present epochs, and minibatches per epoch; 0 without epochs."""
    clock = state.clock[0]
    if clock["epoch_steps"]:
        return int(clock["epoch_step"]), int(clock["epoch_steps"])
    return 0, math.ceil(state.machine.parallel.epoch_minibatches / len(state.tasks))


def _may_begin(state: RoundState, restarts: list[Restarts]) -> bool:
    """Whether no checkpoint or restart delays the round; a restart that ends now is recorded."""
    clock, rules = state.clock[0], state.machine.checkpoints
    assert rules is not None
    now_s, step = float(clock["now_s"]), int(clock["step"])
    clock["fold_s"] = pause_end_s(state.saving, rules, state.absences, step, now_s)
    if clock["fold_s"] > now_s:
        return False
    if (restart := finish_restart(state.saving, now_s)) is not None:
        # Minibatches of undone folds are handed out again.
        restarts.append(restart[0])
        clock["step"] = restart[1]
    return True


def _fold(state: RoundState) -> None:
    """Complete a fold."""
    clock = state.clock[0]
    clock["now_s"] = clock["fold_s"]
    clock["version"] += 1
    on_fold(state.saving, state.machine.checkpoints, int(clock["version"]), float(clock["now_s"]))
    clock["begun"] = 0
    clock["fold_s"] = np.inf


def _take_over(state: RoundState, costs: Costs) -> bool:
    """Make the next round, which has begun, the present one; false if it has no worker left."""
    clock, later = state.clock[0], state.later
    # Workers that had not joined before the fold read the new version now.
    late = select_readers(state.absences, clock["now_s"], later["is_read"] == 0)
    later["read_at_s"][late] = clock["now_s"]
    _read(state, costs, later, late)
    state.tasks[:] = later
    clock["begun"], clock["later_begun"] = 1, 0
    if not state.tasks["is_read"].any():
        _give_up(clock)
        return False
    # All-reduces do not overlap: this one starts now or later.
    plan(state, costs, np.maximum(state.tasks["compute_end_s"], clock["now_s"]))
    return True


def _give_up(clock: Any) -> None:
    """Cancel the rounds that have begun: no worker is left in them."""
    clock["dispatched"] -= clock["begun"] + clock["later_begun"]
    clock["begun"] = clock["later_begun"] = 0


def _schedule(state: RoundState, costs: Costs) -> None:
    """Schedule the fault processes, at the first call."""
    flag = state.absences.begun
    if len(flag) and not flag[0]:
        begin(state.absences, costs.faults, state.clock[0]["now_s"])


def _next_strike_s(absences: Absences) -> float:
    """Instant of the next fault, infinity if there is none."""
    return next_strike_s(absences) if len(absences.begun) else math.inf


def _strike(state: RoundState, costs: Costs) -> list[Any]:
    """Execute a fault: returns lost tasks; the other workers repeat the all-reduce, or wait."""
    clock, lost = state.clock[0], list[Any]()
    worker = strike(state.absences, costs.faults, clock["now_s"])
    if worker != NOBODY and state.machine.checkpoints:
        return _stop(state)
    # With overlap the worker may have two contributions: one on its way, one being computed.
    for tasks, has_begun in ((state.tasks, clock["begun"]), (state.later, clock["later_begun"])):
        if worker != NOBODY and has_begun and tasks["is_read"][worker]:
            lost.append(np.array([(worker, tasks[worker].item())], LOST_TASK))
            tasks["is_read"][worker] = 0
            tasks["join_s"][worker] = np.inf
    if not clock["begun"]:  # the next round, if it has begun, goes on when its last workers read
        return lost
    if lost and state.tasks["is_read"].any():
        # The others repeat the all-reduce from now on, with the size of its first try.
        reduce(state, state.absences.size_bytes[0], clock["now_s"])
    elif lost:
        _give_up(clock)
    return lost


def _stop(state: RoundState) -> list[Any]:
    """Stop after a death with checkpoints: the present round is lost for all workers."""
    clock, tasks = state.clock[0], state.tasks
    lost = np.zeros(0, LOST_TASK)
    if clock["begun"]:
        members = np.flatnonzero(tasks["is_read"])
        lost = np.zeros(len(members), LOST_TASK)
        lost["worker"], lost["task"] = members, tasks[members]
        _give_up(clock)
    tasks["is_read"] = 0
    fail(state.saving)
    return [lost]


def _read(state: RoundState, costs: Costs, tasks: Any, due: Any) -> None:
    """Let the workers that are ``due`` [N] read the present version and begin to compute."""
    parallel, workers = state.machine.parallel, len(tasks)
    # A single worker runs the serial program, without the slowdown of the parallel one.
    tasks["read_version"][due] = state.clock[0]["version"]
    tasks["is_read"][due] = 1
    slowdown = parallel.slowdown if workers > 1 else 1.0
    compute(costs, tasks, due, parallel.epoch_s, *_epoch(state), slowdown)


@kernel
def compute(
    costs: Costs, tasks: Any, due: Any, epoch_s: float, start: int, epoch: int, slowdown: float
) -> None:
    """Compute the ends of the computations of the workers that are ``due``."""
    for worker in range(len(tasks)):
        if due[worker]:
            task = tasks[worker]
            time_s = task.read_at_s
            if epoch > 0 and (task.first_step - start) % epoch == 0:
                time_s += epoch_s
            task.start_s = time_s
            for step in range(task.first_step, task.first_step + task.steps):
                time_s += computation_s(costs, worker, step) * slowdown
            task.compute_end_s = time_s

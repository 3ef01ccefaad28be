"""Failures at an asynchronous server: workers leave, contributions are lost, the server restarts.

A contribution that has reached the server survives its worker. What a worker has read, computed or
sent is lost with it, and so is the whole queue with the server, which restarts from its last
checkpoint.
"""

from __future__ import annotations

import numpy as np

from harness.simulator import faults
from harness.simulator.costs import Costs
from harness.simulator.events import WAIT, kernel, scratch, withdraw
from harness.simulator.faults import away_s, instant_s
from harness.simulator.protocols import state as server
from harness.simulator.protocols.contract import Limits
from harness.simulator.protocols.record import Record
from harness.simulator.protocols.state import Rules, State
from harness.simulator.protocols.transfers import end_of


@kernel
def begin(state: State, costs: Costs, rules: Rules) -> None:
    """Schedule every fault process; workers that join late are absent."""
    clock, processes = state.clock[0], costs.faults
    clock.begun = 1
    for process in range(len(processes.kind)):
        for number in range(len(state.workers)):
            time_s = instant_s(processes, process, number, 0, clock.now_s)
            if processes.kind[process] == faults.LATE and time_s < np.inf:
                go(state, rules, number, time_s)
            elif time_s < np.inf:
                server.plan(state, fault_leaf(state, process, number), time_s, server.FAULT)


@kernel
def strike(
    state: State,
    costs: Costs,
    rules: Rules,
    limits: Limits,
    record: Record,
    process: int,
    number: int,
) -> None:
    """Execute a fault, and schedule its process again after the absence that it causes."""
    clock, processes, worker = state.clock[0], costs.faults, state.workers[number]
    kind = processes.kind[process]
    down_s = away_s(processes, process, number, state.occurrences[process, number])
    if kind == faults.SERVER:
        fail(state, costs, rules, limits, record, clock.now_s + down_s)
    elif kind == faults.PREEMPTION:
        if worker.status != server.AWAY:
            worker.leave_s = max(worker.leave_s, down_s)
    elif worker.status != server.AWAY:
        # Contributions at the server survive their worker.
        for place in range(number * rules.depth, (number + 1) * rules.depth):
            if state.slots[place].phase == server.GATED:
                scratch(state.gate, place)  # what it loses makes room for others only
        for place in range(number * rules.depth, (number + 1) * rules.depth):
            phase = state.slots[place].phase
            if phase in (server.WORKING, server.GATED, server.PUSHING):
                lose(state, costs, rules, limits, record, place)
        go(state, rules, number, clock.now_s + down_s)
    # Also if no worker was struck: then instants do not depend on the protocol.
    state.occurrences[process, number] += 1
    times, over_s = state.occurrences[process, number], clock.now_s + down_s
    next_s = instant_s(processes, process, number, times, over_s)
    if next_s < np.inf:
        server.plan(state, fault_leaf(state, process, number), next_s, server.FAULT)


@kernel
def lose(
    state: State, costs: Costs, rules: Rules, limits: Limits, record: Record, place: int
) -> None:
    """Record a lost contribution, and remove its events."""
    slot, clock = state.slots[place], state.clock[0]
    scratch(state.events, place)
    slot.fold_end_s = clock.now_s
    record.lost[record.counts[1]] = slot
    record.counts[1] += 1
    # A copy on a fair link continues to its end, and keeps the slot until then.
    phase, slot.phase = slot.phase, server.ABANDONED if slot.on_link == 1 else server.FREE
    if phase == server.GATED:
        scratch(state.gate, place)
    if phase in (server.WORKING, server.GATED):
        state.workers[slot.worker].mine -= 1
        clock.under_way -= 1
        clock.busy -= 1
    else:
        end_of(state, rules, slot.worker)
    # With one contribution fewer in flight, parked workers may read before the limit.
    if clock.parked > 0 and clock.now_s <= limits.dispatch_s:
        server.wake(state)


@kernel
def fail(
    state: State, costs: Costs, rules: Rules, limits: Limits, record: Record, up_s: float
) -> None:
    """Fail the server until ``up_s``: its queue and all folds since the checkpoint are lost."""
    clock = state.clock[0]
    # First: a checkpoint that is due has the present version.
    save(state, costs)
    clock.server_up_s = clock.server_free_s = up_s
    row = record.restarts[record.counts[2]]
    row.time_s, row.version, row.restored_version = up_s, clock.version, clock.restored
    record.counts[2] += 1
    state.folds.counts[WAIT] = 0
    for place in range(len(state.slots)):
        if state.slots[place].phase == server.AT_SERVER:
            number = state.slots[place].worker
            lose(state, costs, rules, limits, record, place)
            worker = state.workers[number]
            if worker.status == server.HELD:  # by its contributions in flight: it may read now
                scratch(state.held, number)
                server.schedule_read(state, number)
            elif worker.status == server.ENGAGED and worker.computing == 0:
                server.schedule_read(state, number)


@kernel
def save(state: State, costs: Costs) -> None:
    """Let the server's checkpoints up to this instant have the present version."""
    clock, every_s = state.clock[0], costs.faults.checkpoint_s
    if every_s < np.inf:
        checkpoints = int(clock.now_s / every_s)
        if checkpoints > clock.checkpoint:
            clock.checkpoint = checkpoints
            clock.restored = clock.version


@kernel
def go(state: State, rules: Rules, number: int, until_s: float) -> None:
    """Let a worker leave until an instant; the staleness bound ignores it meanwhile."""
    worker, leaf = state.workers[number], len(state.slots) + number
    # Remove it from the queue that it is in, if any, before its status changes.
    if worker.status == server.HELD:
        scratch(state.held, number)
    if worker.status == server.ABOUT_TO_READ:
        withdraw(state.readers, number)
    server.become(state, number, server.AWAY)
    worker.computing = 0
    worker.since_fetch = -1  # it loses its parameters, and must fetch after its return
    scratch(state.events, leaf)
    if until_s < np.inf:
        server.plan(state, leaf, until_s, server.RETURNED)
    if worker.folds == state.clock[0].least:
        server.leave_least(state, rules)


@kernel
def come_back(state: State, rules: Rules, number: int) -> None:
    """Let a worker return and read."""
    clock, worker = state.clock[0], state.workers[number]
    server.schedule_read(state, number)
    # It counts as having the slowest's folds at least, or it would hold all others up.
    if clock.at_least == 0:
        server.find_least(state, rules)
    else:
        worker.folds = max(worker.folds, clock.least)
        clock.at_least += worker.folds == clock.least


@kernel
def fault_leaf(state: State, process: int, number: int) -> int:
    """The leaf of a fault process at a worker."""
    return len(state.slots) + len(state.workers) * (1 + process) + number

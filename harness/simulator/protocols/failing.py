"""Faults as they strike: a worker goes, a contribution is lost, the server fails."""

from __future__ import annotations

import numpy as np

from harness.simulator import faults
from harness.simulator.costs import Costs
from harness.simulator.events import clear, scratch
from harness.simulator.faults import away_s, instant_s
from harness.simulator.jit import kernel
from harness.simulator.protocols.contract import Limits
from harness.simulator.protocols.contributing import end_of, save
from harness.simulator.protocols.recording import Record
from harness.simulator.protocols.slots import (
    ABANDONED,
    AT_SERVER,
    AWAY,
    ENGAGED,
    FAULT,
    FREE,
    GATED,
    HELD,
    PUSHING,
    WORKING,
    Rules,
    State,
    about_to_read,
    fault_leaf,
    go,
    plan,
    wake,
)

__all__ = ["begin", "strike"]


@kernel
def begin(state: State, costs: Costs, rules: Rules) -> None:
    """Schedule every fault process; who joins late is not there yet."""
    clock, processes = state.clock[0], costs.faults
    clock.begun = 1
    for process in range(len(processes.kind)):
        for who in range(len(state.workers)):
            time_s = instant_s(processes, process, who, 0, clock.now_s)
            if processes.kind[process] == faults.LATE and time_s < np.inf:
                go(state, rules, who, time_s)
            elif time_s < np.inf:
                plan(state, fault_leaf(state, process, who), time_s, FAULT)


@kernel
def strike(
    state: State,
    costs: Costs,
    rules: Rules,
    limits: Limits,
    record: Record,
    process: int,
    who: int,
) -> None:
    """A fault happens; its process goes on when what it causes is over."""
    clock, processes, worker = state.clock[0], costs.faults, state.workers[who]
    kind = processes.kind[process]
    down_s = away_s(processes, process, who, state.occurrences[process, who])
    if kind == faults.SERVER:
        fail(state, costs, rules, limits, record, clock.now_s + down_s)
    elif kind == faults.PREEMPTION:
        if worker.status != AWAY:
            worker.leave_s = max(worker.leave_s, down_s)
    elif worker.status != AWAY:
        for place in range(who * rules.depth, (who + 1) * rules.depth):
            phase = state.slots[place].phase
            if phase in (WORKING, GATED, PUSHING):
                lose(state, costs, rules, limits, record, place)
        go(state, rules, who, clock.now_s + down_s)
    state.occurrences[process, who] += 1
    times, over_s = state.occurrences[process, who], clock.now_s + down_s
    next_s = instant_s(processes, process, who, times, over_s)
    if next_s < np.inf:
        plan(state, fault_leaf(state, process, who), next_s, FAULT)


@kernel
def lose(
    state: State, costs: Costs, rules: Rules, limits: Limits, record: Record, place: int
) -> None:
    """A contribution is lost: recorded, and no event of it is left."""
    slot, clock = state.slots[place], state.clock[0]
    scratch(state.events, place)
    slot.fold_end_s = clock.now_s
    record.lost[record.counts[1]] = slot
    record.counts[1] += 1
    phase, slot.phase = slot.phase, ABANDONED if slot.on_link == 1 else FREE
    if phase == GATED:
        scratch(state.gate, place)
    if phase in (WORKING, GATED):
        state.workers[slot.worker].mine -= 1
        clock.under_way -= 1
        clock.busy -= 1
    else:
        end_of(state, costs, rules, slot.worker)
    if clock.parked > 0 and clock.now_s <= limits.dispatch_s:
        wake(state)


@kernel
def fail(
    state: State, costs: Costs, rules: Rules, limits: Limits, record: Record, up_s: float
) -> None:
    """The server is down: what is queued is lost, and so is every fold since the checkpoint."""
    clock = state.clock[0]
    save(state, costs)
    clock.server_up_s = clock.server_free_s = up_s
    row = record.restarts[record.counts[2]]
    row.time_s, row.version, row.restored_version = up_s, clock.version, clock.restored
    record.counts[2] += 1
    clear(state.folds)
    for place in range(len(state.slots)):
        if state.slots[place].phase == AT_SERVER:
            who = state.slots[place].worker
            lose(state, costs, rules, limits, record, place)
            worker = state.workers[who]
            if worker.status == HELD:  # by what it had under way: it may go on now
                scratch(state.held, who)
                about_to_read(state, who)
            elif worker.status == ENGAGED and worker.computing == 0:
                about_to_read(state, who)

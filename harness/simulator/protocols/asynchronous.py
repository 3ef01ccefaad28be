"""The parameter server, event by event: any link, every setting, faults.

Order of events at one instant: departures from fair links, folds, arrivals, messages that are sent
next or again, ends of computing, ends of fetching, faults, returns, reads.

A contribution is read, fetched, computed, sent, queued and folded. Only those stages are events
that other events can precede. Here are the order of events, reads and folds; `transfers` has the
stages between them, `failures` the faults, and `state` the state.
"""

from __future__ import annotations

from typing import Any

from harness.simulator.costs import Costs, computation_with_jitter_s, folding_s, jitter_of
from harness.simulator.events import WAIT, WHO, enter, head_s, kernel, part, scratch
from harness.simulator.events import take as take_first
from harness.simulator.links import load_of, next_departure_s, staging_s
from harness.simulator.protocols import shards
from harness.simulator.protocols import state as server
from harness.simulator.protocols.contract import ASKS, DONE, FULL, GOES_ON, Limits, advance_clock
from harness.simulator.protocols.failures import begin, come_back, go, save, strike
from harness.simulator.protocols.record import Record, write_instants, write_row
from harness.simulator.protocols.state import Rules, State
from harness.simulator.protocols.transfers import (
    compute,
    end_of,
    fetch,
    on_arrival,
    on_computed,
    on_departure,
    on_turn,
)


@kernel
def run(state: State, costs: Costs, rules: Rules, limits: Limits, record: Record) -> int:
    """Advance ``state`` until a limit is met or the record is full; returns the reason."""
    clock, counts, events = state.clock[0], record.counts, state.events
    room = len(record.worker)
    if clock.begun == 0:
        begin(state, costs, rules)
    while clock.version < limits.version:
        # One event can lose all contributions in flight: the record has space for them beyond.
        if counts[0] == room or counts[1] >= room or counts[2] >= room:
            return FULL
        link_s = next_departure_s(state.links, clock.now_s)
        fold_s, event_s = head_s(state.folds), events[1].time_s
        # Drained: nothing is in flight, and no worker may begin a contribution in this segment.
        # A worker that a rule keeps waiting is parked, too, though the limits allow it to read.
        waits = rules.asks and may_begin(state, limits)
        if clock.busy == 0 and (
            limits.dispatch_s < clock.now_s or (clock.parked > 0 and not waits)
        ):
            return DONE
        time_s = min(link_s, fold_s, event_s)
        # Reads come last at their instant, so a worker reads all folds of that instant.
        reads = state.readers.counts[WAIT] > 0 and time_s > clock.now_s
        reason = advance_clock(state.clock, limits, clock.now_s if reads else time_s)
        if reason != GOES_ON:
            return reason
        if reads and rules.asks:
            return ASKS
        if reads:
            read(state, costs, rules, limits, take_first(state.readers)[1])
        elif link_s <= min(fold_s, event_s):
            on_departure(state, costs, rules)
        elif fold_s <= event_s:
            number = fold(state, costs, rules, record, take_first(state.folds)[1])
            if number >= 0:
                # Mostly nothing else is left of this instant: then the worker reads at once.
                link_s = next_departure_s(state.links, clock.now_s)
                next_s = min(link_s, head_s(state.folds), events[1].time_s)
                is_last = state.readers.counts[WAIT] == 0 and next_s > clock.now_s
                if is_last and not rules.asks and clock.version < limits.version:
                    read(state, costs, rules, limits, number)
                else:
                    server.schedule_read(state, number)
            if rules.asks and may_begin(state, limits):
                server.wake(state)  # the fold may change the answer for those that wait
        else:
            happen(state, costs, rules, limits, record, events[1].key)
    return DONE


@part
def happen(
    state: State, costs: Costs, rules: Rules, limits: Limits, record: Record, key: int
) -> None:
    """Execute the first event of the tournament."""
    # Leaves are slots, then workers, then fault processes by worker.
    kind, leaf, now_s = key >> server.PRIORITY, key & WHO, state.clock[0].now_s
    number = leaf - len(state.slots)
    if kind == server.PUSHED:
        on_arrival(state, costs, rules, leaf)
    elif kind == server.SEND:
        on_turn(state, costs, rules, leaf)
    elif kind == server.COMPUTED:
        on_computed(state, rules, leaf, now_s)
    elif kind == server.FETCHED:
        stage_s = staging_s(state.links, state.slots[leaf].load)
        compute(state, costs, rules, leaf, now_s + stage_s)
    elif kind == server.FAULT:
        place = number - len(state.workers)
        process, worker = place // len(state.workers), place % len(state.workers)
        strike(state, costs, rules, limits, record, process, worker)
    elif kind == server.RETURNED:
        come_back(state, rules, number)
    elif rules.asks:
        server.schedule_read(state, number)
    else:
        read(state, costs, rules, limits, number)
    # Mostly the event has scheduled its leaf's next one, which has another key.
    if state.events[(len(state.events) >> 1) + leaf].key == key:
        scratch(state.events, leaf)


@kernel
def may_begin(state: State, limits: Limits) -> bool:
    """Whether the limits allow another contribution to begin now."""
    clock = state.clock[0]
    allowed = clock.version + clock.under_way < limits.dispatch
    return allowed and clock.now_s <= limits.dispatch_s


@kernel
def answer(state: State, costs: Costs, rules: Rules, limits: Limits, workers: Any) -> None:
    """Let these workers read at this instant, in this order; all others that ask wait."""
    state.readers.counts[WAIT] = 0
    for number in range(len(state.workers)):
        if state.workers[number].status == server.ABOUT_TO_READ:
            server.become(state, number, server.PARKED)
    for place in range(len(workers)):
        server.become(state, workers[place], server.ABOUT_TO_READ)
        read(state, costs, rules, limits, workers[place])


@kernel
def read(state: State, costs: Costs, rules: Rules, limits: Limits, number: int) -> None:
    """Begin a contribution, if there is one to begin, the bound allows it and the server is up."""
    clock, worker = state.clock[0], state.workers[number]
    if worker.leave_s > 0.0:  # preempted: it leaves instead
        away_s, worker.leave_s = worker.leave_s, 0.0
        go(state, rules, number, clock.now_s + away_s)
        return
    if clock.now_s < clock.server_up_s:
        # Of all that wait for the server, the one that asked first reads first.
        server.plan(state, len(state.slots) + number, clock.server_up_s, server.READ)
        return
    if not may_begin(state, limits):
        server.become(state, number, server.PARKED)
        return
    # Contributions in flight count as folds, or a deep pipeline would pass the bound.
    if rules.bound >= 0 and worker.folds + worker.mine > clock.least + rules.bound:
        server.become(state, number, server.HELD)
        enter(state.held, number, float(worker.folds + worker.mine), clock.sequence)
        clock.sequence += 1
        return
    slot = number * rules.depth
    while state.slots[slot].phase != server.FREE:
        slot += 1
        if slot == (number + 1) * rules.depth:  # all slots taken, one perhaps by a lost copy
            server.become(state, number, server.ENGAGED)
            return
    server.become(state, number, server.ENGAGED)
    take(state, costs, rules, number, slot)


@part
def take(state: State, costs: Costs, rules: Rules, number: int, place: int) -> None:
    """Take a snapshot of the model, if one is due, and the next minibatches."""
    clock, worker, slot = state.clock[0], state.workers[number], state.slots[place]
    # Between fetches the worker uses its last snapshot, with that one's version.
    fetches = worker.since_fetch < 0 or worker.since_fetch >= rules.fetch_every
    if fetches:
        worker.since_fetch = 0
        worker.read_version = clock.version
        worker.read_at_s = clock.now_s
        shards.look(state.shards, number, clock.now_s)
    worker.since_fetch += 1
    # All costs are fixed now: a change of the workload concerns later reads only.
    slot.phase = server.WORKING
    slot.on_link = slot.sent = 0
    slot.read_version = worker.read_version
    slot.read_at_s = worker.read_at_s
    slot.first_step = clock.dispatched
    slot.load = load_of(state.links, costs)
    slot.compute_s = 0.0
    if worker.step == 0:
        worker.jitter = jitter_of(costs, number, 0)
    for step in range(worker.step, worker.step + rules.push_every):
        slot.compute_s += computation_with_jitter_s(costs, number, step, worker.jitter)
        worker.jitter = jitter_of(costs, number, step + 1)  # ahead, which hides its latency
    # Folds are counted in contributions, not in minibatches.
    slot.fold_s = folding_s(costs, number, worker.step // rules.push_every)
    worker.step += rules.push_every
    worker.mine += 1
    worker.computing = 1
    clock.dispatched += rules.push_every
    clock.under_way += 1
    clock.busy += 1
    if rules.shards > 1:
        shards.begin(state.shards, number, place)
    slot.fetch_start_s = clock.now_s
    if fetches:
        fetch(state, costs, rules, place)
    else:
        compute(state, costs, rules, place, clock.now_s)


@part
def fold(state: State, costs: Costs, rules: Rules, record: Record, place: int) -> int:
    """Complete a fold: a new version, and room at the server.

    Returns:
        The worker, if it may read now, else −1.
    """
    clock, slot = state.clock[0], state.slots[place]
    number, worker = slot.worker, state.workers[slot.worker]
    # First: checkpoints up to this instant do not contain this fold.
    save(state, costs)
    write_row(record, record.counts[0], slot, slot.fold_end_s)
    if len(record.instants) > 0:
        write_instants(record.instants[record.counts[0]], slot)
    for shard in range(record.pieces.shape[1]):  # none with one shard
        record.pieces[record.counts[0], shard] = state.shards.pieces[place, shard]
    record.counts[0] += 1
    clock.version += 1
    slot.phase = server.FREE
    end_of(state, rules, number)
    worker.folds += 1
    if rules.bound >= 0 and worker.status != server.AWAY and worker.folds == clock.least + 1:
        server.leave_least(state, rules)
    if worker.status == server.ENGAGED and worker.computing == 0:
        return number
    return -1

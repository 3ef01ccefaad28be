"""The parameter server in full, event by event: any link, every setting, faults.

Order of events at one instant: ends of copies on fair links, folds, arrivals, repeated messages,
ends of computing, ends of fetching, faults, returns, reads.

A contribution is read, fetched, computed, sent, queued and folded. Only those stages are events
that other events can precede. On a network the messages of a contribution are events, too.

Here are the order of events, reads and folds; `harness.simulator.protocols.transfers` has the
stages between them, `harness.simulator.protocols.failures` the faults, and
`harness.simulator.protocols.state` the state.
"""

from __future__ import annotations

import numpy as np

from harness.simulator import link
from harness.simulator.costs import Costs, computation_s, folding_s
from harness.simulator.events import (
    FAR_LEVELS,
    WAIT,
    Queue,
    enter,
    head_s,
    kernel,
    levels_below_horizon,
    part,
    prefetch,
    scratch,
    soon,
)
from harness.simulator.events import take as events_take
from harness.simulator.protocols import state as shards
from harness.simulator.protocols.contract import DONE, FULL, GONE, STUCK, Limits
from harness.simulator.protocols.failures import begin, come_back, go, save, strike
from harness.simulator.protocols.state import (
    AWAY,
    COMPUTED,
    ENGAGED,
    FAULT,
    FETCHED,
    FOLDED,
    FREE,
    HELD,
    LEAF,
    PARKED,
    PRIORITY,
    PUSHED,
    READ,
    RETURNED,
    SEND,
    WORKING,
    Record,
    Rules,
    State,
    become,
    leave_least,
    next_to_leave_s,
    plan,
    schedule_read,
    staging_s,
    write_row,
)
from harness.simulator.protocols.transfers import (
    arrive,
    compute,
    dispatch,
    end_of,
    fetch,
    leave_link,
    leave_network,
    load,
    on_computed,
    place_of,
    send,
)

__all__ = ["run"]

AHEAD = 8
"""Number of events of a queue between the prefetch for an event and the event."""


@kernel
def run(state: State, costs: Costs, rules: Rules, limits: Limits, record: Record, room: int) -> int:
    """Advance ``state`` until a limit is met or the record is full; returns the reason."""
    clock, counts = state.clock[0], record.counts
    networked = state.channels.sharing == link.NETWORK
    levels = levels_below_horizon(len(state.events) >> 1)
    if clock.begun == 0:
        begin(state, costs, rules)
    while clock.version < limits.version:
        # One event can lose all contributions in flight: the record has space for them beyond.
        if counts[0] == room or counts[1] >= room or counts[2] >= room:
            return FULL
        link_s, way = link.soonest(state.channels)
        if networked:
            link_s = next_to_leave_s(state.roads, clock.now_s)
        # Drained: nothing is in flight, and no worker may begin a contribution in this segment.
        if clock.busy == 0 and (clock.parked > 0 or limits.dispatch_s < clock.now_s):
            return DONE
        fold_s, event_s = head_s(state.folds), state.events[1].time_s
        # Rounding may put the end of a copy on a fair link just before the present time.
        time_s = max(min(link_s, fold_s, event_s), clock.now_s)
        # Reads come last at their instant, so a worker reads all folds of that instant.
        reads = state.readers.counts[WAIT] > 0 and min(link_s, fold_s, event_s) > clock.now_s
        if reads:
            time_s = clock.now_s
        if time_s > limits.time_s:
            clock.now_s = limits.time_s
            return DONE
        if time_s == np.inf:
            return GONE
        clock.standing = clock.standing + 1 if time_s == clock.now_s else 0
        if clock.standing > limits.standing:
            return STUCK
        clock.now_s = time_s
        if reads:
            read(state, costs, rules, limits, events_take(state.readers)[1])
        elif link_s <= min(fold_s, event_s) and networked:
            leave_network(state, state.roads, costs, rules)
        elif link_s <= min(fold_s, event_s):
            if levels > 0 and way == link.DOWN:
                fetch_way(state, rules, soon(state.channels.fetches, AHEAD), FAR_LEVELS)
            elif levels > 0:
                fetch_read(state, costs, rules, state.channels.pushes)
            leave_link(state, costs, rules, way)
        elif fold_s <= event_s:
            if levels > 0:
                fetch_read(state, costs, rules, state.folds)
            fold(state, costs, rules, limits, record, events_take(state.folds)[1])
        else:
            key = state.events[1].key
            happen(state, costs, rules, limits, record, key)
            if levels > 0:
                fetch_next(state, rules, key & LEAF, levels)
    return DONE


@part
def fetch_read(state: State, costs: Costs, rules: Rules, queue: Queue) -> None:
    """Prefetch the contribution `AHEAD` of the first of a queue, and data for its worker's read.

    The read follows from the contribution's fold.
    """
    place = soon(queue, AHEAD)
    fetch_way(state, rules, place, 0)
    prefetch(costs.compute_s, worker_of(rules, place))


@part
def fetch_next(state: State, rules: Rules, leaf: int, levels: int) -> None:
    """Prefetch for the event that has come up to the horizon of the tournament."""
    head = state.events[((len(state.events) >> 1) + leaf) >> levels].key & LEAF
    fetch_way(state, rules, head, FAR_LEVELS)


@part
def fetch_way(state: State, rules: Rules, place: int, levels: int) -> None:
    """Prefetch a slot, its worker, and the path of its next event up the tournament."""
    prefetch(state.slots, place)
    prefetch(state.workers, worker_of(rules, place))
    node = (len(state.events) >> 1) + place
    for _ in range(levels):
        prefetch(state.events, node)
        node >>= 1


@part
def worker_of(rules: Rules, place: int) -> int:
    """Index of a slot's worker."""
    # A division takes as long as much of an event, hence the test.
    return place if rules.depth == 1 else place // rules.depth


@kernel
def happen(
    state: State, costs: Costs, rules: Rules, limits: Limits, record: Record, key: int
) -> None:
    """Execute the first event of the tournament."""
    kind, leaf = key >> PRIORITY, key & LEAF
    # Leaves are slots, then workers, then fault processes by worker.
    number = leaf - len(state.slots)
    networked = state.channels.sharing == link.NETWORK
    if kind == FOLDED:
        fold(state, costs, rules, limits, record, leaf)
    elif kind == PUSHED:
        arrive(state, costs, rules, place_of(state, rules, leaf))
    elif kind == SEND and networked:
        dispatch(state, state.roads, costs, rules, leaf)
    elif kind == SEND:
        send(state, costs, rules, leaf)
    elif kind == COMPUTED:
        on_computed(state, costs, rules, leaf)
    elif kind == FETCHED:
        compute(state, leaf, state.clock[0].now_s + staging_s(state.roads, leaf))
    elif kind == FAULT:
        place = number - len(state.workers)
        process, worker = place // len(state.workers), place % len(state.workers)
        strike(state, costs, rules, limits, record, process, worker)
    elif kind == RETURNED:
        come_back(state, rules, number)
    else:
        read(state, costs, rules, limits, number)
    # Mostly the event has scheduled its leaf's next one, which has another key.
    if state.events[(len(state.events) >> 1) + leaf].key == key:
        scratch(state.events, leaf)


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
        plan(state, len(state.slots) + number, clock.server_up_s, READ)
        return
    if clock.version + clock.under_way >= limits.dispatch or clock.now_s > limits.dispatch_s:
        become(state, number, PARKED)
        return
    # Contributions in flight count as folds, or a deep pipeline would pass the bound.
    if rules.bound >= 0 and worker.folds + worker.mine > clock.least + rules.bound:
        become(state, number, HELD)
        enter(state.held, number, float(worker.folds + worker.mine), clock.sequence)
        clock.sequence += 1
        return
    slot = number * rules.depth
    while state.slots[slot].phase != FREE:
        slot += 1
        if slot == (number + 1) * rules.depth:  # all slots taken, one perhaps by a lost copy
            become(state, number, ENGAGED)
            return
    become(state, number, ENGAGED)
    take(state, costs, rules, number, slot)


@kernel
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
    slot.phase = WORKING
    slot.on_link = 0
    slot.read_version = worker.read_version
    slot.read_at_s = worker.read_at_s
    slot.first_step = clock.dispatched
    slot.copy_s = costs.copy_s
    slot.compute_s = 0.0
    for step in range(worker.step, worker.step + rules.push_every):
        slot.compute_s += computation_s(costs, number, step)
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
    load(state.roads, costs, place)
    if not fetches:
        compute(state, place, clock.now_s)
    elif state.channels.sharing == link.NETWORK:
        fetch(state, state.roads, costs, rules, place)
    elif state.channels.sharing == link.FAIR:
        # The end of the copy depends on later copies, so it is an event (`leave_link`).
        slot.on_link = 1
        link.join(state.channels, link.DOWN, clock.now_s, slot.copy_s, place)
    else:
        slot.fetch_start_s = link.occupy(state.channels, link.DOWN, clock.now_s, slot.copy_s)
        compute(state, place, slot.fetch_start_s + slot.copy_s + costs.latency_s)


@kernel
def fold(
    state: State, costs: Costs, rules: Rules, limits: Limits, record: Record, place: int
) -> None:
    """Complete a fold: a new version, room at the server, and the worker's next read."""
    clock, slot = state.clock[0], state.slots[place]
    number, worker = slot.worker, state.workers[slot.worker]
    # First: checkpoints up to this instant do not contain this fold.
    save(state, costs)
    write_row(record, record.counts[0], slot)
    for shard in range(record.pieces.shape[1]):  # none with one shard
        record.pieces[record.counts[0], shard] = state.shards.pieces[place, shard]
    record.counts[0] += 1
    clock.version += 1
    slot.phase = FREE
    end_of(state, costs, rules, number)
    worker.folds += 1
    if worker.status != AWAY and worker.folds == clock.least + 1:
        leave_least(state, rules)
    if worker.status == ENGAGED and worker.computing == 0:
        schedule_read(state, number)

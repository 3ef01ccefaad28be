"""The parameter server in full, event by event: any link, every setting, faults.

The parameter server in full: any kind of link, every setting, faults. What a contribution goes
through is in `contributing`, what can go wrong in `failing`, the state in `slots`.

Of events at one instant: ends of copies on fair links, folds, arrivals, messages sent again, ends
of computing, ends of fetching, faults, returns, reads.

The life of a contribution: read, fetched, computed, sent, queued, folded. An event is only what
others can come before. Where copies arrive in the order in which they were sent, as they do
wherever workers share links, and nothing can go wrong on the way, a contribution queues at the
server as soon as its arrival is known.

What follows from the end of a copy: computing what was fetched, folding what was handed in. Faults
as they strike: a worker goes, a contribution is lost, the server fails. A contribution's way over
a network: its messages as events of the asynchronous kernel.
"""

from __future__ import annotations

import numpy as np

from harness.simulator import faults, link
from harness.simulator.costs import Costs, computation_s, folding_s
from harness.simulator.events import (
    FAR_LEVELS,
    WAIT,
    Queue,
    append,
    clear,
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
from harness.simulator.faults import away_s, instant_s
from harness.simulator.laws import uniforms
from harness.simulator.protocols import state as shards
from harness.simulator.protocols.contract import DONE, FULL, GONE, STUCK, Limits
from harness.simulator.protocols.state import (
    ABANDONED,
    AT_SERVER,
    AWAY,
    COMPUTED,
    ENGAGED,
    FAULT,
    FETCHED,
    FOLDED,
    FREE,
    GATED,
    HELD,
    LEAF,
    PARKED,
    PRIORITY,
    PUSHED,
    PUSHING,
    READ,
    RETURNED,
    SEND,
    WORKING,
    Record,
    Roads,
    Rules,
    State,
    become,
    come_back,
    fault_leaf,
    go,
    leave,
    leave_least,
    next_to_leave_s,
    plan,
    schedule_read,
    send_next,
    staging_s,
    wake,
    write_row,
)

__all__ = [
    "arrive",
    "begin",
    "compute",
    "dispatch",
    "end_of",
    "fetch",
    "fold",
    "free_slot",
    "leave_link",
    "leave_network",
    "load",
    "on_arrival",
    "on_computed",
    "on_fetched",
    "place_of",
    "push",
    "read",
    "run",
    "save",
    "send",
    "serve",
    "strike",
]

AHEAD = 8
"""Events of a queue between asking for what one needs and its taking place."""


@kernel
def run(state: State, costs: Costs, rules: Rules, limits: Limits, record: Record, room: int) -> int:
    """Move ``state`` until a limit is met or the record is full; returns why it stopped."""
    clock, counts = state.clock[0], record.counts
    networked = state.channels.sharing == link.NETWORK
    levels = levels_below_horizon(len(state.events) >> 1)
    if clock.begun == 0:
        begin(state, costs, rules)
    while clock.version < limits.version:
        if counts[0] == room or counts[1] >= room or counts[2] >= room:
            return FULL
        link_s, way = link.soonest(state.channels)
        if networked:
            link_s = next_to_leave_s(state.roads, clock.now_s)
        if clock.busy == 0 and (clock.parked > 0 or limits.dispatch_s < clock.now_s):
            return DONE
        fold_s, event_s = head_s(state.folds), state.events[1].time_s
        time_s = max(min(link_s, fold_s, event_s), clock.now_s)
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
    """Begin to fetch the contribution that is some behind the first of a queue.

    And what its worker's next read needs, which follows from its fold.
    """
    place = soon(queue, AHEAD)
    fetch_way(state, rules, place, 0)
    prefetch(costs.compute_s, worker_of(rules, place))


@part
def fetch_next(state: State, rules: Rules, leaf: int, levels: int) -> None:
    """The same of the event that has come up to the horizon of the tournament."""
    first = state.events[((len(state.events) >> 1) + leaf) >> levels].key & LEAF
    fetch_way(state, rules, first, FAR_LEVELS)


@part
def fetch_way(state: State, rules: Rules, place: int, levels: int) -> None:
    """Begin to fetch a slot, its worker, and the way of its next event up the tournament."""
    prefetch(state.slots, place)
    prefetch(state.workers, worker_of(rules, place))
    node = (len(state.events) >> 1) + place
    for _ in range(levels):
        prefetch(state.events, node)
        node >>= 1


@part
def worker_of(rules: Rules, place: int) -> int:
    """Whose slot it is; a division takes as long as much of an event."""
    return place if rules.depth == 1 else place // rules.depth


@kernel
def happen(
    state: State, costs: Costs, rules: Rules, limits: Limits, record: Record, key: int
) -> None:
    """The first event of the tournament takes place; mostly its leaf's next one follows from it."""
    kind, leaf = key >> PRIORITY, key & LEAF
    who = leaf - len(state.slots)
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
        place = who - len(state.workers)
        process, worker = place // len(state.workers), place % len(state.workers)
        strike(state, costs, rules, limits, record, process, worker)
    elif kind == RETURNED:
        come_back(state, rules, who)
    else:
        read(state, costs, rules, limits, who)
    if state.events[(len(state.events) >> 1) + leaf].key == key:
        scratch(state.events, leaf)


@kernel
def read(state: State, costs: Costs, rules: Rules, limits: Limits, who: int) -> None:
    """Begin a contribution, if there is one to begin, the bound allows it and the server is up."""
    clock, worker = state.clock[0], state.workers[who]
    if worker.leave_s > 0.0:
        away_s, worker.leave_s = worker.leave_s, 0.0
        go(state, rules, who, clock.now_s + away_s)
        return
    if clock.now_s < clock.server_up_s:
        plan(state, len(state.slots) + who, clock.server_up_s, READ)
        return
    if clock.version + clock.under_way >= limits.dispatch or clock.now_s > limits.dispatch_s:
        become(state, who, PARKED)
        return
    if rules.bound >= 0 and worker.folds + worker.mine > clock.least + rules.bound:
        become(state, who, HELD)
        enter(state.held, who, float(worker.folds + worker.mine), clock.sequence)
        clock.sequence += 1
        return
    slot = who * rules.depth
    while state.slots[slot].phase != FREE:
        slot += 1
        if slot == (who + 1) * rules.depth:
            become(state, who, ENGAGED)
            return
    become(state, who, ENGAGED)
    take(state, costs, rules, who, slot)


@kernel
def take(state: State, costs: Costs, rules: Rules, who: int, place: int) -> None:
    """Take the snapshot, if it is time for one, and the next minibatches."""
    clock, worker, slot = state.clock[0], state.workers[who], state.slots[place]
    fetches = worker.since_fetch < 0 or worker.since_fetch >= rules.fetch_every
    if fetches:
        worker.since_fetch = 0
        worker.read_version = clock.version
        worker.read_at_s = clock.now_s
        shards.look(state.shards, who, clock.now_s)
    worker.since_fetch += 1
    slot.phase = WORKING
    slot.on_link = 0
    slot.read_version = worker.read_version
    slot.read_at_s = worker.read_at_s
    slot.first_step = clock.dispatched
    slot.copy_s = costs.copy_s
    slot.compute_s = 0.0
    for step in range(worker.step, worker.step + rules.push_every):
        slot.compute_s += computation_s(costs, who, step)
    slot.fold_s = folding_s(costs, who, worker.step // rules.push_every)
    worker.step += rules.push_every
    worker.mine += 1
    worker.computing = 1
    clock.dispatched += rules.push_every
    clock.under_way += 1
    clock.busy += 1
    if rules.shards > 1:
        shards.begin(state.shards, who, place)
    slot.fetch_start_s = clock.now_s
    load(state.roads, costs, place)
    if not fetches:
        compute(state, place, clock.now_s)
    elif state.channels.sharing == link.NETWORK:
        fetch(state, state.roads, costs, rules, place)
    elif state.channels.sharing == link.FAIR:
        slot.on_link = 1
        link.join(state.channels, link.DOWN, clock.now_s, slot.copy_s, place)
    else:
        slot.fetch_start_s = link.occupy(state.channels, link.DOWN, clock.now_s, slot.copy_s)
        compute(state, place, slot.fetch_start_s + slot.copy_s + costs.latency_s)


@kernel
def leave_link(state: State, costs: Costs, rules: Rules, way: int) -> None:
    """A copy is off the fair link; its last byte arrives a latency later."""
    now_s = state.clock[0].now_s
    place = link.finish(state.channels, way, now_s)
    slot = state.slots[place]
    slot.on_link = 0
    if slot.phase == ABANDONED:
        free_slot(state, place)
    elif way == link.DOWN:
        on_fetched(state, rules, place, now_s + costs.latency_s, 0.0)
    elif rules.shards > 1:
        queue_piece(state, costs, rules, place, now_s + costs.latency_s)
    else:
        on_arrival(state, costs, rules, place, now_s + costs.latency_s)


@kernel
def on_computed(state: State, costs: Costs, rules: Rules, place: int) -> None:
    """The gradient is there: it waits for room at the server; its worker may go on."""
    clock, slot = state.clock[0], state.slots[place]
    worker = state.workers[slot.worker]
    worker.computing = 0
    if rules.queue >= 0 and clock.places == rules.queue:
        slot.phase = GATED
        enter(state.gate, place, clock.now_s, clock.sequence)
        clock.sequence += 1
    else:
        clock.places += 1
        send(state, costs, rules, place)
    if worker.mine < rules.depth and worker.status == ENGAGED:
        schedule_read(state, slot.worker)


@kernel
def send(state: State, costs: Costs, rules: Rules, place: int) -> None:
    """Copy the contribution to the server, to one shard after the other."""
    clock, slot, channels = state.clock[0], state.slots[place], state.channels
    worker = state.workers[slot.worker]
    slot.phase = PUSHING
    slot.push_start_s = clock.now_s
    if channels.sharing == link.NETWORK:
        push(state, state.roads, costs, rules, place)
        return
    if channels.sharing == link.OWN:
        slot.push_start_s = max(clock.now_s, worker.uplink_free_s)
        worker.uplink_free_s = slot.push_start_s + slot.copy_s
    elif channels.sharing != link.FAIR:
        slot.push_start_s = link.occupy(channels, link.UP, clock.now_s, slot.copy_s)
    send_piece(state, costs, rules, place)


@kernel
def send_piece(state: State, costs: Costs, rules: Rules, place: int) -> None:
    """The next piece of a contribution, all of it where there is one shard, is on its way."""
    slot, channels = state.slots[place], state.channels
    if channels.sharing == link.FAIR:
        slot.on_link = 1
        copy_s = slot.copy_s / rules.shards
        link.join(channels, link.UP, state.clock[0].now_s, copy_s, place)
        return
    sent = state.shards.sent[place] if rules.shards > 1 else 0
    left_s = slot.push_start_s + slot.copy_s * ((sent + 1) / rules.shards)
    if channels.sharing == link.OWN:
        plan(state, place, left_s + costs.latency_s, PUSHED)
    else:
        on_arrival(state, costs, rules, place, left_s + costs.latency_s)


@kernel
def queue_piece(state: State, costs: Costs, rules: Rules, place: int, arrival_s: float) -> None:
    """A piece queues at its shard; the next follows, or the end of the fold is known."""
    slot, now_s = state.slots[place], state.clock[0].now_s
    if not shards.queue(state.shards, slot.worker, place, now_s, arrival_s, slot.fold_s):
        if state.channels.sharing != link.NETWORK:
            send_piece(state, costs, rules, place)
        return
    slot.phase = AT_SERVER
    slot.push_end_s = arrival_s
    slot.fold_end_s = shards.fold_end_s(state.shards, place)
    plan(state, place, slot.fold_end_s, FOLDED)


@kernel
def arrive(state: State, costs: Costs, rules: Rules, place: int) -> None:
    """A contribution is at the server and queues, unless its message was lost on the way."""
    clock, slot = state.clock[0], state.slots[place]
    if rules.shards > 1:
        queue_piece(state, costs, rules, place, clock.now_s)
        return
    worker = state.workers[slot.worker]
    worker.messages += 1
    if costs.faults.probability > 0.0:
        u = uniforms(costs.faults.message_key, slot.worker, worker.messages, 0)[0]
        if u < costs.faults.probability:
            slot.push_start_s = clock.now_s + costs.faults.retry_s
            plan(state, place, slot.push_start_s, SEND)
            return
    serve(state, place, clock.now_s)


@kernel
def fold(
    state: State, costs: Costs, rules: Rules, limits: Limits, record: Record, place: int
) -> None:
    """The fold is complete: a new version, room at the server, and its worker reads again."""
    clock, slot = state.clock[0], state.slots[place]
    who, worker = slot.worker, state.workers[slot.worker]
    save(state, costs)
    write_row(record, record.counts[0], slot)
    for where in range(record.pieces.shape[1]):
        record.pieces[record.counts[0], where] = state.shards.pieces[place, where]
    record.counts[0] += 1
    clock.version += 1
    slot.phase = FREE
    end_of(state, costs, rules, who)
    worker.folds += 1
    if worker.status != AWAY and worker.folds == clock.least + 1:
        leave_least(state, rules)
    if worker.status == ENGAGED and worker.computing == 0:
        schedule_read(state, who)


@kernel
def end_of(state: State, costs: Costs, rules: Rules, who: int) -> None:
    """A contribution with a place at the server is no longer under way: the next may be sent."""
    clock = state.clock[0]
    state.workers[who].mine -= 1
    clock.under_way -= 1
    clock.busy -= 1
    clock.places -= 1
    if state.gate[1].time_s < np.inf:
        place = state.gate[1].key & LEAF
        scratch(state.gate, place)
        clock.places += 1
        send(state, costs, rules, place)


@kernel
def save(state: State, costs: Costs) -> None:
    """The server's checkpoints up to this instant hold the present version."""
    clock, every_s = state.clock[0], costs.faults.checkpoint_s
    if every_s < np.inf:
        checkpoints = int(clock.now_s / every_s)
        if checkpoints > clock.checkpoint:
            clock.checkpoint = checkpoints
            clock.restored = clock.version


@kernel
def on_fetched(state: State, rules: Rules, place: int, arrival_s: float, stage_s: float) -> None:
    """The parameters arrive at a worker, which then copies them for so long and computes.

    They arrive in the order in which this becomes known. Where a worker may begin without a
    fetch, in between, the arrival is an event of its own.
    """
    if rules.fetch_every == 1 and rules.shards == 1:
        compute(state, place, arrival_s + stage_s)
    else:
        plan(state, place, arrival_s, FETCHED)


@kernel
def compute(state: State, place: int, start_s: float) -> None:
    """Compute the gradient from an instant on."""
    slot = state.slots[place]
    slot.fetch_end_s = start_s
    slot.compute_end_s = start_s + slot.compute_s
    plan(state, place, slot.compute_end_s, COMPUTED)


@kernel
def on_arrival(state: State, costs: Costs, rules: Rules, place: int, arrival_s: float) -> None:
    """A contribution arrives over links that others share, on which it cannot be overtaken."""
    certain = len(costs.faults.kind) == 0 and costs.faults.probability == 0.0
    if certain and rules.shards == 1:
        serve(state, place, arrival_s)
    else:
        plan(state, place, arrival_s, PUSHED)


@kernel
def serve(state: State, place: int, arrival_s: float) -> None:
    """A contribution queues at the one server, and it is known when it is folded."""
    clock, slot = state.clock[0], state.slots[place]
    slot.phase = AT_SERVER
    slot.push_end_s = arrival_s
    slot.fold_start_s = max(arrival_s, clock.server_free_s)
    slot.fold_end_s = slot.fold_start_s + slot.fold_s
    clock.server_free_s = slot.fold_end_s
    append(state.folds, slot.fold_end_s, place)


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
            if state.slots[place].phase == GATED:
                scratch(state.gate, place)  # what it loses makes room for others only
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
                schedule_read(state, who)
            elif worker.status == ENGAGED and worker.computing == 0:
                schedule_read(state, who)


@kernel
def load(roads: Roads | None, costs: Costs, place: int) -> None:
    """Note what a contribution moves; one that fetches nothing is pushed all the same."""
    if roads is not None:
        roads.size_bytes[place] = costs.parameter_bytes


@kernel
def fetch(state: State, roads: Roads | None, costs: Costs, rules: Rules, place: int) -> None:
    """The parameters set off to a worker that reads now."""
    if roads is None:
        return
    roads.sent[place] = 0
    dispatch(state, roads, costs, rules, place)


@kernel
def push(state: State, roads: Roads | None, costs: Costs, rules: Rules, place: int) -> None:
    """A contribution sets off, first to a pinned buffer if need be."""
    if roads is None:
        return
    roads.sent[place] = 0
    stage_s = staging_s(roads, place)
    if stage_s > 0.0:
        plan(state, place, state.clock[0].now_s + stage_s, SEND)
    else:
        dispatch(state, roads, costs, rules, place)


@kernel
def dispatch(state: State, roads: Roads | None, costs: Costs, rules: Rules, place: int) -> None:
    """Send the next message of a fetch or a push."""
    if roads is None:
        return
    slot, now_s = state.slots[place], state.clock[0].now_s
    up = slot.phase == PUSHING
    start_s, departs_s, arrives_s = send_next(roads, place, slot.worker, rules.shards, up, now_s)
    if roads.traffic.wiring.fair:
        slot.on_link = 1
    else:
        if roads.sent[place] == 1 and not up:
            slot.fetch_start_s = start_s
        if roads.sent[place] == 1 and up and roads.staging_bytes_per_s == np.inf:
            slot.push_start_s = start_s
        on_departure(state, roads, costs, rules, place, departs_s, arrives_s)


@kernel
def leave_network(state: State, roads: Roads | None, costs: Costs, rules: Rules) -> None:
    """A message has left fair links; its last byte arrives a latency later."""
    if roads is None:
        return
    now_s = state.clock[0].now_s
    place, latency_s = leave(roads)
    slot = state.slots[place]
    slot.on_link = 0
    if slot.phase == ABANDONED:
        free_slot(state, place)
    else:
        on_departure(state, roads, costs, rules, place, now_s, now_s + latency_s)


@kernel
def on_departure(
    state: State,
    roads: Roads,
    costs: Costs,
    rules: Rules,
    place: int,
    departs_s: float,
    arrives_s: float,
) -> None:
    """What follows from a message: its arrival, and at its departure the next one."""
    last = roads.sent[place] == rules.shards
    pushing = state.slots[place].phase == PUSHING
    if pushing and rules.shards > 1:
        plan(state, arrival_leaf(state, roads, rules, place), arrives_s, PUSHED)
    elif pushing:
        on_arrival(state, costs, rules, place, arrives_s)
    elif last:
        on_fetched(state, rules, place, arrives_s, staging_s(roads, place))
    if last:
        roads.sent[place] = 0
    else:
        plan(state, place, departs_s, SEND)


@kernel
def free_slot(state: State, place: int) -> None:
    """The last of a lost contribution is off the links: its slot is free."""
    slot = state.slots[place]
    slot.phase = FREE
    worker = state.workers[slot.worker]
    if worker.status == ENGAGED and worker.computing == 0:
        schedule_read(state, slot.worker)


@kernel
def arrival_leaf(state: State, roads: Roads, rules: Rules, place: int) -> int:
    """The leaf of the arrival of the message just sent: of several, each has its own."""
    return len(state.slots) + place * rules.shards + roads.sent[place] - 1


@kernel
def place_of(state: State, rules: Rules, leaf: int) -> int:
    """The slot that the leaf of an arrival belongs to."""
    if leaf < len(state.slots):
        return leaf
    return (leaf - len(state.slots)) // rules.shards

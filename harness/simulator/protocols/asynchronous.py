"""The parameter server in full, event by event: any link, every setting, faults.

Order of events at one instant: ends of copies on fair links, folds, arrivals, repeated messages,
ends of computing, ends of fetching, faults, returns, reads.

A contribution is read, fetched, computed, sent, queued and folded. Only those stages are events
that other events can precede. Copies over links that workers share arrive in the order in which
they were sent; if nothing can fail on the way, such a contribution queues at the server as soon as
its arrival is known.

On a network the messages of a contribution are events of this kernel, too. The state is in
`harness.simulator.protocols.state`.
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
    first = state.events[((len(state.events) >> 1) + leaf) >> levels].key & LEAF
    fetch_way(state, rules, first, FAR_LEVELS)


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
    # Mostly the event has scheduled its leaf's next one, which has another key.
    if state.events[(len(state.events) >> 1) + leaf].key == key:
        scratch(state.events, leaf)


@kernel
def read(state: State, costs: Costs, rules: Rules, limits: Limits, who: int) -> None:
    """Begin a contribution, if there is one to begin, the bound allows it and the server is up."""
    clock, worker = state.clock[0], state.workers[who]
    if worker.leave_s > 0.0:  # preempted: it leaves instead
        away_s, worker.leave_s = worker.leave_s, 0.0
        go(state, rules, who, clock.now_s + away_s)
        return
    if clock.now_s < clock.server_up_s:
        plan(state, len(state.slots) + who, clock.server_up_s, READ)
        return
    if clock.version + clock.under_way >= limits.dispatch or clock.now_s > limits.dispatch_s:
        become(state, who, PARKED)
        return
    # Contributions in flight count as folds, or a deep pipeline would pass the bound.
    if rules.bound >= 0 and worker.folds + worker.mine > clock.least + rules.bound:
        become(state, who, HELD)
        enter(state.held, who, float(worker.folds + worker.mine), clock.sequence)
        clock.sequence += 1
        return
    slot = who * rules.depth
    while state.slots[slot].phase != FREE:
        slot += 1
        if slot == (who + 1) * rules.depth:  # all slots taken, one perhaps by a lost copy
            become(state, who, ENGAGED)
            return
    become(state, who, ENGAGED)
    take(state, costs, rules, who, slot)


@kernel
def take(state: State, costs: Costs, rules: Rules, who: int, place: int) -> None:
    """Take a snapshot of the model, if one is due, and the next minibatches."""
    clock, worker, slot = state.clock[0], state.workers[who], state.slots[place]
    # Between fetches the worker uses its last snapshot, with that one's version.
    fetches = worker.since_fetch < 0 or worker.since_fetch >= rules.fetch_every
    if fetches:
        worker.since_fetch = 0
        worker.read_version = clock.version
        worker.read_at_s = clock.now_s
        shards.look(state.shards, who, clock.now_s)
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
        # The end of the copy depends on later copies, so it is an event (`leave_link`).
        slot.on_link = 1
        link.join(state.channels, link.DOWN, clock.now_s, slot.copy_s, place)
    else:
        slot.fetch_start_s = link.occupy(state.channels, link.DOWN, clock.now_s, slot.copy_s)
        compute(state, place, slot.fetch_start_s + slot.copy_s + costs.latency_s)


@kernel
def leave_link(state: State, costs: Costs, rules: Rules, way: int) -> None:
    """Remove a finished copy from the fair link; its last byte arrives a latency later."""
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
    """After computing: send the contribution or wait for room; its worker may read again."""
    clock, slot = state.clock[0], state.slots[place]
    worker = state.workers[slot.worker]
    worker.computing = 0
    # Equal instants are ordered by sequence, so places go first come, first served.
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
    """Start the copy of a contribution to the server, or to the first of its shards."""
    clock, slot, channels = state.clock[0], state.slots[place], state.channels
    worker = state.workers[slot.worker]
    slot.phase = PUSHING
    slot.push_start_s = clock.now_s
    if channels.sharing == link.NETWORK:
        push(state, state.roads, costs, rules, place)
        return
    if channels.sharing == link.OWN:
        # With depth > 1 the worker's earlier contribution may still occupy its link.
        slot.push_start_s = max(clock.now_s, worker.uplink_free_s)
        worker.uplink_free_s = slot.push_start_s + slot.copy_s
    elif channels.sharing != link.FAIR:
        slot.push_start_s = link.occupy(channels, link.UP, clock.now_s, slot.copy_s)
    send_piece(state, costs, rules, place)


@kernel
def send_piece(state: State, costs: Costs, rules: Rules, place: int) -> None:
    """Send the next piece of a contribution; with one shard, the whole contribution."""
    slot, channels = state.slots[place], state.channels
    if channels.sharing == link.FAIR:
        slot.on_link = 1
        copy_s = slot.copy_s / rules.shards
        link.join(channels, link.UP, state.clock[0].now_s, copy_s, place)
        return
    sent = state.shards.sent[place] if rules.shards > 1 else 0
    # From the start of the push, so the last piece departs exactly ``copy_s`` later.
    left_s = slot.push_start_s + slot.copy_s * ((sent + 1) / rules.shards)
    if channels.sharing == link.OWN:
        plan(state, place, left_s + costs.latency_s, PUSHED)
    else:
        on_arrival(state, costs, rules, place, left_s + costs.latency_s)


@kernel
def queue_piece(state: State, costs: Costs, rules: Rules, place: int, arrival_s: float) -> None:
    """Queue a piece at its shard; send the next, or schedule the fold after the last."""
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
    """Queue an arriving contribution at the server, unless its message was lost."""
    clock, slot = state.clock[0], state.slots[place]
    if rules.shards > 1:
        queue_piece(state, costs, rules, place, clock.now_s)
        return
    worker = state.workers[slot.worker]
    worker.messages += 1
    if costs.faults.probability > 0.0:
        # Drawn by the worker's own count of messages, so other workers have no influence.
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
    """Complete a fold: a new version, room at the server, and the worker's next read."""
    clock, slot = state.clock[0], state.slots[place]
    who, worker = slot.worker, state.workers[slot.worker]
    # First: checkpoints up to this instant do not contain this fold.
    save(state, costs)
    write_row(record, record.counts[0], slot)
    for where in range(record.pieces.shape[1]):  # none with one shard
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
    """Release a contribution's place at the server to the longest waiting contribution."""
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
    """Let the server's checkpoints up to this instant have the present version."""
    clock, every_s = state.clock[0], costs.faults.checkpoint_s
    if every_s < np.inf:
        checkpoints = int(clock.now_s / every_s)
        if checkpoints > clock.checkpoint:
            clock.checkpoint = checkpoints
            clock.restored = clock.version


@kernel
def on_fetched(state: State, rules: Rules, place: int, arrival_s: float, stage_s: float) -> None:
    """Let a worker compute after the arrival of parameters and ``stage_s`` of staging.

    Arrivals become known in their order. If workers may also begin without a fetch, or with several
    shards, the arrival is an event of its own, in order with such beginnings.
    """
    if rules.fetch_every == 1 and rules.shards == 1:
        compute(state, place, arrival_s + stage_s)
    else:
        plan(state, place, arrival_s, FETCHED)


@kernel
def compute(state: State, place: int, start_s: float) -> None:
    """Schedule the end of computing a gradient from ``start_s`` on."""
    slot = state.slots[place]
    slot.fetch_end_s = start_s
    slot.compute_end_s = start_s + slot.compute_s
    plan(state, place, slot.compute_end_s, COMPUTED)


@kernel
def on_arrival(state: State, costs: Costs, rules: Rules, place: int, arrival_s: float) -> None:
    """Queue a contribution, or schedule its arrival, over shared links."""
    # Nothing overtakes it there: without faults its place in the queue is certain already.
    certain = len(costs.faults.kind) == 0 and costs.faults.probability == 0.0
    if certain and rules.shards == 1:
        serve(state, place, arrival_s)
    else:
        plan(state, place, arrival_s, PUSHED)


@kernel
def serve(state: State, place: int, arrival_s: float) -> None:
    """Queue a contribution at the single server, with its known end of the fold."""
    clock, slot = state.clock[0], state.slots[place]
    slot.phase = AT_SERVER
    slot.push_end_s = arrival_s
    slot.fold_start_s = max(arrival_s, clock.server_free_s)
    slot.fold_end_s = slot.fold_start_s + slot.fold_s
    clock.server_free_s = slot.fold_end_s
    append(state.folds, slot.fold_end_s, place)


@kernel
def begin(state: State, costs: Costs, rules: Rules) -> None:
    """Schedule every fault process; workers that join late are absent."""
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
    """Execute a fault, and schedule its process again after the absence that it causes."""
    clock, processes, worker = state.clock[0], costs.faults, state.workers[who]
    kind = processes.kind[process]
    down_s = away_s(processes, process, who, state.occurrences[process, who])
    if kind == faults.SERVER:
        fail(state, costs, rules, limits, record, clock.now_s + down_s)
    elif kind == faults.PREEMPTION:
        if worker.status != AWAY:
            worker.leave_s = max(worker.leave_s, down_s)
    elif worker.status != AWAY:
        # Contributions at the server survive their worker.
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
    """Record a lost contribution, and remove its events."""
    slot, clock = state.slots[place], state.clock[0]
    scratch(state.events, place)
    slot.fold_end_s = clock.now_s
    record.lost[record.counts[1]] = slot
    record.counts[1] += 1
    # A copy on a fair link continues to its end, and keeps the slot until then.
    phase, slot.phase = slot.phase, ABANDONED if slot.on_link == 1 else FREE
    if phase == GATED:
        scratch(state.gate, place)
    if phase in (WORKING, GATED):
        state.workers[slot.worker].mine -= 1
        clock.under_way -= 1
        clock.busy -= 1
    else:
        end_of(state, costs, rules, slot.worker)
    # With one contribution fewer in flight, parked workers may read before the limit.
    if clock.parked > 0 and clock.now_s <= limits.dispatch_s:
        wake(state)


@kernel
def fail(
    state: State, costs: Costs, rules: Rules, limits: Limits, record: Record, up_s: float
) -> None:
    """Fail the server until ``up_s``: its queue and all folds since the checkpoint are lost."""
    clock = state.clock[0]
    save(state, costs)
    clock.server_up_s = clock.server_free_s = up_s
    row = record.restarts[record.counts[2]]
    row.time_s, row.version, row.restored_version = up_s, clock.version, clock.restored
    record.counts[2] += 1
    # All slots at the server are lost, so the queue is emptied as a whole.
    clear(state.folds)
    for place in range(len(state.slots)):
        if state.slots[place].phase == AT_SERVER:
            who = state.slots[place].worker
            lose(state, costs, rules, limits, record, place)
            worker = state.workers[who]
            if worker.status == HELD:  # by its contributions in flight: it may read now
                scratch(state.held, who)
                schedule_read(state, who)
            elif worker.status == ENGAGED and worker.computing == 0:
                schedule_read(state, who)


@kernel
def load(roads: Roads | None, costs: Costs, place: int) -> None:
    """Record a contribution's size, also for one without a fetch, which is pushed all the same."""
    # Numba compiles a branch on None away: without a network, these functions are empty.
    if roads is not None:
        roads.size_bytes[place] = costs.parameter_bytes


@kernel
def fetch(state: State, roads: Roads | None, costs: Costs, rules: Rules, place: int) -> None:
    """Send the parameters to a worker that reads now."""
    if roads is None:
        return
    roads.sent[place] = 0
    dispatch(state, roads, costs, rules, place)


@kernel
def push(state: State, roads: Roads | None, costs: Costs, rules: Rules, place: int) -> None:
    """Send a contribution, after a copy to a pinned buffer if the host needs it."""
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
        # Spans begin when the first message moves, not when it queues for its links.
        if roads.sent[place] == 1 and not up:
            slot.fetch_start_s = start_s
        if roads.sent[place] == 1 and up and roads.staging_bytes_per_s == np.inf:
            slot.push_start_s = start_s
        on_departure(state, roads, costs, rules, place, departs_s, arrives_s)


@kernel
def leave_network(state: State, roads: Roads | None, costs: Costs, rules: Rules) -> None:
    """Remove a departed message from fair links; its last byte arrives a latency later."""
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
    """Schedule a message's arrival, and the next message at its departure."""
    # A message is sent when the previous one has departed, not when it has arrived.
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
    """Free the slot of a lost contribution, after its copy has left the links."""
    slot = state.slots[place]
    slot.phase = FREE
    worker = state.workers[slot.worker]
    if worker.status == ENGAGED and worker.computing == 0:
        schedule_read(state, slot.worker)


@kernel
def arrival_leaf(state: State, roads: Roads, rules: Rules, place: int) -> int:
    """The leaf of the arrival of the message just sent; each message to a shard has its own."""
    return len(state.slots) + place * rules.shards + roads.sent[place] - 1


@kernel
def place_of(state: State, rules: Rules, leaf: int) -> int:
    """The slot of an arrival's leaf."""
    if leaf < len(state.slots):
        return leaf
    return (leaf - len(state.slots)) // rules.shards

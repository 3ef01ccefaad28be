"""The parameter server, event by event: any link, every setting, faults; and rounds with backups.

Order of events at one instant: departures from fair links, folds, arrivals, messages that are sent
next or again, ends of computing, ends of fetching, faults, returns, reads.

A contribution is read, fetched, computed, sent, queued and folded. The end of a stage is an event
where another event can come before it. The functions follow that order: the loop, reads, messages,
folds.

With several shards a push is one message for each, with its piece of the parameters, and on a
network a fetch is one from each. A contribution has one message in flight at a time: the next is
sent when the previous one has departed. So pieces reach shards at different instants, and at a read
some shards have folded more contributions than others. A shard folds in the order of arrival, so
the instant of a piece's fold is known once it is queued; its version is counted only when a worker
reads. If a host's buffers are pageable, parameters are copied once more after a fetch over a
network, and before a push.

A contribution that has reached the server survives its worker. What a worker has read, computed or
sent is lost with it, and so is the whole queue with the server, which restarts from its last
checkpoint.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from harness.simulator import costs as draws
from harness.simulator import events, links
from harness.simulator.costs import Costs, computation_with_jitter_s, folding_s, jitter_of
from harness.simulator.events import WAIT, WHO, kernel, part
from harness.simulator.links import DOWN, FAIR, NETWORK, OWN, UP
from harness.simulator.protocols import state as server
from harness.simulator.protocols.contract import ASKS, DONE, FULL, GOES_ON, Limits, advance_clock
from harness.simulator.protocols.record import Record, write_instants, write_row
from harness.simulator.protocols.state import Rules, Shards, State


@kernel
def run(state: State, costs: Costs, rules: Rules, limits: Limits, record: Record) -> int:
    """Advance ``state`` until a limit is met or the record is full; returns the reason."""
    clock, counts = state.clock[0], record.counts
    room = len(record.worker) - server.rows_of_fold(rules, len(state.workers))
    if clock.begun == 0:
        begin(state, costs, rules)
    while clock.version < limits.version:
        # One event can lose all contributions in flight: the record has space for them beyond.
        if counts[0] > room or counts[1] > room or counts[2] > room:
            return FULL
        link_s, event_s = links.next_departure_s(state.links, clock.now_s), state.events[1].time_s
        fold_s = events.head_s(state.folds) if rules.backups < 0 else clock.round_s
        # Drained: nothing is in flight, and no worker may begin a contribution in this segment.
        # A worker that a rule keeps waiting is parked, too, though the limits allow it to read.
        waits = rules.asks and may_begin(state, rules, limits)
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
            read(state, costs, rules, limits, events.take(state.readers)[1])
        elif link_s <= min(fold_s, event_s):
            on_departure(state, costs, rules)
        elif fold_s <= event_s and rules.backups >= 0:
            end_round(state, costs, rules, record)
        elif fold_s <= event_s:
            fold(state, costs, rules, record)
            clock.version += 1
            if rules.asks and may_begin(state, rules, limits):
                server.wake(state)  # the fold may change the answer for those that wait
        else:
            happen(state, costs, rules, limits, record, state.events[1].key)
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
        on_arrival(state, costs, rules, limits, record, leaf)
    elif kind == server.SEND:
        on_turn(state, costs, rules, leaf)
    elif kind == server.COMPUTED:
        on_computed(state, rules, leaf, now_s)
    elif kind == server.FETCHED:
        stage_s = links.staging_s(state.links, state.slots[leaf].load)
        compute(state, costs, rules, leaf, now_s + stage_s)
    elif kind == server.FAULT:
        strike(state, costs, rules, limits, record, leaf)
    elif kind == server.RETURNED:
        come_back(state, rules, number)
    elif rules.asks:
        server.schedule_read(state, number)
    else:
        read(state, costs, rules, limits, number)
    # Mostly the event has scheduled its leaf's next one, which has another key.
    if state.events[(len(state.events) >> 1) + leaf].key == key:
        events.scratch(state.events, leaf)


@kernel
def may_begin(state: State, rules: Rules, limits: Limits) -> bool:
    """Whether the limits allow another contribution to begin now."""
    clock = state.clock[0]
    # A round makes one fold of all that is under way.
    promised = clock.version + (clock.under_way if rules.backups < 0 else 0)
    return promised < limits.dispatch and clock.now_s <= limits.dispatch_s


@kernel
def answer(
    state: State, costs: Costs, rules: Rules, limits: Limits, workers: Any, allowed: Any
) -> None:
    """Let those that are allowed read at this instant, of the workers that wait in this order."""
    state.readers.counts[WAIT] = 0
    state.late.counts[WAIT] = 0
    for place in range(len(workers)):
        if allowed[place]:
            read(state, costs, rules, limits, workers[place])
        else:
            server.become(state, workers[place], server.PARKED)
        if state.workers[workers[place]].status in (server.PARKED, server.ABOUT_TO_READ):
            events.append(state.late, state.clock[0].now_s, workers[place])


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
    if not may_begin(state, rules, limits):
        server.become(state, number, server.PARKED)
        return
    # Contributions in flight count as folds, or a deep pipeline would pass the bound.
    if rules.bound >= 0 and worker.folds + worker.mine > clock.least + rules.bound:
        server.become(state, number, server.HELD)
        events.enter(state.held, number, float(worker.folds + worker.mine), clock.sequence)
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
        for shard in range(len(state.shards.queues)):
            settle(state.shards, shard, clock.now_s)
            state.shards.seen[number, shard] = state.shards.queues[shard].version
    worker.since_fetch += 1
    # All costs are fixed now: a change of the workload concerns later reads only.
    slot.phase = server.WORKING
    slot.on_link = slot.sent = 0
    slot.read_version = worker.read_version
    slot.read_at_s = worker.read_at_s
    slot.first_step = clock.dispatched
    slot.load = links.load_of(state.links, costs)
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
    clock.coming += 1
    clock.busy += 1
    for shard in range(len(state.shards.queues)):  # none with one shard
        state.shards.pieces[place, shard].read_version = state.shards.seen[number, shard]
    slot.fetch_start_s = clock.now_s
    if fetches:
        fetch(state, costs, rules, place)
    else:
        compute(state, costs, rules, place, clock.now_s)


@part
def fold(state: State, costs: Costs, rules: Rules, record: Record) -> None:
    """Fold the first contribution of the queue; the caller counts the version."""
    place = events.take(state.folds)[1]
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
    slot.phase = server.FREE
    end_of(state, rules, number)
    worker.folds += 1
    is_watched = rules.bound >= 0 or rules.asks
    if is_watched and worker.status != server.AWAY and worker.folds == clock.least + 1:
        server.leave_least(state, rules)
    server.resume(state, number)


@kernel
def on_departure(state: State, costs: Costs, rules: Rules) -> None:
    """Take a departing message from fair links."""
    now_s = state.clock[0].now_s
    place, arrives_s = links.leave(state.links, now_s)
    slot = state.slots[place]
    slot.on_link = 0
    if slot.phase == server.PUSHING:
        on_push(state, rules, place, now_s, arrives_s)
    elif slot.phase != server.ABANDONED:
        on_fetch(state, costs, rules, place, now_s, arrives_s)
    else:
        # Lost meanwhile: its slot was taken only until its message left the links.
        slot.phase = server.FREE
        server.resume(state, slot.worker)


@kernel
def on_turn(state: State, costs: Costs, rules: Rules, place: int) -> None:
    """Send the next message of a slot, or the same one again."""
    slot, now_s = state.slots[place], state.clock[0].now_s
    if slot.phase != server.PUSHING:
        fetch(state, costs, rules, place)
    elif slot.sent == 0 or not on_piece(state, place, now_s):
        push(state, rules, place, now_s)


@kernel
def fetch(state: State, costs: Costs, rules: Rules, place: int) -> None:
    """Send parameters, or a shard's piece of them, to a worker."""
    slot, now_s = state.slots[place], state.clock[0].now_s
    start_s, departs_s, arrives_s = move(state, place, DOWN, fetches(state, rules), 0.0, now_s)
    # Spans begin when the first message moves, not when it queues for its links.
    if slot.sent == 1:
        slot.fetch_start_s = start_s
    if departs_s < np.inf:
        on_fetch(state, costs, rules, place, departs_s, arrives_s)


@part
def move(
    state: State, place: int, way: int, parts: int, begun_s: float, now_s: float
) -> tuple[float, float, float]:
    """Let the next message of a slot enter the links; arguments and results as for these."""
    slot = state.slots[place]
    sent, load = slot.sent, slot.load
    times = links.enter(state.links, place, slot.worker, way, sent, parts, load, begun_s, now_s)
    slot.sent += 1
    slot.on_link = times[1] == np.inf
    return times


@part
def fetches(state: State, rules: Rules) -> int:
    """Number of messages of a fetch: the link copies all parameters at once."""
    return rules.shards if state.links.sharing >= NETWORK else 1


@part
def on_fetch(
    state: State, costs: Costs, rules: Rules, place: int, departs_s: float, arrives_s: float
) -> None:
    """Follow a message to a worker, whose departure and arrival are known."""
    slot = state.slots[place]
    if slot.sent < fetches(state, rules):
        server.plan(state, place, departs_s, server.SEND)
    # Where arrivals are the only beginnings of computing, its end is planned right away.
    elif state.links.sharing < FAIR or (rules.fetch_every == 1 and rules.shards == 1):
        compute(state, costs, rules, place, arrives_s + links.staging_s(state.links, slot.load))
    else:
        server.plan(state, place, arrives_s, server.FETCHED)


@kernel
def compute(state: State, costs: Costs, rules: Rules, place: int, start_s: float) -> None:
    """Compute a gradient from ``start_s`` on."""
    slot = state.slots[place]
    slot.fetch_end_s = start_s
    slot.compute_end_s = start_s + slot.compute_s
    # If nothing can delay or destroy it before its arrival, that is the next event.
    is_certain = rules.depth == 1 and rules.queue < 0 and rules.shards == 1
    has_faults = len(costs.faults.kind) > 0 or costs.faults.probability > 0.0
    if is_certain and state.links.sharing == OWN and not has_faults:
        on_computed(state, rules, place, slot.compute_end_s)
    else:
        server.plan(state, place, slot.compute_end_s, server.COMPUTED)


@part
def on_computed(state: State, rules: Rules, place: int, now_s: float) -> None:
    """After computing: send the contribution or wait for room; its worker may read again."""
    clock, slot = state.clock[0], state.slots[place]
    worker = state.workers[slot.worker]
    worker.computing = 0
    # Equal instants are ordered by sequence, so places go first come, first served.
    if rules.queue >= 0 and clock.places == rules.queue:
        slot.phase = server.GATED
        events.enter(state.gate, place, now_s, clock.sequence)
        clock.sequence += 1
    else:
        send(state, rules, place, now_s)
    if worker.mine < rules.depth and worker.status == server.ENGAGED:
        server.schedule_read(state, slot.worker)


@kernel
def send(state: State, rules: Rules, place: int, now_s: float) -> None:
    """Take a place at the server, and send a contribution there, in pieces to its shards."""
    slot = state.slots[place]
    state.clock[0].places += 1
    slot.phase = server.PUSHING
    slot.sent = 0
    slot.push_start_s = now_s
    stage_s = links.staging_s(state.links, slot.load)
    if stage_s > 0.0:
        server.plan(state, place, now_s + stage_s, server.SEND)
    else:
        push(state, rules, place, now_s)


@part
def push(state: State, rules: Rules, place: int, now_s: float) -> None:
    """Send a contribution, or its piece for the next shard."""
    slot = state.slots[place]
    begun_s = slot.push_start_s
    start_s, departs_s, arrives_s = move(state, place, UP, rules.shards, begun_s, now_s)
    if slot.sent == 1 and links.staging_s(state.links, slot.load) == 0.0:
        slot.push_start_s = start_s
    if departs_s < np.inf:
        on_push(state, rules, place, departs_s, arrives_s)


@part
def on_push(state: State, rules: Rules, place: int, departs_s: float, arrives_s: float) -> None:
    """Follow a message to the server, whose departure and arrival are known."""
    state.slots[place].push_end_s = arrives_s
    if rules.shards == 1 or state.links.sharing < FAIR:
        server.plan(state, place, arrives_s, server.PUSHED)
    else:
        # The next message may depart before this one has arrived.
        server.plan(state, place, departs_s, server.SEND)


@kernel
def on_piece(state: State, place: int, now_s: float) -> bool:
    """Queue a piece that has departed at its shard; whether it was the contribution's last."""
    slot, shards = state.slots[place], state.shards
    count, ring = shards.ends_s.shape
    # Neighbouring workers begin with different shards, which spreads the load.
    index = (slot.worker + slot.sent - 1) % count
    settle(shards, index, now_s)
    shard, piece = shards.queues[index], shards.pieces[place, index]
    # Pieces arrive at a shard in the order of their departures, so its turn is certain.
    piece.version = shard.queued
    piece.start_s = max(slot.push_end_s, shard.free_s)
    piece.end_s = piece.start_s + slot.fold_s / count
    shards.ends_s[index, shard.queued % ring] = shard.free_s = piece.end_s
    shard.queued += 1
    slot.fold_end_s = piece.end_s if slot.sent == 1 else max(slot.fold_end_s, piece.end_s)
    if slot.sent < count:
        return False
    slot.phase = server.AT_SERVER
    events.append(state.folds, slot.fold_end_s, place)
    return True


@kernel
def settle(shards: Shards, index: int, now_s: float) -> None:
    """Count a shard's folds up to this instant."""
    # Ends rise along the ring, so counting stops at the first piece that is not yet folded.
    shard, ring = shards.queues[index], shards.ends_s.shape[1]
    while shard.version < shard.queued and shards.ends_s[index, shard.version % ring] <= now_s:
        shard.version += 1


@part
def on_arrival(
    state: State, costs: Costs, rules: Rules, limits: Limits, record: Record, place: int
) -> None:
    """Queue an arriving contribution at the server, unless its message was lost.

    In rounds it is dropped if it is of an older version, or the round has all that it needs.
    """
    if rules.shards > 1:
        on_turn(state, costs, rules, place)
        return
    clock, slot = state.clock[0], state.slots[place]
    worker = state.workers[slot.worker]
    worker.messages += 1
    if costs.faults.probability > 0.0:
        # Drawn by the worker's own count of messages, so other workers have no influence.
        u = draws.uniforms(costs.faults.message_key, slot.worker, worker.messages, 0)[0]
        if u < costs.faults.probability:
            slot.sent = 0
            slot.push_start_s = clock.now_s + costs.faults.retry_s
            server.plan(state, place, slot.push_start_s, server.SEND)
            return
    slot.push_end_s = clock.now_s
    if rules.backups >= 0 and (slot.read_version < clock.version or clock.round_s < np.inf):
        lose(state, costs, rules, limits, record, place)
        read_or_wait(state, slot.worker)
        return
    slot.phase = server.AT_SERVER
    slot.fold_start_s = max(clock.now_s, clock.server_free_s)
    slot.fold_end_s = slot.fold_start_s + slot.fold_s
    clock.server_free_s = slot.fold_end_s
    events.append(state.folds, slot.fold_end_s, place)
    if rules.backups >= 0:
        clock.taken += 1
        clock.coming -= 1
        check_round(state, rules)


@kernel
def check_round(state: State, rules: Rules) -> None:
    """Let the round end once it has all contributions that it needs or that can still come."""
    clock = state.clock[0]
    is_full = clock.taken == server.rows_of_fold(rules, len(state.workers))
    if is_full or (clock.coming == 0 and clock.taken > 0):
        clock.round_s = min(clock.round_s, max(clock.server_free_s, clock.now_s))


@kernel
def read_or_wait(state: State, number: int) -> None:
    """Let a worker without a contribution read, or wait if the round has all that it needs."""
    clock = state.clock[0]
    if clock.round_s == np.inf:
        server.schedule_read(state, number)
    else:
        server.become(state, number, server.ENGAGED)
        events.append(state.late, clock.now_s, number)


@kernel
def end_round(state: State, costs: Costs, rules: Rules, record: Record) -> None:
    """Fold a round's contributions; all that have waited read, in the order of their arrival."""
    clock = state.clock[0]
    while state.folds.counts[WAIT] > 0:
        fold(state, costs, rules, record)
    while state.late.counts[WAIT] > 0:
        server.schedule_read(state, events.take(state.late)[1])
    row = record.rounds[record.counts[3]]
    row.time_s, row.rows = clock.now_s, record.counts[0]
    record.counts[3] += 1
    clock.version += 1
    # What is still on its way is of an older version from now on.
    clock.taken = clock.coming = 0
    clock.round_s = np.inf


@part
def end_of(state: State, rules: Rules, worker: int) -> None:
    """Release a contribution's place at the server to the longest waiting contribution."""
    clock = state.clock[0]
    state.workers[worker].mine -= 1
    clock.under_way -= 1
    clock.busy -= 1
    clock.places -= 1
    if state.gate[1].time_s < np.inf:
        place = state.gate[1].key & WHO
        events.scratch(state.gate, place)
        send(state, rules, place, clock.now_s)


@kernel
def begin(state: State, costs: Costs, rules: Rules) -> None:
    """Schedule every fault process; workers that join late are absent."""
    clock, processes = state.clock[0], costs.faults
    clock.begun = 1
    for process in range(len(processes.kind)):
        for number in range(len(state.workers)):
            time_s = draws.instant_s(processes, process, number, 0, clock.now_s)
            if processes.kind[process] == draws.LATE and time_s < np.inf:
                go(state, rules, number, time_s)
            elif time_s < np.inf:
                leaf = len(state.slots) + len(state.workers) * (1 + process) + number
                server.plan(state, leaf, time_s, server.FAULT)


@kernel
def strike(
    state: State, costs: Costs, rules: Rules, limits: Limits, record: Record, leaf: int
) -> None:
    """Execute a fault, and schedule its process again after the absence that it causes."""
    place = leaf - len(state.slots) - len(state.workers)
    process, number = place // len(state.workers), place % len(state.workers)
    clock, processes, worker = state.clock[0], costs.faults, state.workers[number]
    kind = processes.kind[process]
    down_s = draws.away_s(processes, process, number, state.occurrences[process, number])
    if kind == draws.SERVER:
        fail(state, costs, rules, limits, record, clock.now_s + down_s)
    elif kind == draws.PREEMPTION:
        if worker.status != server.AWAY:
            worker.leave_s = max(worker.leave_s, down_s)
    elif worker.status != server.AWAY:
        # Contributions at the server survive their worker.
        for place in range(number * rules.depth, (number + 1) * rules.depth):
            if state.slots[place].phase == server.GATED:
                events.scratch(state.gate, place)  # what it loses makes room for others only
        for place in range(number * rules.depth, (number + 1) * rules.depth):
            phase = state.slots[place].phase
            if phase in (server.WORKING, server.GATED, server.PUSHING):
                lose(state, costs, rules, limits, record, place)
        go(state, rules, number, clock.now_s + down_s)
    # Also if no worker was struck: then instants do not depend on the protocol.
    state.occurrences[process, number] += 1
    times, over_s = state.occurrences[process, number], clock.now_s + down_s
    next_s = draws.instant_s(processes, process, number, times, over_s)
    if next_s < np.inf:
        server.plan(state, leaf, next_s, server.FAULT)


@kernel
def lose(
    state: State, costs: Costs, rules: Rules, limits: Limits, record: Record, place: int
) -> None:
    """Record a lost contribution, and remove its events."""
    slot, clock = state.slots[place], state.clock[0]
    events.scratch(state.events, place)
    slot.fold_end_s = clock.now_s
    record.lost[record.counts[1]] = slot
    record.counts[1] += 1
    # A copy on a fair link continues to its end, and keeps the slot until then.
    phase, slot.phase = slot.phase, server.ABANDONED if slot.on_link == 1 else server.FREE
    if phase == server.GATED:
        events.scratch(state.gate, place)
    if phase in (server.WORKING, server.GATED):
        state.workers[slot.worker].mine -= 1
        clock.under_way -= 1
        clock.busy -= 1
    else:
        end_of(state, rules, slot.worker)
    if rules.backups >= 0:
        clock.coming -= slot.read_version == clock.version
        check_round(state, rules)
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
            if state.workers[number].status == server.HELD:
                # By its contributions in flight: it may read now.
                events.scratch(state.held, number)
                server.schedule_read(state, number)
            server.resume(state, number)


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
        events.scratch(state.held, number)
    if worker.status == server.ABOUT_TO_READ:
        events.withdraw(state.readers, number)
    events.withdraw(state.late, number)
    server.become(state, number, server.AWAY)
    worker.computing = 0
    worker.since_fetch = -1  # it loses its parameters, and must fetch after its return
    events.scratch(state.events, leaf)
    if until_s < np.inf:
        server.plan(state, leaf, until_s, server.RETURNED)
    if worker.folds == state.clock[0].least:
        server.leave_least(state, rules)
    if rules.asks:  # of fewer workers, the rule may allow others
        server.wake(state)


@kernel
def come_back(state: State, rules: Rules, number: int) -> None:
    """Let a worker return and read; in rounds it waits if its contribution is at the server."""
    clock, worker = state.clock[0], state.workers[number]
    if worker.mine > 0 and rules.backups >= 0:
        server.become(state, number, server.ENGAGED)
    else:
        read_or_wait(state, number)
    # It counts as having the slowest's folds at least, or it would hold all others up.
    if clock.at_least == 0:
        server.find_least(state, rules)
    else:
        worker.folds = max(worker.folds, clock.least)
        clock.at_least += worker.folds == clock.least

"""A contribution on its way from its read to its fold: fetched, computed, sent, queued.

With several shards a push is one message for each, with its piece of the parameters, and on a
network a fetch is one from each. A contribution has one message in flight at a time: the next is
sent when the previous one has departed. If a host's buffers are pageable, parameters are copied
once more after a fetch over a network, and before a push.
"""

from __future__ import annotations

import numpy as np

from harness.simulator import links
from harness.simulator.costs import Costs
from harness.simulator.events import WHO, append, enter, kernel, part, scratch
from harness.simulator.laws import uniforms
from harness.simulator.links import DOWN, FAIR, NETWORK, OWN, UP, staging_s
from harness.simulator.protocols import shards
from harness.simulator.protocols import state as server
from harness.simulator.protocols.state import Rules, State


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
        worker = state.workers[slot.worker]
        if worker.status == server.ENGAGED and worker.computing == 0:
            server.schedule_read(state, slot.worker)


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
    # Without other ways to begin, ends of computing are planned in the order of arrivals.
    elif state.links.sharing < FAIR or (rules.fetch_every == 1 and rules.shards == 1):
        compute(state, costs, rules, place, arrives_s + staging_s(state.links, slot.load))
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
        enter(state.gate, place, now_s, clock.sequence)
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
    stage_s = staging_s(state.links, slot.load)
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
    if slot.sent == 1 and staging_s(state.links, slot.load) == 0.0:
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
    # Pieces arrive at a shard in the order of their departures, so its turn is certain.
    slot, parts = state.slots[place], state.shards
    if not shards.queue(parts, slot.worker, place, now_s, slot.push_end_s, slot.fold_s):
        return False
    slot.phase = server.AT_SERVER
    slot.fold_end_s = shards.fold_end_s(parts, place)
    append(state.folds, slot.fold_end_s, place)
    return True


@part
def on_arrival(state: State, costs: Costs, rules: Rules, place: int) -> None:
    """Queue an arriving contribution at the server, unless its message was lost."""
    if rules.shards > 1:
        on_turn(state, costs, rules, place)
        return
    clock, slot = state.clock[0], state.slots[place]
    worker = state.workers[slot.worker]
    worker.messages += 1
    if costs.faults.probability > 0.0:
        # Drawn by the worker's own count of messages, so other workers have no influence.
        u = uniforms(costs.faults.message_key, slot.worker, worker.messages, 0)[0]
        if u < costs.faults.probability:
            slot.sent = 0
            slot.push_start_s = clock.now_s + costs.faults.retry_s
            server.plan(state, place, slot.push_start_s, server.SEND)
            return
    slot.phase = server.AT_SERVER
    slot.push_end_s = clock.now_s
    slot.fold_start_s = max(clock.now_s, clock.server_free_s)
    slot.fold_end_s = slot.fold_start_s + slot.fold_s
    clock.server_free_s = slot.fold_end_s
    append(state.folds, slot.fold_end_s, place)


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
        scratch(state.gate, place)
        send(state, rules, place, clock.now_s)

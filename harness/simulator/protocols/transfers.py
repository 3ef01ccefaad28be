"""A contribution on its way from its read to its fold: fetched, computed, sent, queued.

Copies over links that workers share arrive in the order in which they were sent; if nothing can
fail on the way, such a contribution queues at the server as soon as its arrival is known. Copies
over a network are messages (`harness.simulator.protocols.state.Roads`).
"""

from __future__ import annotations

import numpy as np

from harness.simulator import link
from harness.simulator.costs import Costs
from harness.simulator.events import append, enter, kernel, scratch
from harness.simulator.laws import uniforms
from harness.simulator.protocols import state as shards
from harness.simulator.protocols.state import (
    ABANDONED,
    AT_SERVER,
    COMPUTED,
    ENGAGED,
    FETCHED,
    FOLDED,
    FREE,
    GATED,
    LEAF,
    PUSHED,
    PUSHING,
    SEND,
    Roads,
    Rules,
    State,
    leave,
    plan,
    schedule_read,
    send_next,
    staging_s,
)

__all__ = [
    "arrive",
    "compute",
    "dispatch",
    "end_of",
    "fetch",
    "leave_link",
    "leave_network",
    "load",
    "on_computed",
    "place_of",
    "send",
]


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
def leave_link(state: State, costs: Costs, rules: Rules, way: int) -> None:
    """Remove a finished copy from the fair link; its last byte arrives a latency later."""
    now_s = state.clock[0].now_s
    place = link.finish(state.channels, way, now_s)
    slot = state.slots[place]
    slot.on_link = 0
    # Lost meanwhile: its slot was taken only until the copy left the link.
    if slot.phase == ABANDONED:
        free_slot(state, place)
    elif way == link.DOWN:
        on_fetched(state, rules, place, now_s + costs.latency_s, 0.0)
    elif rules.shards > 1:
        queue_piece(state, costs, rules, place, now_s + costs.latency_s)
    else:
        on_arrival(state, costs, rules, place, now_s + costs.latency_s)


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
    is_last = roads.sent[place] == rules.shards
    pushing = state.slots[place].phase == PUSHING
    if pushing and rules.shards > 1:
        plan(state, arrival_leaf(state, roads, rules, place), arrives_s, PUSHED)
    elif pushing:
        on_arrival(state, costs, rules, place, arrives_s)
    elif is_last:
        on_fetched(state, rules, place, arrives_s, staging_s(roads, place))
    if is_last:
        roads.sent[place] = 0
    else:
        plan(state, place, departs_s, SEND)


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
def end_of(state: State, costs: Costs, rules: Rules, worker: int) -> None:
    """Release a contribution's place at the server to the longest waiting contribution."""
    clock = state.clock[0]
    state.workers[worker].mine -= 1
    clock.under_way -= 1
    clock.busy -= 1
    clock.places -= 1
    if state.gate[1].time_s < np.inf:
        place = state.gate[1].key & LEAF
        scratch(state.gate, place)
        clock.places += 1
        send(state, costs, rules, place)


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

"""The life of a contribution: read, fetched, computed, sent, queued, folded.

An event is only what others can come before. Where copies arrive in the order in which they were
sent, as they do wherever workers share links, and nothing can go wrong on the way, a contribution
queues at the server as soon as its arrival is known.
"""

from __future__ import annotations

import numpy as np

from harness.simulator import link
from harness.simulator.costs import Costs, computation_s, folding_s
from harness.simulator.events import enter, scratch
from harness.simulator.jit import kernel
from harness.simulator.laws import uniforms
from harness.simulator.protocols import shards, travelling
from harness.simulator.protocols.contract import Limits
from harness.simulator.protocols.recording import Record, write_row
from harness.simulator.protocols.slots import (
    ABANDONED,
    AT_SERVER,
    AWAY,
    ENGAGED,
    FOLDED,
    FREE,
    GATED,
    HELD,
    LEAF,
    PARKED,
    PUSHED,
    PUSHING,
    READ,
    SEND,
    WORKING,
    Rules,
    State,
    about_to_read,
    become,
    go,
    not_least,
    plan,
)
from harness.simulator.protocols.stages import compute, fetched, handed_in, serve

__all__ = ["arrive", "computed", "end_of", "fold", "leave_link", "read", "save", "send"]


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
    travelling.load(state.roads, costs, place)
    if not fetches:
        compute(state, place, clock.now_s)
    elif state.channels.sharing == link.NETWORK:
        travelling.fetch(state, state.roads, costs, rules, place)
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
        travelling.abandoned(state, place)
    elif way == link.DOWN:
        fetched(state, rules, place, now_s + costs.latency_s, 0.0)
    elif rules.shards > 1:
        queue_piece(state, costs, rules, place, now_s + costs.latency_s)
    else:
        handed_in(state, costs, rules, place, now_s + costs.latency_s)


@kernel
def computed(state: State, costs: Costs, rules: Rules, place: int) -> None:
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
        about_to_read(state, slot.worker)


@kernel
def send(state: State, costs: Costs, rules: Rules, place: int) -> None:
    """Copy the contribution to the server, to one shard after the other."""
    clock, slot, channels = state.clock[0], state.slots[place], state.channels
    worker = state.workers[slot.worker]
    slot.phase = PUSHING
    slot.push_start_s = clock.now_s
    if channels.sharing == link.NETWORK:
        travelling.push(state, state.roads, costs, rules, place)
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
        handed_in(state, costs, rules, place, left_s + costs.latency_s)


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
        not_least(state, rules)
    if worker.status == ENGAGED and worker.computing == 0:
        about_to_read(state, who)


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

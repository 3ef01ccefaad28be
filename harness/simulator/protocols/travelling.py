"""A contribution's way over a network: its messages as events of the asynchronous kernel."""

from __future__ import annotations

import numpy as np

from harness.simulator.costs import Costs
from harness.simulator.jit import kernel
from harness.simulator.protocols.roads import Roads, leave, send_next, staging_s
from harness.simulator.protocols.slots import (
    ABANDONED,
    ENGAGED,
    FREE,
    PUSHED,
    PUSHING,
    SEND,
    Rules,
    State,
    about_to_read,
    plan,
)
from harness.simulator.protocols.stages import fetched, handed_in

__all__ = [
    "abandoned",
    "dispatch",
    "fetch",
    "leave_network",
    "load",
    "place_of",
    "push",
]


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
        departed(state, roads, costs, rules, place, departs_s, arrives_s)


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
        abandoned(state, place)
    else:
        departed(state, roads, costs, rules, place, now_s, now_s + latency_s)


@kernel
def departed(
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
        handed_in(state, costs, rules, place, arrives_s)
    elif last:
        fetched(state, rules, place, arrives_s, staging_s(roads, place))
    if last:
        roads.sent[place] = 0
    else:
        plan(state, place, departs_s, SEND)


@kernel
def abandoned(state: State, place: int) -> None:
    """The last of a lost contribution is off the links: its slot is free."""
    slot = state.slots[place]
    slot.phase = FREE
    worker = state.workers[slot.worker]
    if worker.status == ENGAGED and worker.computing == 0:
        about_to_read(state, slot.worker)


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

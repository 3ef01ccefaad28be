"""The parameter server in full: any kind of link, every setting, faults.

What a contribution goes through is in `contributing`, what can go wrong in `failing`, the state
in `slots`.

Of events at one instant: ends of copies on fair links, folds, arrivals, messages sent again, ends
of computing, ends of fetching, faults, returns, reads.
"""

from __future__ import annotations

import numpy as np

from harness.simulator import link
from harness.simulator.costs import Costs
from harness.simulator.events import WAIT, Queue, head_s, scratch, soon, take
from harness.simulator.jit import kernel, part
from harness.simulator.prefetch import FAR_LEVELS, levels_below_horizon, prefetch
from harness.simulator.protocols.contract import DONE, FULL, GONE, STUCK, Limits
from harness.simulator.protocols.contributing import (
    arrive,
    computed,
    fold,
    leave_link,
    read,
    send,
)
from harness.simulator.protocols.failing import begin, strike
from harness.simulator.protocols.recording import Record
from harness.simulator.protocols.roads import next_to_leave_s, staging_s
from harness.simulator.protocols.slots import (
    COMPUTED,
    FAULT,
    FETCHED,
    FOLDED,
    LEAF,
    PRIORITY,
    PUSHED,
    RETURNED,
    SEND,
    Rules,
    State,
    come_back,
)
from harness.simulator.protocols.stages import compute
from harness.simulator.protocols.travelling import (
    dispatch,
    leave_network,
    place_of,
)

__all__ = ["run"]

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
            read(state, costs, rules, limits, take(state.readers)[1])
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
            fold(state, costs, rules, limits, record, take(state.folds)[1])
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
        computed(state, costs, rules, leaf)
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

"""Messages round a ring, without a table of them.

In every round each worker sends to the next and receives from the previous one, so a message is
determined by its sender and its round. On full-duplex links no two messages ever share a link. The
times T then follow from a recurrence over rounds (`ends_by_rounds_s`): the message of worker i
starts at S[i] = T[i], or max(T[i], T[i+1]) if it waits for its receiver, and
T′[i] = max(S[i] + c, S[i−1] + c + α) + a. On other networks they are simulated event by event
(`ends_by_events_s`), equal to the last bit to `harness.simulator.collectives`, which would need a
table of all N² messages.

At most N messages are on their way to workers that are not yet in the round that takes them. With
r_w the round that worker w is in, r_w ≤ r_{w−1} + 1; at most r_{w−1} + 1 − r_w messages wait for w,
which sums up to N around the ring.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from harness.simulator.events import Heap, kernel, new_heap, push
from harness.simulator.network import (
    Traffic,
    Wiring,
    new_traffic,
    next_event,
    reserve,
    route,
    start,
)

NOBODY = -1


class RingRounds(NamedTuple):
    """The rounds, equal except that only the first ones add.

    Attributes:
        number: number of rounds.
        adding: number of first rounds in which workers add the received part to their own.
        size_bytes: size of every message.
        add_s: time to add a received message.
    """

    number: int
    adding: int
    size_bytes: float
    add_s: float


class Ring(NamedTuple):
    """Progress of the M members through their rounds; a member is its index in the ring.

    Attributes:
        heap: instants at which members enter their next rounds.
        member: [M] worker index of each member.
        round: [M] the round that each member is in or about to enter.
        entered_s: [M] instant at which each member entered its latest round.
        waiting: [M] whether each member is in that round with an end that is not known yet.
        departed_s: [M] departure of each member's message of that round, infinite until known.
        first, last: [M] first and last message to each member that it has not taken, or `NOBODY`.
        arrived_s: [M] arrivals of messages that have not been taken.
        after: [M] next message to the same member; for a free place, the next free place.
        free: [1] the first free place.
    """

    heap: Heap
    member: Any
    round: Any
    entered_s: Any
    waiting: Any
    departed_s: Any
    first: Any
    last: Any
    arrived_s: Any
    after: Any
    free: Any


def ends_by_events_s(wiring: Wiring, members: Any, ready_s: Any, rounds: RingRounds) -> Any:
    """Instants at which members finish all rounds, on any network.

    Args:
        wiring: the network, idle at first.
        members: [M] numbers of the workers, in the order of the ring.
        ready_s: [M] instants at which members join.
        rounds: the rounds.

    Returns:
        [M] seconds.
    """
    count = len(members)
    ring = Ring(
        heap=new_heap(count),
        member=np.asarray(members, np.int64),
        round=np.zeros(count, np.int64),
        entered_s=np.zeros(count),
        waiting=np.zeros(count, np.bool_),
        departed_s=np.full(count, np.inf),
        first=np.full(count, NOBODY, np.int64),
        last=np.full(count, NOBODY, np.int64),
        arrived_s=np.zeros(count),
        # One place a member is enough for all together, though not for each: see the module.
        after=np.arange(1, count + 1),
        free=np.zeros(1, np.int64),
    )
    end_s = np.zeros(count)
    go_round(new_traffic(wiring, count), ring, rounds, np.asarray(ready_s, np.float64), end_s)
    return end_s


@kernel
def go_round(traffic: Traffic, ring: Ring, rounds: RingRounds, ready_s: Any, end_s: Any) -> None:
    """Simulate all rounds of all members; fills ``end_s``."""
    for member in range(len(ready_s)):
        push(ring.heap, ready_s[member], 0, member)
    now_s, member, departs = next_event(traffic, ring.heap, -np.inf)
    while now_s < np.inf:
        if departs:
            on_sent(ring, rounds, member, now_s, now_s + traffic.flows[member].latency_s)
        else:
            enter(traffic, ring, rounds, member, now_s, end_s)
        now_s, member, departs = next_event(traffic, ring.heap, now_s)


@kernel
def enter(
    traffic: Traffic, ring: Ring, rounds: RingRounds, member: int, now_s: float, end_s: Any
) -> None:
    """Let a member enter its next round, or finish after its last."""
    number = ring.round[member]
    if number == rounds.number:
        end_s[member] = now_s
        return
    ring.entered_s[member] = now_s
    ring.departed_s[member] = np.inf
    ring.waiting[member] = True
    if not traffic.wiring.rendezvous:
        send(traffic, ring, rounds, member, now_s)
    else:
        # Of a message's two ends, the one that enters last starts it: the other is waiting.
        after = following(ring, member)
        before = member - 1 if member > 0 else len(ring.round) - 1
        if ring.waiting[after] and ring.round[after] == number:
            send(traffic, ring, rounds, member, now_s)
        if ring.waiting[before] and ring.round[before] == number:
            send(traffic, ring, rounds, before, now_s)
    # First come, first served, `send` may have settled the round already.
    if ring.waiting[member] and ring.round[member] == number:
        settle(ring, rounds, member)


@kernel
def following(ring: Ring, member: int) -> int:
    """The next member."""
    return member + 1 if member + 1 < len(ring.round) else 0


@kernel
def send(traffic: Traffic, ring: Ring, rounds: RingRounds, member: int, now_s: float) -> None:
    """Start a member's message of its present round."""
    source, target = ring.member[member], ring.member[following(ring, member)]
    if traffic.wiring.fair:
        start(traffic, member, source, target, rounds.size_bytes, now_s)
    else:
        times = reserve(traffic, member, source, target, rounds.size_bytes, now_s)
        on_sent(ring, rounds, member, times[1], times[2])


@kernel
def on_sent(
    ring: Ring, rounds: RingRounds, member: int, departed_s: float, arrived_s: float
) -> None:
    """Record departure and arrival of a member's message, and settle both ends' rounds."""
    number, target = ring.round[member], following(ring, member)
    ring.departed_s[member] = departed_s
    put(ring, target, arrived_s)
    settle(ring, rounds, member)
    if ring.waiting[target] and ring.round[target] == number:
        settle(ring, rounds, target)


@kernel
def settle(ring: Ring, rounds: RingRounds, member: int) -> None:
    """Schedule a member's next round if the end of its present one is known."""
    if ring.first[member] == NOBODY or ring.departed_s[member] == np.inf:
        return
    arrived_s = ring.arrived_s[ring.first[member]]
    over_s = max(ring.entered_s[member], ring.departed_s[member])
    over_s = max(over_s, arrived_s)  # a buffered message may have arrived earlier
    if ring.round[member] < rounds.adding:
        over_s += rounds.add_s
    if over_s < np.inf:
        drop(ring, member)
        ring.round[member] += 1
        ring.waiting[member] = False
        push(ring.heap, over_s, 0, member)


@kernel
def put(ring: Ring, target: int, arrived_s: float) -> None:
    """Append a message to those that a member has not taken."""
    place = ring.free[0]
    ring.free[0] = ring.after[place]
    ring.arrived_s[place] = arrived_s
    ring.after[place] = NOBODY
    if ring.first[target] == NOBODY:
        ring.first[target] = place
    else:
        ring.after[ring.last[target]] = place
    ring.last[target] = place


@kernel
def drop(ring: Ring, member: int) -> None:
    """Remove the first message to a member."""
    place = ring.first[member]
    ring.first[member] = ring.after[place]
    ring.after[place] = ring.free[0]
    ring.free[0] = place


def ends_by_rounds_s(wiring: Wiring, members: Any, ready_s: Any, rounds: RingRounds) -> Any:
    """`ends_by_events_s` for networks on which no two messages share a link; same arguments."""
    count = len(members)
    copy_s, latency_s = np.zeros((2, count))
    way = np.zeros(wiring.longest, np.int64)
    ring_links(wiring, members, rounds.size_bytes, copy_s, latency_s, way)
    end_s, departed_s = ready_s.copy(), np.zeros(count)
    ring_rounds(end_s, departed_s, copy_s, latency_s, rounds, wiring.rendezvous)
    return end_s


@kernel
def ring_links(
    wiring: Wiring, members: Any, part: float, copy_s: Any, latency_s: Any, way: Any
) -> None:
    """Seconds of the copy of one part from each member to the next, and its latency."""
    workers = len(copy_s)
    for member in range(workers):
        latency_s[member] = route(wiring, members[member], members[(member + 1) % workers], way)
        rate = np.inf
        for link in way:
            if link < 0:
                break
            rate = min(rate, wiring.rate[link])
        copy_s[member] = part / rate


@kernel
def ring_rounds(
    now_s: Any, departed_s: Any, copy_s: Any, latency_s: Any, rounds: RingRounds, rendezvous: bool
) -> None:
    """The recurrence over all rounds; ``now_s`` [M]: members' start, overwritten by their end."""
    end = len(now_s) - 1
    for turn in range(rounds.number):
        extra_s = rounds.add_s if turn < rounds.adding else 0.0
        for member in range(len(now_s)):
            departed_s[member] = now_s[member]
        if rendezvous:
            for member in range(end):
                departed_s[member] = max(now_s[member], now_s[member + 1])
            departed_s[end] = max(now_s[end], now_s[0])
        for member in range(len(now_s)):
            departed_s[member] += copy_s[member]
        # The last member's message closes the ring.
        now_s[0] = max(departed_s[0], departed_s[end] + latency_s[end]) + extra_s
        for member in range(1, len(now_s)):
            arrived_s = departed_s[member - 1] + latency_s[member - 1]
            now_s[member] = max(departed_s[member], arrived_s) + extra_s

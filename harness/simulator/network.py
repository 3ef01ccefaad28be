"""Messages under way on a network: one at a time on each link, or in max-min fair parts.

First come, first served: a message takes every link of its way at once, as soon as all of
them are free of messages sent before it, so its departure is known when it is sent.

Fair: rates are max-min fair (Bertsekas and Gallager, "Data Networks", section 6.5.2). All
rates grow together until a link is full; the messages on it keep the rate they have, and the
others go on growing. Rates change only when a message starts or departs, and when no link of
its way carries another one they do not change then either. A message's departure is an event
that is put off or brought forward when its rate changes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from harness.simulator.events import SIZE, Heap, first_s, new_heap, pop, push
from harness.simulator.jit import kernel
from harness.simulator.topology import NO_LINK, Wiring, route

__all__ = [
    "Traffic",
    "depart",
    "new_traffic",
    "next_departure_s",
    "next_event",
    "reserve",
    "start",
    "transfer",
]

COUNT, STALE = 0, 1
UNKNOWN, MARKED = -1.0, -2.0

FLOW = np.dtype(
    [
        *(("left_bytes", np.float64), ("rate", np.float64), ("since_s", np.float64)),
        *(("departs_s", np.float64), ("latency_s", np.float64)),
        *(("new_rate", np.float64), ("place", np.int64)),
    ]
)
"""A message under way on fair links: bytes left at the instant its rate last changed, that
rate and instant, its departure at that rate, and its place among the active ones (−1 if none)."""

LINK = np.dtype(
    [("free_s", np.float64), ("load", np.int64), ("room", np.float64), ("open", np.int64)]
)
"""A link: when it is free (first come, first served), messages on it (fair), and while rates
are being found the bandwidth not yet given and the messages without a rate."""


class Traffic(NamedTuple):
    """What is under way.

    Attributes:
        wiring: the network.
        links: [E] of `LINK`.
        flows: [F] of `FLOW`, by slot.
        ways: [F, P] links of each message.
        active: [F] slots under way, the first ``counts[COUNT]`` of them.
        counts: [2] messages under way, and whether their rates are out of date.
        departures: by time; an entry whose message now departs at another time is void.
    """

    wiring: Wiring
    links: Any
    flows: Any
    ways: Any
    active: Any
    counts: Any
    departures: Heap


def new_traffic(wiring: Wiring, slots: int) -> Traffic:
    """An idle network for at most ``slots`` messages at once."""
    flows = np.zeros(slots, FLOW)
    flows["place"] = -1
    return Traffic(
        wiring=wiring,
        links=np.zeros(len(wiring.rate), LINK),
        flows=flows,
        ways=np.full((slots, wiring.longest), NO_LINK, np.int64),
        active=np.zeros(slots, np.int64),
        counts=np.zeros(2, np.int64),
        departures=new_heap(4 * slots + 16),
    )


@kernel
def reserve(
    traffic: Traffic, slot: int, source: int, target: int, size: float, now_s: float
) -> tuple[float, float, float]:
    """Send a message first come, first served: (start, departure, arrival) in seconds."""
    way = traffic.ways[slot]
    latency_s = route(traffic.wiring, source, target, way)
    start_s, rate = now_s, np.inf
    for link in way:
        if link == NO_LINK:
            break
        start_s = max(start_s, traffic.links[link].free_s)
        rate = min(rate, traffic.wiring.rate[link])
    departs_s = start_s + size / rate
    for link in way:
        if link == NO_LINK:
            break
        traffic.links[link].free_s = departs_s
    return start_s, departs_s, departs_s + latency_s


@kernel
def start(traffic: Traffic, slot: int, source: int, target: int, size: float, now_s: float) -> None:
    """Send a message over fair links; its slot comes back from `depart`."""
    flow, way = traffic.flows[slot], traffic.ways[slot]
    flow.latency_s = route(traffic.wiring, source, target, way)
    flow.left_bytes = size
    flow.since_s = now_s
    flow.rate = 0.0
    flow.departs_s = np.inf  # or an entry of the slot's last message could be taken for its own
    flow.place = traffic.counts[COUNT]
    traffic.active[flow.place] = slot
    traffic.counts[COUNT] += 1
    if change_load(traffic, way, 1):
        traffic.counts[STALE] = 1
    else:
        give_rate(traffic, slot, bottleneck(traffic, way), now_s)


@kernel
def change_load(traffic: Traffic, way: Any, by: int) -> bool:
    """Count a message in or out on its way; whether any link carries another."""
    shared = False
    for link in way:
        if link == NO_LINK:
            break
        traffic.links[link].load += by
        shared = shared or traffic.links[link].load > max(by, 0)
    return shared


@kernel
def bottleneck(traffic: Traffic, way: Any) -> float:
    """Bytes a second of the slowest link of a way."""
    rate = np.inf
    for link in way:
        if link == NO_LINK:
            break
        rate = min(rate, traffic.wiring.rate[link])
    return rate


@kernel
def give_rate(traffic: Traffic, slot: int, rate: float, now_s: float) -> None:
    """From now on a message has this rate; note when it departs."""
    flow, departures = traffic.flows[slot], traffic.departures
    if flow.rate > 0.0:
        flow.left_bytes = max(flow.left_bytes - flow.rate * (now_s - flow.since_s), 0.0)
    flow.since_s = now_s
    flow.rate = rate
    flow.departs_s = now_s + flow.left_bytes / rate
    if departures.counts[SIZE] == len(departures.events):
        departures.counts[SIZE] = 0
        for place in range(traffic.counts[COUNT]):
            other = traffic.active[place]
            if other != slot and traffic.flows[other].rate > 0.0:
                push(departures, traffic.flows[other].departs_s, 0, other)
    push(departures, flow.departs_s, 0, slot)


@kernel
def find_rates(traffic: Traffic, now_s: float) -> None:
    """Max-min fair rates of all messages under way, by filling link after link."""
    flows, links = traffic.flows, traffic.links
    traffic.counts[STALE] = 0
    waiting = traffic.counts[COUNT]
    for place in range(waiting):
        slot = traffic.active[place]
        flows[slot].new_rate = UNKNOWN
        for link in traffic.ways[slot]:
            if link == NO_LINK:
                break
            links[link].room = traffic.wiring.rate[link]
            links[link].open = links[link].load
    while waiting > 0:
        waiting -= fill(traffic, smallest_share(traffic))
    for place in range(traffic.counts[COUNT]):
        slot = traffic.active[place]
        if flows[slot].new_rate != flows[slot].rate:
            give_rate(traffic, slot, flows[slot].new_rate, now_s)


@kernel
def share_of(traffic: Traffic, slot: int) -> float:
    """The equal part a message could have of the fullest link of its way."""
    share = np.inf
    for link in traffic.ways[slot]:
        if link == NO_LINK:
            break
        share = min(share, traffic.links[link].room / traffic.links[link].open)
    return share


@kernel
def smallest_share(traffic: Traffic) -> float:
    """The smallest such part among messages without a rate."""
    share = np.inf
    for place in range(traffic.counts[COUNT]):
        slot = traffic.active[place]
        if traffic.flows[slot].new_rate == UNKNOWN:
            share = min(share, share_of(traffic, slot))
    return max(share, 0.0)


@kernel
def fill(traffic: Traffic, share: float) -> int:
    """Give that rate to every message whose fullest link has no more; how many those are.

    They are marked before any is served, so equal messages get equal rates to the last bit.
    """
    given, links, flows = 0, traffic.links, traffic.flows
    for place in range(traffic.counts[COUNT]):
        slot = traffic.active[place]
        if flows[slot].new_rate == UNKNOWN and share_of(traffic, slot) <= share:
            flows[slot].new_rate = MARKED
    for place in range(traffic.counts[COUNT]):
        slot = traffic.active[place]
        if flows[slot].new_rate == MARKED:
            flows[slot].new_rate = share
            given += 1
            for link in traffic.ways[slot]:
                if link == NO_LINK:
                    break
                links[link].open -= 1
                if share < np.inf:
                    links[link].room -= share
    return given


@kernel
def next_departure_s(traffic: Traffic, now_s: float) -> float:
    """When the next message departs at present rates, infinity if none is under way."""
    while True:
        departs_s = first_valid_s(traffic)
        if departs_s <= now_s or not traffic.counts[STALE]:
            return departs_s
        find_rates(traffic, now_s)


@kernel
def next_event(traffic: Traffic, heap: Heap, now_s: float) -> tuple[float, int, bool]:
    """Of two kinds of events the next: a message departs, or what a heap has at some time.

    Args:
        traffic: what is under way; on links of first come, first served no departure is an event.
        heap: of events of the caller's, by time and number.
        now_s: the time of the last event.

    Returns:
        When it is, infinity if nothing is to come; the message's slot or the heap's number; and
        whether a message departs. At the same moment the heap comes first.
    """
    entry_s, departs_s = first_s(heap), np.inf
    if traffic.wiring.fair and entry_s > now_s:
        departs_s = next_departure_s(traffic, now_s)
    if departs_s < entry_s:
        return departs_s, depart(traffic), True
    if entry_s == np.inf:
        return entry_s, 0, False
    return entry_s, pop(heap)[2], False


@kernel
def first_valid_s(traffic: Traffic) -> float:
    """The first entry of the departures that is not void, infinity if there is none."""
    departures = traffic.departures
    while departures.counts[SIZE] > 0:
        event = departures.events[0]
        flow = traffic.flows[event.who]
        if flow.place >= 0 and flow.departs_s == event.time_s:
            return event.time_s
        pop(departures)
    return np.inf


@kernel
def depart(traffic: Traffic) -> int:
    """Take the next message off the network; its slot."""
    _, _, slot = pop(traffic.departures)
    place = traffic.flows[slot].place
    traffic.counts[COUNT] -= 1
    last = traffic.active[traffic.counts[COUNT]]
    traffic.active[place] = last
    traffic.flows[last].place = place
    traffic.flows[slot].place = -1
    if change_load(traffic, traffic.ways[slot], -1):
        traffic.counts[STALE] = 1
    return slot


def transfer(wiring: Wiring, sent_s: Any, source: Any, target: Any, size_bytes: Any) -> np.ndarray:
    """Arrivals of independent messages, each sent at its own time.

    Args:
        wiring: the network.
        sent_s: [M] seconds.
        source: [M] endpoints.
        target: [M] endpoints.
        size_bytes: [M].

    Returns:
        [M] seconds; of messages sent at one instant, the one listed first goes first.
    """
    sent = np.asarray(sent_s, np.float64)
    order = np.argsort(sent, kind="stable")
    arrived_s = np.zeros(len(sent))
    ends = (np.asarray(source, np.int64), np.asarray(target, np.int64))
    sizes = np.asarray(size_bytes, np.float64)
    send_all(new_traffic(wiring, len(sent)), order, sent, *ends, sizes, arrived_s)
    return arrived_s


@kernel
def send_all(
    traffic: Traffic, order: Any, sent_s: Any, source: Any, target: Any, size: Any, arrived_s: Any
) -> None:
    """The kernel of `transfer`."""
    now_s = 0.0
    for who in order:
        if not traffic.wiring.fair:
            _, _, arrived_s[who] = reserve(
                traffic, who, source[who], target[who], size[who], sent_s[who]
            )
            continue
        now_s = departures_until(traffic, now_s, sent_s[who], arrived_s)
        now_s = sent_s[who]
        start(traffic, who, source[who], target[who], size[who], now_s)
    if traffic.wiring.fair:
        departures_until(traffic, now_s, np.inf, arrived_s)


@kernel
def departures_until(traffic: Traffic, now_s: float, end_s: float, arrived_s: Any) -> float:
    """Let messages depart until ``end_s``; the time of the last."""
    while traffic.counts[COUNT] > 0:
        departs_s = next_departure_s(traffic, now_s)
        if departs_s > end_s:
            break
        now_s = departs_s
        slot = depart(traffic)
        arrived_s[slot] = departs_s + traffic.flows[slot].latency_s
    return now_s

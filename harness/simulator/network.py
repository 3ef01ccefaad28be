"""A network: a tree of links, and the messages in flight on it.

Links carry one message at a time, or several in max-min fair parts. First come, first served
(`reserve`): a message takes every link of its route at once, as soon as all of them are free of
messages sent earlier, so its departure is known when it is sent.

Fair (`start`): rates are max-min fair (Bertsekas and Gallager, "Data Networks", section 6.5.2). All
rates grow together until a link is full; the messages on it keep their rate, and the others keep
growing. Rates change only when a message starts or departs, and only if a link of its route
carries another message. A message's departure is an event that moves when its rate changes.

One description covers the usual machines. Level 0 joins every worker to its first switch,
level 1 a group of workers to the next one, and so on; above the last level is a switch that
joins everything:

- a switched cluster: one level;
- one server's PCI Express tree: cards, then the switches they share;
- nodes × GPUs: the links inside a node, then one network port per node;
- a wide area: the same, with sites for nodes and seconds' worth of latency;
- a star with parameter-server shards: one level, and a link of each shard's own;
- a bus or a blocking switch: a core with a capacity that all traffic shares;
- nodes × GPUs with a card per GPU: as many links per node as it has cards, beside those inside;
- rails: cards with one number in their nodes share a switch, and the core joins the rails.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from harness.base.settings import Spec, duration, setting
from harness.base.settings import rate as rate_setting
from harness.simulator.events import (
    Agenda,
    first_s,
    kernel,
    new_agenda,
    part,
    set_event,
    take_event,
)

COUNT, STALE = 0, 1

UNKNOWN, MARKED = -1.0, -2.0

FLOW = np.dtype(
    [
        *(("left_bytes", np.float64), ("rate", np.float64), ("since_s", np.float64)),
        *(("latency_s", np.float64), ("new_rate", np.float64), ("place", np.int64)),
        ("links", np.int64),
    ]
)
"""A message in flight on fair links: bytes left at the last change of its rate, the rate and
instant of that change, its index among active ones, and the number of links on its way."""

LINK = np.dtype(
    [("free_s", np.float64), ("load", np.int64), ("room", np.float64), ("open", np.int64)]
)
"""A link: the instant at which it is free (first come, first served), messages on it (fair), and
during `find_rates` the bandwidth not yet assigned and the messages without a rate."""


class Traffic(NamedTuple):
    """Messages in flight on a network.

    Attributes:
        wiring: the network.
        links: [E] of `LINK`.
        flows: [F] of `FLOW`, by slot.
        ways: [F, P] links of each message, as many as its flow says.
        active: [F] slots in flight, in the first ``counts[COUNT]`` entries.
        counts: [2] number of messages in flight, and whether their rates are out of date.
        departures: of the messages, at their present rates.
    """

    wiring: Wiring
    links: Any
    flows: Any
    ways: Any
    active: Any
    counts: Any
    departures: Agenda


def new_traffic(wiring: Wiring, slots: int) -> Traffic:
    """An idle network for at most ``slots`` messages at once."""
    return Traffic(
        wiring=wiring,
        links=np.zeros(len(wiring.rate), LINK),
        flows=np.zeros(slots, FLOW),
        ways=np.zeros((slots, wiring.longest), np.int64),
        active=np.zeros(slots, np.int64),
        counts=np.zeros(2, np.int64),
        departures=new_agenda(slots),
    )


@kernel
def send(
    traffic: Traffic, slot: int, source: int, target: int, size: float, now_s: float
) -> tuple[float, float, float]:
    """Send a message: (start, departure, arrival) in seconds.

    The latter two are infinite on fair links, where its departure is an event (`depart`).
    """
    if traffic.wiring.fair:
        start(traffic, slot, source, target, size, now_s)
        return now_s, np.inf, np.inf
    return reserve(traffic, slot, source, target, size, now_s)


@kernel
def reserve(
    traffic: Traffic, slot: int, source: int, target: int, size: float, now_s: float
) -> tuple[float, float, float]:
    """Send a message first come, first served: (start, departure, arrival) in seconds."""
    way = traffic.ways[slot]
    latency_s, links = route(traffic.wiring, source, target, way)
    # All links are taken at once: the message starts when the busiest is free, at the rate of the
    # slowest, and holds each of them to its end.
    start_s, rate = now_s, np.inf
    for link in way[:links]:
        start_s = max(start_s, traffic.links[link].free_s)
        rate = min(rate, traffic.wiring.rate[link])
    departs_s = start_s + size / rate
    for link in way[:links]:
        traffic.links[link].free_s = departs_s
    return start_s, departs_s, departs_s + latency_s


@kernel
def start(traffic: Traffic, slot: int, source: int, target: int, size: float, now_s: float) -> None:
    """Send a message over fair links; `depart` returns its slot."""
    flow = traffic.flows[slot]
    flow.latency_s, flow.links = route(traffic.wiring, source, target, traffic.ways[slot])
    flow.left_bytes = size
    flow.since_s = now_s
    flow.rate = 0.0  # no bytes have left yet, so `give_rate` subtracts none
    flow.place = traffic.counts[COUNT]
    traffic.active[flow.place] = slot
    traffic.counts[COUNT] += 1
    if change_load(traffic, slot, 1):
        # Messages of one instant change the rates together: `next_departure_s` computes them once.
        traffic.counts[STALE] = 1
    else:
        give_rate(traffic, slot, bottleneck(traffic.wiring, way_of(traffic, slot)), now_s)


@part
def way_of(traffic: Traffic, slot: int) -> Any:
    """The links of a message's way."""
    return traffic.ways[slot, : traffic.flows[slot].links]


@kernel
def change_load(traffic: Traffic, slot: int, by: int) -> bool:
    """Add a message to the links of its way, or remove it; whether any link carries another."""
    shared = False
    for link in way_of(traffic, slot):
        traffic.links[link].load += by
        # A joining message counts itself, a leaving one no longer does.
        shared = shared or traffic.links[link].load > max(by, 0)
    return shared


@kernel
def bottleneck(wiring: Wiring, way: Any) -> float:
    """Bytes per second of the slowest link of a way."""
    rate = np.inf
    for link in way:
        rate = min(rate, wiring.rate[link])
    return rate


@kernel
def give_rate(traffic: Traffic, slot: int, rate: float, now_s: float) -> None:
    """Set a message's rate from now on, and schedule its departure."""
    flow = traffic.flows[slot]
    if flow.rate > 0.0:
        # Rounding may leave a little less than nothing at the end of a message.
        flow.left_bytes = max(flow.left_bytes - flow.rate * (now_s - flow.since_s), 0.0)
    flow.since_s = now_s
    flow.rate = rate
    set_event(traffic.departures, slot, now_s + flow.left_bytes / rate)


@kernel
def find_rates(traffic: Traffic, now_s: float) -> None:
    """Max-min fair rates of all messages in flight, by filling link after link."""
    flows, links = traffic.flows, traffic.links
    traffic.counts[STALE] = 0
    waiting = traffic.counts[COUNT]
    for place in range(waiting):
        slot = traffic.active[place]
        flows[slot].new_rate = UNKNOWN
        for link in way_of(traffic, slot):
            links[link].room = traffic.wiring.rate[link]
            links[link].open = links[link].load
    # Progressive filling: each turn fills at least the link with the smallest share, so it ends.
    while waiting > 0:
        waiting -= fill(traffic, smallest_share(traffic))
    for place in range(traffic.counts[COUNT]):
        slot = traffic.active[place]
        # An equal rate keeps its departure, to the bit: recomputing it would round once more.
        if flows[slot].new_rate != flows[slot].rate:
            give_rate(traffic, slot, flows[slot].new_rate, now_s)


@kernel
def share_of(traffic: Traffic, slot: int) -> float:
    """The equal part of the fullest link of its way that a message could have."""
    share = np.inf
    for link in way_of(traffic, slot):
        share = min(share, traffic.links[link].room / traffic.links[link].open)
    return share


@kernel
def smallest_share(traffic: Traffic) -> float:
    """The smallest `share_of` among messages without a rate."""
    share = np.inf
    for place in range(traffic.counts[COUNT]):
        slot = traffic.active[place]
        if traffic.flows[slot].new_rate == UNKNOWN:
            share = min(share, share_of(traffic, slot))
    return max(share, 0.0)  # subtractions in `fill` may leave a link with less than nothing


@kernel
def fill(traffic: Traffic, share: float) -> int:
    """Assign the rate ``share`` to all messages limited to it; returns their number.

    They are marked before any is assigned, so equal messages get equal rates to the last bit.
    """
    count, links, flows = 0, traffic.links, traffic.flows
    for place in range(traffic.counts[COUNT]):
        slot = traffic.active[place]
        if flows[slot].new_rate == UNKNOWN and share_of(traffic, slot) <= share:
            flows[slot].new_rate = MARKED
    for place in range(traffic.counts[COUNT]):
        slot = traffic.active[place]
        if flows[slot].new_rate == MARKED:
            flows[slot].new_rate = share
            count += 1
            for link in way_of(traffic, slot):
                links[link].open -= 1
                if share < np.inf:  # infinity minus infinity is no number
                    links[link].room -= share
    return count


@kernel
def next_departure_s(traffic: Traffic | None, now_s: float) -> float:
    """Next departure at present rates, infinity if no message is in flight on fair links."""
    if traffic is None:
        return np.inf
    while True:
        departs_s = first_s(traffic.departures)
        # A message that departs at this instant has no bytes left, so new rates do not concern it.
        if departs_s <= now_s or not traffic.counts[STALE]:
            return departs_s
        find_rates(traffic, now_s)


@kernel
def next_event(traffic: Traffic, agenda: Agenda, now_s: float) -> tuple[float, int, float]:
    """Take the next event: a departure of a message, or the first event of an agenda.

    Args:
        traffic: messages in flight; with first come, first served, departures are no events.
        agenda: of the caller's events.
        now_s: the time of the last event.

    Returns:
        Its time, infinity if there is no event; the message's slot, or the owner of the agenda's
        event; and the message's arrival, infinity if none departs. Of equal times the agenda's
        event comes first.
    """
    entry_s, departs_s = first_s(agenda), np.inf
    # With an event of the caller at this instant, rates may change again before time passes.
    if traffic.wiring.fair and entry_s > now_s:
        departs_s = next_departure_s(traffic, now_s)
    if departs_s < entry_s:
        slot, latency_s = depart(traffic)
        return departs_s, slot, departs_s + latency_s
    return entry_s, take_event(agenda) if entry_s < np.inf else 0, np.inf


@kernel
def depart(traffic: Traffic | None) -> tuple[int, float]:
    """Remove the next departing message from the network; returns its slot and its latency."""
    if traffic is None:
        return 0, np.inf
    slot = take_event(traffic.departures)
    place = traffic.flows[slot].place
    traffic.counts[COUNT] -= 1
    # The last active slot fills the gap, so that removal takes constant time.
    tail = traffic.active[traffic.counts[COUNT]]
    traffic.active[place] = tail
    traffic.flows[tail].place = place
    if change_load(traffic, slot, -1):
        traffic.counts[STALE] = 1
    return slot, traffic.flows[slot].latency_s


NO_LINK = -1


@dataclass(frozen=True)
class Shaping(Spec):
    """A limit on links, of which messages get less than the limit.

    A shaper counts headers too. Where its queue is short for the streams that share it, packets are
    lost and streams wait for their timeouts, so a part of the limit remains unused.

    Attributes:
        payload: share of the bytes on a link that belongs to messages and not to headers.
        limits_bytes_per_s: limits at which the unused share was measured, ascending.
        unused: that share at each of them; between two limits interpolated over their logarithm,
            beyond the first and the last one as there.
    """

    payload: float = setting(1.0, above=0.0, at_most=1.0)
    limits_bytes_per_s: tuple[float, ...] = setting((), at_least=1e-5, at_most=1e21)
    unused: tuple[float, ...] = setting((), at_least=0.0, at_most=0.999)

    def trouble(self) -> tuple[str, str] | None:
        """Limits that do not ascend, or another number of shares."""
        if any(below >= above for below, above in pairwise(self.limits_bytes_per_s)):
            return "limits_bytes_per_s", "not allowed in this order; allowed: ascending limits"
        if len(self.unused) != len(self.limits_bytes_per_s):
            counts = f"{len(self.unused)} values; allowed: {len(self.limits_bytes_per_s)}"
            return "unused", f"{counts}, one for each of limits_bytes_per_s"
        return None

    def rate_under(self, limit: float) -> float:
        """Bytes per second of messages under a limit in bytes per second.

        Examples:
            >>> shaping = Shaping(payload=0.9, limits_bytes_per_s=(1e6, 1e8), unused=(0.2, 0.0))
            >>> round(shaping.rate_under(1e7)), round(shaping.rate_under(1e9))
            (8100000, 900000000)
        """
        if not self.unused:
            return limit * self.payload
        places = [math.log(edge) for edge in self.limits_bytes_per_s]
        unused = float(np.interp(math.log(limit), places, self.unused))
        return limit * self.payload * (1.0 - unused)


@dataclass(frozen=True)
class Level(Spec):
    """The links between one level of the tree and the next.

    Attributes:
        workers_per_link: number of workers behind each link, in order of their numbers.
        bandwidth_bytes_per_s: bandwidth of each link; without it, infinite.
        latency_s: latency that this level adds to a message, up and down together.
        duplex: ``full``, both directions have the full bandwidth at once; ``half``, they share it.
        name: name of the level in tables and figures.
        down_bandwidth_bytes_per_s: bandwidth of each link towards the workers;
            ``bandwidth_bytes_per_s`` is then that in the other direction. Without it, both are
            equal.
        links: number of parallel links for these workers, which are divided among them in order,
            e.g. 8 for 8 workers with a network card each.
        inside: whether this level carries only messages that stay below the next level; other
            messages then bypass it.
        shaping: what messages get where the bandwidth is the limit of a shaper; without it, all.
    """

    workers_per_link: int = setting(1, at_least=1, at_most=10_000_000)
    bandwidth_bytes_per_s: float | None = rate_setting()
    latency_s: float = duration()
    duplex: str = setting("full", one_of=("full", "half"))
    name: str = setting("")
    down_bandwidth_bytes_per_s: float | None = rate_setting()
    links: int = setting(1, at_least=1, at_most=10_000_000)
    inside: bool = setting(False)
    shaping: Shaping | None = setting(None)

    @property
    def away_bytes_per_s(self) -> float:
        """Bandwidth for messages of each link away from the workers, infinite without a limit."""
        return self._rate_under(self.bandwidth_bytes_per_s)

    @property
    def towards_bytes_per_s(self) -> float:
        """Bandwidth for messages of each link towards the workers."""
        return self._rate_under(self.down_bandwidth_bytes_per_s or self.bandwidth_bytes_per_s)

    def _rate_under(self, limit: float | None) -> float:
        if limit is None:
            return np.inf
        return limit if self.shaping is None else self.shaping.rate_under(limit)

    def trouble(self) -> tuple[str, str] | None:
        """Two bandwidths with one direction, or a link without a worker."""
        if self.duplex == "half" and self.down_bandwidth_bytes_per_s is not None:
            return "down_bandwidth_bytes_per_s", "not allowed with duplex 'half'; allowed: 'full'"
        if self.workers_per_link % self.links:
            allowed = f"divisors of workers_per_link, {self.workers_per_link}"
            return "links", f"{self.links} is not allowed; allowed: {allowed}"
        return None


@dataclass(frozen=True)
class Network(Spec):
    """The links between workers, level by level, and those of a server.

    Attributes:
        levels: levels of links, from the workers upwards.
        sharing: sharing of a link: ``fair``, its messages get max-min fair shares; ``fifo``, it
            carries one message at a time, in the order of sending.
        sending: start of a message: ``rendezvous``, once sender and receiver are ready, as long
            messages in MPI; ``buffered``, once the sender is ready.
        core_bandwidth_bytes_per_s: capacity of the switch that joins the highest links; without
            it, infinite.
        server: link of each server shard to the core. With it, copies of the parameter server are
            messages on this network instead of copies on ``link``.
        rails: whether links with the same number in their groups of the highest level share a
            switch (a rail), so that only messages between rails pass the core.
    """

    levels: tuple[Level, ...] = setting(())
    sharing: str = setting("fair", one_of=("fair", "fifo"))
    sending: str = setting("rendezvous", one_of=("rendezvous", "buffered"))
    core_bandwidth_bytes_per_s: float | None = rate_setting()
    server: Level | None = setting(None)
    rails: bool = setting(False)

    def trouble(self) -> tuple[str, str] | None:
        """A level that divides links of the level below, or an inside one at the top."""
        if self.levels and self.levels[-1].inside:
            key = f"levels[{len(self.levels) - 1}].inside"
            return key, "not allowed at the highest level; allowed: below it"
        if self.rails and (not self.levels or self.core_bandwidth_bytes_per_s is None):
            return "rails", "true is not allowed without levels and core_bandwidth_bytes_per_s"
        for place, (below, above) in enumerate(pairwise(self.levels), start=1):
            if above.workers_per_link % below.workers_per_link or above == below:
                allowed = f"multiples of {below.workers_per_link}, as the level below has"
                key = f"levels[{place}].workers_per_link"
                return key, f"{above.workers_per_link} is not allowed; allowed: {allowed}"
        return None

    @property
    def nearby(self) -> int:
        """Workers behind one link of the lowest level at which any share one; 1 if none do."""
        shared = (x.workers_per_link for x in self.levels if x.workers_per_link > 1)
        return next(shared, 1)


class Wiring(NamedTuple):
    """A network with numbered links, as arguments of a kernel.

    A full-duplex link has two numbers. Endpoints are the workers, then the shards.

    Attributes:
        workers: number of workers.
        fair: whether links are shared, or carry one message at a time.
        rendezvous: whether a message waits for its receiver.
        group: [L] workers behind each link of a level.
        up, down: [L + 1] number of the first link of a level in either direction; the last
            entry is that of the shards.
        latency_s: [L + 1] latency of each level, then of the shards' links.
        core: number of the core's link, or `NO_LINK`.
        rate: [E] bytes per second of each link.
        links: [L] `Level.links` of each level.
        inside: [L] `Level.inside` of each level.
        rails: whether messages that stay on one rail bypass the core.
    """

    workers: int
    fair: bool
    rendezvous: bool
    group: Any
    up: Any
    down: Any
    latency_s: Any
    core: int
    rate: Any
    links: Any
    inside: Any
    rails: bool

    @property
    def longest(self) -> int:
        """Number of links on the longest way."""
        return 2 * len(self.group) + 2

    @property
    def full_duplex(self) -> bool:
        """Whether all links between workers are full duplex, without a limited core."""
        return self.core == NO_LINK and bool((self.up != self.down)[:-1].all())


def wire(
    network: Network, workers: int, shards: int = 0, own: Any = None, alone: bool = True
) -> Wiring:
    """Number the links for ``workers`` workers and ``shards`` shards.

    Args:
        network: the tree of links.
        workers: number of workers.
        shards: number of shards.
        own: [2, N] bytes per second of the workers' own links, up and down, in place of those of
            the lowest level; nan for those of the level.
        alone: whether no other job's messages are beside those of the workers.
    """
    server = network.server if shards else None
    levels = [*network.levels, server or Level()]
    below = network.levels
    # Rounded up: the last group may be smaller than those that its links are made for.
    counts = [-(-workers // level.workers_per_link) * level.links for level in below] + [shards]
    up, down, rates = _number_links(levels, counts)
    if own is not None:
        for begin, theirs in ((up[0], own[0]), (down[0], own[1])):
            usual = rates[begin : begin + workers]
            rates[begin : begin + workers] = np.where(np.isfinite(theirs), theirs, usual)
    core = NO_LINK
    if network.core_bandwidth_bytes_per_s is not None:
        core = len(rates)
        rates = np.append(rates, network.core_bandwidth_bytes_per_s)
    return Wiring(
        workers=workers,
        fair=network.sharing == "fair",
        rendezvous=not shards and alone and network.sending == "rendezvous",
        group=np.array([level.workers_per_link for level in network.levels], np.int64),
        up=np.array(up, np.int64),
        down=np.array(down, np.int64),
        latency_s=np.array([level.latency_s for level in levels]),
        core=core,
        rate=rates,
        links=np.array([level.links for level in below], np.int64),
        inside=np.array([level.inside for level in below], np.bool_),
        rails=not shards and network.rails,
    )


def _number_links(
    levels: Sequence[Level], counts: Sequence[int]
) -> tuple[list[int], list[int], Any]:
    """First link of each level upwards and downwards, and [E] every link's rate."""
    up: list[int] = []
    down: list[int] = []
    runs: list[tuple[float, int]] = []
    links = 0
    rates = [(level.away_bytes_per_s, level.towards_bytes_per_s) for level in levels]
    rates[-1] = rates[-1][1], rates[-1][0]  # away from a server is towards the workers
    for level, count, (away, towards) in zip(levels, counts, rates, strict=True):
        back = count if level.duplex == "full" else 0
        up.append(links)
        # The one number of a half-duplex link stands for both directions, which fill it together.
        down.append(links + count if back else links)
        runs += [(away, count), (towards, back)]
        links += count + back
    speeds, counted = zip(*runs, strict=True)
    return up, down, np.repeat(np.array(speeds, np.float64), counted)


@kernel
def route(wiring: Wiring, source: int, target: int, way: Any) -> tuple[float, int]:
    """Write the numbers of the links from one endpoint to another into ``way``.

    Args:
        wiring: the network.
        source: a worker, or ``workers`` + a shard.
        target: another.
        way: [P] output.

    Returns:
        The latency in seconds, and the number of links.
    """
    place, latency_s, levels = 0, 0.0, len(wiring.group)
    from_server, to_server = source >= wiring.workers, target >= wiring.workers
    outside = from_server or to_server
    top = True
    for level in range(levels):
        # One link leads to both ends: the message turns below it, and never sees the core.
        if not outside and source // wiring.group[level] == target // wiring.group[level]:
            top = False
            break
        if leaves(wiring, level, source, target):
            continue
        latency_s += wiring.latency_s[level]
        if not from_server:
            way[place] = wiring.up[level] + link_of(wiring, level, source)
            place += 1
        if not to_server:
            way[place] = wiring.down[level] + link_of(wiring, level, target)
            place += 1
    if from_server:
        way[place] = wiring.up[levels] + source - wiring.workers
        place += 1
    if to_server:
        way[place] = wiring.down[levels] + target - wiring.workers
        place += 1
    if outside:
        latency_s += wiring.latency_s[levels]
    if top and wiring.core != NO_LINK and (outside or not one_rail(wiring, source, target)):
        way[place] = wiring.core
        place += 1
    return latency_s, place


@kernel
def link_of(wiring: Wiring, level: int, worker: int) -> int:
    """The number, at its level, of the link that a worker uses."""
    group, links = wiring.group[level], wiring.links[level]
    return worker // group * links + worker % group * links // group


@kernel
def leaves(wiring: Wiring, level: int, source: int, target: int) -> bool:
    """Whether a message bypasses an inside level, because it leaves the group above."""
    if not wiring.inside[level]:
        return False
    above = wiring.group[level + 1]
    outside = source >= wiring.workers or target >= wiring.workers
    return outside or source // above != target // above


@kernel
def one_rail(wiring: Wiring, source: int, target: int) -> bool:
    """Whether two workers' highest links have the same number in their groups."""
    if not wiring.rails:
        return False
    group, links = wiring.group[-1], wiring.links[-1]
    return source % group * links // group == target % group * links // group

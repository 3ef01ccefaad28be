"""Max-min fair messages between workers and one server, at a logarithmic cost.

All messages start or end at one server, so the links they share form a tree. If that has at most
one level of links between a worker's own and the server's, rates have a closed form: on a link of
rate b with k messages each gets min(o, b / k, s), with o the rate of a worker's own link, and s
such that all messages together fill the server's link, or infinite. So messages on links of equal
load k and one kind have equal rates. A clock for each such load counts the bytes that have been
carried of every such message; a message departs when the clock of its link has advanced by its
size. When a message starts or departs, its link changes to another clock, and the other clocks
only change their speed. The cost grows with the logarithm of the number of links and with the
number of different loads and kinds.

The general way (`network`) updates every message's rate and remaining bytes one by one.

`layout_of` finds the links that can delay messages, and their kinds: links of one kind have the
same rate, and the same rate of their workers' own links, so with equally many messages they give
each the same rate. There are as many kinds as groups in a cluster file with links of their own,
for either direction if those differ.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.simulator.events import (
    FIRST,
    WAITING,
    WHO,
    WHO_BITS,
    Queue,
    append,
    kernel,
    new_tournament,
    part,
    scratch,
    set_leaf,
    take,
)
from harness.simulator.network import Level, Network

Floats = NDArray[np.float64]

Ints = NDArray[np.int64]

DOWN, UP = 0, 1


class Layout(NamedTuple):
    """The links between workers and a server that can delay messages.

    Attributes:
        both: whether the directions share the server's link, and so one channel.
        rates: [2] bytes per second of the server's link, down and up.
        numbers: [2, N] index of the link for a worker's messages down and up; without a level
            between, one link stands for all of a kind.
        kinds: for each channel [G], the kind of each link.
        rooms: for each channel [G], largest number of messages on each link at once.
        caps: [K, M] rate of each of 1 to M messages on a link of a kind, if the server's link is
            free.
    """

    both: bool
    rates: tuple[float, float]
    numbers: Any
    kinds: tuple[Any, ...]
    rooms: tuple[Any, ...]
    caps: Any


def layout_of(
    network: Network, workers: int, depth: int = 1, own: Floats | None = None
) -> Layout | None:
    """The links that can delay a message; None unless they are one level below the server's.

    Args:
        network: with a server's link.
        workers: number of workers.
        depth: contributions that a worker may have in flight. With 1, a link of a single worker
            carries one message at a time, in either direction.
        own: [2, N] rates of the workers' own links, as for `wire`.
    """
    limited = _find_limits(network, workers, own)
    unlimited = np.full((2, workers), np.inf)
    own_rate, shared_by = unlimited, list[tuple[Level, Floats]]()
    for level, rates in limited:
        # A link with one message at a time has a constant rate, so it only caps the worker's own.
        if depth == 1 and level.workers_per_link == 1:
            own_rate = np.minimum(own_rate, rates)
        else:
            shared_by.append((level, rates))
    between = [pair for pair in shared_by if _is_bottleneck(*pair, own_rate, depth)]
    server_link = _last(network)
    if server_link is None or len(between) > 1:
        return None
    joint, *server = server_link
    level, shared = between[0] if between else (None, unlimited)
    fastest = np.minimum(own_rate, shared).max(axis=1)
    one_way = level is not None and level.duplex == "half" and not joint
    # A half-duplex level would couple the channels; with an infinite rate no clock can be kept.
    if one_way or np.isinf(np.minimum(fastest, server)).any():
        return None
    return _build_layout(joint, (server[0], server[1]), level, own_rate, shared, depth)


def _find_limits(network: Network, workers: int, own: Floats | None) -> list[tuple[Level, Floats]]:
    """Every level with a limit that messages to the server pass, and its [2, N] rates."""
    limits: list[tuple[Level, Floats]] = []
    for place, level in enumerate(network.levels):
        usual = np.broadcast_to(
            np.array([[level.towards_bytes_per_s], [level.away_bytes_per_s]]), (2, workers)
        )
        if place == 0 and own is not None:
            usual = np.where(np.isfinite(own), own, usual[::-1])[::-1]
        # Parallel links divide the workers, so each is a link of fewer workers.
        single = replace(level, workers_per_link=level.workers_per_link // level.links, links=1)
        if not level.inside and np.isfinite(usual).any():
            limits.append((single, usual))
    return limits


def _is_bottleneck(level: Level, rates: Floats, own_rate: Floats, depth: int) -> bool:
    """Whether messages of all its workers at once can exceed a link's rate."""
    firsts = np.arange(0, rates.shape[1], level.workers_per_link, dtype=np.int64)
    fastest = np.maximum.reduceat(own_rate, firsts, axis=1)
    most = fastest * (level.workers_per_link if depth == 1 else np.inf)
    return bool((rates[:, firsts] < most).any())


def _last(network: Network) -> tuple[bool, float, float] | None:
    """Whether both directions share the last link before the server, and its rate in each.

    A core is such a link if it is no faster than the server's; a core as fast as both directions
    together never delays a message.
    """
    server = network.server or Level()
    down, up = server.towards_bytes_per_s, server.away_bytes_per_s
    core = network.core_bandwidth_bytes_per_s or np.inf
    if server.duplex == "half" or (core <= min(down, up) and core < np.inf):
        rate = min(down, up, core)
        return True, rate, rate
    return (False, down, up) if core >= down + up else None


def _build_layout(
    joint: bool,
    server: tuple[float, float],
    level: Level | None,
    own_rate: Floats,
    shared: Floats,
    depth: int,
) -> Layout | None:
    """Number the links of each channel by their kinds; None if one link is of two kinds."""
    kind, of_kinds = _kinds(own_rate, shared)
    link = np.zeros_like(kind)
    if level is not None:
        link[:] = np.arange(link.shape[1]) // level.workers_per_link
        # In a common channel the two directions of a full-duplex link are two links.
        link[UP] += link[UP, -1] + 1 if joint and level.duplex == "full" else 0
    numbers = np.empty_like(kind)
    kinds, rooms = list[Ints](), list[Ints]()
    for channel in [slice(0, 2)] if joint else [slice(0, 1), slice(1, 2)]:
        # Kind first, so that links of one kind are neighbours, as `_links` expects.
        key = kind[channel] * (link.max() + 1) + link[channel]
        alike, firsts, number = np.unique(key, return_index=True, return_inverse=True)
        # Workers of two kinds behind one link: its messages would have two rates.
        if level is not None and len(alike) > len(np.unique(link[channel])):
            return None
        numbers[channel] = number.reshape(key.shape)
        kinds.append(kind[channel].reshape(-1)[firsts])
        rooms.append(_room(numbers[channel], len(alike)) * depth)
    most = max(int(room.max()) for room in rooms) if level is not None else 1
    caps = np.minimum(of_kinds[0][:, None], of_kinds[1][:, None] / np.arange(1, most + 1))
    return Layout(joint, server, numbers, tuple(kinds), tuple(rooms), caps)


def _kinds(own_rate: Floats, shared: Floats) -> tuple[Ints, tuple[Floats, Floats]]:
    """[2, N] kind of each worker's way down and up, and for each kind [K] its two rates."""
    own_values, index = np.unique(own_rate, return_inverse=True)
    values, of = np.unique(shared, return_inverse=True)
    pairs = index.reshape(own_rate.shape) * len(values) + of.reshape(own_rate.shape)
    used, kind = np.unique(pairs, return_inverse=True)
    rates = own_values[used // len(values)], values[used % len(values)]
    return kind.reshape(own_rate.shape), rates


def _room(numbers: Ints, links: int) -> Ints:
    """[G] number of workers with each link of a channel on their way down or up."""
    room = np.bincount(numbers[0], minlength=links)
    if len(numbers) > 1:
        # A contribution is fetched or pushed, so its two ways over one link need one place.
        in_both = numbers[0][numbers[0] == numbers[1]]
        room += np.bincount(numbers[1], minlength=links) - np.bincount(in_both, minlength=links)
    return room


CHANNEL = np.dtype(
    [("now_s", np.float64), ("departs_s", np.float64)]
    + [(name, np.int64) for name in ("messages", "loads", "next", "started")]
)
"""Instant of the clocks' last update, next departure and the load of its link, messages in flight,
different loads, messages that ever started."""

LOAD = np.dtype(
    [(name, np.int64) for name in ("links", "messages", "first", "leaves")]
    + [(name, np.float64) for name in ("clock", "rate", "cap")]
)
"""Number of links of one kind and load, their messages, their part of the tournaments, bytes
carried of each message, its rate, and the largest possible rate."""

LINK = np.dtype(
    [(name, np.float64) for name in ("clock", "began")]
    + [(name, np.int64) for name in ("messages", "kind", "leaf", "first", "room")]
)
"""A link: its own clock and its load's clock when it came to that load; messages on it, its kind,
its index among links of that kind, and its part of the queues."""


class Star(NamedTuple):
    """The messages in flight; one channel for each direction, or one for both.

    Attributes:
        both: whether the directions share the server's link.
        rates: [2] of the server's link, down and up.
        latency_s: of every message.
        numbers: [2, N] index of the link for a worker's messages down and up.
        grades: [K, M + 1] number of the load of a link of a kind with 0 to M messages (M: or
            more); 0 without messages. Numbers ascend as the rate of a message descends.
        channels: [2] of `CHANNEL`.
        loads: [2, R] of `LOAD`.
        listed: [2, R] numbers of the loads that any link has, ascending.
        links: [2, G] of `LINK`.
        firsts: [2, T] tournaments of the links of each load, by the clock at the departure of
            their next message.
        queued, counts: [2, C] and [2, G, 2]: each link's messages, a queue by its own clock.
        started: [S] for each slot, the number of messages started before its message.
    """

    both: bool
    rates: Any
    latency_s: float
    numbers: Any
    grades: Any
    channels: Any
    loads: Any
    listed: Any
    links: Any
    firsts: Any
    queued: Any
    counts: Any
    started: Any


def new_star(
    network: Network, workers: int, shards: int, depth: int, own: Floats | None = None
) -> Star | None:
    """An idle star; None if messages on the network must be simulated one by one.

    Args:
        network: with a server's link.
        workers: number of workers.
        shards: number of shards; a star has one.
        depth: contributions that a worker may have in flight.
        own: [2, N] rates of the workers' own links, as for `wire`.
    """
    fair = shards == 1 and network.sharing == "fair"
    layout = layout_of(network, workers, depth, own) if fair else None
    if layout is None:
        return None
    grades, loads = _loads(layout)
    links = _links(layout)
    channels = np.zeros(2, CHANNEL)
    channels["departs_s"] = np.inf
    passed = [level for level in network.levels if not level.inside]
    return Star(
        both=layout.both,
        rates=np.array(layout.rates),
        latency_s=sum(level.latency_s for level in [*passed, network.server or Level()]),
        numbers=layout.numbers,
        grades=grades,
        channels=channels,
        loads=loads,
        listed=np.zeros(loads.shape, np.int64),
        links=links,
        firsts=np.tile(new_tournament(int(loads["leaves"][0].sum())), (2, 1)),
        queued=np.zeros((2, max(int(rooms.sum()) for rooms in layout.rooms)), WAITING),
        counts=np.zeros((*links.shape, 2), np.int64),
        started=np.zeros(workers * depth, np.int64),
    )


def _loads(layout: Layout) -> tuple[Any, Any]:
    """The numbers of the loads by kind and messages, and the loads of each channel."""
    kinds, most = layout.caps.shape
    # A stable sort: of equal limits the lighter load comes first, as with a single kind.
    order = np.argsort(-layout.caps.T.reshape(-1), kind="stable")
    grades = np.zeros((kinds, most + 1), np.int64)
    grades[order % kinds, order // kinds + 1] = np.arange(1, len(order) + 1)
    leaves = np.max([np.bincount(numbers, minlength=kinds) for numbers in layout.kinds], axis=0)
    loads = np.zeros((2, len(order) + 1), LOAD)
    loads["cap"][:, 1:] = layout.caps[order % kinds, order // kinds]
    loads["leaves"][:, 1:] = leaves[order % kinds]
    loads["first"][:, 1:] = 2 * (np.cumsum(leaves[order % kinds]) - leaves[order % kinds])
    return grades, loads


def _links(layout: Layout) -> Any:
    """Idle links; a channel may have fewer than the array has rows."""
    rows = np.zeros((2, max(len(kinds) for kinds in layout.kinds)), LINK)
    for channel, row in enumerate(rows):
        place = min(channel, len(layout.kinds) - 1)
        kinds, rooms = layout.kinds[place], layout.rooms[place]
        present = row[: len(kinds)]
        present["kind"], present["room"] = kinds, rooms
        present["first"] = np.cumsum(rooms) - rooms
        # Links are sorted by kind, so the first of each kind is found by bisection.
        present["leaf"] = np.arange(len(kinds)) - np.searchsorted(kinds, kinds)
    return rows


@kernel
def join(
    star: Star | None, slot: int, worker: int, up: bool, size_bytes: float, now_s: float
) -> None:
    """Start a message to the server (``up``) or from it; `depart` returns its slot."""
    if star is None:
        return
    side = 1 if up and not star.both else 0
    number = star.numbers[1 if up else 0, worker]
    carry(star, side, now_s)
    link, channel = star.links[side, number], star.channels[side]
    # The link's own clock is updated only when its load changes; meanwhile it follows the load's.
    clock = link.clock + (star.loads[side, grade(star, link)].clock - link.began)
    star.started[slot] = channel.started
    channel.started += 1
    append(queue_of(star, side, number), clock + size_bytes, slot)
    change(star, side, number, clock, 1)


@kernel
def next_departure_s(star: Star | None) -> float:
    """Next departure at present rates, infinity if no message is in flight."""
    if star is None:
        return np.inf
    return min(star.channels[0].departs_s, star.channels[1].departs_s)


@kernel
def depart(star: Star | None) -> tuple[int, float]:
    """Remove the next departing message; returns its slot and its latency."""
    if star is None:
        return 0, np.inf
    side = 0 if star.channels[0].departs_s <= star.channels[1].departs_s else 1
    channel = star.channels[side]
    carry(star, side, channel.departs_s)
    leaf = firsts_of(star, side, channel.next)[1]
    # Set, not added up: the clock then equals the departing message's end to the bit.
    star.loads[side, channel.next].clock = leaf.time_s
    number = leaf.key & WHO
    clock, slot = take(queue_of(star, side, number))
    change(star, side, number, clock, -1)
    return slot, star.latency_s


@kernel
def queue_of(star: Star, side: int, number: int) -> Queue:
    """The messages on a link."""
    link = star.links[side, number]
    events = star.queued[side, link.first : link.first + link.room]
    return Queue(events, star.counts[side, number])


@part
def firsts_of(star: Star, side: int, load: int) -> Any:
    """The tournament of the links of a load."""
    row = star.loads[side, load]
    return star.firsts[side, row.first : row.first + 2 * row.leaves]


@kernel
def grade(star: Star, link: Any) -> int:
    """The number of a link's load; a link that stands for a whole kind may have more than M."""
    return star.grades[link.kind, min(link.messages, star.grades.shape[1] - 1)]


@kernel
def carry(star: Star, side: int, now_s: float) -> None:
    """Advance the clocks of all loads to ``now_s``."""
    channel = star.channels[side]
    for place in range(channel.loads):
        row = star.loads[side, star.listed[side, place]]
        row.clock += row.rate * (now_s - channel.now_s)
    channel.now_s = now_s


@kernel
def change(star: Star, side: int, number: int, clock: float, by: int) -> None:
    """Add a message to a link or remove one (``by`` ±1), with its own clock at ``clock``."""
    link, channel = star.links[side, number], star.channels[side]
    before = grade(star, link)
    # One message more or fewer takes all messages of the link to another load.
    star.loads[side, before].messages -= link.messages
    link.messages += by
    channel.messages += by
    after = grade(star, link)
    star.loads[side, after].messages += link.messages
    if before != after:
        count(star, side, before, -1)
        count(star, side, after, 1)
        if before > 0:
            scratch(firsts_of(star, side, before), link.leaf)
        # An idle link's clock restarts at 0, so it never grows so large that it loses digits.
        link.clock = clock if after > 0 else 0.0
        link.began = star.loads[side, after].clock
    if after > 0:
        queue = queue_of(star, side, number)
        head = queue.events[queue.counts[FIRST]]
        # Of equal departures, the message that started first departs first.
        order = (star.started[head.who] << WHO_BITS) | number
        due = link.began + (head.time_s - link.clock)
        set_leaf(firsts_of(star, side, after), link.leaf, due, order)
    share(star, side)


@kernel
def count(star: Star, side: int, load: int, by: int) -> None:
    """Add a link to this load or remove one (``by`` ±1), and update the list of loads."""
    if load == 0:  # links without messages are not listed
        return
    row, channel, listed = star.loads[side, load], star.channels[side], star.listed[side]
    row.links += by
    if by > 0 and row.links == 1:
        # Few loads exist at a time, so the list is kept in order by shifting.
        place = channel.loads
        while place > 0 and listed[place - 1] > load:
            listed[place] = listed[place - 1]
            place -= 1
        listed[place] = load
        channel.loads += 1
    elif row.links == 0:
        channel.loads -= 1
        place = 0
        while listed[place] < load:
            place += 1
        for after in range(place, channel.loads):
            listed[after] = listed[after + 1]


@kernel
def share(star: Star, side: int) -> None:
    """Rates of all loads, in ascending order: a load's limit, or an equal part of the rest."""
    channel, room = star.channels[side], star.rates[side]
    waiting, best = channel.messages, 1 << 62
    channel.departs_s = np.inf
    # From the smallest limit up: once a limit exceeds the equal part, so do all further ones.
    for place in range(channel.loads - 1, -1, -1):
        load = star.listed[side, place]
        row, head = star.loads[side, load], firsts_of(star, side, load)[1]
        row.rate = row.cap if waiting * row.cap <= room else room / waiting
        if waiting * row.cap <= room:
            room -= row.messages * row.cap
            waiting -= row.messages
        # Rounding may have advanced the clock beyond the next departure.
        departs_s = channel.now_s + max(head.time_s - row.clock, 0.0) / row.rate
        if departs_s < channel.departs_s or (departs_s == channel.departs_s and head.key < best):
            channel.departs_s, channel.next, best = departs_s, load, head.key

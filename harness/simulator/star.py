"""Max-min fair messages between workers and one server, at a cost that hardly grows with them.

All messages end at one server, so the links they share are a tree. Where that has one level of
links between a worker's own and the server's, what a message gets is in closed form: on a link of
rate b that carries k of them min(o, b / k, s), with o the rate of a worker's own link, and s such
that all together fill the server's link, or no limit. So messages on links of equal load k
have equal rates. A clock for each load counts the bytes that every such message has been carried;
a message departs when the clock of its link has moved by its size. When one starts or departs,
its link goes over to another clock, and the others' clocks only change their speed: what that
costs grows with the logarithm of the number of links and with the number of different loads.

The general way (`network`) changes every message's rate, and what it has left, one by one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from harness.simulator.events import (
    FIRST,
    WAITING,
    WHO,
    WHO_BITS,
    Queue,
    append,
    from_a_line,
    new_tournament,
    scratch,
    set_leaf,
    take,
)
from harness.simulator.jit import kernel
from harness.simulator.topology import Level, Network

__all__ = ["Star", "depart", "join", "new_star", "next_departure_s"]

OWN, BETWEEN, SERVER = range(3)

CHANNEL = np.dtype(
    [("now_s", np.float64), ("departs_s", np.float64)]
    + [(name, np.int64) for name in ("messages", "loads", "next", "started")]
)
"""Until when the clocks are right, when a message departs next and the load of its link, messages
under way, different loads, messages that ever started."""

LOAD = np.dtype([("links", np.int64), ("clock", np.float64), ("rate", np.float64)])
"""Links that carry so many messages each, what such a message has been carried, and its rate."""

LINK = np.dtype([("messages", np.int64), ("clock", np.float64), ("began", np.float64)])
"""A link: messages on it, its own clock when it came to its present load, and that load's then."""


class Star(NamedTuple):
    """The messages under way; one channel for each direction, or one for both.

    Attributes:
        both: whether the directions share the server's link.
        apart: whether they have links of their own below it nevertheless.
        workers: behind each link of the level between; 0 where there is none.
        rates: [3] of a worker's own link, of a link of the level between, of the server's.
        latency_s: of every message.
        channels: [2] of `CHANNEL`; none where messages take the general way.
        loads: [2, K] of `LOAD`.
        listed: [2, K] the loads of any link, rising.
        links: [2, G] of `LINK`.
        firsts: [2, K, 2G] tournament of the links of each load, by the clock at which their
            next message departs.
        queued, counts: [2, G, C] and [2, G, 2]: each link's messages, a queue by its own clock.
        started: [S] the order in which the messages of the slots started.
    """

    both: bool
    apart: bool
    workers: int
    rates: Any
    latency_s: float
    channels: Any
    loads: Any
    listed: Any
    links: Any
    firsts: Any
    queued: Any
    counts: Any
    started: Any


class Shape(NamedTuple):
    """What the links between workers and a server come to.

    Attributes:
        both: whether the directions share the server's link.
        apart: whether they have links of their own below it nevertheless.
        workers: behind each link of the level between; 0 where there is none.
        rates: of a worker's own link, of a link of the level between, of the server's.
    """

    both: bool
    apart: bool
    workers: int
    rates: tuple[float, float, float]


def new_star(network: Network, workers: int, shards: int, depth: int) -> Star:
    """Nothing under way; without channels where the network is not of this kind.

    Args:
        network: with a server's link.
        workers: how many, with links of one rate.
        shards: how many; with any number but one messages go the general way.
        depth: contributions a worker may have under way.
    """
    shape = shape_of(network, depth) if shards == 1 and network.sharing == "fair" else None
    many, slots = int(shape is not None), workers * depth if shape else 0
    shape = shape or Shape(False, False, 0, (np.inf, np.inf, np.inf))
    links = -(-workers // shape.workers) if shape.workers else 1
    each = min(shape.workers, workers) * depth if shape.workers else slots
    loads, links = (each if shape.workers else 1) + 1, links * (2 if shape.apart else 1)
    firsts = np.tile(new_tournament(links * many), (2 * many, loads, 1))
    passed = [level for level in network.levels if not level.inside]
    server = network.server or Level()
    return Star(
        both=shape.both,
        apart=shape.apart,
        workers=shape.workers,
        rates=np.array(shape.rates),
        latency_s=sum(level.latency_s for level in passed) + server.latency_s,
        channels=_idle(many),
        loads=np.zeros((2 * many, loads), LOAD),
        listed=np.zeros((2 * many, loads), np.int64),
        links=np.zeros((2 * many, links), LINK),
        firsts=firsts,
        queued=from_a_line(2 * many * links * each, WAITING).reshape(2 * many, links, each),
        counts=np.zeros((2 * many, links, 2), np.int64),
        started=np.zeros(slots, np.int64),
    )


def _idle(many: int) -> Any:
    channels = np.zeros(2 * many, CHANNEL)
    channels["departs_s"] = np.inf
    return channels


def shape_of(network: Network, depth: int) -> Shape | None:
    """The links that can hold a message up; None where they are not of the kind above.

    Args:
        network: with a server's link.
        depth: contributions a worker may have under way. With one, a link behind which there is
            one worker carries one message, in whatever direction.
    """
    limited = [
        replace(level, workers_per_link=level.workers_per_link // level.links, links=1)
        for level in network.levels
        if level.bandwidth_bytes_per_s is not None and not level.inside
    ]
    own = [level for level in limited if depth == 1 and level.workers_per_link == 1]
    own_rate = min((_rate(level) for level in own), default=np.inf)
    # all that can come to a link behind which workers send one message each at their own rate
    most = {
        level: own_rate * (level.workers_per_link if depth == 1 else np.inf) for level in limited
    }
    between = [level for level in limited if level not in own and _rate(level) < most[level]]
    last = _last(network)
    uneven = any(
        level.down_bandwidth_bytes_per_s for level in (*limited, network.server or Level())
    )
    if last is None or len(between) > 1 or uneven:
        return None
    both, rate = last
    level = between[0] if between else Level()
    if (level.duplex == "half" and not both) or min(rate, own_rate, _rate(level)) == np.inf:
        return None
    workers = level.workers_per_link if between else 0
    apart = both and bool(between) and level.duplex == "full"
    return Shape(both, apart, workers, (own_rate, _rate(level), rate))


def _rate(level: Level) -> float:
    return np.inf if level.bandwidth_bytes_per_s is None else level.bandwidth_bytes_per_s


def _last(network: Network) -> tuple[bool, float] | None:
    """Whether both directions share the last link before the server, and its rate.

    A core is such a link if it is no faster than the server's; if it is twice as fast it never
    holds anything up.
    """
    server = network.server or Level()
    rate, core = _rate(server), network.core_bandwidth_bytes_per_s or np.inf
    if server.duplex == "half" or core <= rate < np.inf or core < rate:
        return True, min(rate, core)
    return (False, rate) if core >= 2.0 * rate else None


@kernel
def join(star: Star, slot: int, worker: int, up: bool, size_bytes: float, now_s: float) -> None:
    """A message starts, to the server (``up``) or from it; its slot comes back from `depart`."""
    where = 1 if up and not star.both else 0
    number = worker // star.workers if star.workers > 0 else 0
    if up and star.apart:
        number += star.links.shape[1] >> 1
    carry(star, where, now_s)
    link, channel = star.links[where, number], star.channels[where]
    clock = link.clock + (star.loads[where, grade(star, link.messages)].clock - link.began)
    star.started[slot] = channel.started
    channel.started += 1
    append(queue_of(star, where, number), clock + size_bytes, slot)
    change(star, where, number, clock, 1)


@kernel
def next_departure_s(star: Star) -> float:
    """When the next message departs at present rates, infinity if none is under way."""
    return min(star.channels[0].departs_s, star.channels[1].departs_s)


@kernel
def depart(star: Star) -> int:
    """Take the next message off the links; its slot."""
    where = 0 if star.channels[0].departs_s <= star.channels[1].departs_s else 1
    channel = star.channels[where]
    carry(star, where, channel.departs_s)
    first = star.firsts[where, channel.next][1]
    star.loads[where, channel.next].clock = first.time_s
    number = first.key & WHO
    clock, slot = take(queue_of(star, where, number))
    change(star, where, number, clock, -1)
    return slot


@kernel
def queue_of(star: Star, where: int, number: int) -> Queue:
    """The messages on a link."""
    return Queue(star.queued[where, number], star.counts[where, number])


@kernel
def grade(star: Star, messages: int) -> int:
    """The load of a link; where none lies between, all messages are one link's, of load 1."""
    return messages if star.workers > 0 else min(messages, 1)


@kernel
def carry(star: Star, where: int, now_s: float) -> None:
    """Bring the clocks up to date."""
    channel = star.channels[where]
    for place in range(channel.loads):
        row = star.loads[where, star.listed[where, place]]
        row.clock += row.rate * (now_s - channel.now_s)
    channel.now_s = now_s


@kernel
def change(star: Star, where: int, number: int, clock: float, by: int) -> None:
    """A link has a message more or less; its own clock stands at ``clock``."""
    link, channel = star.links[where, number], star.channels[where]
    before = grade(star, link.messages)
    link.messages += by
    channel.messages += by
    after = grade(star, link.messages)
    if before != after:
        count(star, where, before, -1)
        count(star, where, after, 1)
        if before > 0:
            scratch(star.firsts[where, before], number)
        link.clock = clock if after > 0 else 0.0
        link.began = star.loads[where, after].clock
    if after > 0:
        queue = queue_of(star, where, number)
        first = queue.events[queue.counts[FIRST]]
        order = (star.started[first.who] << WHO_BITS) | number
        due = link.began + (first.time_s - link.clock)
        set_leaf(star.firsts[where, after], number, due, order)
    share(star, where)


@kernel
def count(star: Star, where: int, load: int, by: int) -> None:
    """A link more or less has this load; keep the list of loads."""
    if load == 0:
        return
    row, channel, listed = star.loads[where, load], star.channels[where], star.listed[where]
    row.links += by
    if by > 0 and row.links == 1:
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
def share(star: Star, where: int) -> None:
    """Rates of all loads, from what gets least: its own limit, or an equal part of what is left."""
    channel, left = star.channels[where], star.rates[SERVER]
    waiting, best = channel.messages, 1 << 62
    channel.departs_s = np.inf
    for place in range(channel.loads - 1, -1, -1):
        load = star.listed[where, place]
        row, first = star.loads[where, load], star.firsts[where, load][1]
        own = min(star.rates[OWN], star.rates[BETWEEN] / load)
        row.rate = own if waiting * own <= left else left / waiting
        if waiting * own <= left:
            messages = row.links * load if star.workers > 0 else channel.messages
            left -= messages * own
            waiting -= messages
        departs_s = channel.now_s + max(first.time_s - row.clock, 0.0) / row.rate
        if departs_s < channel.departs_s or (departs_s == channel.departs_s and first.key < best):
            channel.departs_s, channel.next, best = departs_s, load, first.key

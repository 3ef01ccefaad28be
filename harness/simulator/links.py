"""Links between workers and a server: a message enters, and departs at an instant known or not yet.

There are five kinds, by `Links.sharing`:

- every worker has a link of its own (`OWN`), or messages queue for one link (`FIFO`), or for the
  links of a network (`NETWORK`, first come, first served): the departure is known as a message
  enters;
- concurrent messages share one link equally (`FAIR`), or a network max-min fairly (`NETWORK`,
  `STAR`): the departure depends on messages that enter later, so it is an event
  (`next_departure_s`, `leave`).

On a fair link a channel counts the service V that each present message has received, in seconds
on an idle link. With n messages V grows at rate 1/n, and a message that enters at V₀ and needs c
seconds departs when V reaches V₀ + c. Nothing has to be recomputed when others enter. V never
falls, so messages of one size depart in the order in which they entered: those of each direction
wait in a queue. After a change of size, a message goes before those that take longer.

Messages on a network with the server's shards take its links (`harness.simulator.network`), or,
where one shard's fair messages share at most one level of links, `harness.simulator.star`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from harness.simulator import network, star
from harness.simulator.cluster import Cluster
from harness.simulator.costs import Costs, own_links, server_network
from harness.simulator.events import WAIT, Queue, append, head_s, kernel, new_queue, part, take
from harness.simulator.network import Traffic, new_traffic, wire
from harness.simulator.star import Star, new_star

OWN, FIFO, FAIR, NETWORK, STAR = range(5)
DOWN, UP = 0, 1
_CODES = {"none": OWN, "fifo": FIFO, "fair": FAIR}

CHANNEL = np.dtype([("free_s", np.float64), ("service_s", np.float64), ("updated_s", np.float64)])


class Links(NamedTuple):
    """The state of the links.

    Attributes:
        sharing: `OWN`, `FIFO`, `FAIR`, `NETWORK` or `STAR`.
        latency_s: from a departure to the arrival, without a network.
        up: the channel of messages to the server: UP, or DOWN if the link is half duplex.
        channel: [2] of `CHANNEL`: the instant at which a FIFO channel is free; V of a fair one,
            and the instant of V's last update.
        uplinks_s: [N] instant at which a worker's own link to the server is free.
        fetches, pushes: messages from and to the server in flight on fair channels, by the V at
            which they depart.
        traffic: messages of `NETWORK`, by slot of their contributions; with None, kernels are
            compiled without their code for it.
        star: the same of `STAR`.
        staging_bytes_per_s: bandwidth of the copy to or from a pinned buffer beside a network,
            infinite without one.
    """

    sharing: int
    latency_s: float
    up: int
    channel: Any
    uplinks_s: Any
    fetches: Queue
    pushes: Queue
    traffic: Traffic | None
    star: Star | None
    staging_bytes_per_s: float


def new_links(cluster: Cluster, workers: int, depth: int = 1, shards: int = 1) -> Links:
    """The idle links, or the idle network, between workers and the server's shards.

    Args:
        cluster: the machine.
        workers: number of workers.
        depth: contributions that a worker may have in flight.
        shards: number of shards.
    """
    link, host = cluster.link, cluster.host
    sharing, staging, traffic, star = _CODES[link.sharing], None, None, None
    if (way := server_network(cluster)) is not None:
        own, slots = own_links(cluster, workers), workers * depth
        star = new_star(way, workers, shards, depth, own)
        if star is None:
            traffic = new_traffic(wire(way, workers, shards, own), slots)
        sharing = NETWORK if star is None else STAR
        staging = host.staging_bytes_per_s if host.staging == "pageable" else None
    # Otherwise a departure is known at once, and nothing waits here.
    capacity = workers * depth if link.sharing == "fair" else 0
    return Links(
        sharing=sharing,
        latency_s=link.latency_s,
        up=UP if link.sharing == "none" or link.duplex == "full" else DOWN,
        channel=np.zeros(2, CHANNEL),
        uplinks_s=np.zeros(workers if link.sharing == "none" else 0),
        fetches=new_queue(capacity),
        pushes=new_queue(capacity),
        traffic=traffic,
        star=star,
        staging_bytes_per_s=np.inf if staging is None else staging,
    )


@part
def load_of(links: Links, costs: Costs) -> float:
    """What a contribution is to the links: bytes on a network, else seconds on an idle link."""
    return costs.parameter_bytes if links.sharing >= NETWORK else costs.copy_s


@part
def staging_s(links: Links, load: float) -> float:
    """Seconds to copy so many bytes to or from a pinned buffer."""
    return load / links.staging_bytes_per_s


@part
def enter(
    links: Links,
    place: int,
    worker: int,
    way: int,
    part: int,
    parts: int,
    load: float,
    begun_s: float,
    now_s: float,
) -> tuple[float, float, float]:
    """Let a message enter.

    Args:
        links: changed in place.
        place: slot of its contribution, which `leave` returns.
        worker: its sender, or (`DOWN`) its receiver.
        way: `DOWN` or `UP`.
        part: its number among the messages of its contribution.
        parts: number of these, one for each shard.
        load: of all of them (`load_of`).
        begun_s: start of the first of them.
        now_s: the present time.

    Returns:
        Start, departure and arrival; the latter two are infinite where they are not known yet.
    """
    if links.sharing == NETWORK:
        return send(links.traffic, place, worker, way, part, parts, load / parts, now_s)
    if links.sharing == STAR:
        star.join(links.star, place, worker, way == UP, load, now_s)
        return now_s, np.inf, np.inf
    if links.sharing == FAIR:
        join(links, way, now_s, load / parts, place)
        return now_s, np.inf, np.inf
    if part == 0:
        begun_s = occupy(links, worker, way, now_s, load)
    # From the first start, so the last message departs exactly ``load`` later.
    departs_s = begun_s + load * ((part + 1) / parts)
    return begun_s, departs_s, departs_s + links.latency_s


@kernel
def send(
    traffic: Traffic | None,
    place: int,
    worker: int,
    way: int,
    part: int,
    parts: int,
    size: float,
    now_s: float,
) -> tuple[float, float, float]:
    """`enter` on a network, with the message's size in bytes."""
    if traffic is None:
        return now_s, np.inf, np.inf
    # In the order in which pieces queue: a message and its piece must meet at one shard.
    shard = traffic.wiring.workers + (worker + part) % parts
    source, target = (worker, shard) if way == UP else (shard, worker)
    return network.send(traffic, place, source, target, size, now_s)


@kernel
def next_departure_s(links: Links, now_s: float) -> float:
    """Next departure that was not known as its message entered, infinity if there is none."""
    if links.sharing == FAIR:
        return next_on_link(links)[0]
    if links.sharing == STAR:
        return star.next_departure_s(links.star)
    return network.next_departure_s(links.traffic, now_s)


@kernel
def leave(links: Links, now_s: float) -> tuple[int, float]:
    """Remove the message that departs now; returns its slot and its arrival."""
    if links.sharing >= NETWORK:
        is_star = links.sharing == STAR
        place, latency_s = star.depart(links.star) if is_star else network.depart(links.traffic)
        return place, now_s + latency_s
    # The V at which a message departs is fixed as it enters, so the order never changes.
    way = next_on_link(links)[1]
    service_s, place = take(links.pushes if way == UP else links.fetches)
    channel = links.channel[links.up if way == UP else DOWN]
    channel.service_s = service_s  # exactly, whatever rounding would have made of V
    channel.updated_s = now_s
    return place, now_s + links.latency_s


@part
def occupy(links: Links, worker: int, way: int, now_s: float, load_s: float) -> float:
    """Start of a copy of ``load_s`` on a link that is not fair, which is then taken until its end.

    A worker's own link to it is always free: it fetches one model at a time.
    """
    if links.sharing == OWN and way == DOWN:
        return now_s
    if links.sharing == OWN:
        # With several contributions in flight, an earlier one may still be on its way.
        start_s = max(now_s, links.uplinks_s[worker])
        links.uplinks_s[worker] = start_s + load_s
        return start_s
    channel = links.channel[links.up if way == UP else DOWN]
    start_s = max(now_s, channel.free_s)
    channel.free_s = start_s + load_s
    return start_s


@kernel
def join(links: Links, way: int, now_s: float, load_s: float, place: int) -> None:
    """`enter` on a fair link."""
    side = links.up if way == UP else DOWN
    channel, count = links.channel[side], count_messages(links, side)
    # V up to now, with the messages so far; an idle channel's V stays, which saves a reset.
    if count > 0:
        channel.service_s += (now_s - channel.updated_s) / count
    channel.updated_s = now_s
    append(links.pushes if way == UP else links.fetches, channel.service_s + load_s, place)


@kernel
def count_messages(links: Links, side: int) -> int:
    """Number of messages on a fair channel."""
    fetches = links.fetches.counts[WAIT] if side == DOWN else 0
    return fetches + (links.pushes.counts[WAIT] if side == links.up else 0)


@kernel
def next_on_link(links: Links) -> tuple[float, int]:
    """Next departure from a fair link (infinity if there is none), and DOWN or UP."""
    fetched, pushed = head_s(links.fetches), head_s(links.pushes)
    if links.up == DOWN:  # half duplex: both directions share one channel
        return instant_of(links, DOWN, min(fetched, pushed)), UP if pushed <= fetched else DOWN
    down_s, up_s = instant_of(links, DOWN, fetched), instant_of(links, UP, pushed)
    return (down_s, DOWN) if down_s <= up_s else (up_s, UP)


@kernel
def instant_of(links: Links, side: int, service_s: float) -> float:
    """Instant at which V of a fair channel reaches ``service_s``, unless other messages enter."""
    if service_s == np.inf:
        return np.inf
    # Rounding may leave V just beyond the next departure, which is then now and not in the past.
    channel, count = links.channel[side], count_messages(links, side)
    return channel.updated_s + max(service_s - channel.service_s, 0.0) * count

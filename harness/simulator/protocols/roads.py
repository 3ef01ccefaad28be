"""Contributions as messages on a network, which the server's shards are joined to.

A fetch is a message from every shard, a push one to every shard, each with its part of the
parameters. A contribution has one message under way at a time: the next is sent when the one
before has departed, beginning with shard (worker mod S) as everywhere. Where buffers are
pageable, what has been fetched is then copied once more, and so is what is to be sent before.

On links in order of arrival a message's departure is known when it is sent. On fair links it is
an event of the traffic, like the end of a copy on a fair `harness.simulator.link`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from harness.simulator import network, star
from harness.simulator.cluster import Cluster
from harness.simulator.costs import own_links
from harness.simulator.jit import kernel
from harness.simulator.network import Traffic, new_traffic, reserve
from harness.simulator.star import Star, new_star
from harness.simulator.topology import wire

__all__ = [
    "Roads",
    "is_networked",
    "leave",
    "new_roads",
    "next_to_leave_s",
    "send_next",
    "staging_s",
]


class Roads(NamedTuple):
    """What a network adds to the state.

    Attributes:
        traffic: what is under way, by slot of its contribution.
        star: the same where links are fair and one level of them lies between workers' own links
            and one server's.
        size_bytes: [C] of each slot's parameters.
        sent: [C] messages of a slot's present fetch or push that have been sent.
        staging_bytes_per_s: rate of the copy to or from a pinned buffer.
    """

    traffic: Traffic
    star: Star
    size_bytes: Any
    sent: Any
    staging_bytes_per_s: float


def is_networked(cluster: Cluster) -> bool:
    """Whether workers reach the server over the cluster's network, and not over its link."""
    return cluster.network is not None and cluster.network.server is not None


def new_roads(cluster: Cluster, workers: int, depth: int, shards: int) -> Roads | None:
    """Nothing under way between the workers and the shards; None where no network joins them.

    For None a kernel is compiled without what it does on a network.
    """
    if cluster.network is None or cluster.network.server is None:
        return None
    rate, pageable = cluster.host.staging_bytes_per_s, cluster.host.staging == "pageable"
    slots, own = workers * depth, own_links(cluster, workers)
    return Roads(
        traffic=new_traffic(wire(cluster.network, workers, shards, own), slots),
        star=new_star(cluster.network, workers, shards, depth, own),
        size_bytes=np.zeros(slots),
        sent=np.zeros(slots, np.int64),
        staging_bytes_per_s=rate if pageable and rate is not None else np.inf,
    )


@kernel
def staging_s(roads: Roads | None, place: int) -> float:
    """How long it takes to copy a slot's parameters to or from a pinned buffer."""
    if roads is None:
        return 0.0
    return roads.size_bytes[place] / roads.staging_bytes_per_s


@kernel
def send_next(
    roads: Roads, place: int, worker: int, shards: int, up: bool, now_s: float
) -> tuple[float, float, float]:
    """Send the next message of a slot, to its shard or (not ``up``) from it.

    Returns:
        When it starts, departs and arrives; the latter two are infinite on fair links, where
        that is not known yet.
    """
    wiring = roads.traffic.wiring
    shard = wiring.workers + (worker + roads.sent[place]) % shards
    source, target = (worker, shard) if up else (shard, worker)
    size = roads.size_bytes[place] / shards
    roads.sent[place] += 1
    if len(roads.star.channels) > 0:
        star.join(roads.star, place, worker, up, size, now_s)
        return now_s, np.inf, np.inf
    if wiring.fair:
        network.start(roads.traffic, place, source, target, size, now_s)
        return now_s, np.inf, np.inf
    return reserve(roads.traffic, place, source, target, size, now_s)


@kernel
def next_to_leave_s(roads: Roads | None, now_s: float) -> float:
    """When the next message leaves fair links, infinity if none is under way there."""
    if roads is None or not roads.traffic.wiring.fair:
        return np.inf
    if len(roads.star.channels) > 0:
        return star.next_departure_s(roads.star)
    return network.next_departure_s(roads.traffic, now_s)


@kernel
def leave(roads: Roads) -> tuple[int, float]:
    """Take the next message off fair links: its slot, and its latency."""
    if len(roads.star.channels) > 0:
        return star.depart(roads.star), roads.star.latency_s
    place = network.depart(roads.traffic)
    return place, roads.traffic.flows[place].latency_s

"""Other jobs on the same network, which take their part of the links.

Each computes, then averages over a ring of its own workers, without variation, and so on. A ring is
seen as a fluid here: all its messages have one rate, that of the link on which they get least, and
an all-reduce of S bytes among n workers is 2 (n − 1) / n S bytes of each message. Rates are max-min
fair among the messages of all rings that are under way: they grow together until a link is full,
and the rings on it keep the rate they have. With one ring that is the time of the messages
themselves on idle links, where all begin at once; latencies are added at the end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from harness.simulator.cluster import Cluster, Job
from harness.simulator.costs import compute_seconds, own_links
from harness.simulator.topology import NO_LINK, Network, Wiring, route, wire

__all__ = ["Neighbours", "average_s", "fair_rates", "new_neighbours", "ring_uses"]


class Neighbours(NamedTuple):
    """Where the other jobs stand; J of them, and the links E of the whole network.

    Attributes:
        now_s: [1] until when they have been followed.
        sending: [J] whether each is averaging.
        left: [J] bytes of each message that are left to send, or seconds of computing and latency.
        compute_s: [J] from the end of a job's average to its next one.
        bytes: [J] of each message in an average.
        uses: [J, E] how many of a job's messages pass each link.
        rate: [E] bytes a second.
        own: [E] messages on each link of the job that is simulated beside them.
        latency_s: [1] of its ring.
    """

    now_s: Any
    sending: Any
    left: Any
    compute_s: Any
    bytes: Any
    uses: Any
    rate: Any
    own: Any
    latency_s: Any


def new_neighbours(cluster: Cluster, network: Network, workers: int) -> Neighbours:
    """All jobs of a cluster begin to compute at time 0, beside one with so many workers."""
    jobs = cluster.jobs
    if not jobs:
        return Neighbours(*(np.zeros(0) for _ in Neighbours._fields))
    count = max([workers, *(job.first + job.workers for job in jobs)])
    wiring = wire(network, count, own=own_links(cluster, count))
    rings = [ring_uses(wiring, job.first, job.workers) for job in jobs]
    computes = [_compute_s(cluster, job) + ring[1] for job, ring in zip(jobs, rings, strict=True)]
    own, latency_s = ring_uses(wiring, 0, workers)
    return Neighbours(
        now_s=np.zeros(1),
        sending=np.zeros(len(jobs)),
        left=np.array(computes),
        compute_s=np.array(computes),
        bytes=np.array([message_bytes(job.workload.parameter_bytes, job.workers) for job in jobs]),
        uses=np.array([ring[0] for ring in rings]),
        rate=wiring.rate,
        own=own,
        latency_s=np.array([latency_s]),
    )


def message_bytes(size: float, workers: int) -> float:
    """What each message of a ring carries in all its rounds."""
    return 2.0 * (workers - 1) * size / workers


def ring_uses(wiring: Wiring, first: int, workers: int) -> tuple[Any, float]:
    """[E] how many messages of a ring of workers from ``first`` on pass each link; its latency."""
    uses, latency_s = np.zeros(len(wiring.rate)), 0.0
    way = np.zeros(wiring.longest, np.int64)
    for place in range(workers if workers > 1 else 0):
        ends = first + place, first + (place + 1) % workers
        latency_s = max(latency_s, route(wiring, *ends, way))
        np.add.at(uses, way[way != NO_LINK], 1.0)
    return uses, 2.0 * (workers - 1) * latency_s


def average_s(neighbours: Neighbours, size: float, begins_s: float) -> float:
    """When one more average is through, which begins at an instant; the others are followed there.

    Args:
        neighbours: followed until then.
        size: bytes of each message.
        begins_s: not before what they have been followed to.
    """
    while neighbours.now_s[0] < begins_s:
        _step(neighbours, math.inf, begins_s)
    left = size
    while left > 0.0:
        left = _step(neighbours, left, math.inf)
    return float(neighbours.now_s[0] + neighbours.latency_s[0])


def fair_rates(uses: Any, rate: Any) -> Any:
    """[J] max-min fair rates of the messages of each ring (a ring without a link is infinite).

    Args:
        uses: [J, E] messages of each ring on each link.
        rate: [E] bytes a second of each link.
    """
    found, room = np.full(len(uses), np.inf), rate.astype(np.float64)
    open_ = uses.any(axis=1)
    while open_.any():
        load = uses[open_].sum(axis=0)
        share = np.divide(room, load, out=np.full(len(room), np.inf), where=load > 0.0)
        least = share.min()
        if not np.isfinite(least):
            break
        full = share <= least
        stops = open_ & uses[:, full].any(axis=1)
        found[stops] = least
        room = np.maximum(room - least * uses[stops].sum(axis=0), 0.0)
        open_ &= ~stops
    return found


def _step(neighbours: Neighbours, left: float, end_s: float) -> float:
    """Go on to the next event, or to ``end_s``; what is left then of the one more average.

    An infinite ``left`` says that there is none.
    """
    sending, asked = neighbours.sending == 1.0, math.isfinite(left)
    uses = np.vstack([neighbours.uses * sending[:, None], neighbours.own * asked])
    pace = fair_rates(uses, neighbours.rate)
    pace[:-1][~sending] = 1.0
    amounts = np.append(neighbours.left, left if asked else 0.0)
    waits_s = amounts / pace  # an infinite pace is over at once
    waits_s[-1] = waits_s[-1] if asked else math.inf
    passes_s = min(float(waits_s.min()), end_s - neighbours.now_s[0])
    over = waits_s <= passes_s
    neighbours.now_s[0] = neighbours.now_s[0] + passes_s if over.any() else end_s
    rest = amounts - np.where(np.isinf(pace), 0.0, pace) * passes_s
    neighbours.left[:] = rest[:-1]
    done = over[:-1]
    neighbours.sending[done] = 1.0 - neighbours.sending[done]
    neighbours.left[done] = np.where(
        neighbours.sending[done] == 1.0, neighbours.bytes[done], neighbours.compute_s[done]
    )
    if not asked:
        return left
    return 0.0 if over[-1] else float(rest[-1])


def _compute_s(cluster: Cluster, job: Job) -> float:
    """Of a round, without variation: the slowest of its workers."""
    workers: Sequence[int] = range(job.first, job.first + job.workers)
    return job.every * max(compute_seconds(cluster, job.workload, who) for who in workers)

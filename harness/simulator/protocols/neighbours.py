"""Other jobs on the simulated job's network, which use a part of its links.

Each repeats computing and averaging over a ring of its own workers, without variation. A ring is
modelled as a fluid: all its messages have one rate, that of their most limiting link, and an
all-reduce of S bytes among n workers moves 2 (n − 1) / n S bytes per message. Rates are max-min
fair among the messages of all active rings: they grow together until a link is full, and the rings
on it keep their rate. For one ring on idle links with a common start this equals the time of the
messages themselves; latencies are added at the end.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from harness.simulator.cluster import Cluster
from harness.simulator.costs import compute_seconds, own_links
from harness.simulator.network import Network, Wiring, route, wire

OWN = -1
"""Row of the simulated job, behind the other J."""


class Neighbours(NamedTuple):
    """Progress of the J other jobs and of the simulated one, on the E links of the whole network.

    Attributes:
        now_s: [1] instant up to which they have been simulated.
        sending: [J + 1] whether each is averaging.
        left: [J + 1] bytes of each message left to send, or seconds left of computing and latency;
            infinite for the simulated job, whose computing is simulated elsewhere.
        compute_s: [J + 1] from the end of a job's average to its next one.
        bytes: [J + 1] bytes of each message in an average.
        uses: [J + 1, E] number of a job's messages on each link.
        rate: [E] bytes per second of each link.
        latency_s: latency of the simulated job's ring.
    """

    now_s: Any
    sending: Any
    left: Any
    compute_s: Any
    bytes: Any
    uses: Any
    rate: Any
    latency_s: float


def new_neighbours(cluster: Cluster, network: Network, workers: int) -> Neighbours | None:
    """The cluster's other jobs, which begin to compute at time 0; None if there are none."""
    if not cluster.jobs:
        return None
    # The other jobs may have workers beyond those of the simulated job.
    count = max([workers, *(job.first + job.workers for job in cluster.jobs)])
    wiring = wire(network, count, own=own_links(cluster, count), alone=False)
    compute_s, sizes, uses = list[float](), list[float](), list[Any]()
    for job in cluster.jobs:
        members = range(job.first, job.first + job.workers)
        slowest_s = max(compute_seconds(cluster, job.workload, worker) for worker in members)
        ring, latency_s = ring_uses(wiring, job.first, job.workers)
        compute_s.append(job.every * slowest_s + latency_s)
        sizes.append(message_bytes(job.workload.parameter_bytes, job.workers))
        uses.append(ring)
    ring, latency_s = ring_uses(wiring, 0, workers)
    return Neighbours(
        now_s=np.zeros(1),
        sending=np.zeros(len(sizes) + 1, np.bool_),
        left=np.array([*compute_s, math.inf]),
        compute_s=np.array([*compute_s, math.inf]),
        bytes=np.array([*sizes, 0.0]),
        uses=np.array([*uses, ring]),
        rate=wiring.rate,
        latency_s=latency_s,
    )


def message_bytes(size: float, workers: int) -> float:
    """Bytes that each message of a ring carries in all its rounds."""
    return 2.0 * (workers - 1) * size / workers


def ring_uses(wiring: Wiring, begin: int, workers: int) -> tuple[Any, float]:
    """[E] number of messages of a ring of workers from ``begin`` on each link; and its latency."""
    uses, latency_s = np.zeros(len(wiring.rate)), 0.0
    way = np.zeros(wiring.longest, np.int64)
    # Each of the 2 (n − 1) rounds takes as long as its slowest message.
    for place in range(workers if workers > 1 else 0):
        ends = begin + place, begin + (place + 1) % workers
        way_s, links = route(wiring, *ends, way)
        latency_s = max(latency_s, way_s)
        np.add.at(uses, way[:links], 1.0)
    return uses, 2.0 * (workers - 1) * latency_s


def average_s(neighbours: Neighbours, size: float, begins_s: float) -> float:
    """End of an average of the simulated job beside the others, which are simulated up to it.

    Args:
        neighbours: changed in place.
        size: bytes of each message.
        begins_s: beginning of the average, not before ``neighbours.now_s``.
    """
    now_s, sending, left = neighbours.now_s, neighbours.sending, neighbours.left
    # First the other jobs alone up to the beginning, then with the own average.
    while now_s[0] < begins_s:
        _step(neighbours, begins_s)
    sending[OWN], left[OWN] = True, size
    # An average of no bytes would end at once, and time would stand still.
    while sending[OWN] and left[OWN] > 0.0:
        _step(neighbours, math.inf)
    sending[OWN], left[OWN] = False, math.inf
    return float(now_s[0] + neighbours.latency_s)


def fair_rates(uses: Any, rate: Any) -> Any:
    """[J] max-min fair rates of the messages of each ring (infinite for a ring without a link).

    Args:
        uses: [J, E] number of messages of each ring on each link.
        rate: [E] bytes per second of each link.
    """
    rates, room = np.full(len(uses), np.inf), rate.astype(np.float64)
    open_ = uses.any(axis=1)
    while open_.any():
        load = uses[open_].sum(axis=0)
        share = np.divide(room, load, out=np.full(len(room), np.inf), where=load > 0.0)
        least = share.min()
        if not np.isfinite(least):  # the remaining rings use infinitely fast links only
            break
        # One ring's messages have one rate, so a full link stops all of them, on all links.
        full = share <= least
        stops = open_ & uses[:, full].any(axis=1)
        rates[stops] = least
        room = np.maximum(room - least * uses[stops].sum(axis=0), 0.0)
        open_ &= ~stops
    return rates


def _step(neighbours: Neighbours, end_s: float) -> None:
    """Advance to the next end of computing or averaging, or to ``end_s``."""
    now_s, sending, left = neighbours.now_s, neighbours.sending, neighbours.left
    pace = fair_rates(neighbours.uses * sending[:, None], neighbours.rate)
    pace[~sending] = 1.0  # what is left of a computing job is in seconds
    waits_s = left / pace  # 0 for an infinite pace
    passes_s = min(float(waits_s.min()), end_s - now_s[0])
    ended = waits_s <= passes_s
    # Without an event, exactly ``end_s``: a sum could miss it by rounding, and loop.
    now_s[0] = now_s[0] + passes_s if ended.any() else end_s
    left -= np.where(np.isinf(pace), 0.0, pace) * passes_s
    sending[ended] ^= True
    left[ended] = np.where(sending, neighbours.bytes, neighbours.compute_s)[ended]

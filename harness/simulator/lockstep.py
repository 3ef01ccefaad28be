"""Workers in lock step: equal, with nothing that varies, so that all do everything at once.

They all copy at the same instants and wait for each other, and compute at the same instants and
leave the link idle. No real cluster does: a little jitter takes them apart, and may change
throughput by much. Whether it does is found by trying.
"""

from __future__ import annotations

from dataclasses import replace

from harness.simulator.cluster import Cluster, Jitter
from harness.simulator.costs import compute_seconds
from harness.simulator.workload import Workload

__all__ = ["CV", "jittered", "nothing_varies"]

CV = 0.05
"""Of the jitter that is tried."""


def nothing_varies(cluster: Cluster, workload: Workload, workers: int) -> bool:
    """Whether so many workers, two or more, do the same at the same time for ever."""
    firsts, place = list[int](), 0
    for group in cluster.workers:
        firsts += [place] if place < workers else []
        place += group.count
    alike = len({compute_seconds(cluster, workload, first) for first in firsts}) == 1
    odd = cluster.stragglers
    steady = _is_constant(cluster.jitter) and _is_constant(cluster.server.jitter)
    rare = odd.probability > 0.0 and odd.slowdown > 1.0
    differ = cluster.heterogeneity_cv > 0.0 or bool(cluster.faults) or rare
    return workers > 1 and alike and steady and not differ


def jittered(cluster: Cluster) -> Cluster:
    """The same with a jitter of `CV`."""
    return replace(cluster, jitter=Jitter("lognormal", CV))


def _is_constant(jitter: Jitter) -> bool:
    spread = len(set(jitter.values)) > 1 if jitter.law == "empirical" else jitter.cv > 0.0
    return jitter.law == "constant" or not spread

"""How long a simulation must be to tell of the long run, and what it may cost."""

from __future__ import annotations

from typing import NamedTuple

from harness.simulator.cluster import Cluster
from harness.simulator.costs import compute_seconds
from harness.simulator.faults import Fault
from harness.simulator.protocols.contract import TimingProtocol
from harness.simulator.steady import PRECISION
from harness.simulator.workload import Workload

__all__ = ["Horizon", "history", "horizon_of"]

COST = 1 << 20
EACH = 512
"""Contributions that a long run may cost: `COST`, or of many workers so many each."""
ENOUGH = 30
"""Occurrences of what is seldom, before a mean over them says anything."""
MATTERS = PRECISION / 10.0
"""Share of the time below which it need not occur."""


class Horizon(NamedTuple):
    """Limits of a long run (see `steady.long_run`).

    Attributes:
        most: contributions it may cost.
        period: folds after which everything repeats.
        least_s: virtual time that shows enough of what is seldom.
    """

    most: int
    period: int
    least_s: float


def history(cluster: Cluster) -> str:
    """Why there is no long run, but only what happens once; empty if there is one."""
    for place, fault in enumerate(cluster.faults):
        if fault.kind == "death" and fault.down_s is None:
            return f"faults[{place}]: workers go for good"
        if fault.at_s and fault.kind != "late":
            return f"faults[{place}].at_s lists instants"
    return ""


def horizon_of(
    cluster: Cluster, protocol: TimingProtocol, workload: Workload, workers: int
) -> Horizon:
    """The limits for so many workers of a cluster."""
    epoch_folds = getattr(protocol, "epoch_folds", None)
    minibatch_s = compute_seconds(cluster, workload)
    needed_s = [_needed_s(fault, workers, minibatch_s) for fault in cluster.faults]
    chance, times = cluster.stragglers.probability, cluster.stragglers.slowdown - 1.0
    if chance * times > MATTERS:
        needed_s.append(ENOUGH / chance * minibatch_s / workers)
    return Horizon(
        most=max(COST, EACH * workers),
        period=max(1, epoch_folds(cluster, workers)) if epoch_folds else 1,
        least_s=max(needed_s, default=0.0),
    )


def _needed_s(fault: Fault, workers: int, minibatch_s: float) -> float:
    """Virtual time in which a fault has occurred often enough, if it matters."""
    if fault.kind == "late":
        return 4.0 * fault.at_s[0]
    if fault.kind == "message":
        lost_s, each_s = fault.probability * (fault.retry_s or 0.0), minibatch_s / workers
        return ENOUGH / fault.probability * each_s if lost_s > MATTERS * minibatch_s else 0.0
    down_s, mean_s = fault.down_s or 0.0, fault.mean_s or 0.0
    lost_s = down_s + (fault.checkpoint_s or 0.0 if fault.kind == "server" else minibatch_s)
    if lost_s <= MATTERS * (mean_s + down_s):
        return 0.0
    named = [who for who in fault.workers if who < workers] if fault.workers else range(workers)
    hit = 1 if fault.kind == "server" else len(named)
    often_s = ENOUGH * (mean_s + down_s) / hit if hit else 0.0
    return max(often_s, 3.0 * min(mean_s, down_s))

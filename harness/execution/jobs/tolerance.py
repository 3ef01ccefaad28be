"""What can be turned up until training breaks, and the cluster and workers it makes of others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from harness.algorithms.catalogue import Algorithm
from harness.errors import UserError, unknown
from harness.simulator import Cluster, Fault, Server, WorkerGroup

RETRY_OF_LATENCIES, LEAST_RETRY_S = 2.0, 1e-6
"""A lost message is sent again after so many latencies of the link."""
FOLD_S = 1e-6
"""Of equal workers: folds at one instant would be followed by reads of one version."""


@dataclass(frozen=True)
class Knob:
    """What is turned up until training breaks.

    Attributes:
        name: on the command line.
        axis: in a picture, with its unit.
        turned: the cluster at a value.
        usual: the value that quality is compared with, and the largest, where none are given.
        whole: whether its values are whole numbers.
        workers: how many there are at a value; None for as many as are asked for.
        one_by_one: whether it has a meaning only where contributions are folded one by one.
    """

    name: str
    axis: str
    turned: Callable[[Cluster, float], Cluster]
    usual: tuple[float, float]
    whole: bool = False
    workers: Callable[[float], int] | None = None
    one_by_one: bool = False

    def at(self, cluster: Cluster, workers: int, value: float) -> tuple[Cluster, int]:
        """The cluster and the number of workers at a value."""
        return self.turned(cluster, value), self.workers(value) if self.workers else workers

    def check(self, algorithm: Algorithm) -> None:
        """Refuse an algorithm for which its values mean nothing.

        Raises:
            UserError: it is one.
        """
        if self.one_by_one and algorithm.rounds:
            told = f"{type(algorithm).__name__} folds in rounds, which nothing comes between"
            raise UserError(f"tolerate: {self.name}: {told}; allowed: asynchronous algorithms")


def _same(cluster: Cluster, value: float) -> Cluster:
    del value
    return cluster


def _stale(cluster: Cluster, value: float) -> Cluster:
    """So many equal workers, whose turns nothing changes, that each misses the others' folds.

    The card stays the user's, whose seconds are asked for; reproductions have none (decision 68).
    """
    group = cluster.workers[0]
    device = {group.device: cluster.devices[group.device]}
    equal = WorkerGroup(int(value) + 1, group.device, group.speed)
    return Cluster(f"staleness {value:g}", device, (equal,), server=Server(FOLD_S, 0.0))


def _delayed(cluster: Cluster, value: float) -> Cluster:
    """Of the link, and of the highest level of the network, which some protocols use instead."""
    link = replace(cluster.link, latency_s=cluster.link.latency_s + value)
    if cluster.network is None or not cluster.network.levels:
        return replace(cluster, link=link)
    *below, highest = cluster.network.levels
    highest = replace(highest, latency_s=highest.latency_s + value)
    network = replace(cluster.network, levels=(*below, highest))
    return replace(cluster, link=link, network=network)


def _lossy(cluster: Cluster, value: float) -> Cluster:
    if value == 0.0:
        return cluster
    retry_s = max(LEAST_RETRY_S, RETRY_OF_LATENCIES * cluster.link.latency_s)
    fault = Fault("message", probability=value, retry_s=retry_s)
    return replace(cluster, faults=(*cluster.faults, fault))


KNOBS = {
    knob.name: knob
    for knob in (
        Knob("workers", "workers", _same, (1, 64), whole=True, workers=int),
        Knob("staleness", "staleness (folds)", _stale, (0, 64), True, lambda v: int(v) + 1, True),
        Knob("delay", "further latency of the link (s)", _delayed, (0.0, 1.0)),
        Knob("loss", "share of messages lost", _lossy, (0.0, 0.5)),
    )
}


def knob_of(name: str) -> Knob:
    """What a name stands for.

    Raises:
        UserError: nothing.
    """
    if name not in KNOBS:
        raise unknown("tolerate", name, KNOBS)
    return KNOBS[name]

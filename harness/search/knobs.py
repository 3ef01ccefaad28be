"""What can be turned up until training breaks, and the cluster and workers it makes of others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from harness.algorithms.catalogue import Algorithm
from harness.base.errors import UserError, name_error
from harness.runs.config import TrainingConfig
from harness.simulator import Cluster, Fault, Network, Server, Simulation, WorkerGroup

RETRY_OF_LATENCIES, LEAST_RETRY_S = 2.0, 1e-6
"""A lost message is sent again after so many latencies of its way."""

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
        idle: keys of the user's cluster that count for nothing at any value, and why.
    """

    name: str
    axis: str
    turned: Callable[[Cluster, float], Cluster]
    usual: tuple[float, float]
    whole: bool = False
    workers: Callable[[float], int] | None = None
    one_by_one: bool = False
    idle: str = ""

    def apply(self, cluster: Cluster, workers: int, value: float) -> tuple[Cluster, int]:
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

    def check_reach(self, least: TrainingConfig[Any], most: TrainingConfig[Any]) -> None:
        """Refuse a delay that no message of a run meets: it would be tolerated without an end.

        Args:
            least: the run at the first value.
            most: the run at the last value.

        Raises:
            UserError: both take the same time.
        """
        if self.name == "delay" and _begin(least) == _begin(most):
            way = f"{least.timed.name} with {least.workers} of cluster {least.cluster.name!r}"
            told = f"no message of {way} passes a link"
            raise UserError(f"tolerate: delay: {told}; allowed: where messages do")


def _keep_cluster(cluster: Cluster, value: float) -> Cluster:
    del value
    return cluster


def _build_stale(cluster: Cluster, value: float) -> Cluster:
    """So many equal workers, whose turns nothing changes, that each misses the others' folds.

    The card stays the user's, whose seconds are asked for; reproductions have none.
    """
    group = cluster.workers[0]
    device = {group.device: cluster.devices[group.device]}
    equal = WorkerGroup(int(value) + 1, group.device, group.speed)
    return Cluster(f"staleness {value:g}", device, (equal,), server=Server(FOLD_S, 0.0))


def _add_latency(cluster: Cluster, value: float) -> Cluster:
    """Of every message once, over the link and over the network, of which one is used."""
    link = replace(cluster.link, latency_s=cluster.link.latency_s + value)
    network = cluster.network and _add_network_latency(cluster.network, value)
    return replace(cluster, link=link, network=network)


def _add_network_latency(network: Network, value: float) -> Network:
    """A network with further latency where every message passes exactly once.

    That is the lowest level that leads further, and below it every level for what stays inside;
    without levels, the server's link.
    """
    if not network.levels:
        server = network.server
        slower = server and replace(server, latency_s=server.latency_s + value)
        return replace(network, server=slower)
    first = next(place for place, level in enumerate(network.levels) if not level.inside)
    levels = [
        replace(level, latency_s=level.latency_s + value * (place <= first))
        for place, level in enumerate(network.levels)
    ]
    return replace(network, levels=tuple(levels))


def _add_message_loss(cluster: Cluster, value: float) -> Cluster:
    if value == 0.0:
        return cluster
    retry_s = max(LEAST_RETRY_S, RETRY_OF_LATENCIES * _to_server_s(cluster))
    fault = Fault("message", probability=value, retry_s=retry_s)
    return replace(cluster, faults=(*cluster.faults, fault))


def _to_server_s(cluster: Cluster) -> float:
    """The latency of a message between a worker and the server."""
    network = cluster.network
    if network is None or network.server is None:
        return cluster.link.latency_s
    passed = [level for level in network.levels if not level.inside]
    return sum(level.latency_s for level in (*passed, network.server))


def _begin(config: TrainingConfig[Any]) -> list[float]:
    """Simulate a run's first folds, as many as it has workers: when each is complete."""
    workload = config.workload(0)
    made = Simulation(
        config.cluster, config.timed, workload, config.workers, config.seed, spans=False
    )
    return made.advance(folds=config.workers).folds.time_s.tolist()


KNOBS = {
    knob.name: knob
    for knob in (
        Knob("workers", "workers", _keep_cluster, (1, 64), whole=True, workers=int),
        Knob(
            "staleness",
            "staleness (folds)",
            _build_stale,
            (0, 64),
            True,
            lambda v: int(v) + 1,
            True,
            "cluster (but for the device of its first workers: all are equal, nothing else counts)",
        ),
        Knob("delay", "further latency of every message (s)", _add_latency, (0.0, 1.0)),
        Knob("loss", "share of messages lost", _add_message_loss, (0.0, 0.5)),
    )
}


def knob_of(name: str) -> Knob:
    """What a name stands for.

    Raises:
        UserError: nothing.
    """
    if name not in KNOBS:
        raise name_error("tolerate", name, KNOBS)
    return KNOBS[name]

"""Quantities that `tolerate` raises until training breaks: workers, staleness, delay, loss.

Each knob maps a user's cluster and a value to the cluster and number of workers that are run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from harness.algorithms.catalogue import Algorithm
from harness.base.errors import UserError, name_error
from harness.experiment.experiment import AnyExperiment
from harness.simulator.cluster import Cluster, Fault, Server, WorkerGroup
from harness.simulator.network import Network

RETRY_OF_LATENCIES, LEAST_RETRY_S = 2.0, 1e-6
"""A lost message is sent again after this many latencies of its path, and at least this time."""

MOST_LOST = 0.99
"""Largest share of lost messages that a cluster may have."""

FOLD_S = 1e-6
"""Fold time for equal workers: folds at one instant would be followed by reads of one version."""


@dataclass(frozen=True)
class Knob:
    """A quantity that is raised until training breaks.

    Attributes:
        name: name on the command line.
        axis: label of a plot's axis, with the unit.
        turned: from the user's cluster and a value to the cluster that is run.
        usual: default of the reference value and of the largest value.
        whole: whether its values are whole numbers.
        workers: number of workers at a value; None for the user's number.
        one_by_one: whether it requires contributions that are folded one by one.
        idle: keys of the user's cluster that have no effect at any value, and why.
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
        """Reject an algorithm for which the knob has no meaning.

        Raises:
            UserError: the knob is `one_by_one`, and the algorithm folds in rounds.
        """
        if self.one_by_one and algorithm.rounds:
            mistake = f"{type(algorithm).__name__} folds in rounds, not one by one"
            raise UserError(f"tolerate: {self.name}: {mistake}; allowed: asynchronous algorithms")

    def check_reach(self, least: AnyExperiment, most: AnyExperiment) -> None:
        """Reject a delay that no message of the run meets: any delay would be tolerated.

        Args:
            least: the run at the first value.
            most: the run at the last value.

        Raises:
            UserError: the first folds of both take the same time.
        """
        if self.name == "delay" and _begin(least) == _begin(most):
            way = f"{least.timed.name} with {least.workers} of cluster {least.cluster.name!r}"
            mistake = f"no message of {way} passes a link"
            raise UserError(f"tolerate: delay: {mistake}; allowed: where messages do")


def _keep_cluster(cluster: Cluster, value: float) -> Cluster:
    del value
    return cluster


def _build_stale(cluster: Cluster, value: float) -> Cluster:
    """A cluster of ``value + 1`` equal workers in a fixed order, with staleness exactly ``value``.

    Between a worker's read and its fold, each other worker folds once. The device is the user's, so
    that times are those of the user's device.
    """
    group = cluster.workers[0]
    device = {group.device: cluster.devices[group.device]}
    equal = WorkerGroup(int(value) + 1, group.device, group.speed)
    return Cluster(f"staleness {value:g}", device, (equal,), server=Server(FOLD_S, 0.0))


def _add_latency(cluster: Cluster, value: float) -> Cluster:
    """Add latency to every message once, on the link and on the network, of which one is used."""
    link = replace(cluster.link, latency_s=cluster.link.latency_s + value)
    network = cluster.network and _add_network_latency(cluster.network, value)
    return replace(cluster, link=link, network=network)


def _add_network_latency(network: Network, value: float) -> Network:
    """Add latency to a network where every message passes exactly once.

    That is the lowest level not ``inside``, and the levels below it for messages that stay inside;
    without levels, the server's link.
    """
    if not network.levels:
        server = network.server
        slower = server and replace(server, latency_s=server.latency_s + value)
        return replace(network, server=slower)
    place_of_link = next(place for place, level in enumerate(network.levels) if not level.inside)
    levels = [
        replace(level, latency_s=level.latency_s + value * (place <= place_of_link))
        for place, level in enumerate(network.levels)
    ]
    return replace(network, levels=tuple(levels))


def _add_message_loss(cluster: Cluster, value: float) -> Cluster:
    if value == 0.0:  # no fault of probability 0: the reference is the user's own cluster's run
        return cluster
    if value > MOST_LOST:
        raise UserError(f"between: {value:g} of messages lost; allowed: at most {MOST_LOST:g}")
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


def _begin(config: AnyExperiment) -> list[float]:
    """Times of a run's first folds, one for each worker, in simulated seconds."""
    return config.new_simulation(config.timed).advance(folds=config.workers).folds.time_s.tolist()


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
            "cluster, its first device aside: exact staleness is that of equal workers",
        ),
        Knob("delay", "further latency of every message (s)", _add_latency, (0.0, 1.0)),
        Knob("loss", "share of messages lost", _add_message_loss, (0.0, 0.5)),
    )
}


def knob_of(name: str) -> Knob:
    """The knob of a name.

    Raises:
        UserError: an unknown name.
    """
    if name not in KNOBS:
        raise name_error("what", name, KNOBS)
    return KNOBS[name]

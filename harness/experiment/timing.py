"""Configurations that only time: a cluster and a workload, no training."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from harness.experiment.contract import Configuration, Watch
from harness.simulator.cluster import Cluster, Workload
from harness.simulator.costs import bare_throughput_per_s
from harness.simulator.protocols.contract import TimingProtocol
from harness.simulator.protocols.parameter_server import ParameterServer
from harness.simulator.simulation import Simulation
from harness.store import Run, RunWriter, Store


@dataclass(frozen=True)
class TimingConfig(Configuration):
    """One simulation without training.

    Args:
        cluster, workers: the simulated cluster and its number of workers.
        layers: layer sizes of the network whose workload is timed.
        minibatch: frames in a minibatch.
        folds: number of folds to simulate.
        seed: seed of random durations.
        protocol: the timing protocol.
    """

    cluster: Cluster
    workers: int
    layers: tuple[int, ...]
    minibatch: int
    folds: int
    seed: int
    protocol: TimingProtocol = field(default=ParameterServer())

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values: what the run's identity hashes."""
        protocol = {"name": self.protocol.name, **self.protocol.to_dict()}
        plain = {"cluster": self.cluster.to_dict(), "protocol": protocol}
        return {"is": "TimingConfig", **vars(self), **plain}

    def execute(self, store: Store, watch: Watch) -> Run:
        """See `Configuration`: throughput, staleness, and the protocol's own figures."""
        del watch  # it takes seconds
        return store.obtain(self.to_dict(), self._simulate)

    def _simulate(self, writer: RunWriter) -> None:
        workload = Workload.of_network(self.layers, self.minibatch)
        simulation = Simulation(self.cluster, self.protocol, workload, self.workers, self.seed)
        timeline = simulation.advance(folds=self.folds)
        summary = {
            "virtual_s": simulation.now_s,
            "folds": self.folds,
            "throughput_per_s": int(timeline.folded().steps.sum()) / simulation.now_s,
            "bare_throughput_per_s": bare_throughput_per_s(self.cluster, workload),
            "mean_staleness": float(timeline.staleness().mean()),
            "mean_lag_s": float(timeline.lag_s().mean()),
        }
        summary |= self.protocol.measure(timeline, self.workers)
        writer.finish("done", summary | {"timeline_sha256": timeline.sha256()})

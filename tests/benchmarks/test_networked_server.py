"""Folds a second of a parameter server on a network, beside SimPy on the same in the same run."""

from __future__ import annotations

import importlib.util
import time
from pathlib import Path

import pytest

from harness.simulator import Cluster, Device, Jitter, Server, Simulation, WorkerGroup, Workload
from harness.simulator.topology import Level, Network

pytestmark = pytest.mark.benchmark(timer=time.process_time)

MODEL = Path(__file__).parents[1] / "harness" / "simulator" / "simpy_network.py"
SPEC = importlib.util.spec_from_file_location("b", MODEL)
simpy_network = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(simpy_network)

JOB = Workload(minibatch_frames=1, flops_per_frame=1.0, parameter_bytes=8.0)
SIMPY_FOLDS = 500


def cluster_of(workers: int, sharing: str) -> Cluster:
    """Nodes of eight; the server's link is busy for about a third of the time."""
    levels = (Level(1, 200.0, 1e-3), Level(8, 400.0, 1e-3))
    return Cluster(
        "bench",
        {"unit": Device(1.0)},
        (WorkerGroup(workers, "unit"),),
        server=Server(0.3 / workers, 0.0, Jitter("lognormal", 0.3)),
        jitter=Jitter("lognormal", 0.3),
        network=Network(levels, sharing, server=Level(1, 24.0 * workers)),
    )


@pytest.mark.parametrize("sharing", ["fifo", "fair"])
@pytest.mark.parametrize("workers", [4, 50])
def test_a_server_on_a_network_is_fast_and_its_sequence_is_simpys(benchmark, workers, sharing):
    cluster = cluster_of(workers, sharing)
    model = simpy_network.NetworkedModel(cluster, JOB, workers, 0)
    start = time.process_time()
    expected = model.run(SIMPY_FOLDS)
    simpy_rate = SIMPY_FOLDS / (time.process_time() - start)
    simulation = Simulation(cluster, "parameter_server", JOB, workers, spans=False)
    first = simulation.advance(folds=SIMPY_FOLDS)
    rows = (first.folds.time_s, first.folded().worker, first.staleness())
    assert list(zip(*(column.tolist() for column in rows), strict=True)) == expected
    folds = SIMPY_FOLDS if benchmark.disabled else 20_000
    benchmark(simulation.advance, folds=folds)
    if benchmark.stats is not None:
        rate = folds / benchmark.stats.stats.min
        benchmark.extra_info |= {"folds_per_s": rate, "times_simpy": rate / simpy_rate}

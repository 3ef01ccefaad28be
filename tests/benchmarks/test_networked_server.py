"""Folds a second of a parameter server on a network, beside SimPy on the same in the same run."""

from __future__ import annotations

import importlib.util
import time
from pathlib import Path

import pytest

from harness.simulator import Cluster, Device, Jitter, Server, Simulation, WorkerGroup, Workload
from harness.simulator.network import Level, Network

pytestmark = pytest.mark.benchmark(timer=time.process_time)

MODEL = Path(__file__).parents[1] / "harness" / "simulator" / "simpy_network.py"
SPEC = importlib.util.spec_from_file_location("b", MODEL)
simpy_network = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(simpy_network)

GROWTH = (64, 512, 4096)
EXACT = 100
"""Folds until rounding, which fair messages grow, may be seen."""

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
    times_s, *order = (list(column) for column in zip(*expected, strict=True))
    assert [column.tolist() for column in rows[1:]] == order
    exact = SIMPY_FOLDS if sharing == "fifo" else EXACT
    assert rows[0][:exact].tolist() == pytest.approx(
        times_s[:exact], rel=0 if exact > EXACT else 1e-12
    )
    folds = SIMPY_FOLDS if benchmark.disabled else 20_000
    benchmark(simulation.advance, folds=folds)
    if benchmark.stats is not None:
        rate = folds / benchmark.stats.stats.min
        benchmark.extra_info |= {"folds_per_s": rate, "times_simpy": rate / simpy_rate}


@pytest.mark.parametrize("sharing", ["fifo", "fair"])
def test_how_the_cost_of_a_fold_on_a_network_grows_with_the_workers(benchmark, sharing):
    """`growth_ratio` is the greatest number of workers' over the least number's."""
    folds = SIMPY_FOLDS if benchmark.disabled else 20_000
    simulations = {
        n: Simulation(cluster_of(n, sharing), "parameter_server", JOB, spans=False) for n in GROWTH
    }
    for workers, simulation in simulations.items():
        simulation.advance(folds=2 * workers)
    nanoseconds = {n: [] for n in GROWTH}

    def one_round():
        for workers, simulation in simulations.items():
            start = time.process_time()
            assert len(simulation.advance(folds=folds).folds) == folds
            nanoseconds[workers].append(1e9 * (time.process_time() - start) / folds)

    benchmark.pedantic(one_round, rounds=1 if benchmark.disabled else 9)
    each = {n: min(times) for n, times in nanoseconds.items()}
    ratio = each[GROWTH[-1]] / each[GROWTH[0]]
    benchmark.extra_info |= {"growth_ratio": ratio, "ns_per_fold": each}

"""Folds a second, beside SimPy on the same system in the same run (`times_simpy`)."""

from __future__ import annotations

import time

import pytest
import simpy

from harness.simulator import Cluster, Device, Jitter, Server, Simulation, WorkerGroup, Workload
from harness.simulator.costs import computation_s, costs_of

JOB = Workload(minibatch_frames=1, flops_per_frame=1.0, parameter_bytes=0.0)
FOLDS = 200_000
SIMPY_FOLDS = 10_000


def cluster_of(workers: int) -> Cluster:
    """Exponential computing of mean 1 s, and a server busy for half of the time."""
    return Cluster(
        name="bench",
        devices={"unit": Device(1.0)},
        workers=(WorkerGroup(workers, "unit"),),
        server=Server(fold_s=0.5 / workers),
        jitter=Jitter("shifted-exponential", 1.0),
    )


def simpy_folds_per_s(cluster: Cluster, workers: int) -> tuple[float, list[tuple[float, int]]]:
    """SimPy's speed and its (time, worker) sequence; drawing durations is not counted."""
    costs = costs_of(cluster, JOB, workers, 0)
    steps = 3 * SIMPY_FOLDS // workers + 30
    drawn = [[computation_s(costs, w, s) for s in range(steps)] for w in range(workers)]
    env, record = simpy.Environment(), []
    server, finished = simpy.Resource(env), env.event()

    def worker(who):
        for seconds in drawn[who]:
            yield env.timeout(seconds)
            with server.request() as turn:
                yield turn
                yield env.timeout(costs.fold_s)
            record.append((env.now, who))
            if len(record) == SIMPY_FOLDS:
                finished.succeed()

    for who in range(workers):
        env.process(worker(who))
    start = time.perf_counter()
    env.run(finished)
    return SIMPY_FOLDS / (time.perf_counter() - start), record


@pytest.mark.parametrize("workers", [4, 50, 1000])
def test_the_parameter_server_is_fast_and_its_sequence_is_simpys(benchmark, workers):
    cluster = cluster_of(workers)
    check = Simulation(cluster, "parameter_server", JOB, workers).advance(folds=SIMPY_FOLDS)
    simpy_rate, record = simpy_folds_per_s(cluster, workers)
    rows = zip(check.folds.time_s.tolist(), check.folded().worker.tolist(), strict=True)
    assert list(rows) == record
    simulation = Simulation(cluster, "parameter_server", JOB, workers, spans=False)
    benchmark(simulation.advance, folds=FOLDS)
    if benchmark.stats is not None:
        rate = FOLDS / benchmark.stats.stats.median
        benchmark.extra_info |= {"folds_per_s": rate, "times_simpy": rate / simpy_rate}

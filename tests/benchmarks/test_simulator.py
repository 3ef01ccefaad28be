"""Folds a second, beside SimPy on the same system in the same run (`times_simpy`).

What is timed of the simulator is a whole segment: drawing every duration, all columns of the
timeline, no spans (`with_spans` tells what they add). What is timed of SimPy is its loop: the
durations were drawn before. Both are past their start, and compiled.
"""

from __future__ import annotations

import time

import numba
import numpy as np
import pytest
import simpy

from harness.simulator import Cluster, Device, Jitter, Server, Simulation, WorkerGroup, Workload
from harness.simulator.costs import computation_s, costs_of

JOB = Workload(minibatch_frames=1, flops_per_frame=1.0, parameter_bytes=0.0)
FOLDS = 1_000_000
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


@numba.njit
def draw(costs, drawn: np.ndarray) -> None:
    """Fill ``drawn`` [N, S] with the durations of every worker's first S computations."""
    for worker in range(drawn.shape[0]):
        for step in range(drawn.shape[1]):
            drawn[worker, step] = computation_s(costs, worker, step)


def simpy_folds_per_s(cluster: Cluster, workers: int) -> tuple[float, list[tuple[float, int]]]:
    """SimPy's speed after a tenth of the folds, and its (time, worker) sequence."""
    costs = costs_of(cluster, JOB, workers, 0)
    drawn = np.empty((workers, 3 * SIMPY_FOLDS // workers + 30))
    draw(costs, drawn)
    durations = drawn.tolist()
    env, record = simpy.Environment(), []
    server, warm, finished = simpy.Resource(env), env.event(), env.event()

    def worker(who):
        for seconds in durations[who]:
            yield env.timeout(seconds)
            with server.request() as turn:
                yield turn
                yield env.timeout(costs.fold_s)
            record.append((env.now, who))
            if len(record) == SIMPY_FOLDS // 10:
                warm.succeed()
            if len(record) == SIMPY_FOLDS:
                finished.succeed()

    for who in range(workers):
        env.process(worker(who))
    env.run(warm)
    start, before = time.perf_counter(), len(record)
    env.run(finished)
    return (len(record) - before) / (time.perf_counter() - start), record


@pytest.mark.parametrize("workers", [4, 50, 1000, 100_000])
def test_the_parameter_server_is_fast_and_its_sequence_is_simpys(benchmark, workers):
    cluster = cluster_of(workers)
    simulation = Simulation(cluster, "parameter_server", JOB, workers, spans=False)
    check = simulation.advance(folds=SIMPY_FOLDS)
    simpy_rate, record = simpy_folds_per_s(cluster, workers)
    rows = zip(check.folds.time_s.tolist(), check.folded().worker.tolist(), strict=True)
    assert list(rows) == record
    simulation.advance(folds=2 * workers)
    benchmark(simulation.advance, folds=SIMPY_FOLDS if benchmark.disabled else FOLDS)
    if benchmark.stats is not None:
        rate = FOLDS / benchmark.stats.stats.median
        spans = folds_per_s_with_spans(cluster, workers)
        benchmark.extra_info |= {
            "folds_per_s": rate,
            "times_simpy": rate / simpy_rate,
            "times_simpy_with_spans": spans / simpy_rate,
        }


def folds_per_s_with_spans(cluster: Cluster, workers: int) -> float:
    """The same with a span for everything a worker and the server do."""
    simulation = Simulation(cluster, "parameter_server", JOB, workers)
    simulation.advance(folds=2 * workers)
    start = time.perf_counter()
    simulation.advance(folds=FOLDS)
    return FOLDS / (time.perf_counter() - start)


@pytest.mark.parametrize("workers", [1000, 10_000, 100_000, 1_000_000])
def test_a_fold_costs_no_more_than_the_logarithm_of_the_number_of_workers(benchmark, workers):
    """`ns_per_fold_and_level` over worker counts is flat but for the processor's caches."""
    simulation = Simulation(cluster_of(workers), "parameter_server", JOB, workers, spans=False)
    segment = simulation.advance(folds=workers)
    assert len(segment.folds) == workers
    assert np.all(np.diff(segment.folds.time_s) > 0.0)
    benchmark(simulation.advance, folds=SIMPY_FOLDS if benchmark.disabled else FOLDS)
    if benchmark.stats is not None:
        nanoseconds = 1e9 * benchmark.stats.stats.median / FOLDS
        benchmark.extra_info |= {"ns_per_fold_and_level": nanoseconds / np.log2(workers)}

"""Folds a second, beside SimPy on the same system in the same run (`times_simpy`).

What is timed of the simulator is a whole segment: drawing every duration, all columns of the
timeline, no spans (`with_spans` tells what they add). What is timed of SimPy is its loop: the
durations were drawn before. Both are past their start, and compiled.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace

import numba
import numpy as np
import pytest
import simpy

from harness.simulator import (
    Cluster,
    Device,
    Fault,
    Jitter,
    Server,
    Simulation,
    WorkerGroup,
    Workload,
)
from harness.simulator.costs import computation_s, costs_of
from harness.simulator.protocols.backup_workers import BackupWorkers

pytestmark = pytest.mark.benchmark(timer=time.process_time)

JOB = Workload(minibatch_frames=1, flops_per_frame=1.0, parameter_bytes=0.0)
FOLDS = 200_000
SIMPY_FOLDS = 10_000
GROWTH = (1000, 10_000, 100_000, 1_000_000)


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
    start, before = time.process_time(), len(record)
    env.run(finished)
    return (len(record) - before) / (time.process_time() - start), record


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
        rate = FOLDS / benchmark.stats.stats.min
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
    start = time.process_time()
    simulation.advance(folds=FOLDS)
    return FOLDS / (time.process_time() - start)


def test_how_the_cost_of_a_fold_grows_with_the_workers(benchmark):
    """`per_level_over_1000_workers` is 1 where a fold's time grows as the logarithm does."""
    folds = SIMPY_FOLDS if benchmark.disabled else FOLDS
    simulations = {
        n: Simulation(cluster_of(n), "parameter_server", JOB, spans=False) for n in GROWTH
    }
    for workers, simulation in simulations.items():
        segment = simulation.advance(folds=workers)
        assert np.all(np.diff(segment.folds.time_s) > 0.0)
    nanoseconds = {n: [] for n in GROWTH}

    def one_round():
        for workers, simulation in simulations.items():
            start = time.process_time()
            assert len(simulation.advance(folds=folds).folds) == folds
            nanoseconds[workers].append(1e9 * (time.process_time() - start) / folds)

    benchmark.pedantic(one_round, rounds=1 if benchmark.disabled else 9)
    each = {n: float(min(times)) for n, times in nanoseconds.items()}
    per_level = {n: each[n] / math.log2(n) for n in GROWTH}
    benchmark.extra_info |= {
        "growth_ratio": per_level[1_000_000] / per_level[1000],
        "ns_per_fold": each,
        "per_level_over_1000_workers": {n: per_level[n] / per_level[1000] for n in GROWTH},
    }


def test_how_the_cost_of_a_round_with_deaths_grows_with_the_workers(benchmark):
    """`growth_ratio`: a contribution of backup workers among 4,096 over one among 64."""
    deaths = (Fault("death", mean_s=100.0, down_s=5.0),)
    contributions = SIMPY_FOLDS if benchmark.disabled else FOLDS
    simulations = {
        n: Simulation(replace(cluster_of(n), faults=deaths), BackupWorkers(2), JOB, spans=False)
        for n in (64, 4096)
    }
    nanoseconds = {n: [] for n in simulations}

    def one_round():
        for workers, simulation in simulations.items():
            start = time.process_time()
            rows = len(simulation.advance(folds=contributions // workers).contributions)
            assert rows >= contributions // workers * (workers // 2)
            nanoseconds[workers].append(1e9 * (time.process_time() - start) / rows)

    one_round()
    benchmark.pedantic(one_round, rounds=1 if benchmark.disabled else 9)
    each = {n: min(times) for n, times in nanoseconds.items()}
    benchmark.extra_info |= {"growth_ratio": each[4096] / each[64], "ns_a_contribution": each}

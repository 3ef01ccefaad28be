from __future__ import annotations

import math

import numpy as np
import pytest
import simpy

from harness.simulator import (
    SERVER,
    Cluster,
    Device,
    Jitter,
    Simulation,
    Stragglers,
    WorkerGroup,
    compute_seconds,
)
from harness.simulator.costs import computation_s, costs_of

EXPONENTIAL = Jitter("shifted-exponential", 1.0)
LOGNORMAL = Jitter("lognormal", 0.3)


def sequence(timeline):
    """(time, worker, staleness) of every fold."""
    times, workers = timeline.folds.time_s.tolist(), timeline.folded().worker.tolist()
    return list(zip(times, workers, timeline.staleness().tolist(), strict=True))


@pytest.mark.parametrize("workers", [1, 2, 4, 33])
def test_a_cluster_without_costs_is_serial(cluster, free_job, workers):
    simulation = Simulation(cluster(workers), "parameter_server", free_job, workers)
    timeline = simulation.advance(folds=200)
    assert sequence(timeline) == [(0.0, k % workers, 0) for k in range(200)]
    assert timeline.folded().first_step.tolist() == list(range(200))
    assert timeline.folded().read_version.tolist() == list(range(200))
    assert len(timeline.spans) == 0


def test_four_equal_workers_tend_to_staleness_three(simulate):
    timeline = simulate(4, copy_s=0.1, fold_s=0.05, jitter=LOGNORMAL).advance(folds=20_000)
    assert timeline.staleness()[:4].tolist() == [0, 1, 2, 3]
    assert timeline.staleness().mean() == pytest.approx(3.0, abs=0.001)


def test_workers_in_lockstep_fold_in_order_and_all_read_after_the_last_fold(simulate):
    expected = [(k // 4 + 1.0, k % 4, k % 4) for k in range(12)]
    assert sequence(simulate(4).advance(folds=12)) == expected


def test_the_time_of_each_stage_is_the_one_calculated_by_hand(simulate):
    """Copy 0.25 + latency 0.125, compute 1, the same copy back, fold 0.5; two workers."""
    simulation = simulate(2, copy_s=0.25, latency_s=0.125, fold_s=0.5)
    timeline = simulation.advance(folds=3)
    assert sequence(timeline) == [(2.25, 0, 0), (2.75, 1, 1), (4.5, 0, 1)]
    spans = timeline.spans
    rows = zip(spans.worker.tolist(), spans.kind.tolist(), spans.start_s, spans.end_s, strict=True)
    kinds = timeline.kinds
    assert [(w, kinds[k], s, e) for w, k, s, e in rows][:8] == [
        *[(0, "fetch", 0.0, 0.375), (0, "compute", 0.375, 1.375)],
        *[(0, "push", 1.375, 1.75), (SERVER, "fold", 1.75, 2.25)],
        *[(1, "fetch", 0.0, 0.375), (1, "compute", 0.375, 1.375)],
        *[(1, "push", 1.375, 1.75), (SERVER, "fold", 2.25, 2.75)],
    ]
    assert timeline.lag_s().tolist() == [2.25, 2.75, 2.25]


def test_a_worker_that_reads_at_the_instant_of_a_fold_sees_it(simulate):
    timeline = simulate(1).advance(folds=5)
    assert timeline.folded().read_version.tolist() == [0, 1, 2, 3, 4]
    assert timeline.folded().read_time_s[1:].tolist() == timeline.folds.time_s[:-1].tolist()


@pytest.mark.parametrize("sharing", ["fifo", "fair"])
def test_a_shared_link_limits_throughput_to_one_copy_at_a_time(simulate, sharing):
    simulation = simulate(8, compute_s=0.1, copy_s=1.0, sharing=sharing, duplex="half")
    simulation.advance(folds=1000)
    assert simulation.now_s == pytest.approx(2 * 1000.0, rel=0.01)


def test_full_duplex_is_twice_half_duplex_when_the_link_is_the_limit(simulate):
    half, full = (
        simulate(8, compute_s=0.1, copy_s=1.0, sharing="fifo", duplex=d) for d in ("half", "full")
    )
    half.advance(folds=1000)
    full.advance(folds=1000)
    assert half.now_s == pytest.approx(2 * full.now_s, rel=0.01)


def test_the_server_is_the_limit_when_folds_are_slow(simulate):
    simulation = simulate(8, compute_s=1.0, fold_s=1.0)
    timeline = simulation.advance(folds=1000)
    assert np.all(np.diff(timeline.folds.time_s) == 1.0)


@pytest.mark.parametrize("sharing", ["none", "fifo", "fair"])
def test_nobody_does_two_things_at_once_and_time_never_runs_back(simulate, sharing):
    simulation = simulate(5, copy_s=0.3, fold_s=0.2, sharing=sharing, jitter=EXPONENTIAL)
    timeline = simulation.advance(folds=2000)
    assert np.all(np.diff(timeline.folds.time_s) >= 0.0)
    spans = timeline.spans
    for lane in [SERVER, *range(5)]:
        mine = spans.worker == lane
        order = np.argsort(spans.start_s[mine], kind="stable")
        start_s, end_s = spans.start_s[mine][order], spans.end_s[mine][order]
        assert np.all(start_s[1:] >= end_s[:-1])


@pytest.mark.parametrize("sharing", ["none", "fifo", "fair"])
def test_every_read_has_one_fold_or_is_in_flight(simulate, sharing):
    simulation = simulate(7, copy_s=0.3, fold_s=0.2, sharing=sharing, jitter=EXPONENTIAL)
    timeline = simulation.advance(folds=999)
    assert sorted(timeline.contributions.first_step.tolist()) == list(range(simulation.dispatched))
    assert len(timeline.in_flight()) == simulation.dispatched - 999
    assert set(timeline.contributions.steps.tolist()) == {1}


def test_contributions_under_way_satisfy_littles_law(simulate):
    """Mean number under way = throughput × mean lag; all seven workers are always under way."""
    simulation = simulate(7, copy_s=0.1, fold_s=0.1, jitter=EXPONENTIAL)
    timeline = simulation.advance(folds=50_000)
    throughput = 50_000 / simulation.now_s
    assert throughput * timeline.lag_s().mean() == pytest.approx(7.0, rel=1e-3)


def finite_source_utilisation(workers: int, compute_s: float, fold_s: float) -> float:
    """Utilisation of a server with constant service and N sources that think exponentially.

    The chain embedded at fold completions: from j left behind (at least one after an idle
    spell), the number that arrive during one fold is binomial among those thinking.
    """
    p = -math.expm1(-fold_s / compute_s)
    chain = np.zeros((workers, workers))
    for left in range(workers):
        at_start = max(left, 1)
        thinking = workers - at_start
        for arrived in range(thinking + 1):
            chance = math.comb(thinking, arrived) * p**arrived * (1 - p) ** (thinking - arrived)
            chain[left, at_start - 1 + arrived] += chance
    system = np.vstack([chain.T - np.eye(workers), np.ones(workers)])
    stationary = np.linalg.lstsq(system, np.append(np.zeros(workers), 1.0), rcond=None)[0]
    return fold_s / (fold_s + stationary[0] * compute_s / workers)


@pytest.mark.parametrize(("workers", "fold_s"), [(4, 0.05), (4, 0.3), (20, 0.05), (50, 0.01)])
def test_the_servers_utilisation_is_that_of_queueing_theory(simulate, workers, fold_s):
    simulation = simulate(workers, fold_s=fold_s, jitter=EXPONENTIAL)
    simulation.advance(folds=200_000)
    measured = 200_000 * fold_s / simulation.now_s
    assert measured == pytest.approx(finite_source_utilisation(workers, 1.0, fold_s), rel=0.01)


def simpy_sequence(cluster: Cluster, job, workers: int, folds: int, seed: int):
    """The same system as processes of SimPy, with the durations drawn beforehand."""
    costs = costs_of(cluster, job, workers, seed)
    env = simpy.Environment()
    server = simpy.Resource(env)
    shared = cluster.link.sharing == "fifo"
    down, up = simpy.Resource(env), simpy.Resource(env)
    if cluster.link.duplex == "half":
        up = down
    record, finished = [], env.event()

    def copy(link):
        if shared:
            with link.request() as turn:
                yield turn
                yield env.timeout(costs.copy_s)
        else:
            yield env.timeout(costs.copy_s)
        yield env.timeout(costs.latency_s)

    def worker(who):
        step = 0
        while True:
            version = len(record)
            yield from copy(down)
            yield env.timeout(computation_s(costs, who, step))
            yield from copy(up)
            with server.request() as turn:
                yield turn
                yield env.timeout(costs.fold_s)
                record.append((env.now, who, len(record) - version))
            if len(record) == folds:
                finished.succeed()
            step += 1

    for who in range(workers):
        env.process(worker(who))
    env.run(finished)
    return record


@pytest.mark.parametrize("jitter", [EXPONENTIAL, LOGNORMAL], ids=lambda law: law.law)
@pytest.mark.parametrize("workers", [4, 50, 1000])
@pytest.mark.parametrize(
    ("sharing", "duplex"), [("none", "full"), ("fifo", "full"), ("fifo", "half")]
)
def test_the_sequence_is_that_of_simpy_bit_for_bit(
    cluster, unit_job, jitter, workers, sharing, duplex
):
    machine = cluster(
        workers,
        copy_s=0.4 / workers,
        latency_s=1e-3,
        fold_s=0.7 / workers,
        jitter=jitter,
        sharing=sharing,
        duplex=duplex,
    )
    timeline = Simulation(machine, "parameter_server", unit_job, workers, 3).advance(folds=3000)
    assert sequence(timeline) == simpy_sequence(machine, unit_job, workers, 3000, 3)


def test_the_sequence_of_a_hundred_thousand_workers_is_simpys_too(cluster, unit_job):
    machine = cluster(100_000, fold_s=0.5e-5, jitter=EXPONENTIAL)
    timeline = Simulation(machine, "parameter_server", unit_job, 100_000, 3).advance(folds=3000)
    assert sequence(timeline) == simpy_sequence(machine, unit_job, 100_000, 3000, 3)


def test_kinds_of_device_may_be_mixed(unit_job):
    machine = Cluster(
        name="mixed",
        devices={"fast": Device(1.0), "slow": Device(0.25)},
        workers=(WorkerGroup(1, "fast"), WorkerGroup(1, "slow"), WorkerGroup(1, "slow", 2.0)),
    )
    assert [compute_seconds(machine, unit_job, worker) for worker in range(4)] == [1, 4, 2, 1]
    timeline = Simulation(machine, "parameter_server", unit_job).advance(seconds=400.0)
    assert np.bincount(timeline.folded().worker).tolist() == [400, 100, 200]


def test_lasting_differences_hold_for_the_whole_simulation(cluster, unit_job):
    machine = cluster(6, heterogeneity_cv=0.5)
    timeline = Simulation(machine, "parameter_server", unit_job, 6).advance(folds=600)
    lag_s, worker = timeline.lag_s(), timeline.folded().worker
    each = [lag_s[worker == who] for who in range(6)]
    assert all(mine == pytest.approx(np.full(len(mine), mine[0])) for mine in each)
    assert len({mine[0] for mine in each}) == 6


def test_stragglers_are_as_frequent_and_as_slow_as_asked(cluster, unit_job):
    machine = cluster(4, stragglers=Stragglers(probability=0.1, slowdown=5.0))
    timeline = Simulation(machine, "parameter_server", unit_job, 4).advance(folds=20_000)
    spans = timeline.spans
    lengths = np.round((spans.end_s - spans.start_s)[spans.kind == 1], 6)
    assert set(lengths.tolist()) == {1.0, 5.0}
    assert np.mean(lengths == 5.0) == pytest.approx(0.1, abs=0.01)


def test_two_worker_counts_see_the_same_durations(simulate):
    few, many = (simulate(n, jitter=LOGNORMAL).advance(folds=40) for n in (2, 4))

    def computations(timeline, who):
        spans = timeline.spans
        mine = (spans.worker == who) & (spans.kind == 1)
        return np.round((spans.end_s - spans.start_s)[mine][:8], 9).tolist()

    assert computations(few, 0) == computations(many, 0)
    assert computations(few, 1) == computations(many, 1)

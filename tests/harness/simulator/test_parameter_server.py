import numpy as np
import pytest

from harness.simulator.cluster import Cluster, Device, Jitter, Stragglers, WorkerGroup
from harness.simulator.costs import compute_seconds
from harness.simulator.simulation import Simulation
from harness.simulator.timeline import SERVER
from tests.harness.simulator.conftest import sequence

LOGNORMAL = Jitter("lognormal", 0.3)


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

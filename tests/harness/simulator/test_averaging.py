from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from harness.base.errors import UserError
from harness.simulator import Jitter, Simulation, Workload
from harness.simulator.cluster import Host, Parallel
from harness.simulator.network import Level, Network
from harness.simulator.protocols.averaging import Averaging

JOB = Workload(minibatch_frames=1, flops_per_frame=1.0, parameter_bytes=8.0)
EXPONENTIAL = Jitter("shifted-exponential", 1.0)
LOGNORMAL = Jitter("lognormal", 0.3)


@pytest.fixture
def averaging(cluster):
    """A simulation of averaging; a copy of the whole model takes eight times ``copy_s``."""

    def build(workers=4, every=5, overlap=False, collective="ring", seed=0, **machine):
        more = {name: machine.pop(name) for name in ("network", "parallel") if name in machine}
        built = replace(cluster(workers, **machine), **more)
        return Simulation(built, Averaging(every, overlap, collective), JOB, workers, seed)

    return build


def test_a_round_is_the_slowest_workers_minibatches_and_the_all_reduce(averaging):
    simulation = averaging(4, every=5, copy_s=0.25, latency_s=0.5)
    timeline = simulation.advance(folds=3)
    reduce_s = 2 * 3 * (0.5 + 0.25 * 8 / 4)
    assert timeline.folds.time_s.tolist() == [5 + reduce_s, 10 + 2 * reduce_s, 15 + 3 * reduce_s]


def test_a_fold_holds_one_contribution_of_every_worker(averaging):
    rows = averaging(3, every=7, jitter=LOGNORMAL, copy_s=0.1).advance(folds=4).folded()
    assert rows.fold.tolist() == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3
    assert rows.worker.tolist() == [0, 1, 2] * 4
    assert rows.steps.tolist() == [7] * 12
    assert rows.first_step.tolist() == [7 * fold for fold in rows.fold]
    assert rows.read_version.tolist() == rows.fold.tolist()


def test_with_a_barrier_nothing_is_stale_and_all_read_at_the_fold(averaging):
    timeline = averaging(5, jitter=EXPONENTIAL, copy_s=0.1).advance(folds=50)
    assert set(timeline.staleness().tolist()) == {0}
    rows = timeline.folded()
    assert (rows.read_time_s[5:] == timeline.folds.time_s[rows.fold[5:] - 1]).all()


def test_overlapped_an_all_reduce_shorter_than_a_round_costs_nothing(averaging):
    machine = {"every": 10, "copy_s": 0.1, "latency_s": 0.2}
    waiting, hidden = (averaging(4, overlap=o, **machine) for o in (False, True))
    for simulation in (waiting, hidden):
        simulation.advance(folds=100)
    reduce_s = 6 * (0.2 + 0.1 * 8 / 4)
    assert waiting.now_s == pytest.approx(100 * (10 + reduce_s), rel=1e-12)
    assert hidden.now_s == pytest.approx(100 * 10 + reduce_s, rel=1e-12)


def test_overlapped_an_all_reduce_longer_than_a_round_sets_the_pace(averaging):
    simulation = averaging(4, every=1, overlap=True, copy_s=1.0)
    assert np.diff(simulation.advance(folds=20).folds.time_s) == pytest.approx(6 * 2.0)


def test_one_worker_alone_trains_without_averaging_costs(averaging):
    machine = {"copy_s": 1.0, "latency_s": 1.0, "parallel": Parallel(slowdown=2.0)}
    timeline = averaging(1, every=3, **machine).advance(folds=4)
    assert timeline.folds.time_s.tolist() == [3.0, 6.0, 9.0, 12.0]
    assert timeline.staleness().tolist() == [0] * 4


def test_when_nothing_costs_time_overlapping_changes_nothing(averaging, free_job):
    for overlap in (False, True):
        simulation = averaging(3, overlap=overlap)
        simulation.change(free_job)
        timeline = simulation.advance(folds=10)
        assert set(timeline.staleness().tolist()) == {0}
        assert simulation.now_s == 0.0
        with pytest.raises(UserError, match="no time passes"):
            simulation.advance(seconds=1.0)


def test_a_slow_program_an_epochs_start_and_pageable_copies_are_paid_for(averaging):
    """Ten minibatches an epoch for two workers: rounds of 2, 2 and 1 each, then the next."""
    parallel = Parallel(slowdown=1.5, epoch_minibatches=10, epoch_s=4.0)
    simulation = averaging(2, every=2, parallel=parallel)
    slow = replace(simulation.cluster, host=Host(staging="pageable", staging_bytes_per_s=32.0))
    timeline = Simulation(slow, Averaging(2), JOB, 2).advance(folds=4)
    assert timeline.folds.time_s.tolist() == [7.5, 11.0, 13.0, 20.5]
    assert timeline.folded().steps.tolist() == [2, 2, 2, 2, 1, 1, 2, 2]
    assert timeline.folded().first_step.tolist() == [0, 0, 2, 2, 4, 4, 5, 5]
    names = {timeline.kinds[kind] for kind in timeline.spans.kind}
    assert names == {"epoch", "compute", "push", "fetch"}


@pytest.mark.parametrize("overlap", [False, True])
def test_a_fixed_time_for_each_average_is_paid_once_a_round_and_not_alone(averaging, overlap):
    parallel = Parallel(average_s=0.5)
    one, two = (averaging(n, 4, overlap, parallel=parallel).advance(folds=3) for n in (1, 2))
    assert one.folds.time_s.tolist() == [4.0, 8.0, 12.0]
    assert two.folds.time_s.tolist() == [4.5, 9.0, 13.5]


def test_an_epochs_cost_needs_the_length_of_an_epoch():
    with pytest.raises(UserError, match="epoch_minibatches"):
        Parallel(epoch_s=1.0)


def test_a_change_of_workload_holds_for_rounds_read_afterwards(averaging):
    simulation = averaging(2, every=1)
    simulation.advance(seconds=0.5)
    simulation.change(Workload(minibatch_frames=3, flops_per_frame=1.0, parameter_bytes=0.0))
    assert simulation.advance(folds=3).folds.time_s.tolist() == [1.0, 4.0, 7.0]


def test_workers_of_one_node_share_its_port_in_the_all_reduce(averaging):
    network = Network((Level(1, 100.0), Level(2, 1.0)))
    flat = averaging(4, every=1, network=network, collective="recursive-doubling")
    nested = averaging(4, every=1, network=network, collective="hierarchical")
    assert flat.advance(folds=1).folds.time_s[0] == pytest.approx(1 + 8 / 100 + 2 * 8)
    assert nested.advance(folds=1).folds.time_s[0] == pytest.approx(1 + 2 * 8 / 100 + 8)


def test_all_workers_share_one_link_where_the_cluster_has_only_one(averaging):
    own, shared = (averaging(4, every=1, copy_s=0.25, sharing=s) for s in ("none", "fair"))
    assert own.advance(folds=1).folds.time_s[0] == pytest.approx(1 + 6 * 0.5)
    assert shared.advance(folds=1).folds.time_s[0] == pytest.approx(1 + 6 * 0.5 * 4)


def test_with_a_barrier_nobody_goes_on_before_the_last_has_the_average(averaging):
    """A naive broadcast reaches one worker after the other; a copy takes 1 s."""
    timeline = averaging(3, every=2, collective="naive", copy_s=0.125).advance(folds=3)
    assert timeline.folds.time_s.tolist() == [6.0, 12.0, 18.0]
    assert timeline.folded().read_time_s.tolist() == [0.0] * 3 + [6.0] * 3 + [12.0] * 3

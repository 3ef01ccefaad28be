"""Overlap of averaging with backpropagation, by hand."""

from dataclasses import replace

import pytest

from harness.base.errors import UserError
from harness.simulator import Averaging, Fault, Host, Jitter, Level, Network, Simulation, Workload
from harness.simulator.cluster import Parallel
from harness.simulator.protocols.rounds import MOST_BUCKETS, sizes

JOB = Workload(minibatch_frames=1, flops_per_frame=1.0, parameter_bytes=8.0)


@pytest.fixture
def machine(cluster):
    def build(workers=4, rate=8.0, latency_s=0.0, jitter=None, **parallel):
        network = Network((Level(bandwidth_bytes_per_s=rate, latency_s=latency_s),))
        built = cluster(workers, jitter=jitter)
        return replace(built, network=network, parallel=Parallel(**parallel))

    return build


def test_buckets_hide_all_but_the_last_where_the_network_is_quick_enough(machine):
    """Gradients take 0.5 s; of each of four buckets an all-reduce takes 0.1 s, the last after."""
    built = machine(2, rate=2 * 10.0, backward_share=0.5)
    timeline = Simulation(built, Averaging(1, buckets=(2.0,)), JOB, 2).advance(folds=3)
    assert timeline.folds.time_s.tolist() == pytest.approx([1.1, 2.2, 3.3])


def test_a_slow_network_sets_the_pace_from_the_first_bucket_on(machine):
    """The first bucket is full at 0.625 s; from there eight bytes take 8 s."""
    built = machine(2, rate=1.0, backward_share=0.5, overlap_slowdown=3.0)
    timeline = Simulation(built, Averaging(1, buckets=(2.0,)), JOB, 2).advance(folds=2)
    assert timeline.folds.time_s.tolist() == pytest.approx([8.625, 17.25])
    computing = timeline.spans.where(timeline.spans.kind == timeline.kinds.index("compute"))
    assert computing.end_s[0] == pytest.approx(0.625 + 3 * 0.375)


def test_one_bucket_for_all_is_no_overlap(machine):
    built = machine(4, jitter=Jitter("gamma", 0.4), average_s=0.25)
    whole, bucket = (
        Simulation(built, Averaging(2, buckets=b), JOB, 4).advance(folds=9) for b in ((), (8.0,))
    )
    assert bucket.folds.time_s == pytest.approx(whole.folds.time_s, rel=1e-14)


def test_a_worker_that_dies_while_buckets_travel_is_missed_by_one_more_all_reduce(machine):
    """At 3 s one of three dies; the two others then average all eight bytes anew: 8 s."""
    death = Fault("death", workers=(2,), at_s=(3.0,))
    built = replace(machine(3, rate=1.0), faults=(death,))
    timeline = Simulation(built, Averaging(1, buckets=(2.0,)), JOB, 3).advance(folds=1)
    assert timeline.folds.time_s.tolist() == [11.0]
    assert timeline.folded().worker.tolist() == [0, 1]


def test_the_first_average_costs_more_once(machine):
    built = machine(2, rate=8.0, first_average_s=5.0, average_s=1.0)
    for rules in (Averaging(1), Averaging(1, buckets=(8.0,))):
        timeline = Simulation(built, rules, JOB, 2).advance(folds=3)
        assert timeline.folds.time_s.tolist() == pytest.approx([8.0, 11.0, 14.0])


def test_what_does_not_go_with_buckets_is_refused(machine):
    with pytest.raises(UserError, match="buckets: not allowed with overlap"):
        Averaging(1, overlap=True, buckets=(8.0,))
    pageable = replace(machine(), host=Host(staging="pageable", staging_bytes_per_s=1.0))
    with pytest.raises(UserError, match="'pageable'"):
        Simulation(pageable, Averaging(1, buckets=(8.0,)), JOB)
    with pytest.raises(UserError, match=f"more than {MOST_BUCKETS}"):
        sizes((1.0,), MOST_BUCKETS + 1.0)

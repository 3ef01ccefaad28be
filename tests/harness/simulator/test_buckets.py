"""Overlap of averaging with backpropagation, against SimPy and by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import simpy

from harness.base.errors import UserError
from harness.simulator import Averaging, Fault, Host, Jitter, Level, Network, Simulation, Workload
from harness.simulator.cluster import Parallel
from harness.simulator.costs import computation_s, costs_of
from harness.simulator.protocols.rounds import MOST_BUCKETS, sizes

JOB = Workload(minibatch_frames=1, flops_per_frame=1.0, parameter_bytes=8.0)


class BucketModel:
    """Workers that compute and, beside that, an agent of each that averages bucket after bucket.

    A worker's speed changes whenever its agent begins or ends an all-reduce, so its computing is
    interrupted and goes on at the other pace. The ring sends part by part, to whoever waits.

    Args:
        machine, workers, seed, every: as of a simulation.
        parts: bytes of each bucket.
    """

    def __init__(self, machine, workers, seed, every, parts):
        self.env, self.costs = simpy.Environment(), costs_of(machine, JOB, workers, seed)
        self.level, self.parallel = machine.network.levels[0], machine.parallel
        self.workers, self.every, self.parts = workers, every, parts
        self.folds_s = []

    def run(self, folds):
        self.env.run(self.env.process(self.rounds(folds)))
        return self.folds_s

    def rounds(self, folds):
        for fold in range(folds):
            self.events = {}
            yield self.env.all_of(
                [self.env.process(self.worker(who, fold)) for who in range(self.workers)]
            )
            self.folds_s.append(self.env.now)

    def event(self, *key):
        return self.events.setdefault(key, self.env.event())

    def worker(self, who, fold):
        env, costs, parallel = self.env, self.costs, self.parallel
        busy, full = [0], [env.event() for _ in self.parts]
        agent = env.process(self.agent(who, full, busy, env.active_process))
        steps = range(fold * self.every, (fold + 1) * self.every)
        last_s = 0.0
        for step in steps:
            last_s = computation_s(costs, who, step)
            alone_s = last_s * ((1.0 - parallel.backward_share) if step == steps[-1] else 1.0)
            yield env.timeout(alone_s)
        for place, part in enumerate(self.parts):
            left_s = last_s * parallel.backward_share * part / sum(self.parts)
            while left_s > 1e-15:
                pace, began_s = parallel.overlap_slowdown if busy[0] else 1.0, env.now
                try:
                    yield env.timeout(left_s * pace)
                    left_s = 0.0
                except simpy.Interrupt:
                    left_s -= (env.now - began_s) / pace
            full[place].succeed()
        yield agent

    def agent(self, who, full, busy, worker):
        for place, part in enumerate(self.parts):
            yield full[place]
            if place == len(self.parts) - 1:
                yield self.env.timeout(self.parallel.average_s)
            for begins in (1, 0):
                busy[0] = begins
                if not full[-1].triggered:
                    worker.interrupt()
                if begins:
                    yield from self.ring(who, place, part / self.workers)

    def ring(self, who, place, size):
        after, before = (who + 1) % self.workers, (who - 1) % self.workers
        for number in range(2 * (self.workers - 1)):
            self.event(place, number, who, "entered").succeed()
            sending = self.env.process(self.message(place, number, who, after, size))
            arrived = self.event(place, number, before, "arrived")
            yield sending & arrived

    def message(self, place, number, who, after, size):
        yield self.event(place, number, after, "entered")
        yield self.env.timeout(size / self.level.bandwidth_bytes_per_s)
        self.env.process(self.arrival(place, number, who))

    def arrival(self, place, number, who):
        yield self.env.timeout(self.level.latency_s)
        self.event(place, number, who, "arrived").succeed()


@pytest.fixture
def machine(cluster):
    def build(workers=4, rate=8.0, latency_s=0.0, jitter=None, **parallel):
        network = Network((Level(bandwidth_bytes_per_s=rate, latency_s=latency_s),))
        built = cluster(workers, jitter=jitter)
        return replace(built, network=network, parallel=Parallel(**parallel))

    return build


@pytest.mark.parametrize("rate", [4.0, 16.0, 60.0])
@pytest.mark.parametrize("slowdown", [1.0, 1.7])
@pytest.mark.parametrize("every", [1, 3])
def test_overlap_with_backpropagation_is_that_of_simpy(machine, rate, slowdown, every):
    built = machine(4, rate, 0.01, Jitter("gamma", 0.4), overlap_slowdown=slowdown, average_s=0.02)
    folds_s = BucketModel(built, 4, 7, every, [1.0, 3.0, 3.0, 1.0]).run(20)
    rules = Averaging(every, buckets=(1.0, 3.0))
    timeline = Simulation(built, rules, JOB, 4, 7).advance(folds=20)
    assert timeline.folds.time_s.tolist() == pytest.approx(folds_s, rel=1e-12)


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

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import simpy

from harness.base.errors import UserError
from harness.simulator import Jitter, Simulation, Workload, concat
from harness.simulator.cluster import Host, Parallel
from harness.simulator.costs import computation_s, costs_of
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


def sequence(timeline):
    """(time, worker, staleness) of every contribution."""
    rows = timeline.folded()
    times = timeline.folds.time_s[rows.fold - timeline.folds.fold[0]].tolist()
    return list(zip(times, rows.worker.tolist(), timeline.staleness().tolist(), strict=True))


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


def test_overlapped_every_contribution_but_the_first_is_one_fold_stale(averaging):
    timeline = averaging(5, overlap=True, jitter=EXPONENTIAL, copy_s=0.1).advance(folds=50)
    assert timeline.staleness().tolist() == [0] * 5 + [1] * 5 * 49


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


def test_averaging_that_costs_nothing_takes_the_time_of_its_slowest_worker_alone(averaging):
    timeline = averaging(4, every=1, jitter=LOGNORMAL).advance(folds=20)
    machine = averaging(4, jitter=LOGNORMAL).cluster
    costs, time_s = costs_of(machine, JOB, 4, 0), 0.0
    for step in range(20):
        time_s = max(time_s + computation_s(costs, who, step) for who in range(4))
        assert timeline.folds.time_s[step] == time_s


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


@pytest.mark.parametrize("overlap", [False, True])
def test_nobody_does_two_things_at_once(averaging, overlap):
    simulation = averaging(4, overlap=overlap, copy_s=0.3, jitter=EXPONENTIAL)
    spans = simulation.advance(folds=200).spans
    for lane in (-1, *range(4)):
        mine = spans.worker == lane
        order = np.argsort(spans.start_s[mine], kind="stable")
        start_s, end_s = spans.start_s[mine][order], spans.end_s[mine][order]
        assert (start_s[1:] >= end_s[:-1]).all()
        assert (end_s > start_s).all()


VARIANTS = pytest.mark.parametrize(
    ("overlap", "collective"), [(False, "ring"), (True, "ring"), (True, "recursive-doubling")]
)


@VARIANTS
def test_two_segments_are_what_one_of_their_sum_is(averaging, overlap, collective):
    def fresh():
        return averaging(3, overlap=overlap, collective=collective, copy_s=0.2, jitter=EXPONENTIAL)

    whole = fresh().advance(folds=30)
    simulation = fresh()
    parts = [simulation.advance(folds=7), simulation.advance(seconds=3.5)]
    parts.append(simulation.advance(folds=30 - simulation.version))
    assert concat(parts).sha256() == whole.sha256()


@VARIANTS
@pytest.mark.parametrize("seconds", [0.0, 4.0, 11.7, 60.0])
def test_a_restored_simulation_goes_on_as_if_never_interrupted(
    averaging, overlap, collective, seconds
):
    machine = {
        "overlap": overlap,
        "collective": collective,
        "copy_s": 0.2,
        "jitter": EXPONENTIAL,
        "seed": 4,
    }
    simulation = averaging(3, **machine)
    simulation.advance(seconds=seconds)
    again = Simulation.restore(
        simulation.cluster, simulation.protocol, simulation.state(), 3, seed=4
    )
    assert again.advance(folds=20).sha256() == simulation.advance(folds=20).sha256()


@pytest.mark.parametrize("overlap", [False, True])
def test_draining_folds_what_was_begun_and_leaves_everyone_idle(averaging, overlap):
    simulation = averaging(4, overlap=overlap, copy_s=0.2, jitter=LOGNORMAL)
    simulation.advance(folds=3)
    timeline = simulation.advance(folds=6, drain=True)
    assert (simulation.drained, simulation.version, simulation.dispatched) == (True, 9, 9)
    assert len(timeline.in_flight()) == 0
    simulation.pause(2.0, "search")
    timeline = simulation.advance(seconds=20.0, drain=True)
    assert simulation.drained
    assert simulation.version == simulation.dispatched
    assert (timeline.folded().read_version[:4] == 9).all()


@pytest.mark.parametrize("overlap", [False, True])
def test_every_read_has_one_fold_or_is_in_flight(averaging, overlap):
    simulation = averaging(3, every=4, overlap=overlap, copy_s=0.2, jitter=EXPONENTIAL)
    simulation.advance(folds=10)
    timeline = simulation.advance(seconds=33.3)
    known = timeline.contributions
    pairs = list(zip(known.worker.tolist(), known.first_step.tolist(), strict=True))
    assert len(set(pairs)) == len(pairs)
    assert (known.read_time_s <= simulation.now_s).all()
    for worker in range(3):
        steps = np.sort(known.first_step[known.worker == worker])
        assert (np.diff(steps) == 4).all()


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


def simpy_sequence(machine, workers, every, overlap, collective, folds, seed):
    """Averaging as SimPy processes, with the durations drawn beforehand.

    A worker's messages go to a port of its receiver that takes one at a time, once both are
    there; a round of the all-reduce is over when a worker has sent and received.
    """
    costs, env = costs_of(machine, JOB, workers, seed), simpy.Environment()
    latency_s, rate = machine.link.latency_s, machine.link.bandwidth_bytes_per_s
    ports = [simpy.Resource(env) for _ in range(workers)]
    there, got, done = {}, {}, {}
    record, complete = [], {-1: env.event().succeed()}

    def event_of(table, *key):
        return table.setdefault(key, env.event())

    def message(key, source, target, size):
        yield event_of(there, "sender", *key) & event_of(there, "receiver", *key)
        with ports[target].request() as turn:
            yield turn
            yield env.timeout(size / rate)
        event_of(done, *key).succeed()
        yield env.timeout(latency_s)
        event_of(got, *key).succeed()

    def partners(who, number):
        if collective == "ring":
            return (who + 1) % workers, (who - 1) % workers, JOB.parameter_bytes / workers
        return who ^ (1 << number), who ^ (1 << number), JOB.parameter_bytes

    def all_reduce(who, fold):
        rounds = 2 * (workers - 1) if collective == "ring" else int(math.log2(workers))
        for number in range(rounds):
            target, source, size = partners(who, number)
            out, into = (fold, number, who, target), (fold, number, source, who)
            env.process(message(out, who, target, size))
            event_of(there, "sender", *out).succeed()
            event_of(there, "receiver", *into).succeed()
            yield event_of(done, *out) & event_of(got, *into)
        finished[fold] = finished.get(fold, 0) + 1
        if finished[fold] == workers:
            versions.append(env.now)
            record.extend((env.now, w, fold - read[fold, w]) for w in range(workers))
            complete[fold].succeed()

    def worker(who):
        step = 0
        for fold in range(folds):
            complete.setdefault(fold, env.event())
            read[fold, who] = len(versions)
            for _ in range(every):
                yield env.timeout(computation_s(costs, who, step))
                step += 1
            if overlap:
                yield complete[fold - 1]
                env.process(all_reduce(who, fold))
            else:
                yield env.process(all_reduce(who, fold))
                yield complete[fold]

    finished, versions, read = {}, [], {}
    for who in range(workers):
        env.process(worker(who))
    env.run()
    return record


@pytest.mark.parametrize("jitter", [EXPONENTIAL, LOGNORMAL], ids=lambda law: law.law)
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(
    ("collective", "workers"),
    [("ring", 2), ("ring", 5), ("ring", 16), ("recursive-doubling", 8), ("recursive-doubling", 16)],
)
def test_the_sequence_is_that_of_simpy_bit_for_bit(averaging, collective, workers, overlap, jitter):
    simulation = averaging(
        workers, 3, overlap, collective, 3, jitter=jitter, copy_s=0.05, latency_s=1e-3
    )
    expected = simpy_sequence(simulation.cluster, workers, 3, overlap, collective, 25, 3)
    assert sequence(simulation.advance(folds=25)) == expected


def test_with_a_barrier_nobody_goes_on_before_the_last_has_the_average(averaging):
    """A naive broadcast reaches one worker after the other; a copy takes 1 s."""
    timeline = averaging(3, every=2, collective="naive", copy_s=0.125).advance(folds=3)
    assert timeline.folds.time_s.tolist() == [6.0, 12.0, 18.0]
    assert timeline.folded().read_time_s.tolist() == [0.0] * 3 + [6.0] * 3 + [12.0] * 3

from dataclasses import replace

import pytest

from harness.base.errors import UserError
from harness.simulator.cluster import Checkpoints, Fault, Host, Jitter, Parallel, Workload
from harness.simulator.network import Level, Network
from harness.simulator.protocols.all_reduce import MOST_BUCKETS, sizes
from harness.simulator.protocols.averaging import Averaging
from harness.simulator.simulation import Simulation

JOB = Workload(minibatch_frames=1, flops_per_frame=1.0, parameter_bytes=8.0)
LOGNORMAL = Jitter("lognormal", 0.3)


@pytest.fixture
def averaging(cluster):
    """A simulation of averaging; a copy of the whole model takes eight times ``copy_s``."""

    def build(workers=4, every=5, overlap=False, collective="ring", seed=0, **machine):
        more = {name: machine.pop(name) for name in ("network", "parallel") if name in machine}
        built = replace(cluster(workers, **machine), **more)
        return Simulation(built, Averaging(every, overlap, collective), JOB, workers, seed)

    return build


NODES = {"network": Network((Level(1, 100.0), Level(2, 1.0)))}
DEAR = {"copy_s": 1.0, "latency_s": 1.0, "parallel": Parallel(slowdown=2.0)}
PAUSES = {"parallel": Parallel(average_s=0.5)}
BY_HAND = {  # workers, minibatches a round, settings, times of folds
    "a ring after the minibatches": (
        4, 5, {"copy_s": 0.25, "latency_s": 0.5}, [11.0, 22.0, 33.0],  # 2 · 3 (0.5 + 0.25 · 8 / 4)
    ),
    "overlapped, the longer ring sets the pace": (
        4, 1, {"copy_s": 1.0, "overlap": True}, [1 + 12.0 * k for k in range(1, 9)],
    ),
    "alone nothing is averaged": (1, 3, DEAR, [3.0, 6.0, 9.0, 12.0]),
    "nor is an average waited for": (1, 4, PAUSES, [4.0, 8.0, 12.0]),
    "among two it is, once a round": (2, 4, PAUSES, [4.5, 9.0, 13.5]),
    "also overlapped": (2, 4, {**PAUSES, "overlap": True}, [4.5, 9.0, 13.5]),
    "two of a node send through one port": (
        4, 1, {**NODES, "collective": "recursive-doubling"}, [1 + 8 / 100 + 2 * 8],
    ),
    "a link for each": (4, 1, {"copy_s": 0.25}, [1 + 6 * 0.5]),
    "one link for all": (4, 1, {"copy_s": 0.25, "sharing": "fair"}, [1 + 6 * 0.5 * 4]),
}  # fmt: skip


@pytest.mark.parametrize("case", BY_HAND)
def test_folds_are_at_the_times_calculated_by_hand(averaging, case):
    workers, every, settings, times_s = BY_HAND[case]
    timeline = averaging(workers, every, **settings).advance(folds=len(times_s))
    assert timeline.folds.time_s == pytest.approx(times_s)


def test_a_fold_holds_one_contribution_of_every_worker(averaging):
    rows = averaging(3, every=7, jitter=LOGNORMAL, copy_s=0.1).advance(folds=4).folded()
    assert rows.fold.tolist() == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3
    assert rows.worker.tolist() == [0, 1, 2] * 4
    assert rows.steps.tolist() == [7] * 12
    assert rows.first_step.tolist() == [7 * fold for fold in rows.fold]
    assert rows.read_version.tolist() == rows.fold.tolist()


def test_overlapped_an_all_reduce_shorter_than_a_round_costs_nothing(averaging):
    machine = {"every": 10, "copy_s": 0.1, "latency_s": 0.2}
    waiting, hidden = (averaging(4, overlap=o, **machine) for o in (False, True))
    for simulation in (waiting, hidden):
        simulation.advance(folds=100)
    reduce_s = 6 * (0.2 + 0.1 * 8 / 4)
    assert waiting.now_s == pytest.approx(100 * (10 + reduce_s), rel=1e-12)
    assert hidden.now_s == pytest.approx(100 * 10 + reduce_s, rel=1e-12)


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


def test_an_epochs_cost_needs_the_length_of_an_epoch():
    with pytest.raises(UserError, match="epoch_minibatches"):
        Parallel(epoch_s=1.0)


def test_with_a_barrier_nobody_goes_on_before_the_last_has_the_average(averaging):
    """Two of three exchange sums, and then the third receives the sum; a copy takes 1 s."""
    reduce = {"collective": "recursive-doubling", "copy_s": 0.125}
    timeline = averaging(3, every=2, **reduce).advance(folds=3)
    assert timeline.folds.time_s.tolist() == [5.0, 10.0, 15.0]
    assert timeline.folded().read_time_s.tolist() == [0.0] * 3 + [5.0] * 3 + [10.0] * 3


def test_what_does_not_go_with_buckets_is_refused(averaging):
    with pytest.raises(UserError, match="buckets: not allowed with overlap"):
        Averaging(1, overlap=True, buckets=(8.0,))
    pageable = Host(staging="pageable", staging_bytes_per_s=1.0)
    cluster = replace(averaging().cluster, host=pageable, network=Network((Level(1, 8.0),)))
    with pytest.raises(UserError, match="'pageable'"):
        Simulation(cluster, Averaging(1, buckets=(8.0,)), JOB)
    with pytest.raises(UserError, match=f"more than {MOST_BUCKETS}"):
        sizes((1.0,), MOST_BUCKETS + 1.0)


class OneByOne(Averaging):
    """Averaging without passing rounds at once."""

    def _pass_rounds(self, *settings):
        return False


DEATHS = Fault("death", mean_s=90.0, down_s=7.0)
EVENTS = {
    "none": {},
    "deaths": {"faults": (DEATHS,)},
    "notices and preemptions": {
        "faults": (replace(DEATHS, notice_s=3.0), Fault("preemption", mean_s=60.0, down_s=20.0)),
    },
    "late": {"faults": (Fault("late", workers=(0,), at_s=(12.5,)),)},
    "checkpoints": {"faults": (DEATHS,), "checkpoints": Checkpoints(7, 0.5, 2.0)},
    "epochs": {"faults": (DEATHS,), "parallel": Parallel(1.5, 0.25, 40, 3.0, 0.5)},
}


@pytest.mark.parametrize("events", EVENTS)
@pytest.mark.parametrize("workers", [1, 3])
def test_rounds_that_pass_at_once_are_those_one_by_one(cluster, events, workers):
    """In segments by folds, by seconds and drained ones, whose limits cut a stretch of rounds."""
    machine = replace(
        cluster(workers, copy_s=0.125, latency_s=0.25, jitter=LOGNORMAL), **EVENTS[events]
    )
    quick, slow = (Simulation(machine, kind(3), JOB, workers) for kind in (Averaging, OneByOne))
    for limits in ({"folds": 60}, {"seconds": 33.0}, {"seconds": 9.0, "drain": True}) * 3:
        assert quick.advance(**limits).sha256() == slow.advance(**limits).sha256()
        assert (quick.now_s, quick.dispatched) == (slow.now_s, slow.dispatched)


@pytest.mark.parametrize("workers", [1, 8])
def test_between_rare_deaths_no_round_is_begun_on_its_own(cluster, monkeypatch, workers):
    """A long run of one worker has hundreds of thousands of rounds, and some tens of deaths."""
    begun, hand_out = [], Averaging._hand_out
    monkeypatch.setattr(Averaging, "_hand_out", lambda *at: begun.append(at) or hand_out(*at))
    faults = (Fault("death", mean_s=1e4, down_s=10.0),)
    machine = replace(cluster(workers, copy_s=0.01, jitter=LOGNORMAL), faults=faults)
    timeline = Simulation(machine, Averaging(1), JOB, workers).advance(folds=20_000)
    assert len(begun) <= 3 + 3 * len(timeline.lost())

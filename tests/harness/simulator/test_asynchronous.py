from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from harness.base.errors import UserError
from harness.simulator import Jitter, ParameterServer, Simulation, concat
from harness.simulator.faults import Fault
from harness.simulator.timeline_file import load_timeline, save_timeline

SPEC = importlib.util.spec_from_file_location("m", Path(__file__).parent / "simpy_server.py")
simpy_server = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(simpy_server)

EXPONENTIAL = Jitter("shifted-exponential", 1.0)
LOGNORMAL = Jitter("lognormal", 0.3)
BUSY = {"copy_s": 0.2, "latency_s": 0.01, "fold_s": 0.1, "jitter": LOGNORMAL}
EVERYTHING = (
    Fault("death", mean_s=20.0, down_s=3.0),
    Fault("death", workers=(1,), at_s=(4.0, 5.0, 90.0), down_s=0.0),
    Fault("preemption", mean_s=15.0, down_s=2.0),
    Fault("late", workers=(2, 3), at_s=(7.5,)),
    Fault("message", probability=0.2, retry_s=0.3),
    Fault("server", at_s=(16.0, 44.0, 71.0), down_s=4.0, checkpoint_s=9.0),
)


@pytest.fixture
def run(cluster, unit_job):
    """A simulation of a protocol on a cluster with the durations named."""

    def build(workers=5, seed=0, faults=(), durations=BUSY, sharing="none", **settings):
        machine = cluster(workers, faults=faults, sharing=sharing, **durations)
        return Simulation(machine, ParameterServer(**settings), unit_job, workers, seed)

    return build


def sequence(timeline):
    """(time, worker, staleness) of every fold."""
    times, workers = timeline.folds.time_s.tolist(), timeline.folded().worker.tolist()
    return list(zip(times, workers, timeline.staleness().tolist(), strict=True))


@pytest.mark.parametrize("jitter", [EXPONENTIAL, LOGNORMAL], ids=lambda law: law.law)
@pytest.mark.parametrize(("workers", "bound"), [(4, 0), (4, 1), (50, 2), (200, 5)])
def test_bounded_staleness_is_simpys_bit_for_bit(cluster, unit_job, jitter, workers, bound):
    machine = cluster(workers, copy_s=0.1, latency_s=1e-3, fold_s=0.7 / workers, jitter=jitter)
    protocol = ParameterServer(bound=bound)
    timeline = Simulation(machine, protocol, unit_job, workers, 3).advance(folds=2000)
    model = simpy_server.Model(machine, unit_job, workers, 3, bound=bound)
    assert sequence(timeline) == model.run(2000)


@pytest.mark.parametrize("bound", [None, 1])
@pytest.mark.parametrize("workers", [2, 6, 40])
def test_a_workers_death_and_return_are_simpys_bit_for_bit(cluster, unit_job, workers, bound):
    deaths = ((0, 7.77, 5.5), (1, 9.13, 0.25), (0, 31.3, 12.0))
    faults = tuple(
        Fault("death", workers=(who,), at_s=(at_s,), down_s=down_s) for who, at_s, down_s in deaths
    )
    machine = cluster(workers, copy_s=0.2, fold_s=0.7 / workers, jitter=LOGNORMAL, faults=faults)
    simulation = Simulation(machine, ParameterServer(bound=bound), unit_job, workers, 3)
    timeline = simulation.advance(folds=60 * workers)
    model = simpy_server.Model(machine, unit_job, workers, 3, bound=bound, deaths=deaths)
    assert sequence(timeline) == model.run(60 * workers)
    assert len(timeline.lost()) == model.lost > 0


@pytest.mark.parametrize("queue", [1, 2, 7])
def test_a_server_with_few_places_is_simpys_bit_for_bit(cluster, unit_job, queue):
    machine = cluster(12, copy_s=0.1, fold_s=0.2, jitter=EXPONENTIAL)
    simulation = Simulation(machine, ParameterServer(queue=queue), unit_job, 12, 3)
    model = simpy_server.Model(machine, unit_job, 12, 3, queue=queue)
    assert sequence(simulation.advance(folds=1500)) == model.run(1500)


SETTINGS = [
    {},
    {"bound": 1},
    {"queue": 2},
    {"depth": 3},
    {"push_every": 2, "fetch_every": 6},
    {"bound": 2, "queue": 1, "depth": 2, "fetch_every": 3},
]


@pytest.mark.parametrize("sharing", ["none", "fifo", "fair"])
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_every_read_is_folded_once_or_lost_once_or_in_flight(run, sharing, settings):
    simulation = run(faults=EVERYTHING, sharing=sharing, **settings)
    segments = [simulation.advance(folds=70), simulation.advance(seconds=40.0)]
    segments.append(simulation.advance(folds=130))
    whole = concat(segments)
    rows = whole.contributions
    steps = settings.get("push_every", 1)
    assert sorted(rows.first_step.tolist()) == list(range(0, simulation.dispatched, steps))
    assert set(rows.steps.tolist()) == {steps}
    assert len(whole.folded()) == len(whole.folds) == simulation.version
    assert whole.folded().fold.tolist() == list(range(simulation.version))
    assert len(whole.lost()) > 0
    assert len(whole.kept()) < len(whole.folded())
    assert np.all(np.diff(whole.folds.time_s) >= 0.0)
    assert np.all(whole.staleness() >= 0)
    assert np.all(whole.lag_s() > 0.0)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_segments_and_a_restore_change_nothing(run, settings):
    parts, whole = (run(faults=EVERYTHING, **settings) for _ in range(2))
    segments = [parts.advance(folds=folds) for folds in (1, 0, 60, 39)]
    saved = parts.state()
    parts = Simulation.restore(parts.cluster, parts.protocol, saved, workers=5)
    segments.append(parts.advance(folds=200))
    assert concat(segments).sha256() == whole.advance(folds=300).sha256()
    assert len(concat(segments).restarts) > 0


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("faults", [(), EVERYTHING], ids=["no faults", "faults"])
def test_a_drained_segment_has_all_its_folds_and_leaves_nothing_under_way(run, settings, faults):
    simulation = run(faults=faults, **settings)
    for folds in (40, 1, 0, 77):
        before = simulation.version
        timeline = simulation.advance(folds=folds, drain=True)
        assert simulation.version == before + folds
        assert len(timeline.in_flight()) == 0
        assert simulation.drained
    simulation.advance(seconds=20.0, drain=True)
    assert simulation.drained
    drained_s = simulation.now_s
    simulation.pause(100.0, "search")
    later = simulation.advance(folds=30)
    assert np.all(np.diff(later.folds.time_s, prepend=drained_s + 100.0) >= 0.0)


@pytest.mark.parametrize("bound", [0, 1, 4])
def test_nobody_begins_when_too_far_ahead_of_the_slowest(run, bound):
    timeline = run(workers=8, bound=bound, durations={"jitter": EXPONENTIAL}).advance(folds=3000)
    rows = timeline.folded()
    folds = np.zeros(8, int)
    for version, worker in enumerate(rows.worker.tolist()):
        for reader in rows.worker[rows.read_version == version]:
            assert folds[reader] <= folds.min() + bound
        folds[worker] += 1
    assert timeline.staleness().max() <= 7 * (2 * bound + 1)


def test_bound_zero_lets_all_workers_take_turns(run):
    timeline = run(workers=6, bound=0).advance(folds=600)
    rounds = timeline.folded().worker.reshape(100, 6)
    assert all(sorted(turn) == list(range(6)) for turn in rounds.tolist())


def test_contributions_of_several_steps_take_as_long_and_read_once(run):
    timeline = run(workers=1, push_every=3, fetch_every=6, durations={"copy_s": 0.25}).advance(
        folds=6
    )
    # fetch 0.25 before every second contribution, three computations, push 0.25
    assert timeline.folds.time_s.tolist() == [3.5, 6.75, 10.25, 13.5, 17.0, 20.25]
    assert timeline.folded().read_version.tolist() == [0, 0, 2, 2, 4, 4]
    assert timeline.folded().read_time_s.tolist() == [0.0, 0.0, 6.75, 6.75, 13.5, 13.5]
    assert timeline.folded().first_step.tolist() == [0, 3, 6, 9, 12, 15]


def test_a_worker_that_does_not_wait_for_its_fold_computes_all_the_time(run):
    slow_server = {"copy_s": 0.25, "fold_s": 0.5}
    waits, goes_on = (run(workers=1, depth=d, durations=slow_server) for d in (1, 2))
    assert waits.advance(folds=3).folds.time_s.tolist() == [2.0, 4.0, 6.0]
    ahead = goes_on.advance(folds=3)
    # fetch and compute take 1.25; push and fold of the one before fall inside
    assert ahead.folds.time_s.tolist() == [2.0, 3.25, 4.5]
    assert ahead.staleness().tolist() == [0, 1, 1]


def test_a_full_server_makes_workers_wait_before_they_send(run):
    """Two places and a fold a second: the link is never asked to carry more than two."""
    simulation = run(workers=6, queue=2, durations={"copy_s": 0.5, "fold_s": 1.0})
    timeline = simulation.advance(folds=100)
    assert np.all(np.diff(timeline.folds.time_s) == 1.0)
    spans = timeline.spans
    push = spans.kind == 2
    starts, ends = spans.start_s[push], timeline.folds.time_s
    taken = [np.sum(starts <= t) - np.sum(ends <= t) for t in np.sort(starts)]
    assert max(taken) == 2


def test_a_death_costs_what_the_worker_had_under_way_and_the_time_it_is_away(run):
    faults = (Fault("death", workers=(0,), at_s=(2.5,), down_s=3.0),)
    timeline = run(workers=1, faults=faults, durations={}).advance(folds=4)
    assert timeline.folds.time_s.tolist() == [1.0, 2.0, 6.5, 7.5]
    lost = timeline.lost()
    assert (lost.first_step.tolist(), lost.read_time_s.tolist()) == ([2], [2.0])


def test_a_preempted_worker_finishes_first_and_loses_nothing(run):
    faults = (Fault("preemption", workers=(0,), at_s=(2.5,), down_s=3.0),)
    timeline = run(workers=1, faults=faults, durations={}).advance(folds=4)
    assert timeline.folds.time_s.tolist() == [1.0, 2.0, 3.0, 7.0]
    assert len(timeline.lost()) == 0


def test_a_late_worker_joins_when_it_is_there(run):
    faults = (Fault("late", workers=(1,), at_s=(2.5,)),)
    timeline = run(workers=2, faults=faults, durations={}).advance(folds=6)
    assert timeline.folds.time_s.tolist() == [1.0, 2.0, 3.0, 3.5, 4.0, 4.5]
    assert timeline.folded().worker.tolist() == [0, 0, 0, 1, 0, 1]


def test_a_lost_message_is_sent_again_after_the_time_named(run):
    faults = (Fault("message", probability=0.5, retry_s=10.0),)
    timeline = run(workers=1, faults=faults, durations={}).advance(folds=400)
    steps = np.diff(timeline.folds.time_s, prepend=0.0)
    assert set(np.unique((steps - 1.0) % 10.0).tolist()) == {0.0}
    lost = (steps - 1.0) / 10.0
    assert lost.mean() == pytest.approx(1.0, abs=0.2)  # p / (1 - p) a contribution
    assert len(timeline.lost()) == 0


def test_a_server_goes_on_from_its_last_checkpoint(run):
    """Two workers fold at 1, 1, 2, 2, 3; at 3.5 the server fails; its checkpoint is of 2.25."""
    faults = (Fault("server", at_s=(3.5,), down_s=2.0, checkpoint_s=2.25),)
    timeline = run(workers=2, faults=faults, durations={}).advance(folds=8)
    restarts = timeline.restarts
    assert restarts.time_s.tolist() == [5.5]
    assert restarts.version.tolist() == [6]
    assert restarts.restored_version.tolist() == [4]
    assert timeline.kept().fold.tolist() == [0, 1, 2, 3, 6, 7]
    # both were computing and were done at 4, but the server is there again at 5.5
    assert timeline.folds.time_s.tolist() == [1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 5.5, 5.5]


def test_what_queues_at_a_server_that_fails_is_lost(run):
    faults = (Fault("server", at_s=(1.5,), down_s=2.0, checkpoint_s=100.0),)
    timeline = run(workers=3, faults=faults, durations={"fold_s": 1.0}).advance(folds=3)
    assert len(timeline.lost()) == 3
    assert timeline.folds.time_s.tolist() == [5.5, 6.5, 7.5]


def test_losing_workers_of_whom_some_never_return_ends_in_one_clear_line(run):
    simulation = run(workers=3, faults=(Fault("death", mean_s=5.0),))
    with pytest.raises(UserError, match="every worker has left permanently"):
        simulation.advance(folds=1000)


def test_faults_strike_at_the_same_instants_whatever_the_protocol(run):
    faults = (Fault("death", mean_s=9.0, down_s=1.0),)

    def losses(**settings):
        simulation = run(workers=4, faults=faults, **settings)
        simulation.advance(seconds=200.0)
        return simulation._state.occurrences.tolist()

    assert losses() == losses(bound=0) == losses(depth=2)


def test_a_timeline_with_losses_and_restarts_survives_the_file(run, tmp_path):
    timeline = run(faults=EVERYTHING).advance(folds=300)
    save_timeline(timeline, tmp_path / "t")
    again = load_timeline(tmp_path / "t")
    assert again.sha256() == timeline.sha256()
    assert again.restarts.version.tolist() == timeline.restarts.version.tolist() != []


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"kind": "death"}, "mean_s"),
        ({"kind": "death", "mean_s": 1.0, "at_s": (1.0,)}, "mean_s"),
        ({"kind": "death", "at_s": (2.0, 1.0)}, "order"),
        ({"kind": "message", "probability": 0.1}, "retry_s"),
        ({"kind": "server", "mean_s": 1.0, "down_s": 1.0}, "checkpoint_s"),
        ({"kind": "preemption", "mean_s": 1.0}, "down_s"),
        ({"kind": "late", "mean_s": 1.0}, "at_s"),
        ({"kind": "deaht", "mean_s": 1.0}, "did you mean 'death'"),
    ],
)
def test_a_fault_without_what_it_needs_is_refused(table, words):
    with pytest.raises(UserError, match=words):
        Fault(**table)


def test_a_fetch_interval_that_splits_a_contribution_is_refused():
    with pytest.raises(UserError, match="multiple of push_every"):
        ParameterServer(push_every=3, fetch_every=4)


def test_whom_the_bound_held_goes_on_when_a_failure_takes_what_it_had_under_way(run):
    """Otherwise all wait for one another for good: nobody's folds are ever counted."""
    faults = (
        Fault("server", at_s=(2.0, 4.0, 8.0), down_s=1.0, checkpoint_s=1.0),
        Fault("death", workers=(2,), mean_s=60.0, down_s=0.5),
    )
    simulation = run(workers=3, faults=faults, bound=0, depth=3)
    timeline = simulation.advance(seconds=200.0)
    assert len(timeline.restarts) == 3
    assert np.diff(timeline.folds.time_s, append=200.0).max() < 10.0

import numpy as np
import pytest

from harness.base.errors import UserError
from harness.simulator import Jitter, ParameterServer, Simulation
from harness.simulator.faults import Fault

EXPONENTIAL = Jitter("shifted-exponential", 1.0)
LOGNORMAL = Jitter("lognormal", 0.3)
BUSY = {"copy_s": 0.2, "latency_s": 0.01, "fold_s": 0.1, "jitter": LOGNORMAL}


@pytest.fixture
def run(cluster, unit_job):
    """A simulation of a protocol on a cluster with the durations named."""

    def build(workers=5, seed=0, faults=(), durations=BUSY, sharing="none", **settings):
        machine = cluster(workers, faults=faults, sharing=sharing, **durations)
        return Simulation(machine, ParameterServer(**settings), unit_job, workers, seed)

    return build


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


@pytest.mark.parametrize(
    ("fault", "workers", "fold_s", "times_s", "lost"),
    [
        # a death costs what was under way and the time away, a preemption the latter alone
        (Fault("death", (0,), at_s=(2.5,), down_s=3.0), 1, 0.0, [1.0, 2.0, 6.5, 7.5], [2]),
        (Fault("preemption", (0,), at_s=(2.5,), down_s=3.0), 1, 0.0, [1.0, 2.0, 3.0, 7.0], []),
        (Fault("late", (1,), at_s=(2.5,)), 2, 0.0, [1.0, 2.0, 3.0, 3.5, 4.0, 4.5], []),
        # what queues at a server that fails
        (
            Fault("server", at_s=(1.5,), down_s=2.0, checkpoint_s=100.0),
            *(3, 1.0, [5.5, 6.5, 7.5], [0, 1, 2]),
        ),
    ],
    ids=lambda value: getattr(value, "kind", ""),
)
def test_faults_cost_what_they_do_by_hand(run, fault, workers, fold_s, times_s, lost):
    simulation = run(workers=workers, faults=(fault,), durations={"fold_s": fold_s})
    timeline = simulation.advance(folds=len(times_s))
    assert timeline.folds.time_s.tolist() == times_s
    assert timeline.lost().first_step.tolist() == lost


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

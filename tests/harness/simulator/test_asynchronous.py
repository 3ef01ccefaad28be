import numpy as np
import pytest

from harness.base.errors import UserError
from harness.simulator.cluster import Fault, Jitter
from harness.simulator.protocols.parameter_server import ParameterServer

EXPONENTIAL = Jitter("shifted-exponential", 1.0)
LOGNORMAL = Jitter("lognormal", 0.3)
BUSY = {"copy_s": 0.2, "latency_s": 0.01, "fold_s": 0.1, "jitter": LOGNORMAL}


@pytest.mark.parametrize("bound", [0, 1, 4])
def test_nobody_begins_when_too_far_ahead_of_the_slowest(simulate, bound):
    simulation = simulate(8, protocol=ParameterServer(bound=bound), jitter=EXPONENTIAL)
    timeline = simulation.advance(folds=3000)
    rows = timeline.folded()
    folds = np.zeros(8, int)
    for version, worker in enumerate(rows.worker.tolist()):
        for reader in rows.worker[rows.read_version == version]:
            assert folds[reader] <= folds.min() + bound
        folds[worker] += 1
    assert timeline.staleness().max() <= 7 * (2 * bound + 1)


def test_a_full_server_makes_workers_wait_before_they_send(simulate):
    """Two places and a fold a second: the link is never asked to carry more than two."""
    simulation = simulate(6, protocol=ParameterServer(queue=2), copy_s=0.5, fold_s=1.0)
    timeline = simulation.advance(folds=100)
    assert np.all(np.diff(timeline.folds.time_s) == 1.0)
    spans = timeline.spans
    push = spans.kind == 2
    starts, ends = spans.start_s[push], timeline.folds.time_s
    taken = [np.sum(starts <= t) - np.sum(ends <= t) for t in np.sort(starts)]
    assert max(taken) == 2


def test_losing_workers_of_whom_some_never_return_ends_in_one_clear_line(simulate):
    simulation = simulate(3, faults=(Fault("death", mean_s=5.0),), **BUSY)
    with pytest.raises(UserError, match="every worker has left permanently"):
        simulation.advance(folds=1000)


def test_faults_strike_at_the_same_instants_whatever_the_protocol(simulate):
    faults = (Fault("death", mean_s=9.0, down_s=1.0),)

    def losses(**settings):
        simulation = simulate(4, protocol=ParameterServer(**settings), faults=faults, **BUSY)
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


def test_whom_the_bound_held_goes_on_when_a_failure_takes_what_it_had_under_way(simulate):
    """Otherwise all wait for one another for good: nobody's folds are ever counted."""
    faults = (
        Fault("server", at_s=(2.0, 4.0, 8.0), down_s=1.0, checkpoint_s=1.0),
        Fault("death", workers=(2,), mean_s=60.0, down_s=0.5),
    )
    protocol = ParameterServer(bound=0, depth=3)
    simulation = simulate(3, protocol=protocol, faults=faults, **BUSY)
    timeline = simulation.advance(seconds=200.0)
    assert len(timeline.restarts) == 3
    assert np.diff(timeline.folds.time_s, append=200.0).max() < 10.0

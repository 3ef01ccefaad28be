"""The kernel for links of one's own does what the general one does, byte for byte."""

import numpy as np
import pytest

from harness.simulator import Jitter, ParameterServer, Simulation, Stragglers, Workload, concat
from harness.simulator.events import WHO, enter, new_tournament, scratch
from harness.simulator.protocols import state
from harness.simulator.protocols.plain_server import PlainState

LOGNORMAL = Jitter("lognormal", 0.3)
EXPONENTIAL = Jitter("shifted-exponential", 1.0)


class General(ParameterServer):
    """The parameter server in its general kernel, whatever the link."""

    def start(self, cluster, workers):
        return state.initial_state(cluster, workers, self.rules)


def both(cluster, job, workers, seed=3):
    """The same simulation in both kernels."""
    return [Simulation(cluster, p, job, workers, seed) for p in (ParameterServer(), General())]


CASES = {
    "busy": {"copy_s": 0.2, "latency_s": 0.01, "fold_s": 0.1, "jitter": LOGNORMAL},
    "overloaded": {"copy_s": 0.1, "fold_s": 2.0, "jitter": EXPONENTIAL},
    "in lockstep": {"copy_s": 0.25, "fold_s": 0.5},
    "folds that cost nothing": {"copy_s": 0.2, "jitter": EXPONENTIAL},
    "lockstep, folds that cost nothing": {},
    "only folds cost": {"compute_s": 0.0, "fold_s": 0.5},
    "nothing costs": {"compute_s": 0.0},
    "stragglers": {"jitter": LOGNORMAL, "stragglers": Stragglers(0.1, 5.0), "fold_s": 0.01},
    "folds lost in rounding": {"fold_s": 1e-17, "jitter": EXPONENTIAL},
}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("workers", [1, 2, 7, 64])
@pytest.mark.parametrize("case", CASES)
def test_both_kernels_give_the_same_bytes(cluster, unit_job, case, workers):
    plain, general = both(cluster(workers, **CASES[case]), unit_job, workers)
    assert isinstance(plain._state, PlainState)
    assert not isinstance(general._state, PlainState)
    for folds in (1, 0, 3, 500):
        assert plain.advance(folds=folds).sha256() == general.advance(folds=folds).sha256()
        assert (plain.now_s, plain.dispatched) == (general.now_s, general.dispatched)


@pytest.mark.parametrize("case", ["busy", "overloaded", "in lockstep", "folds lost in rounding"])
def test_both_kernels_agree_over_drains_pauses_changes_and_stretches_of_time(
    cluster, unit_job, case
):
    def history(simulation):
        segments = []
        for k in range(1, 5):
            segments.append(simulation.advance(seconds=2.5 * k))
            simulation.change(Workload(k, 1.0, float(k)))
            segments.append(simulation.advance(folds=11))
            segments.append(simulation.advance(folds=40, drain=True))
            segments.append(simulation.pause(0.5 * k, "search"))
            segments.append(simulation.advance(seconds=3.0, drain=True))
        return [segment.sha256() for segment in segments], concat(segments).sha256()

    plain, general = (history(s) for s in both(cluster(7, **CASES[case]), unit_job, 7))
    assert plain == general


def test_a_segment_that_is_read_later_is_not_written_again(simulate):
    """Rows in flight are put into room behind the columns; no other segment has that room."""
    simulation = simulate(5, copy_s=0.2, jitter=LOGNORMAL)
    segments = [simulation.advance(folds=30) for _ in range(4)]
    hashes = [segment.sha256() for segment in segments]
    concat(segments)
    concat(segments[:1])
    concat([segments[0], segments[2]])
    simulation.advance(folds=100)
    assert [segment.sha256() for segment in segments] == hashes


def test_a_tournament_gives_the_earliest_and_of_equals_the_first_entered():
    rng = np.random.default_rng(0)
    for workers in (1, 2, 3, 5, 8, 13):
        tree, pending = new_tournament(workers), {}
        for order in range(300):
            who, time_s = int(rng.integers(workers)), float(rng.integers(4))
            if rng.random() < 0.3:
                pending.pop(who, None)
                scratch(tree, who)
            else:
                pending[who] = (time_s, order)
                enter(tree, who, time_s, order)
            if pending:
                first = min(pending, key=pending.__getitem__)
                assert (tree[1]["time_s"], tree[1]["key"] & WHO) == (pending[first][0], first)
            else:
                assert tree[1]["time_s"] == np.inf

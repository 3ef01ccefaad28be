"""Checkpoints that take time, restarts, notices and times down that vary: by hand, closed form."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from harness.base.errors import UserError
from harness.simulator.cluster import Checkpoints, Fault, Workload
from harness.simulator.costs import away_s, faults_of
from harness.simulator.protocols.averaging import Averaging
from harness.simulator.protocols.client_sampling import ClientSampling
from harness.simulator.simulation import Simulation

JOB = Workload(minibatch_frames=1, flops_per_frame=1.0, parameter_bytes=0.0)


@pytest.fixture
def machine(cluster):
    def build(*faults, workers=2, jitter=None, **checkpoints):
        built = cluster(workers, jitter=jitter)
        saves = Checkpoints(**checkpoints) if checkpoints else None
        return replace(built, faults=faults, checkpoints=saves)

    return build


def death(at_s, worker=0, **more):
    return Fault("death", workers=(worker,), at_s=(at_s,), **more)


def times_s(built, folds, rules=None):
    timeline = Simulation(built, rules or Averaging(1), JOB).advance(folds=folds)
    return timeline.folds.time_s.tolist(), timeline


def test_a_notice_too_short_for_the_round_is_a_death(machine):
    """Without checkpoints: told at 2.25 s, dead at 2.5 s; the other goes on, and it returns."""
    built = machine(death(2.25, down_s=2.0, notice_s=0.25))
    found, timeline = times_s(built, 6)
    assert found == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    assert timeline.lost().worker.tolist() == [0]
    assert np.bincount(timeline.folded().fold).tolist() == [2, 2, 1, 1, 1, 2]


def test_a_notice_long_enough_loses_nothing(machine):
    """Told at 2.25 s of 3.25 s, it leaves at 3 s and is back at 5.25 s."""
    _, timeline = times_s(machine(death(2.25, down_s=2.0, notice_s=1.0)), 7)
    assert len(timeline.lost()) == 0
    assert np.bincount(timeline.folded().fold).tolist() == [2, 2, 2, 1, 1, 1, 2]


def expected_s(work_s, mean_s, down_s, restart_s):
    """A segment of work with failures at rate 1/mean, by first-step analysis.

    After a failure come the time down and a segment that begins with a restart, whose expected
    time is (mean + down) (exp((restart + work) / mean) - 1), as Daly, "A higher order estimate of
    the optimum checkpoint interval" (2006) has it.
    """
    again_s = (mean_s + down_s) * math.expm1((restart_s + work_s) / mean_s)
    return -math.expm1(-work_s / mean_s) * (mean_s + down_s + again_s)


@pytest.mark.nightly
def test_the_mean_time_between_checkpoints_is_dalys(machine):
    """Segments of eight folds and their checkpoint, 9 s of work, a death every 20 s."""
    deaths = Fault("death", workers=(0,), mean_s=20.0, down_s=3.0)
    built = machine(deaths, every_folds=8, write_s=1.0, restart_s=2.0)
    simulation = Simulation(built, Averaging(1), JOB, seed=4, spans=False)
    restarts = simulation.advance(seconds=30_000.0).restarts
    saved = (simulation.version - (restarts.version - restarts.restored_version).sum()) / 8
    mean_s = expected_s(9.0, 20.0, 3.0, 2.0)
    assert simulation.now_s / saved == pytest.approx(mean_s, rel=0.05)


@pytest.mark.parametrize(
    ("law", "cv", "model"),
    [
        ("lognormal", 0.8, stats.lognorm(math.sqrt(math.log1p(0.64)), scale=1 / math.sqrt(1.64))),
        ("gamma", 0.5, stats.gamma(4.0, scale=0.25)),
        ("shifted-exponential", 1.0, stats.expon()),
    ],
)
def test_times_down_have_their_law(law, cv, model):
    fault = Fault("death", mean_s=1.0, down_s=10.0, down_law=law, down_cv=cv)
    drawn = faults_of([fault, fault], 1, 7)
    values = [away_s(drawn, 1, 0, number) / 10.0 for number in range(2000)]
    assert stats.kstest(values, model.cdf).pvalue > 1e-3
    assert values[0] != away_s(drawn, 0, 0, 0) / 10.0


def test_a_time_down_that_varies_holds_with_a_parameter_server_too(machine):
    fault = Fault("death", workers=(0,), at_s=(0.5,), down_s=4.0, down_law="gamma", down_cv=0.5)
    built = machine(fault, workers=1)
    (end_s,), _ = times_s(built, 1)
    down_s = away_s(faults_of([fault], 1, 0), 0, 0, 0)
    assert end_s == pytest.approx(0.5 + down_s + 1.0)
    timeline = Simulation(built, "parameter_server", JOB).advance(folds=1)
    assert timeline.folds.time_s.tolist() == [end_s]


def test_what_is_not_simulated_is_refused(machine):
    told = machine(death(1.0, down_s=1.0, notice_s=1.0))
    with pytest.raises(UserError, match="notice_s: not simulated"):
        Simulation(told, "parameter_server", JOB)
    saving = machine(every_folds=1)
    for rules, said in (
        (Averaging(1, overlap=True), "not simulated with overlap"),
        (ClientSampling(1), "checkpoints: not simulated in"),
    ):
        with pytest.raises(UserError, match=said):
            Simulation(saving, rules, JOB)
    with pytest.raises(UserError, match="allowed: with 'death'"):
        Fault("preemption", at_s=(1.0,), down_s=1.0, notice_s=1.0)

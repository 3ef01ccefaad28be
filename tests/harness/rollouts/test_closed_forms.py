"""Closed forms of staleness, throughput and the buffer's rules against long simulations."""

import math
from typing import Any

import numpy as np
import pytest

from harness.rollouts.protocol import Rollouts
from harness.rollouts.records import TRAINED, RolloutRows, rollout_rows
from harness.simulator.simulation import Simulation
from harness.simulator.timeline import Timeline
from tests.harness.rollouts.test_event_loop import WORKLOAD, cluster_of

ONE = {"decode_s": 0.01, "sequence_s": 0.001, "slots": 16, "sync_s": 0.0}
STEP_S = 0.01 + 16 * 0.001
TRAINER_LIMITS = {**ONE, "tokens": 100.0, "group": 2, "batch": 8, "train_s": 4.0, "token_s": 0.0}
WITHIN = 0.01


def long_run(folds: int, generators: int = 2, **settings: Any) -> tuple[Timeline, Rollouts]:
    """A long simulation, and its protocol."""
    protocol = Rollouts(**settings)
    simulation = Simulation(cluster_of(generators), protocol, WORKLOAD, generators, seed=7)
    return simulation.advance(folds=folds), protocol


def middle(timeline: Timeline) -> tuple[RolloutRows, float, float]:
    """The trained rollouts, and a window that leaves out the beginning and the end."""
    rows, times = rollout_rows(timeline), timeline.folds.time_s
    return rows.where(rows.fate == TRAINED), times[len(times) // 5], times[-len(times) // 10]


def seconds_a_step(timeline: Timeline) -> float:
    """Seconds from fold to fold, without the beginning."""
    times = timeline.folds.time_s
    first = len(times) // 5
    return float(times[-1] - times[first]) / (len(times) - 1 - first)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "settings",
    [
        {"rule": "admission", "eta": 3},
        {"rule": "admission", "eta": 6, "publish": "in-flight", "train_s": 1.9},
        {"rule": "backpressure", "eta": 7.5, "reward_s": 3.0, "environment_s": 1.0},
        {"rule": "discard", "eta": 6, "reward_s": 2.0},
        {"rule": "window", "eta": 4, "group": 1, "batch": 16},
    ],
    ids=lambda settings: settings["rule"],
)
def test_mean_staleness_is_the_number_in_the_system_and_the_phase(settings):
    """The trainer never waits here, so means over time are means over its steps."""
    timeline, protocol = long_run(3000, **{**TRAINER_LIMITS, **settings})
    rows, begin_s, end_s = middle(timeline)
    size = protocol.batch * protocol.group
    instants = np.concatenate([rows.start_s, rows.taken_s])
    order = np.argsort(instants, kind="stable")
    instants, present = instants[order], np.cumsum(np.repeat([1, -1], len(rows))[order])
    inside = (instants[:-1] >= begin_s) & (instants[1:] <= end_s)
    lengths = np.diff(instants)[inside]
    in_system = (present[:-1][inside] * lengths).sum() / lengths.sum()
    begun = rows.where((rows.start_s >= begin_s) & (rows.start_s < end_s)).start_s
    times = timeline.folds.time_s
    after = np.searchsorted(times, begun, side="right")
    phase = ((begun - times[after - 1]) / (times[after] - times[after - 1])).mean()
    taken = rows.where((rows.taken_s >= begin_s) & (rows.taken_s < end_s))
    stale = (taken.trained_version - taken.oldest_version).mean()
    assert stale == pytest.approx(in_system / size + phase, rel=WITHIN)
    assert stale > 0.5


def test_mean_age_of_a_token_is_the_queue_and_half_a_life():
    """Starts are spread evenly over a step: slots are the limit, and the trainer hardly waits."""
    settings = {**ONE, "tokens": 400.0, "group": 1, "batch": 16, "token_s": 0.0}
    settings |= {"train_s": 1.005 * 16 * 400 * STEP_S / 32}
    settings |= {"rule": "discard", "eta": 1000, "room": 1000, "publish": "in-flight"}
    timeline, protocol = long_run(4000, **settings)
    rows, begin_s, end_s = middle(timeline)
    taken = rows.where((rows.taken_s >= begin_s) & (rows.taken_s < end_s))
    queue = (taken.taken_s - taken.end_s).sum() / (end_s - begin_s) / protocol.batch
    lives = (taken.last_version - taken.oldest_version + 1).mean()
    age = (taken.trained_version - taken.mean_version).mean()
    assert age == pytest.approx(queue + lives / 2.0, rel=WITHIN)
    assert lives > 2.5


def test_the_trainer_limits_throughput():
    timeline, protocol = long_run(1500, **TRAINER_LIMITS, rule="admission", eta=4)
    assert seconds_a_step(timeline) == pytest.approx(protocol.train_s, rel=WITHIN)


def test_the_generators_limit_throughput():
    """Groups of one, so that every free slot is filled at once: X = C / E[D]."""
    settings = {"tokens": 100.0, "group": 1, "batch": 16, "train_s": 0.01, "token_s": 0.0}
    timeline, _ = long_run(8000, **ONE, **settings, rule="discard", eta=1000)
    assert 16 / seconds_a_step(timeline) == pytest.approx(2 * 16 / (100 * STEP_S), rel=WITHIN)


@pytest.mark.parametrize("eta", [1, 2, 5])
def test_admission_keeps_mean_staleness_at_its_allowance_where_the_trainer_limits(eta):
    """All begin right after a publication there, so the share of a step that has passed is 0."""
    timeline, _ = long_run(1500, **TRAINER_LIMITS, rule="admission", eta=eta)
    rows, begin_s, end_s = middle(timeline)
    taken = rows.where((rows.taken_s >= begin_s) & (rows.taken_s < end_s))
    stale = (taken.trained_version - taken.oldest_version).mean()
    assert stale == pytest.approx(eta, rel=WITHIN)
    assert stale <= eta + 0.5


@pytest.mark.nightly
def test_discarding_throws_away_what_takes_longer_than_its_allowance():
    """P(age > S): the law of the length, at the publication after the S that it may cross.

    A batch is large, because a rollout that completes one brings the publication forward.
    """
    settings = {**ONE, "slots": 256, "tokens": 200.0, "tokens_cv": 1.0, "group": 1, "batch": 512}
    settings |= {"train_s": 0.001, "token_s": 0.0, "rule": "discard", "eta": 2}
    timeline, protocol = long_run(600, 4, **settings)
    rows, times = rollout_rows(timeline), timeline.folds.time_s
    begin_s, end_s = times[len(times) // 5], times[-len(times) // 10]
    begun = rows.where((rows.start_s >= begin_s) & (rows.start_s < end_s))
    after = np.searchsorted(times, begun.start_s, side="right")
    allowed_s = times[after + 2] - begun.start_s
    variance = math.log1p(protocol.tokens_cv**2)
    tokens = np.log(allowed_s / (0.01 + 256 * 0.001) / protocol.tokens) + 0.5 * variance
    survive = [0.5 * math.erfc(x / math.sqrt(2.0 * variance)) for x in tokens.tolist()]
    thrown_away = (begun.fate != TRAINED).mean()
    assert thrown_away == pytest.approx(np.mean(survive), rel=WITHIN)
    assert 0.1 < thrown_away < 0.9
    # what is thrown away is longer
    assert begun.tokens[begun.fate != TRAINED].mean() > 1.5 * begun.tokens.mean()


def test_a_rollout_that_outlives_its_allowance_is_never_trained_on():
    """It crosses S + 1 publications at least, T seconds apart at most, at h seconds a token."""
    settings = {"slots": 1, "tokens": 200.0, "group": 1, "batch": 4, "train_s": 0.5, "token_s": 0.0}
    timeline, protocol = long_run(4000, 8, **settings, rule="discard", eta=2, sync_s=0.0)
    rows = rollout_rows(timeline)
    most = 3 * np.diff(timeline.folds.time_s).max() / (protocol.decode_s + protocol.sequence_s)
    assert rows.tokens.max() > most >= rows.tokens[rows.fate == TRAINED].max()


@pytest.mark.parametrize(("train_s", "speedup"), [(5.2, 2.0), (2.6, 1.5), (15.6, 4 / 3)])
def test_training_on_the_batch_before_hides_the_shorter_of_two_stages(train_s, speedup):
    """(t_gen + t_train) / max(t_gen, t_train), with all of a batch in the slots at once."""
    settings = {**ONE, "tokens": 200.0, "tokens_cv": 0.0, "group": 4, "batch": 8}
    settings |= {"train_s": train_s, "token_s": 0.0}
    plain, _ = long_run(400, **settings, rule="admission", eta=0, publish="drain")
    ahead, _ = long_run(400, **settings, rule="one-step")
    assert seconds_a_step(plain) == pytest.approx(200 * STEP_S + train_s, rel=1e-9)
    assert seconds_a_step(plain) / seconds_a_step(ahead) == pytest.approx(speedup, rel=1e-9)
    assert set(ahead.staleness()[32:].tolist()) == {1}

import math

import numpy as np
import pytest

from harness.judge.statistics import mean_ci, ratio_ci
from harness.judge.utterances import rate_ci, rate_difference_ci, rate_ratio_ci


def corpus(rng, S=4, U=300, rate=0.1):
    lengths = rng.integers(3, 20, U)
    hardness = rng.gamma(2, 0.5, U)
    skill = rng.normal(1, 0.1, (S, 1))
    return rng.poisson(rate * skill * hardness * lengths), lengths


def test_the_rate_is_all_errors_over_all_length():
    errors, lengths = corpus(np.random.default_rng(0))
    assert rate_ci(errors, lengths).estimate == errors.sum() / (4 * lengths.sum())


def test_the_width_is_that_of_a_bootstrap_over_seeds_and_utterances():
    rng = np.random.default_rng(1)
    errors, lengths = corpus(rng, S=30)
    resampled = []
    for _ in range(1500):
        s, u = rng.integers(0, 30, 30), rng.integers(0, 300, 300)
        resampled.append(errors[np.ix_(s, u)].sum() / (30 * lengths[u].sum()))
    found = rate_ci(errors, lengths)
    low, high = np.quantile(resampled, [0.025, 0.975])
    assert found.high - found.low == pytest.approx(high - low, rel=0.12)


def test_without_variation_over_utterances_it_is_the_t_interval_over_seeds():
    lengths = np.full(50, 10)
    errors = np.array([[1], [2], [4]]) * np.ones((1, 50))
    assert rate_ci(errors, lengths).ci95 == pytest.approx(mean_ci([0.1, 0.2, 0.4]).ci95)
    other = np.array([[2], [3], [5]]) * np.ones((1, 50))
    oracle = ratio_ci([0.1, 0.2, 0.4], [0.2, 0.3, 0.5])
    assert rate_ratio_ci(errors, other, lengths).ci95 == pytest.approx(oracle.ci95)


def test_a_difference_is_paired_by_utterance():
    errors, lengths = corpus(np.random.default_rng(2))
    worse = errors + (np.random.default_rng(3).random(errors.shape) < 0.1)
    found = rate_difference_ci(worse, errors, lengths)
    assert 0 < found.low < found.estimate < found.high
    assert found.high - found.low < rate_ci(errors, lengths).high - rate_ci(errors, lengths).low


@pytest.mark.nightly
def test_nineteen_in_twenty_intervals_hold_the_true_rate():
    rng = np.random.default_rng(4)
    held = []
    for _ in range(400):
        found = rate_ci(*corpus(rng, S=3, U=80))
        held.append(found.low <= 0.1 <= found.high)
    assert np.mean(held) > 0.93


@pytest.mark.parametrize("shape", [(1, 20), (20, 1)])
def test_one_seed_or_one_utterance_bounds_nothing(shape):
    errors, lengths = np.ones(shape), np.full(shape[1], 5)
    for found in (rate_ci(errors, lengths), rate_ratio_ci(errors, errors, lengths)):
        assert found.ci95 == (-math.inf, math.inf)


def test_a_ratio_over_no_errors_is_unbounded():
    lengths = np.full(5, 10)
    found = rate_ratio_ci(np.ones((2, 5)), np.zeros((2, 5)), lengths)
    assert found.ci95 == (-math.inf, math.inf)


def test_identical_systems_differ_by_exactly_nothing():
    errors, lengths = corpus(np.random.default_rng(5))
    assert rate_difference_ci(errors, errors, lengths).ci95 == (0, 0)


@pytest.mark.parametrize(
    ("errors", "lengths"), [((2, 3), (4,)), ((0, 3), (3,)), ((2, 0), (0,)), ((3,), (3,))]
)
def test_shapes_that_do_not_fit_are_refused(errors, lengths):
    with pytest.raises(ValueError, match="do not fit"):
        rate_ci(np.ones(errors), np.ones(lengths))


def test_utterances_of_one_rate_do_not_widen_it_however_their_lengths_differ():
    lengths = np.array([10, 20, 40, 80])
    rates = np.array([0.1, 0.2, 0.4])
    found = rate_ci(rates[:, None] * lengths, lengths)
    assert found.ci95 == pytest.approx(mean_ci(rates).ci95, rel=1e-12)

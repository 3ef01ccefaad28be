"""Intervals stay inside the range of a quantity, and are what their formulas say."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from harness.base.errors import UserError
from harness.judge.bounds import (
    geometric_ci,
    metric_ci,
    paired_ratio_ci,
    positive_ci,
    share_ci,
)

seeds = st.integers(2, 12)
shares = seeds.flatmap(lambda n: st.lists(st.floats(0.0, 1.0), min_size=n, max_size=n))
positive = seeds.flatmap(lambda n: st.lists(st.floats(1e-9, 1e9), min_size=n, max_size=n))


@given(shares, st.sampled_from([0.0, 0.01, 0.5]))
def test_an_interval_of_shares_lies_between_0_and_1_around_the_mean(values: list[float], w: float):
    found = share_ci(values, w)

    assert 0.0 <= found.low <= found.estimate <= found.high <= 1.0
    assert found.estimate == pytest.approx(np.mean(values), abs=1e-12)


@given(positive)
def test_intervals_of_positive_quantities_are_above_0_around_their_mean(values: list[float]):
    for found in (positive_ci(values), geometric_ci(values), metric_ci(False, values)):
        assert 0.0 <= found.low <= found.estimate <= found.high
    ratio = paired_ratio_ci(values, values[::-1])
    assert 0.0 <= ratio.low <= ratio.high


def test_an_interval_of_shares_is_that_of_the_log_odds_at_the_mean():
    values = [0.1, 0.2, 0.3]
    mean, error = np.mean(values), np.std(values, ddof=1) / math.sqrt(3)
    half = stats.t.ppf(0.975, 2) * error / (mean * (1 - mean))
    odds = math.log(mean / (1 - mean))

    found = share_ci(values)

    assert found.low == pytest.approx(1 / (1 + math.exp(half - odds)))
    assert found.high == pytest.approx(1 / (1 + math.exp(-half - odds)))


def test_an_interval_of_a_positive_mean_is_a_factor_to_either_side():
    values = [2.0, 3.0, 4.0]
    factor = math.exp(stats.t.ppf(0.975, 2) / math.sqrt(3) / 3.0)

    found = positive_ci(values)

    assert (found.low, found.high) == pytest.approx((3.0 / factor, 3.0 * factor))


def test_a_ratio_is_a_difference_of_logarithms_paired_by_seed():
    a, b = [2.0, 5.0, 9.0], [1.0, 3.0, 4.0]
    logs = np.log(a) - np.log(b)
    half = stats.t.ppf(0.975, 2) * np.std(logs, ddof=1) / math.sqrt(3)

    found = paired_ratio_ci(a, b)

    told = [found.estimate, found.low, found.high]
    assert told == pytest.approx([math.exp(logs.mean() + sign * half) for sign in (0, -1, 1)])


def test_equal_shares_are_known_to_half_an_example():
    found = share_ci([0.0, 0.0, 0.0], weight=0.01)

    assert (found.estimate, found.low, found.high) == (0.0, 0.0, 0.005)


def test_one_seed_has_no_interval():
    for found in (share_ci([0.2], 0.01), positive_ci([0.2]), geometric_ci([0.2])):
        assert found.estimate == pytest.approx(0.2)
        assert math.isinf(found.low)
        assert math.isinf(found.high)


def test_a_metric_with_negative_values_has_students_interval():
    found = metric_ci(False, [-1.0, 0.0, 1.0])

    assert found.high == pytest.approx(stats.t.ppf(0.975, 2) / math.sqrt(3))
    assert found.low == -found.high


def test_intervals_cover_the_mean_of_small_shares_nearly_as_often_as_they_say():
    rng, hits, draws = np.random.default_rng(0), 0, 2000
    for seeds in rng.binomial(400, 0.05, (draws, 5)) / 400:
        found = share_ci(list(seeds))
        hits += found.low <= 0.05 <= found.high

    assert 0.93 < hits / draws < 0.97


def test_what_is_outside_its_range_is_no_share_or_ratio():
    with pytest.raises(UserError, match=r"declared a share, is 1\.1, 0\.2; allowed: from 0"):
        metric_ci(True, [1.1, 0.2])
    for function, values in ((positive_ci, [-1.0]), (geometric_ci, [0.0])):
        with pytest.raises(ValueError, match="allowed"):
            function(values)

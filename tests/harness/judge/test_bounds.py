"""Intervals stay inside the range of a quantity, and are what their formulas say."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from harness.base.errors import UserError
from harness.judge.bounds import (
    find_seeds,
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


def measured(rng, times, step):
    """First evaluations at or after times, and those before them, on a grid of steps."""
    end = np.ceil(times / step) * step
    return end, end - step


def coverage(seeds, scatter, steps, shared=0.0, ratio=1.1, draws=700):
    """How often the intervals of a ratio and of a time hold the truth, and their mean log width."""
    rng, hits, widths, whole = np.random.default_rng(seeds), 0, 0.0, 0
    for _ in range(draws):
        time_s = rng.uniform(1.0, 2.0)
        common = time_s * np.exp(shared * rng.normal(size=seeds))
        own = np.exp(scatter * rng.normal(size=(2, seeds)))
        (b, b_before), (a, a_before) = (
            measured(rng, common * each * times, step)
            for each, times, step in zip(own, (1.0, ratio), steps, strict=True)
        )
        found = paired_ratio_ci(list(a), list(b), (list(a_before), list(b_before)))
        hits += found.low <= ratio <= found.high
        widths += math.log(found.high / found.low)
        alone = geometric_ci(list(b), list(b_before))
        whole += alone.low <= time_s <= alone.high
    return hits / draws, widths / draws, whole / draws


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seeds", [3, 5])
@pytest.mark.parametrize(
    ("scatter", "steps", "shared"),
    [(0.1, (0.02, 0.02), 0.0), (0.1, (0.1, 0.1), 0.0), (0.15, (0.1, 0.2), 0.0)],
)
def test_intervals_of_times_on_a_coarse_grid_cover_the_truth_as_often_as_they_say(
    seeds, scatter, steps, shared
):
    ratio, _, alone = coverage(seeds, scatter, steps, shared)

    assert 0.93 <= ratio <= 0.98
    assert 0.93 <= alone <= 0.98


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seeds", [3, 5])
@pytest.mark.parametrize(
    ("scatter", "steps", "shared"),
    [(0.001, (0.1, 0.1), 0.0), (0.02, (0.1, 0.1), 0.0), (0.02, (0.1, 0.05), 0.1)],
)
def test_where_seeds_scatter_less_than_a_step_intervals_cover_more_and_are_two_steps_wide(
    seeds, scatter, steps, shared
):
    ratio, width, alone = coverage(seeds, scatter, steps, shared)

    assert ratio >= 0.93
    assert shared or alone >= 0.93
    assert width < 2.0 * sum(steps)  # 1.5 is the middle of the times


def test_seeds_that_cross_in_the_same_steps_leave_both_steps_open():
    found = paired_ratio_ci([2.0] * 3, [1.0] * 3, ([1.5] * 3, [0.8] * 3))

    assert found.estimate == 2.0
    assert 1.5 < found.low < 1.6
    assert 2.35 < found.high < 2.5
    # Three seeds in different steps that agree by chance are not exact either.
    agreeing = paired_ratio_ci([8.0, 8.0, 12.0], [8.0, 8.0, 12.0], ([4.0, 4.0, 8.0],) * 2)
    assert agreeing.low < 0.88
    assert agreeing.high > 1.14


def test_a_target_that_is_reached_at_the_first_evaluation_has_no_least_time():
    found = geometric_ci([1.0, 1.0], [0.0, 0.0])

    assert 0.0 < found.low < 0.05
    assert found.high == 1.0


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("seeds", "rows", "step"), [(3, 6, 0.1), (5, 4, 0.02)])
def test_the_best_of_equal_rows_is_faster_as_seldom_as_one_that_was_not_chosen(seeds, rows, step):
    rng, draws, faster, plain = np.random.default_rng(rows), 1200, 0, 0
    for _ in range(draws):
        times = rng.uniform(1.0, 2.0) * np.exp(0.06 * rng.normal(size=(rows + 1, seeds)))
        end, before = measured(rng, times, step)
        best = 1 + int(np.argmin(np.log(end[1:]).mean(axis=1)))
        both = [list(end[0]), list(end[best]), (list(before[0]), list(before[best]))]
        faster += paired_ratio_ci(*both, rows).low > 1.0
        plain += paired_ratio_ci(*both).low > 1.0

    assert faster / draws <= 0.03
    assert plain / draws > 0.04


def test_seeds_that_are_asked_for_decide_if_their_scatter_stays():
    slow, fast = [1.05, 1.30, 1.15], [1.0, 1.1, 1.1]
    exact = (None, None)
    logs = np.log(np.divide(slow, fast))
    seeds = find_seeds(slow, fast, exact, 3)

    def half(count):
        return stats.t.ppf(1 - 0.025 / 3, count - 1) * logs.std(ddof=1) / math.sqrt(count)

    assert half(seeds) <= logs.mean() < half(seeds - 1)
    # Where both are in one step, no number of seeds tells them apart.
    assert math.isinf(find_seeds([1.1] * 3, [1.0] * 3, ([0.8] * 3, [0.7] * 3), 1))
    assert math.isinf(find_seeds([1.0, 1.2], [1.0, 1.2], exact, 1))

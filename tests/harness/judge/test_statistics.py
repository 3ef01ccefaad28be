import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from harness.judge.interval import Interval
from harness.judge.statistics import (
    bounded_difference_ci,
    mean_ci,
    paired_difference_ci,
    rank_correlation_ci,
    ratio_ci,
)

RNG = np.random.default_rng(7)
a_few = st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=8)


@given(a_few)
def test_the_interval_of_a_mean_is_the_t_test_turned_around(values):
    found = mean_ci(values)
    error = stats.sem(values)
    half = stats.t.ppf(0.975, len(values) - 1) * error
    assert found.low == pytest.approx(np.mean(values) - half, rel=1e-9, abs=1e-9)
    assert found.high == pytest.approx(np.mean(values) + half, rel=1e-9, abs=1e-9)


@given(st.lists(st.tuples(*[st.floats(-100, 100)] * 2), min_size=2, max_size=8))
def test_bounds_that_meet_are_the_paired_difference(pairs):
    a, b = zip(*pairs, strict=True)
    found, known = bounded_difference_ci((a, a), (b, b)), paired_difference_ci(a, b)
    assert (found.estimate, *found.ci95) == (known.estimate, *known.ci95)


@given(st.lists(st.tuples(*[st.floats(-100, 100)] * 3), min_size=2, max_size=8))
def test_it_ends_where_the_intervals_of_the_lowest_and_of_the_highest_values_do(triples):
    ends = np.sort(np.array(triples), axis=1)
    low, _, high = ends.T
    zero = np.zeros(len(ends))
    found = bounded_difference_ci((low, high), (zero, zero))
    assert found.low == mean_ci(low).low
    assert found.high == mean_ci(high).high


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("seeds", "scatter"), [(3, 1.0), (9, 1.0), (9, 0.2)])
def test_values_known_up_to_a_step_of_a_grid_are_covered_as_often_as_it_says(seeds, scatter):
    """Normal values, told only by the steps of 0.5 that they lie in; the mean is just below one."""
    mean, step = 0.47, 0.5
    draws = np.random.default_rng(3).normal(mean, scatter, (2000, seeds))
    zero = np.zeros(seeds)
    held = 0
    for values in draws:
        low = np.floor(values / step) * step
        found = bounded_difference_ci((low, low + step), (zero, zero))
        held += found.low <= mean <= found.high
    assert held / len(draws) > 0.95


def test_an_open_bound_leaves_its_side_open():
    found = bounded_difference_ci(([1, 1, 2], [1, 1, math.inf]), ([0, 0, -math.inf], [0, 0, 1]))
    assert math.isnan(found.estimate)
    assert found.low == paired_difference_ci([1, 1, 2], [0, 0, 1]).low
    assert found.high == math.inf
    below = bounded_difference_ci(([0, -math.inf], [0, 1]), ([2, 2], [2, 2]))
    assert (below.low, below.high) == (-math.inf, paired_difference_ci([0, 1], [2, 2]).high)


def test_bounds_that_cross_are_refused():
    with pytest.raises(ValueError, match="cross"):
        bounded_difference_ci(([1, 2], [1, 1]), ([0, 0], [0, 0]))


@pytest.mark.parametrize("values", [[0.5], [0.5, math.inf], [0.5, math.nan, 0.4]])
def test_one_seed_or_a_value_that_is_not_finite_bounds_nothing(values):
    for found in (mean_ci(values), paired_difference_ci(values, values), ratio_ci(values, values)):
        assert found.ci95 == (-math.inf, math.inf)


def test_no_values_or_seeds_that_do_not_pair_are_refused():
    with pytest.raises(ValueError, match="one value per seed"):
        mean_ci([])
    with pytest.raises(ValueError, match="2 and 3 seeds"):
        paired_difference_ci([1, 2], [1, 2, 3])


def test_pairing_cancels_what_the_seeds_share():
    shared = RNG.normal(0, 10, 6)
    a, b = shared + 1 + RNG.normal(0, 0.1, 6), shared + RNG.normal(0, 0.1, 6)
    found = paired_difference_ci(a, b)
    assert found.high - found.low < 1
    assert found.low < 1 < found.high


@pytest.mark.parametrize("case", range(6))
def test_the_ends_of_a_ratio_are_where_a_paired_t_test_just_rejects(case):
    rng = np.random.default_rng(case)
    b = rng.normal(5, 0.3, 4)
    a = 0.2 * b + rng.normal(0, 0.3, 4)
    found = ratio_ci(a, b)
    assert found.estimate == a.mean() / b.mean()
    for end in found.ci95:
        assert stats.ttest_1samp(a - end * b, 0).pvalue == pytest.approx(0.05, rel=1e-9)
    inside = stats.ttest_1samp(a - (found.low + found.high) / 2 * b, 0).pvalue
    assert inside > 0.05


def test_a_ratio_over_what_may_be_zero_is_unbounded():
    assert ratio_ci([1.0, 1.1], [0.1, -0.1]).ci95 == (-math.inf, math.inf)
    assert math.isnan(ratio_ci([1.0, 1.0], [0.0, 0.0]).estimate)


def test_equal_seeds_give_an_exact_ratio():
    assert ratio_ci([91.2, 91.2], [14.25, 14.25]).ci95 == (6.4, 6.4)


def test_nineteen_in_twenty_ratio_intervals_hold_the_truth():
    rng = np.random.default_rng(3)
    b = rng.normal(10, 1, (2000, 5))
    a = 0.5 * b + rng.normal(0, 1, (2000, 5))
    held = [i.low <= 0.5 <= i.high for i in (ratio_ci(x, y) for x, y in zip(a, b, strict=True))]
    assert abs(np.mean(held) - 0.95) < 0.02


@pytest.mark.parametrize(
    ("x", "y"),
    [([1, 5, 10, 20, 25], RNG.normal(size=(4, 5))), ([1, 2, 3, 4], [[1, 1, 2, 2], [3, 1, 1, 2]])],
    ids=["without ties", "with ties, which share their rank"],
)
def test_a_rank_correlation_is_the_mean_of_spearmans(x, y):
    oracle = np.mean([stats.spearmanr(x, seed).statistic for seed in y])
    assert rank_correlation_ci(x, y).estimate == pytest.approx(oracle)


@pytest.mark.parametrize(("points", "seeds"), [(3, 2), (4, 2), (3, 3), (5, 2)])
def test_a_rank_interval_excludes_zero_exactly_when_permutations_reject(points, seeds):
    x = range(points)
    one = [stats.spearmanr(x, p).statistic for p in itertools.permutations(x)]
    sums = np.array([0.0])
    for _ in range(seeds):
        sums = np.add.outer(sums, one).ravel()
    null = np.abs(sums) / seeds
    for outcome in itertools.islice(
        itertools.product(itertools.permutations(x), repeat=seeds), 200
    ):
        found = rank_correlation_ci(x, outcome)
        rejected = np.mean(null >= abs(found.estimate) - 1e-9) <= 0.05
        assert (found.low > 1e-9 or found.high < -1e-9) == rejected


def test_two_points_and_two_seeds_cannot_show_an_order():
    assert rank_correlation_ci([1, 25], [[1, 2], [1, 2]]).low <= 0


def test_many_points_use_the_normal_law():
    found = rank_correlation_ci(range(20), [np.arange(20.0)] * 2)
    assert found.estimate == pytest.approx(1)
    assert found.low == pytest.approx(1 - 1.959964 / math.sqrt(2 * 19), rel=1e-6)


def test_an_exact_value_has_no_width_and_a_missing_one_no_bounds():
    assert Interval.exact(6.3).ci95 == (6.3, 6.3)
    assert Interval.exact(math.nan).ci95 == (-math.inf, math.inf)


def test_intervals_are_shifted_turned_and_scaled_end_by_end():
    ratio = Interval(1.5, 1.25, 2.0)
    assert ratio - 1 == Interval(0.5, 0.25, 1.0)
    assert 1 - ratio == Interval(-0.5, -1.0, -0.25) == -(ratio - 1)
    assert 100.0 * ratio == Interval(150.0, 125.0, 200.0)
    assert 2.0 * Interval(1.0) == Interval(2.0)


def test_a_difference_of_intervals_holds_every_difference_of_their_values():
    a, b = Interval(3.0, 2.0, 5.0), Interval(1.0, 0.5, 1.5)
    assert a - b == Interval(2.0, 0.5, 4.5)

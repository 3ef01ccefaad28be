"""Exponents over seeds: a power law's own, the jackknife's naive loop, what has no interval."""

import math

import numpy as np
import pytest
from scipy import stats

from harness.judge.statistics import exponents_ci

X, Y = np.array([1.0, 2.0, 4.0, 1.0, 2.0, 4.0]), np.array([1.0, 1.0, 1.0, 5.0, 5.0, 5.0])


def test_exponents_of_a_product_of_powers_are_its_own():
    scale = np.array([1.0, 3.0, 0.5])
    a, b = exponents_ci(np.outer(scale, X**0.7 * Y**-2.0), X, Y)
    assert (a.estimate, a.low, a.high) == pytest.approx((0.7, 0.7, 0.7))
    assert (b.estimate, b.low, b.high) == pytest.approx((-2.0, -2.0, -2.0))


def test_the_interval_is_the_jackknifes():
    values = X * np.exp(np.random.default_rng(0).normal(0.0, 0.3, (5, 6)))
    (found,) = exponents_ci(values, X)

    def slope(rows):
        return stats.linregress(np.log(X), np.log(rows.mean(0))).slope

    without = [slope(np.delete(values, k, 0)) for k in range(5)]
    error = math.sqrt(4 / 5 * sum((each - np.mean(without)) ** 2 for each in without))
    half = stats.t.ppf(0.975, 4) * error
    whole = slope(values)
    assert found.ci95 == pytest.approx((whole - half, whole + half))
    assert found.degrees == 4


def test_a_mean_that_is_not_positive_or_few_seeds_bound_nothing():
    values = np.outer([1.0, 1.1, 0.9], X)
    below = values.copy()
    below[:, 0] = [-1.0, 0.4, 0.5]
    missing = values.copy()
    missing[1, 2] = np.nan
    for given in (below, missing, values[:2]):
        assert exponents_ci(given, X)[0].ci95 == (-math.inf, math.inf)
    assert exponents_ci(values[:2], X)[0].estimate == pytest.approx(1.0)
    with pytest.raises(ValueError, match="undetermined"):
        exponents_ci(values, X, X**2)

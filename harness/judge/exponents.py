"""Exponents of a product of powers, fitted to means over seeds."""

from __future__ import annotations

import math

import numpy as np

from harness.judge.interval import Interval
from harness.judge.statistics import Array, mean_ci

__all__ = ["exponents_ci", "root_ci"]


def root_ci(values: Array) -> Interval:
    """Root of the mean of unbiased estimates of a square, one a seed, which may be negative.

    It is 0 where the mean is negative; so is an end of its interval.

    Example:
        >>> root_ci(np.array([3.0, 4.0, 5.0])).estimate
        2.0
    """
    found = mean_ci(values)
    ends = (found.estimate, found.low, found.high)
    root, low, high = (math.sqrt(max(each, 0.0)) for each in ends)
    return Interval(root, low, high) if math.isfinite(found.high) else Interval(root)


def exponents_ci(values: Array, *places: Array) -> list[Interval]:
    """Exponents a, b, ... of ``c x^a y^b ...``, with 95% intervals over seeds.

    The logarithms of the means over seeds are fitted by least squares on those of the places, so
    that a seed's own value may be zero or negative, such as an unbiased estimate of a small square.
    The intervals are Student's t with S - 1 degrees of freedom and the jackknife's standard errors
    (Efron and Stein, 1981), which need at least three seeds. They are unbounded where a mean
    with or without one of the seeds is not positive and finite.

    Args:
        values: one row per seed, [S, K].
        places: x, y, ..., each [K], above 0, with settings that tell their exponents apart.

    Raises:
        ValueError: the places leave an exponent undetermined.

    Example:
        >>> x, y = np.array([1.0, 2.0, 1.0, 2.0]), np.array([1.0, 1.0, 3.0, 3.0])
        >>> a, b = exponents_ci(np.outer([1.0, 2.0, 4.0], x**2 / y), x, y)
        >>> round(a.estimate, 6), round(b.estimate, 6), round(b.high, 6)
        (2.0, -1.0, -1.0)
    """
    seeds = len(values)
    design = np.column_stack([np.ones(values.shape[1]), *(np.log(each) for each in places)])
    if np.linalg.matrix_rank(design) < design.shape[1]:
        raise ValueError("these places leave an exponent undetermined")
    fit = np.linalg.pinv(design)[1:]
    kept = [np.arange(seeds), *(np.delete(np.arange(seeds), k) for k in range(seeds))]
    means = np.array(
        [values[rows].mean(0) if len(rows) else np.nan * design[:, 0] for rows in kept]
    )
    logs = np.log(np.where(means > 0.0, means, np.nan))
    found = logs @ fit.T
    whole, without = found[0], found[1:]
    if seeds < 3:
        return [Interval(middle) for middle in whole.tolist()]
    # One value a seed, with the mean and the standard error of the jackknife.
    return [mean_ci(column) for column in (whole + (seeds - 1) * (without.mean(0) - without)).T]

"""95% intervals over seeds.

Every function returns an ``Interval``. Where the data cannot bound a quantity
(one seed, a value that is not finite, a denominator that may be zero) the
interval is the whole line: its answer is ``unclear``, never a guess.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import permutations
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.judge.interval import Interval, Matrix, Sample

LEVEL = 0.95
ALPHA = 1.0 - LEVEL
EXACT_RANKS = 7  # up to this many points, the null distribution of ranks is enumerated

Values = Sequence[float] | npt.NDArray[np.floating[Any]]
Array = npt.NDArray[np.float64]
Bounds = tuple[Values, Values]


def interval_of(sample: Sample) -> Interval:
    """Compute the interval of a sample; every interval of this module comes from here.

    Raises:
        ValueError: there are no values.
    """
    values = np.asarray(sample.values, np.float64)
    if not values.size:
        raise ValueError(f"one value per seed is needed, not shape {values.shape}")
    return replace(_INTERVALS[sample.statistic](sample, values), sample=sample)


def mean_ci(values: Values) -> Interval:
    """Mean over seeds with Student's t interval, n - 1 degrees of freedom.

    Args:
        values: one value per seed, [S].

    Raises:
        ValueError: there are no values.
    """
    return interval_of(Sample("mean", _columns(_seeds(values))))


def paired_difference_ci(a: Values, b: Values) -> Interval:
    """Mean of ``a - b``, paired by seed: what the seeds share cancels.

    Args:
        a: one value per seed, [S].
        b: the same seeds in the same order, [S].

    Raises:
        ValueError: the lengths differ or are zero.

    Example:
        >>> a, b = [0.31, 0.35, 0.28], [0.30, 0.34, 0.27]  # what they share is large
        >>> difference = paired_difference_ci(a, b)
        >>> round(difference.estimate, 6), round(difference.low, 6), round(difference.high, 6)
        (0.01, 0.01, 0.01)
    """
    x, y = _pairs(a, b)
    with np.errstate(invalid="ignore"):  # inf - inf is nan, which mean_ci handles
        return mean_ci(x - y)


def bounded_difference_ci(a: Bounds, b: Bounds) -> Interval:
    """Mean of ``a - b``, paired by seed, of values known only to lie between bounds.

    The lower end is that of the interval of the smallest possible differences, the upper end that
    of the largest. So, where these are about normal, it covers the mean with 95% wherever the
    values lie within their bounds (partial identification: Horowitz and Manski, 2000). It is too
    narrow if bounds on a grid are equal for all of a few seeds, which shows no scatter. The
    estimate is the middle of the range. An infinite bound leaves its side unbounded; where all
    bounds meet the result is that of ``paired_difference_ci``.

    Args:
        a: lowest and highest possible value of each seed, two of [S].
        b: the same seeds in the same order.

    Raises:
        ValueError: the lengths differ or are zero, or a highest lies below a lowest.
    """
    for low, high in (a, b):
        if not all(x <= y for x, y in zip(low, high, strict=True)):
            raise ValueError(f"bounds {low} and {high} cross")
    least, most = (np.subtract(*_pairs(x, y)) for x, y in ((a[0], b[1]), (a[1], b[0])))
    return interval_of(Sample("bounds", _columns(least, most)))


def ratio_ci(a: Values, b: Values) -> Interval:
    """Ratio of means, mean(a) / mean(b), paired by seed, with Fieller's interval.

    The interval holds every ρ for which a paired t test does not reject
    mean(a - ρ b) = 0 (Fieller, 1954). Unlike the log scale it takes a numerator
    that is zero or negative, which the flattening of a curve may well be.

    Args:
        a: numerators, [S].
        b: denominators of the same seeds, [S].

    Raises:
        ValueError: the lengths differ or are zero.
    """
    return interval_of(Sample("ratio", _columns(*_pairs(a, b))))


def fieller(a: float, b: float, covariance: Array, degrees: float) -> Interval:
    """Fieller's interval for a / b from two means and the 2x2 covariance of these means.

    Solves (a - ρ b)² ≤ t² (v_aa - 2 ρ v_ab + ρ² v_bb) for ρ. If b is not clearly
    different from zero the solution is unbounded, and so is the answer.
    """
    t2 = t_quantile(degrees) ** 2
    v_aa, v_ab, v_bb = (t2 * float(covariance[i]) for i in ((0, 0), (0, 1), (1, 1)))
    square = b * b - v_bb
    if not square > 0:
        return Interval(quotient(a, b))
    # the discriminant, arranged so that equal seeds give exactly zero
    root = a * a * v_bb - 2 * a * b * v_ab + b * b * v_aa - (v_aa * v_bb - v_ab * v_ab)
    half = math.sqrt(max(root, 0.0)) / square
    centre = (a * b - v_ab) / square
    return Interval(a / b, centre - half, centre + half, degrees)


def rank_correlation_ci(x: Values, y: Sequence[Values] | Array) -> Interval:
    """Spearman's rank correlation of y with x, averaged over seeds.

    The half width is the largest mean correlation that chance alone exceeds with
    more than 5% (two-sided), when the points of each seed are in random order.
    So the interval excludes zero exactly when the permutation test rejects, also
    for three points and two seeds, where normal theory would claim too much.

    Args:
        x: the setting, e.g. chunk sizes, [K].
        y: the outcome per seed, [S, K].

    Raises:
        ValueError: shapes do not fit, or fewer than two points.
    """
    settings, outcomes = np.asarray(x, np.float64), np.atleast_2d(np.asarray(y, np.float64))
    if outcomes.shape[1:] != settings.shape or len(settings) < 2 or not len(outcomes):
        raise ValueError(f"settings {settings.shape} and outcomes {outcomes.shape} do not fit")
    rows = tuple(tuple(map(float, seed)) for seed in outcomes)
    return interval_of(Sample("rank correlation", rows, at=tuple(map(float, settings))))


def root_ci(values: Array) -> Interval:
    """Root of the mean of unbiased estimates of a square, one a seed, which may be negative.

    It is 0 where the mean is negative; so is an end of its interval.

    Example:
        >>> root_ci(np.array([3.0, 4.0, 5.0])).estimate
        2.0
    """
    mean = mean_ci(values)
    ends = (mean.estimate, mean.low, mean.high)
    root, low, high = (math.sqrt(max(square, 0.0)) for square in ends)
    return Interval(root, low, high) if math.isfinite(mean.high) else Interval(root)


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
    design = np.column_stack([np.ones(values.shape[1]), *(np.log(place) for place in places)])
    if np.linalg.matrix_rank(design) < design.shape[1]:
        raise ValueError("these places leave an exponent undetermined")
    fit = np.linalg.pinv(design)[1:]
    subsets = [np.arange(seeds), *(np.delete(np.arange(seeds), k) for k in range(seeds))]
    means = np.array(
        [values[rows].mean(0) if len(rows) else np.nan * design[:, 0] for rows in subsets]
    )
    logs = np.log(np.where(means > 0.0, means, np.nan))
    exponents = logs @ fit.T
    full, without = exponents[0], exponents[1:]
    if seeds < 3:
        return [Interval(middle) for middle in full.tolist()]
    # One value a seed, with the mean and the standard error of the jackknife.
    return [mean_ci(column) for column in (full + (seeds - 1) * (without.mean(0) - without)).T]


def _mean(sample: Sample, values: Array) -> Interval:
    seeds, tests = _variances(sample, values)
    mean = float(values.mean())
    if len(values) < 2 or not np.isfinite(values).all() or sample.utterances == 1:
        return Interval(mean)
    degrees = _degrees(float(seeds[0, 0]), float(tests[0, 0]), len(values), sample.utterances)
    half = t_quantile(degrees) * math.sqrt(float(seeds[0, 0] + tests[0, 0]))
    return Interval(mean, mean - half, mean + half, degrees)


def _ratio(sample: Sample, values: Array) -> Interval:
    a, b = (float(x) for x in values.mean(axis=0))
    if len(values) < 2 or not np.isfinite(values).all() or sample.utterances == 1 or b == 0:
        return Interval(quotient(a, b))
    seeds, tests = _variances(sample, values)
    along = np.array([1.0, -a / b])  # what varies about the ratio
    degrees = _degrees(
        max(float(along @ seeds @ along), 0.0), max(float(along @ tests @ along), 0.0),
        len(values), sample.utterances,
    )  # fmt: skip
    return fieller(a, b, seeds + tests, degrees)


def _bounds(sample: Sample, values: Array) -> Interval:
    least, most = (_mean(replace(sample, values=()), column[:, None]) for column in values.T)
    middle = (least.estimate + most.estimate) / 2
    degrees = min(least.degrees, most.degrees)
    return Interval(middle if math.isfinite(middle) else math.nan, least.low, most.high, degrees)


def _rank(sample: Sample, values: Array) -> Interval:
    if not np.isfinite(values).all():
        return Interval(math.nan)
    at = np.asarray(sample.at, np.float64)
    mean = float(np.mean([_spearman(at, seed) for seed in values]))
    if len(values) < 2:
        return Interval(mean)
    half = _rank_half_width(len(at), len(values))
    return Interval(mean, max(mean - half, -1.0), min(mean + half, 1.0))


_INTERVALS: dict[str, Callable[[Sample, Array], Interval]] = {
    "mean": _mean,
    "ratio": _ratio,
    "bounds": _bounds,
    "rank correlation": _rank,
}


def _variances(sample: Sample, values: Array) -> tuple[Array, Array]:
    """Covariances [K, K] of the columns' means: over seeds, and over shared test utterances."""
    S, K = values.shape
    with np.errstate(invalid="ignore"):  # what is not finite has no interval
        seeds = np.cov(values.T).reshape(K, K) / S if S > 1 else np.full((K, K), math.inf)
    tests = np.asarray(sample.tests, np.float64) if sample.tests else np.zeros((K, K))
    return seeds, tests


def _degrees(seeds: float, tests: float, S: int, U: int) -> float:
    """Degrees of freedom of a variance over S seeds plus one over U utterances.

    Satterthwaite's (1946).
    """
    parts = seeds**2 / (S - 1) + (tests**2 / (U - 1) if U > 1 else 0.0)
    return (seeds + tests) ** 2 / parts if parts else float(S - 1)


def t_quantile(degrees: float, comparisons: int = 1) -> float:
    """Two-sided 95% quantile of Student's t; of a normal if the degrees are infinite.

    Args:
        degrees: degrees of freedom.
        comparisons: number of intervals that hold together with 95% (Bonferroni).
    """
    from scipy.special import ndtri, stdtrit  # pyright: ignore[reportMissingTypeStubs]

    level = 1 - (1 - LEVEL) / 2 / comparisons
    return float(ndtri(level)) if math.isinf(degrees) else float(stdtrit(degrees, level))


def errors_from(value: Interval, end: float) -> float:
    """Distance of an estimate from ``end``, in standard errors.

    For a ratio with known values it is the statistic of Fieller's test, whose standard error
    depends on ``end``; otherwise the half width towards ``end`` gives the error.
    """
    if value.sample is not None and value.sample.statistic == "ratio":
        values = np.asarray(value.sample.values, np.float64)
        covariance, along = sum(_variances(value.sample, values)), np.array([1.0, -end])
        error = math.sqrt(max(float(along @ covariance @ along), 0.0))
        return abs(float(along @ values.mean(axis=0))) / error if error else math.inf
    half = value.estimate - value.low if end < value.estimate else value.high - value.estimate
    return abs(value.estimate - end) / half * t_quantile(value.degrees)


def quotient(a: float, b: float) -> float:
    """A / b, or NaN if b is zero."""
    return a / b if b != 0 else math.nan


def _seeds(values: Values) -> Array:
    x = np.asarray(values, np.float64)
    if x.ndim != 1 or not len(x):
        raise ValueError(f"one value per seed is needed, not shape {x.shape}")
    return x


def _columns(*columns: Array) -> Matrix:
    """Matrix with one row per seed, from one array [S] per column."""
    return tuple(tuple(map(float, row)) for row in zip(*columns, strict=True))


def _pairs(a: Values, b: Values) -> tuple[Array, Array]:
    x, y = _seeds(a), _seeds(b)
    if len(x) != len(y):
        raise ValueError(f"{len(x)} and {len(y)} seeds cannot be paired")
    return x, y


def _ranks(values: Array) -> Array:
    """Ranks from 1, equal values sharing their mean rank."""
    below = (values[:, None] > values).sum(axis=1)
    equal = (values[:, None] == values).sum(axis=1)
    return below + (equal + 1) / 2


def _spearman(x: Array, y: Array) -> float:
    rx, ry = _ranks(x) - (len(x) + 1) / 2, _ranks(y) - (len(y) + 1) / 2
    scale = math.sqrt(float((rx @ rx) * (ry @ ry)))
    return float(rx @ ry) / scale if scale else 0.0  # all equal: no order, no correlation


def _rank_half_width(points: int, seeds: int) -> float:
    """Half width of the interval of a mean rank correlation, at most 1."""
    from scipy.special import ndtri  # pyright: ignore[reportMissingTypeStubs]

    if points > EXACT_RANKS:  # Var ρ = 1 / (K - 1) in random order
        return min(1.0, float(ndtri((1 + LEVEL) / 2)) / math.sqrt(seeds * (points - 1)))
    null = _rank_null(points)
    chance = Counter({0: 1})
    for _ in range(seeds):
        chance = _convolve(chance, null)
    outside, limit = 0, (1 - LEVEL) * chance.total()
    for distance in sorted({abs(d) for d in chance}, reverse=True):
        outside += chance[distance] + (chance[-distance] if distance else 0)
        if outside > limit:
            return distance / (max(null) * seeds)
    raise AssertionError("the whole distribution lies beyond its own tail")


def _rank_null(points: int) -> Counter[int]:
    """Counts of each value of 4 Σ (r - r̄)(s - s̄), an integer, over all orders."""
    centred = [2 * rank - points + 1 for rank in range(points)]
    return Counter(
        sum(r * s for r, s in zip(centred, order, strict=True)) for order in permutations(centred)
    )


def _convolve(a: Counter[int], b: Counter[int]) -> Counter[int]:
    total: Counter[int] = Counter()
    for x, times_x in a.items():
        for y, times_y in b.items():
            total[x + y] += times_x * times_y
    return total

"""95% intervals over seeds.

Every function returns an ``Interval``. Where the data cannot bound a quantity
(one seed, a value that is not finite, a denominator that may be zero) the
interval is the whole line: its verdict is ``undecided``, never a guess.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri, stdtrit  # pyright: ignore[reportMissingTypeStubs]

LEVEL = 0.95
EXACT_RANKS = 7  # up to this many points, the null distribution of ranks is enumerated

Values = Sequence[float] | npt.NDArray[np.floating[Any]]
Array = npt.NDArray[np.float64]
Bounds = tuple[Values, Values]


@dataclass(frozen=True)
class Interval:
    """An estimate with its 95% interval, ``low <= high``; the whole line if unbounded."""

    estimate: float
    low: float = -math.inf
    high: float = math.inf

    @classmethod
    def exact(cls, value: float) -> Interval:
        """A quantity without chance in it, e.g. a simulated time without jitter."""
        return cls(value, value, value) if math.isfinite(value) else cls(value)

    @property
    def ci95(self) -> tuple[float, float]:
        """The bounds, as ``results.json`` has them."""
        return self.low, self.high

    def __neg__(self) -> Interval:
        return Interval(-self.estimate, -self.high, -self.low)

    def __sub__(self, other: Interval | float) -> Interval:
        """From the smallest to the largest difference that the bounds allow."""
        that = other if isinstance(other, Interval) else Interval(other, other, other)
        return Interval(self.estimate - that.estimate, self.low - that.high, self.high - that.low)

    def __rsub__(self, other: float) -> Interval:
        return Interval(other - self.estimate, other - self.high, other - self.low)

    def __rmul__(self, factor: float) -> Interval:
        """So many times the interval, e.g. 100 for percent; the factor is not negative."""
        return Interval(factor * self.estimate, factor * self.low, factor * self.high)


def mean_ci(values: Values) -> Interval:
    """Mean over seeds with Student's t interval, n - 1 degrees of freedom.

    Args:
        values: one value per seed, [S].

    Raises:
        ValueError: there are no values.
    """
    x = _seeds(values)
    mean = float(x.mean())
    if len(x) < 2 or not np.isfinite(x).all():
        return Interval(mean)
    half = t_quantile(len(x) - 1) * math.sqrt(float(x.var(ddof=1)) / len(x))
    return Interval(mean, mean - half, mean + half)


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

    Below it ends where the interval of the smallest possible differences does, above where that of
    the largest does: so, where these are about normal, it holds the mean with 95% wherever the
    values lie within their bounds (partial identification: Horowitz and Manski, 2000). Bounds on
    a grid that are alike for each of a few seeds show no scatter: then it is too sure. Its
    estimate is the middle of what the bounds allow. An open bound leaves its side open; where
    bounds meet it is ``paired_difference_ci``.

    Args:
        a: lowest and highest possible value of each seed, two of [S].
        b: the same seeds in the same order.

    Raises:
        ValueError: the lengths differ or are zero, or a highest lies below a lowest.
    """
    for low, high in (a, b):
        if not all(x <= y for x, y in zip(low, high, strict=True)):
            raise ValueError(f"bounds {low} and {high} cross")
    least, most = paired_difference_ci(a[0], b[1]), paired_difference_ci(a[1], b[0])
    middle = (least.estimate + most.estimate) / 2
    return Interval(middle if math.isfinite(middle) else math.nan, least.low, most.high)


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
    x, y = _pairs(a, b)
    if len(x) < 2 or not np.isfinite([x, y]).all():
        return Interval(quotient(float(x.mean()), float(y.mean())))
    return fieller(float(x.mean()), float(y.mean()), np.cov(x, y) / len(x), len(x) - 1)


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
    return Interval(a / b, centre - half, centre + half)


def wilson(errors: int, total: int) -> Interval:
    """Wilson's interval for an error rate of ``errors`` in ``total`` independent trials.

    Raises:
        ValueError: not 0 ≤ errors ≤ total, or nothing was tried.
    """
    if not 0 <= errors <= total or total == 0:
        raise ValueError(f"{errors} errors in {total} trials")
    z = float(ndtri((1 + LEVEL) / 2))
    rate, shrink = errors / total, 1 + z * z / total
    centre = (rate + z * z / (2 * total)) / shrink
    half = z / shrink * math.sqrt(rate * (1 - rate) / total + (z / (2 * total)) ** 2)
    low = 0.0 if errors == 0 else centre - half  # exact at the ends, without rounding
    return Interval(rate, low, 1.0 if errors == total else centre + half)


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
    if not np.isfinite(outcomes).all():
        return Interval(math.nan)
    mean = float(np.mean([_spearman(settings, seed) for seed in outcomes]))
    if len(outcomes) < 2:
        return Interval(mean)
    half = _rank_half_width(len(settings), len(outcomes))
    return Interval(mean, max(mean - half, -1.0), min(mean + half, 1.0))


def t_quantile(degrees: float) -> float:
    """Two-sided 95% quantile of Student's t."""
    return float(stdtrit(degrees, (1 + LEVEL) / 2))


def quotient(a: float, b: float) -> float:
    """A / b, or NaN where that has no value."""
    return a / b if b != 0 else math.nan


def _seeds(values: Values) -> Array:
    x = np.asarray(values, np.float64)
    if x.ndim != 1 or not len(x):
        raise ValueError(f"one value per seed is needed, not shape {x.shape}")
    return x


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
    if points > EXACT_RANKS:  # Var ρ = 1 / (K - 1) in random order
        return min(1.0, float(ndtri((1 + LEVEL) / 2)) / math.sqrt(seeds * (points - 1)))
    one = _rank_null(points)
    chance = Counter({0: 1})
    for _ in range(seeds):
        chance = _convolved(chance, one)
    outside, limit = 0, (1 - LEVEL) * chance.total()
    for distance in sorted({abs(d) for d in chance}, reverse=True):
        outside += chance[distance] + (chance[-distance] if distance else 0)
        if outside > limit:
            return distance / (max(one) * seeds)
    raise AssertionError("the whole distribution lies beyond its own tail")


def _rank_null(points: int) -> Counter[int]:
    """How often each value of 4 Σ (r - r̄)(s - s̄), an integer, occurs over all orders."""
    centred = [2 * rank - points + 1 for rank in range(points)]
    return Counter(
        sum(r * s for r, s in zip(centred, order, strict=True)) for order in permutations(centred)
    )


def _convolved(a: Counter[int], b: Counter[int]) -> Counter[int]:
    total: Counter[int] = Counter()
    for x, times_x in a.items():
        for y, times_y in b.items():
            total[x + y] += times_x * times_y
    return total

"""95% intervals over seeds that stay inside the range of a quantity.

A mean of shares lies between 0 and 1, and an error, a time or a ratio is not negative; Student's t
interval of few seeds passes such a bound. Here the interval of a mean is Student's t interval of
its transformed value, by the delta method: on the log-odds for a share, on the logarithm for a
positive quantity (Agresti, Categorical Data Analysis, section 3.1). The estimate remains the mean.
Times and ratios that are multiplied have geometric means, and intervals of their logarithms.

A time to a target is known to the grid of evaluations: it lies between the last one short of the
target and the first one at it. Its logarithm is that of the mean place between the two, with
Student's t interval over seeds. Seeds that cross in one step of the grid share an error that their
scatter does not show: the central 95% of its places are added, as independent errors are. Of seeds
in several steps, which agree by chance, the scatter counts as that of a place in a step at least.
The interval covers the truth with 93% to 98% where seeds scatter by half a step or more. Where they
scatter less, few seeds do not tell by how much, and it covers with 93% or more.

A ratio that was chosen of several for its size is the one whose seeds agree by chance, in whichever
steps; its interval is widened for that and for their number.

One value has no interval; neither has one that is not finite.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from harness.base.errors import UserError
from harness.judge.interval import Interval
from harness.judge.statistics import ALPHA, Array, mean_ci, t_quantile


def share_ci(values: Sequence[float], weight: float = 0.0) -> Interval:
    """Mean of shares, with an interval on the log-odds.

    Args:
        values: one share a seed, each from 0 to 1.
        weight: share of one example. The interval reaches at least half of it to either side,
            since a set of examples tells no smaller difference.

    Raises:
        UserError: a value outside 0 to 1.
        ValueError: no value.

    Example:
        >>> found = share_ci([0.02, 0.05, 0.04])
        >>> round(found.estimate, 4), round(found.low, 4), round(found.high, 4)
        (0.0367, 0.0128, 0.1003)
    """
    if not all(0.0 <= value <= 1.0 for value in values):
        shares = ", ".join(f"{value:g}" for value in values)
        raise UserError(f"share: the metric, declared a share, is {shares}; allowed: from 0 to 1")
    mean = _transform_mean(
        values, lambda p: math.log(p / (1.0 - p)), _logistic, lambda p: p * (1 - p)
    )
    if not math.isfinite(mean.high):
        return Interval(mean.estimate)
    low, high = mean.estimate - weight / 2, mean.estimate + weight / 2
    return Interval(mean.estimate, max(0.0, min(low, mean.low)), min(1.0, max(high, mean.high)))


def positive_ci(values: Sequence[float]) -> Interval:
    """Mean of quantities that are not negative, with an interval on the logarithm.

    Args:
        values: one a seed, each from 0.

    Raises:
        ValueError: no value, or one below 0.

    Example:
        >>> found = positive_ci([1.0, 2.0, 3.0])
        >>> round(found.estimate, 4), round(found.low, 4), round(found.high, 4)
        (2.0, 0.5776, 6.9255)
    """
    if not all(value >= 0.0 for value in values):
        raise ValueError(f"values {values}; allowed: from 0")
    return _transform_mean(values, math.log, _exp, lambda mean: mean)


Since = Sequence[float] | None
"""The evaluation before each of several times, one a seed; None for times that are exact."""

PLACES = (np.arange(20) + 0.5) / 20
"""Places between two evaluations at which a target may be crossed."""

MOST_SEEDS = 10_000
"""More seeds than that are not asked for."""


def geometric_ci(values: Sequence[float], since: Since = None) -> Interval:
    """Geometric mean of positive quantities, with an interval on the logarithm.

    Args:
        values: one a seed, each above 0.
        since: see `Since`; the estimate is that of ``values``.

    Raises:
        ValueError: no value, or one that is not above 0.

    Example:
        >>> found = geometric_ci([1.0, 2.0, 4.0])
        >>> round(found.estimate, 4), round(found.low, 4), round(found.high, 4)
        (2.0, 0.3575, 11.19)
    """
    return paired_ratio_ci(values, [1.0] * len(values), (since, None))


def paired_ratio_ci(
    a: Sequence[float],
    b: Sequence[float],
    since: tuple[Since, Since] = (None, None),
    comparisons: int = 1,
) -> Interval:
    """Geometric mean of ``a / b``, paired by seed, with an interval on the logarithm.

    Args:
        a: one value a seed, each above 0.
        b: the same of the same seeds, in their order.
        since: `Since` of both.
        comparisons: number of ratios of which this one was chosen; the intervals of all of them
            hold together with 95% (Bonferroni).

    Raises:
        ValueError: lengths differ or are zero, or a value is not above 0.

    Example:
        >>> found = paired_ratio_ci([2.0, 4.0], [1.0, 2.0])
        >>> found.estimate, found.low, found.high
        (2.0, 2.0, 2.0)
    """
    logs, scatter, (low, high) = _log_ratios(a, b, since, comparisons)
    estimate, seeds = float(np.log(np.divide(a, b)).mean()), len(logs)
    if seeds < 2:
        return Interval(math.exp(estimate))
    half, middle = t_quantile(seeds - 1, comparisons) * scatter / math.sqrt(seeds), logs.mean()
    low, high = middle - math.hypot(half, low), middle + math.hypot(half, high)
    low, high = min(estimate, low), max(estimate, high)
    return Interval(math.exp(estimate), _exp(low), _exp(high), seeds - 1)


def find_seeds(
    a: Sequence[float], b: Sequence[float], since: tuple[Since, Since], comparisons: int
) -> float:
    """Number of seeds for which `paired_ratio_ci` excludes 1 if their scatter stays as it is.

    Returns:
        The number; infinite where the grid, or a scatter for more than `MOST_SEEDS`, hides it.
    """
    logs, scatter, ends = _log_ratios(a, b, since, comparisons)
    return count_seeds(scatter, float(logs.mean()) ** 2 - max(e**2 for e in ends), comparisons)


def count_seeds(scatter: float, room: float, comparisons: int = 1) -> float:
    """Least number of seeds for which half an interval is within the root of ``room``.

    Args:
        scatter: standard deviation over seeds.
        room: square of half the interval.
        comparisons: see `paired_ratio_ci`.
    """
    if room <= 0.0 or (t_quantile(math.inf, comparisons) * scatter) ** 2 > MOST_SEEDS * room:
        return math.inf
    counts = range(2, MOST_SEEDS + 1)
    enough = (n for n in counts if (t_quantile(n - 1, comparisons) * scatter) ** 2 <= n * room)
    return next(enough, math.inf)


def _log_ratios(
    a: Sequence[float], b: Sequence[float], since: tuple[Since, Since], comparisons: int
) -> tuple[Array, float, tuple[float, float]]:
    """Logarithms of ``a / b`` by seed, [S], their scatter, and ends of the error they share."""
    if len(a) != len(b) or not all(value > 0.0 for value in (*a, *b)) or not a:
        raise ValueError(f"values {a} and {b}; allowed: above 0, as many of both")
    (over, error, loose), (under, other, free) = (
        _place(end, begin, comparisons > 1) for end, begin in zip((a, b), since, strict=True)
    )
    logs, tail = np.log(over / under), ALPHA / 2 / comparisons
    scatter = max(float(logs.std(ddof=1)) if len(a) > 1 else 0.0, math.hypot(loose, free))
    errors = np.subtract.outer(error, other)
    low, high = np.quantile(errors, (tail, 1 - tail), method="hazen")
    return logs, scatter, (float(low), float(high))


def _place(end: Sequence[float], begin: Since, chosen: bool) -> tuple[Array, Array, float]:
    """Mean places [S] between two evaluations, their shared error [P], and their least scatter.

    Seeds share of a step what overlaps when their steps are counted from the start.
    """
    values = np.asarray(end)
    if begin is None:
        return values, np.zeros(1), 0.0
    step = np.maximum(values - begin, 1e-12 * values)
    logs = np.log(values - np.outer(PLACES, step))  # [P, S]
    overlap = max(0.0, 1.0 - float(np.ptp(values / step)))
    least = float(logs.std(axis=0).mean()) * math.sqrt(1.0 if chosen else 1.0 - overlap)
    return np.exp(logs.mean(axis=0)), overlap * (logs.mean(axis=1) - logs.mean()), least


def metric_ci(is_share: bool, values: Sequence[float], weight: float = 0.0) -> Interval:
    """Mean of a metric, with an interval inside its range.

    The range of a share is 0 to 1. Another metric counts as positive where none of its values is
    negative; where one is, the interval is Student's t.

    Args:
        is_share: whether the metric is one.
        values: one value a seed.
        weight: change of the metric by one example; 0 if there is no fixed one.
    """
    if is_share:
        return share_ci(values, weight)
    return positive_ci(values) if all(value >= 0.0 for value in values) else mean_ci(values)


def _transform_mean(
    values: Sequence[float],
    function: Callable[[float], float],
    inverse: Callable[[float], float],
    one_over_slope: Callable[[float], float],
) -> Interval:
    """Interval of the mean by the delta method; the slope of ``function`` is inverted."""
    plain = mean_ci(values)
    mean, half = plain.estimate, plain.high - plain.estimate
    if not math.isfinite(half):
        return Interval(mean)
    scale = one_over_slope(mean)
    if half == 0.0 or scale == 0.0:  # equal values; a mean at a bound has all of them there
        return Interval(mean, mean, mean, plain.degrees)
    middle, reach = function(mean), half / scale
    # rounding must not put the mean outside its own interval
    low, high = min(mean, inverse(middle - reach)), max(mean, inverse(middle + reach))
    return Interval(mean, low, high, plain.degrees)


def _logistic(x: float) -> float:
    return 1.0 / (1.0 + math.exp(-x)) if x >= 0 else math.exp(x) / (1.0 + math.exp(x))


def _exp(x: float) -> float:
    """Exponential; infinite where a float cannot hold it."""
    return math.exp(x) if x < 709.0 else math.inf

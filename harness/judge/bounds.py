"""95% intervals over seeds that stay inside the range of a quantity.

A mean of shares lies between 0 and 1, and an error, a time or a ratio is not negative; Student's t
interval of few seeds passes such a bound. Here the interval of a mean is Student's t interval of
its transformed value, by the delta method: on the log-odds for a share, on the logarithm for a
positive quantity (Agresti, Categorical Data Analysis, section 3.1). The estimate remains the mean.
Times and ratios that are multiplied have geometric means, and intervals of their logarithms.

One value has no interval; neither has one that is not finite.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from harness.base.errors import UserError
from harness.judge.interval import Interval
from harness.judge.statistics import mean_ci


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
        told = ", ".join(f"{value:g}" for value in values)
        raise UserError(f"share: the metric, declared a share, is {told}; allowed: from 0 to 1")
    found = _transform_mean(
        values, lambda p: math.log(p / (1.0 - p)), _logistic, lambda p: p * (1 - p)
    )
    if not math.isfinite(found.high):
        return Interval(found.estimate)
    low, high = found.estimate - weight / 2, found.estimate + weight / 2
    return Interval(found.estimate, max(0.0, min(low, found.low)), min(1.0, max(high, found.high)))


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


def geometric_ci(values: Sequence[float]) -> Interval:
    """Geometric mean of positive quantities, with Student's t interval of their logarithms.

    Args:
        values: one a seed, each above 0.

    Raises:
        ValueError: no value, or one that is not above 0.

    Example:
        >>> found = geometric_ci([1.0, 2.0, 4.0])
        >>> round(found.estimate, 4), round(found.low, 4), round(found.high, 4)
        (2.0, 0.3575, 11.19)
    """
    if not all(value > 0.0 for value in values):
        raise ValueError(f"values {values}; allowed: above 0")
    found = mean_ci([math.log(value) for value in values])
    if not math.isfinite(found.high):
        return Interval(math.exp(found.estimate))
    return Interval(math.exp(found.estimate), _exp(found.low), _exp(found.high), found.degrees)


def paired_ratio_ci(a: Sequence[float], b: Sequence[float]) -> Interval:
    """Geometric mean of ``a / b``, paired by seed, with an interval on the logarithm.

    Args:
        a: one value a seed, each above 0.
        b: the same of the same seeds, in their order.

    Raises:
        ValueError: lengths differ or are zero, or a value is not above 0.

    Example:
        >>> found = paired_ratio_ci([2.0, 4.0], [1.0, 2.0])
        >>> found.estimate, found.low, found.high
        (2.0, 2.0, 2.0)
    """
    if not all(value > 0.0 for value in (*a, *b)):
        raise ValueError(f"values {a} and {b}; allowed: above 0")
    return geometric_ci([x / y for x, y in zip(a, b, strict=True)])


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

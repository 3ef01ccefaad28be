"""What a design could have seen: the chance of ``reproduced`` if the paper is right.

An estimate is taken as normal about the true value with the measured standard error, and that
error itself as measured with the interval's degrees of freedom: the estimate's distance from an
end, in measured errors, is then a noncentral Student's t. The true error is taken to be the
measured one, so of designs with few seeds about half are told too much power and half too little.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy.special import chdtri, ndtr  # pyright: ignore[reportMissingTypeStubs]

from harness.judge.claims import ABOVE, Rule
from harness.judge.interval import Interval
from harness.judge.statistics import t_quantile

ENOUGH = 0.5
"""Below this chance of being reproduced a claim is not testable."""
WANTED = 0.8
"""The chance with which an effect counts as one that the design finds."""
POINTS = 400
"""Of the midpoint rule over the distribution of the measured error."""


def power(found: Interval, rule: Rule, true: float) -> float:
    """The probability that a quantity is judged ``reproduced``.

    Args:
        found: its interval, for the scatter; 0 is answered where it has no bounds.
        rule: where it should lie.
        true: where it does lie, in its own unit.
    """
    below, above = found.estimate - found.low, found.high - found.estimate
    if not math.isfinite(below + above):
        return 0.0
    if below == above == 0:
        return float(rule.holds(true))
    t = t_quantile(found.degrees)
    error = (below + above) / 2 / t
    stretch = _measured_over_true(found.degrees)
    with np.errstate(invalid="ignore"):
        highest = (rule.high - above * stretch - true) / error
        lowest = (rule.low + below * stretch - true) / error
    return float(np.maximum(ndtr(highest) - ndtr(lowest), 0.0).mean())


def finds(found: Interval) -> float:
    """How far beyond an end a quantity must lie to be told from it with 80% power.

    In the quantity's own unit; infinite where the interval has no bounds.
    """
    half = max(found.high - found.estimate, found.estimate - found.low)  # a rank's ends at 1
    return half * _found_in_halves(found.degrees) if math.isfinite(half) else math.inf


@lru_cache(maxsize=256)
def _found_in_halves(degrees: float) -> float:
    """The same, in half widths of the interval."""
    unit = Interval(0.0, -1.0, 1.0, degrees)
    low, high = 0.0, 1.0
    while power(unit, ABOVE, high) < WANTED:
        low, high = high, 2 * high
    for _ in range(50):
        middle = (low + high) / 2
        enough = power(unit, ABOVE, middle) >= WANTED
        low, high = (low, middle) if enough else (middle, high)
    return high


@lru_cache(maxsize=256)
def _measured_over_true(degrees: float) -> npt.NDArray[np.float64]:
    """Equally likely ratios of a measured to the true standard error."""
    if math.isinf(degrees):
        return np.ones(1)
    shares = (np.arange(POINTS) + 0.5) / POINTS
    return np.sqrt(np.asarray(chdtri(degrees, shares), np.float64) / degrees)

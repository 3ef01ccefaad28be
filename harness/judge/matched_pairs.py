"""Is one recogniser better than another on the same utterances?

The matched-pairs test of Gillick and Cox (ICASSP 1989): errors are compared utterance by
utterance, so what makes an utterance hard for both cancels. An utterance is a segment in
their sense, errors in one taken as independent of those in the next.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import stdtr  # pyright: ignore[reportMissingTypeStubs]

from harness.judge.statistics import Interval
from harness.judge.utterances import Counts, bootstrap_rate_ci


@dataclass(frozen=True)
class MatchedPairs:
    """The outcome for system a against system b.

    Attributes:
        difference: error rate of a minus that of b, with its 95% bootstrap interval.
        statistic: Student's t of the mean difference of errors an utterance; NaN if the
            two never differ, or there are fewer than two utterances.
        p_value: two-sided; 1 where the data show nothing.
    """

    difference: Interval
    statistic: float
    p_value: float


def matched_pairs(
    a: Counts, b: Counts, lengths: Counts, rng: np.random.Generator, resamples: int = 2000
) -> MatchedPairs:
    """Compare two systems on one test set.

    Gillick and Cox take the statistic as normal; Student's t with U - 1 degrees of freedom
    is the same for many utterances and honest for few.

    Args:
        a: errors of one system on each utterance, [U].
        b: errors of the other, [U].
        lengths: reference length per utterance, [U].
        rng: a named stream for the bootstrap of the interval.
        resamples: number of resampled test sets.

    Raises:
        ValueError: shapes do not fit, or nothing was tested.
    """
    if a.shape != b.shape:
        raise ValueError(f"errors {a.shape} and {b.shape} cannot be paired")
    z: npt.NDArray[np.floating[Any]] = np.asarray(a, np.float64) - np.asarray(b, np.float64)
    difference = bootstrap_rate_ci(z, lengths, rng, resamples)
    if len(z) < 2 or not z.any():
        return MatchedPairs(difference, math.nan, 1.0)
    mean, error = float(z.mean()), math.sqrt(float(z.var(ddof=1)) / len(z))
    t = mean / error if error else math.copysign(math.inf, mean)
    return MatchedPairs(difference, t, 2.0 * float(stdtr(len(z) - 1, -abs(t))))

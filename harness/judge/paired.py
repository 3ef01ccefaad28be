"""Paired differences: curves seed by seed, recognisers utterance by utterance.

A curve is compared with a reference curve by differences seed by seed, so that effects common to
both cancel.

Two recognisers are compared on the same utterances by the matched-pairs test of Gillick and Cox
(ICASSP 1989): errors are subtracted utterance by utterance, so an utterance's difficulty cancels.
An utterance is a segment in their sense: its errors are taken as independent of the next one's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.judge.results import Row
from harness.judge.statistics import Interval, paired_difference_ci
from harness.judge.utterances import Counts, bootstrap_rate_ci

__all__ = ["MatchedPairs", "matched_pairs", "seeds_of", "subtract_reference"]


def subtract_reference(rows: Sequence[Row], reference: str) -> tuple[Row, ...]:
    """Each row minus the reference's, with its paired 95% interval, at the row's column.

    Curves with equally many points, measured at nearly the same times, are subtracted point by
    point in order; otherwise points of equal columns are.

    Args:
        rows: points of curves, with one value per seed, the same seeds in the same order.
        reference: label of the rows to subtract.

    Returns:
        A row per point of another label that has a counterpart; none where the seeds' values are
        not known, or their numbers differ.
    """
    base = [row for row in rows if row.label == reference]
    labels = dict.fromkeys(row.label for row in rows if row.label != reference)
    curves = ([row for row in rows if row.label == label] for label in labels)
    return tuple(
        Row.from_interval(
            row.label, row.column, None, paired_difference_ci(ours, theirs), row.runs + to.runs
        )
        for curve in curves
        for row, to in _counterparts(curve, base)
        if len(ours := seeds_of(row)) == len(theirs := seeds_of(to)) and ours
    )


def seeds_of(row: Row) -> list[float]:
    """One value per seed, if the row is their mean; else an empty list.

    Example:
        >>> seeds_of(Row("a", 1.0))
        []
    """
    if row.sample is None or row.sample.statistic != "mean":
        return []
    return [value for (value,) in row.sample.values]


def _counterparts(curve: Sequence[Row], base: Sequence[Row]) -> list[tuple[Row, Row]]:
    if len(curve) == len(base):
        return list(zip(curve, base, strict=True))
    by_column = {row.column: row for row in base}
    return [(row, by_column[row.column]) for row in curve if row.column in by_column]


@dataclass(frozen=True)
class MatchedPairs:
    """Outcome of the matched-pairs test of system a against system b.

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
    from scipy.special import stdtr  # pyright: ignore[reportMissingTypeStubs]

    if a.shape != b.shape:
        raise ValueError(f"errors {a.shape} and {b.shape} cannot be paired")
    z: npt.NDArray[np.floating[Any]] = np.asarray(a, np.float64) - np.asarray(b, np.float64)
    difference = bootstrap_rate_ci(z, lengths, rng, resamples)
    if len(z) < 2 or not z.any():
        return MatchedPairs(difference, math.nan, 1.0)
    # every utterance differs alike: no scatter, so t is infinite and p is 0
    mean, error = float(z.mean()), math.sqrt(float(z.var(ddof=1)) / len(z))
    t = mean / error if error else math.copysign(math.inf, mean)
    return MatchedPairs(difference, t, 2.0 * float(stdtr(len(z) - 1, -abs(t))))

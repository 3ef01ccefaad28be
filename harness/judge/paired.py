"""Curves less a reference curve, seed by seed, so that effects common to both cancel."""

from __future__ import annotations

from collections.abc import Sequence

from harness.judge.results import Row
from harness.judge.statistics import paired_difference_ci


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

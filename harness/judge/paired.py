"""Curves against one of them: differences seed by seed, where what the seeds share cancels."""

from __future__ import annotations

from collections.abc import Sequence

from harness.judge.results import Row
from harness.judge.statistics import paired_difference_ci

__all__ = ["against", "seeds_of"]


def against(rows: Sequence[Row], reference: str) -> tuple[Row, ...]:
    """Each row minus the reference's, with its paired 95% interval, at the row's column.

    The first reading of a curve is taken from the first of the reference, and so on, where both
    have equally many, as they have at nearly the same times; else readings of equal columns are.

    Args:
        rows: of which some have one value for each seed, the same seeds in the same order.
        reference: label of the rows that are taken off.

    Returns:
        A row for each of another label that has its counterpart; none where the seeds' values are
        not known, or not equally many.
    """
    base = [row for row in rows if row.label == reference]
    labels = dict.fromkeys(row.label for row in rows if row.label != reference)
    curves = ([row for row in rows if row.label == label] for label in labels)
    return tuple(
        Row.of(row.label, row.column, None, paired_difference_ci(ours, theirs), row.runs + to.runs)
        for curve in curves
        for row, to in _counterparts(curve, base)
        if len(ours := seeds_of(row)) == len(theirs := seeds_of(to)) and ours
    )


def seeds_of(row: Row) -> list[float]:
    """A value for each seed, where the row is their mean; else nothing.

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

"""An exhibit's rows as a grid to print, and as CSV to compute with."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from harness.judge.results import Exhibit, Row
from reports import numbers

COLUMN, PAGE = 56, 118
"""Characters across a column of a page and across all of it, in the table's type."""
GAP = 3  # characters between two columns
HEADER = ("label", "column", "paper", "measured", "ci95_low", "ci95_high", "runs")
NO_SPREAD = "These figures are the same for every seed."
SOME_SPREAD = "Figures without an interval are the same for every seed."
NO_INTERVAL = "These figures have no interval."

Cell = dict[str, Any]


@dataclass(frozen=True)
class Grid:
    """A printed table.

    Attributes:
        columns: heads of the columns.
        rows: label and one cell (or None) per column.
        printed: for each column, whether the paper prints any of its figures.
        ours: for each column, what our figures are: measured, simulated, or both.
        remark: sentence about all figures, in place of the same words in every cell.
        wide: whether it is too wide for a column of a page.
    """

    columns: list[str]
    rows: list[tuple[str, list[Cell | None]]]
    printed: list[bool]
    ours: list[str]
    remark: str = ""
    wide: bool = False

    def width(self, *, wrapped: bool = False) -> int:
        """Characters it takes across; ``wrapped``: labels on two lines, heads a word a line."""
        labels = max((len(label) for label, _ in self.rows), default=0)
        if wrapped:
            words = (len(word) for label, _ in self.rows for word in label.split())
            labels = max((labels + 1) // 2 + GAP, *words, 0)
        return labels + sum(self._across(at, wrapped) + GAP for at in range(len(self.columns)))

    def _across(self, at: int, wrapped: bool) -> int:
        cells = [cell for _, row in self.rows if (cell := row[at])]
        mine = max((len(c["measured"]) for c in cells), default=0)
        mine = max([mine, *(len(c["spread"]) * 4 // 5 for c in cells)])
        paper = max((len(c["paper"]) for c in cells), default=0) if self.printed[at] else 0
        head = self.columns[at].split() if wrapped else [self.columns[at]]
        return max([mine + (paper + GAP if paper else 0), *map(len, head)])


def grid(
    rows: Collection[Row], marked: Collection[str] = (), simulated: Collection[str] = ()
) -> Grid:
    """Lay out rows as label by column, or otherwise if a page's column is too narrow.

    Tried in order: transposed; either with labels and heads of several lines; all of these across
    the page; a list.

    Args:
        rows: the exhibit's rows.
        marked: hashes of runs that diverged or failed; cells resting on them are flagged.
        simulated: columns whose figures are simulated.
    """
    places = {
        label: numbers.places_of(row.paper for row in rows if row.label == label)
        for label in {row.label for row in rows}
    }
    repeated, remark = _remark(rows)
    cells = {
        (row.label, numbers.format_number(row.column)): {
            **_cell(row, places[row.label], marked, repeated),
            "kind": "simulated" if str(row.column) in simulated else "measured",
        }
        for row in rows
    }
    turned = {(column, label): cell for (label, column), cell in cells.items()}
    listed = {(f"{label} · {column}", ""): cell for (label, column), cell in cells.items()}
    grids = [_build_grid(form, remark) for form in (cells, turned)]
    fitting = [
        replace(form, wide=space > COLUMN)
        for space, wrapped in product((COLUMN, PAGE), (False, True))
        for form in grids
        if form.width(wrapped=wrapped) <= space
    ]
    return [*fitting, _build_grid(listed, remark)][0]


def to_csv(exhibit: Exhibit) -> str:
    """Every row with full precision; a missing number is an empty field."""
    ends = [row.ci95 or (None, None) for row in exhibit.rows]
    lines = (
        [row.label, row.column, row.paper, row.measured, *pair, " ".join(row.runs)]
        for row, pair in zip(exhibit.rows, ends, strict=True)
    )
    return format_csv(HEADER, lines)


def format_csv(head: Iterable[object], rows: Iterable[Iterable[object]]) -> str:
    """Lines of comma-separated values."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([head, *rows])
    return text.getvalue()


def _build_grid(cells: dict[tuple[str, str], Cell], remark: str) -> Grid:
    labels, columns = ([*dict.fromkeys(key[at] for key in cells)] for at in (0, 1))
    body = [(label, [cells.get((label, column)) for column in columns]) for label in labels]
    printed = [any(c["paper"] for _, row in body if (c := row[at])) for at in range(len(columns))]
    kinds = [{c["kind"] for _, row in body if (c := row[at])} for at in range(len(columns))]
    return Grid(columns, body, printed, [" or ".join(sorted(kind)) for kind in kinds], remark)


def _remark(rows: Collection[Row]) -> tuple[str, str]:
    """Interval text that many cells would repeat, and a sentence in its place."""
    spreads = {numbers.spread(r.measured, r.ci95) for r in rows if r.measured is not None} - {""}
    if spreads == {numbers.UNBOUNDED}:
        return numbers.UNBOUNDED, NO_INTERVAL
    if numbers.SAME in spreads:
        return numbers.SAME, NO_SPREAD if len(spreads) == 1 else SOME_SPREAD
    return "", ""


def _cell(row: Row, places: int, marked: Collection[str], repeated: str) -> Cell:
    spread = numbers.spread(row.measured, row.ci95)
    return {
        "paper": "" if row.paper is None else numbers.format_number(row.paper, places),
        "measured": numbers.format_measured(row.measured, row.ci95),
        "spread": "" if spread == repeated else spread,
        "flag": any(run in marked for run in row.runs),
    }

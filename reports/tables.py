"""An exhibit's rows as a grid to print and as CSV to compute with."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from harness.judge import Exhibit, Row
from reports import numbers

WIDE = 6  # columns that fit a page when each holds the paper's figure and ours
HEADER = ("label", "column", "paper", "measured", "ci95_low", "ci95_high", "runs")

Cell = dict[str, Any]


@dataclass(frozen=True)
class Grid:
    """A printed table.

    Attributes:
        columns: heads of the columns.
        rows: label and one cell (or None) per column.
        has_paper: whether the paper prints any of these figures.
    """

    columns: list[str]
    rows: list[tuple[str, list[Cell | None]]]
    has_paper: bool


def grid(rows: Collection[Row], marked: Collection[str] = ()) -> Grid:
    """Lay out rows as label by column, turned or listed where the page is too narrow.

    Args:
        rows: the exhibit's rows.
        marked: hashes of runs that diverged or failed; cells resting on them are flagged.
    """
    labels, columns = _seen(row.label for row in rows), _seen(_head(row) for row in rows)
    places = {
        label: numbers.places_of(row.paper for row in rows if row.label == label)
        for label in labels
    }
    cells = {(row.label, _head(row)): _cell(row, places[row.label], marked) for row in rows}
    if len(columns) > WIDE and len(labels) <= WIDE:
        cells = {(column, label): cell for (label, column), cell in cells.items()}
        labels, columns = columns, labels
    elif len(columns) > WIDE:
        cells = {(f"{label} · {column}", ""): cell for (label, column), cell in cells.items()}
        labels, columns = [label for label, _ in cells], [""]
    body = [(label, [cells.get((label, column)) for column in columns]) for label in labels]
    return Grid(columns, body, any(row.paper is not None for row in rows))


def to_csv(exhibit: Exhibit) -> str:
    """Every row with full precision; a missing number is an empty field."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(HEADER)
    for row in exhibit.rows:
        low, high = row.ci95 or (None, None)
        numeric = [row.paper, row.measured, low, high]
        writer.writerow([row.label, row.column, *numeric, " ".join(row.runs)])
    return text.getvalue()


def _seen(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))


def _head(row: Row) -> str:
    return numbers.printed(row.column)


def _cell(row: Row, places: int, marked: Collection[str]) -> Cell:
    return {
        "paper": numbers.printed(row.paper, places),
        "measured": numbers.measured(row.measured, row.ci95),
        "spread": numbers.spread(row.measured, row.ci95),
        "flag": any(run in marked for run in row.runs),
    }

"""``results.json``: what a reproduction found, as a program reads it (schema 1).

The dataclasses are the file: field by field, in this order. A number that is not
finite has no place in JSON; it becomes None when the object is made, so what is
in memory is what is on disk.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

from harness.judge.claims import Verdict
from harness.store import atomic

SCHEMA = 1
Kind = Literal["table", "figure"]
Bounds = tuple[float | None, float | None]


@dataclass(frozen=True)
class Row:
    """One cell of a table, or one point of a figure.

    Attributes:
        label: the row of a table, or the series of a figure.
        column: the column of a table, or the x value of a figure.
        paper: what the paper prints, if anything.
        measured: what the runs gave; None if they diverged.
        ci95: 95% interval of ``measured``; None, or None at an end, if unbounded.
        runs: hashes of the runs it comes from.
    """

    label: str
    column: str | float
    paper: float | None = None
    measured: float | None = None
    ci95: Bounds | None = None
    runs: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _tidy(self)


@dataclass(frozen=True)
class Exhibit:
    """A table or figure of the paper, regenerated.

    Attributes:
        id: as in the list of exhibits, e.g. ``"p1.table2"``.
        kind: ``"table"`` or ``"figure"``.
        title: what it shows, with the unit of a table's figures.
        rows: its content.
        files: paths relative to the output folder; the report fills them in.
        note: a sentence for the reader.
        axes: of a figure, ``{"x": "epoch", "y": "frame error (%)"}``, with units.
        draw: how to draw a figure; see ``reports.figures``.
        paper_label: what the paper calls it, e.g. ``"Table 2"``.
    """

    id: str
    kind: Kind
    title: str
    rows: tuple[Row, ...] = ()
    files: tuple[str, ...] = ()
    note: str = ""
    axes: dict[str, str] = field(default_factory=dict[str, str])
    draw: dict[str, Any] = field(default_factory=dict[str, Any])
    paper_label: str = ""


@dataclass(frozen=True)
class Part:
    """One of several quantities behind a claim, e.g. one test set."""

    label: str
    paper: float | str | None = None
    measured: float | None = None
    ci95: Bounds | None = None
    verdict: Verdict | None = None

    def __post_init__(self) -> None:
        _tidy(self)


@dataclass(frozen=True)
class Claim:
    """A falsifiable statement of the paper, judged.

    Attributes:
        id: as in the list of claims, e.g. ``"p1.chunk-size"``.
        statement: what the paper says, in one sentence.
        where: section, table or page of the paper.
        statistic: what is measured, and the band if there is one.
        paper: the paper's figure, or a word such as ``"holds"``.
        measured: ours; None if a run diverged or the parts say it all.
        ci95: its 95% interval.
        verdict: ``reproduced``, ``contradicted`` or ``undecided``.
        runs: hashes of the runs it comes from.
        note: a sentence for the reader.
        parts: the quantities behind a claim that has several.
    """

    id: str
    statement: str
    where: str
    statistic: str
    paper: float | str | None
    measured: float | None
    ci95: Bounds | None
    verdict: Verdict
    runs: tuple[str, ...] = ()
    note: str = ""
    parts: tuple[Part, ...] = ()

    def __post_init__(self) -> None:
        _tidy(self)


@dataclass(frozen=True)
class Results:
    """Everything a reproduction found.

    Attributes:
        paper: e.g. ``"paper1"``.
        scale: ``smoke``, ``laptop``, ``gpu`` or ``paper``.
        corpus: name of the corpus.
        seeds: the seeds that the verdicts rest on.
        provenance: ``git``, ``versions``, ``device``, ``wall_s``, ``started``,
            ``command``, and what else the report should print.
        exhibits: in the paper's order.
        claims: in the order of the list of claims.
        schema: of the file.
    """

    paper: str
    scale: str
    corpus: str
    seeds: tuple[int, ...]
    provenance: dict[str, Any]
    exhibits: tuple[Exhibit, ...]
    claims: tuple[Claim, ...]
    schema: int = SCHEMA


def write_results(path: Path, results: Results) -> None:
    """Write ``results`` atomically."""
    atomic.write_json(path, {"schema": SCHEMA} | asdict(results))


def _finite(value: object) -> Any:
    """Plain finite numbers, strings and None as they are; what is not finite as None."""
    if value is None or isinstance(value, str):
        return value
    number = cast(float, value)
    if not math.isfinite(number):
        return None
    return int(number) if isinstance(value, int) else float(number)


def _tidy(item: Row | Part | Claim) -> None:
    """Make the numbers of a frozen ``item`` plain and finite, once, at construction."""
    for name in ("paper", "measured"):
        object.__setattr__(item, name, _finite(getattr(item, name)))
    if isinstance(item, Row):
        object.__setattr__(item, "column", _finite(item.column))
    if item.ci95 is not None:
        object.__setattr__(item, "ci95", tuple(_finite(end) for end in item.ci95))
    if isinstance(item, Row | Claim):
        object.__setattr__(item, "runs", tuple(item.runs))

"""``results.json``: the results of a reproduction, machine-readable (schema 1).

The dataclasses are the file: field by field, in this order. JSON has no number that
is not finite: it becomes None at construction, so that memory and file agree.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

from harness.judge.claims import Verdict
from harness.judge.interval import Interval, Sample
from harness.store import files as atomic

SCHEMA = 1
Kind = Literal["table", "figure"]
Bounds = tuple[float | None, float | None]


@dataclass(frozen=True)
class Row:
    """One cell of a table, or one point of a figure.

    Attributes:
        label: the row of a table, or the series of a figure.
        column: the column of a table, or the x value of a figure.
        paper: the paper's figure; None if it prints none.
        measured: value measured on the runs; None if they diverged.
        ci95: 95% interval of ``measured``; None, or None at an end, if unbounded.
        runs: hashes of the runs it comes from.
        sample: the values of each seed that the interval is computed from.
    """

    label: str
    column: str | float
    paper: float | None = None
    measured: float | None = None
    ci95: Bounds | None = None
    runs: tuple[str, ...] = ()
    sample: Sample | None = None

    def __post_init__(self) -> None:
        _tidy(self)

    @classmethod
    def from_interval(
        cls,
        label: str,
        column: str | float,
        paper: float | None,
        found: Interval,
        runs: tuple[str, ...],
    ) -> Row:
        """The row of an interval, with the values it is computed from."""
        return cls(label, column, paper, found.estimate, found.ci95, runs, found.sample)


@dataclass(frozen=True)
class Exhibit:
    """A table or figure of the paper, regenerated.

    Attributes:
        id: as in the list of exhibits, e.g. ``"p1.table2"``.
        kind: ``"table"`` or ``"figure"``.
        title: title, with the unit of a table's figures.
        rows: its content.
        files: paths relative to the output folder; the report fills them in.
        note: a sentence for the reader.
        axes: of a figure, ``{"x": "epoch", "y": "frame error (%)"}``, with units.
        draw: options for drawing a figure; see ``reports.figures``.
        paper_label: its name in the paper, e.g. ``"Table 2"``.
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
    """One of the quantities behind a claim, e.g. one test set.

    Attributes:
        label: name among the claim's parts.
        paper: the paper's figure, or a word.
        measured: measured value.
        ci95: its 95% interval.
        verdict: verdict without a correction; None if the part is shown and not judged.
        band: band according to the paper; an unbounded end is None.
        power: probability of ``reproduced`` if the paper's figure is true; None if not
            computable.
        finds: distance beyond an end of the band that is detected with 80% power.
        sample: the values of each seed that the interval is computed from.
    """

    label: str
    paper: float | str | None = None
    measured: float | None = None
    ci95: Bounds | None = None
    verdict: Verdict | None = None
    band: Bounds | None = None
    power: float | None = None
    finds: float | None = None
    sample: Sample | None = None

    def __post_init__(self) -> None:
        _tidy(self)


@dataclass(frozen=True)
class Condition:
    """A precondition of a claim, measured on the runs.

    Attributes:
        what: the condition in words, with the unit.
        measured: measured value.
        ci95: its 95% interval.
        band: band that it must lie in; an unbounded end is None.
        holds: whether the measured value lies in the band.
    """

    what: str
    measured: float | None
    ci95: Bounds | None
    band: Bounds
    holds: bool

    def __post_init__(self) -> None:
        _tidy(self)


@dataclass(frozen=True)
class Claim:
    """A falsifiable statement of the paper, judged.

    Attributes:
        id: as in the list of claims, e.g. ``"p1.chunk-size"``.
        statement: the paper's statement, in one sentence.
        where: section, table or page of the paper.
        statistic: description of the measured statistic, and the band if there is one.
        paper: the paper's figure, or a word such as ``"holds"``.
        measured: measured value of the headline; None if a run diverged.
        ci95: its 95% interval.
        verdict: ``reproduced``, ``contradicted``, ``undecided`` or ``not testable``.
        runs: hashes of the runs it comes from.
        note: a sentence for the reader.
        parts: the quantities behind it; the first is the headline.
        power: probability of ``reproduced`` if the paper's figures are true, taking the parts as
            independent: the product over the parts with a printed figure, so an upper bound of
            that of all; None where the paper prints none.
        preconditions: preconditions of the paper's statement.
        because: reason for ``not testable``; otherwise empty.
        cannot_fail: reason why it holds by construction, if it does.
        p_value: p-value of the verdict; None if it is not testable.
        corrected: the verdict after a correction over all claims of the paper.
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
    power: float | None = None
    preconditions: tuple[Condition, ...] = ()
    because: str = ""
    cannot_fail: str = ""
    p_value: float | None = None
    corrected: Verdict | None = None

    def __post_init__(self) -> None:
        _tidy(self)

    @property
    def decided(self) -> bool:
        """Whether its verdict is ``reproduced`` or ``contradicted``."""
        return self.verdict in ("reproduced", "contradicted")


@dataclass(frozen=True)
class Results:
    """All results of a reproduction.

    Attributes:
        paper: name of the paper, e.g. ``"paper1"``.
        scale: ``smoke``, ``laptop``, ``overnight``, ``gpu`` or ``paper``.
        corpus: name of the corpus.
        seeds: the seeds that the verdicts rest on.
        provenance: ``git``, ``versions``, ``device``, ``wall_s``, ``started``,
            ``command``, and further facts for the report.
        exhibits: exhibits in the paper's order.
        claims: claims in the order of the list of claims.
        schema: version of the file's schema.
    """

    paper: str
    scale: str
    corpus: str
    seeds: tuple[int, ...]
    provenance: dict[str, Any]
    exhibits: tuple[Exhibit, ...]
    claims: tuple[Claim, ...]
    schema: int = SCHEMA


LEVELS = 4
"""Levels of ``results.json`` that are indented: from the exhibits down to a row, on one line.

With full indentation the hashes of nine seeds would take as much space as everything else."""


def write_results(path: Path, results: Results) -> None:
    """Write ``results`` atomically, each row and each part of a claim on one line."""
    atomic.write_json(path, {"schema": SCHEMA} | asdict(results), levels=LEVELS)


def _finite(value: object) -> Any:
    """Convert to a plain number, or to None if it is not finite; strings and None pass."""
    if value is None or isinstance(value, str):
        return value
    number = cast(float, value)
    if not math.isfinite(number):
        return None
    return int(number) if isinstance(value, int) else float(number)


def _tidy(item: Row | Part | Condition | Claim) -> None:
    """Make the numbers of a frozen ``item`` plain and finite, once, at construction."""
    # frozen dataclasses refuse assignment; object.__setattr__ bypasses that
    for name in ("paper", "measured", "power", "finds", "p_value"):
        if hasattr(item, name):
            object.__setattr__(item, name, _finite(getattr(item, name)))
    if isinstance(item, Row):
        object.__setattr__(item, "column", _finite(item.column))
    for name in ("ci95", "band"):
        if (ends := getattr(item, name, None)) is not None:
            object.__setattr__(item, name, tuple(_finite(end) for end in ends))
    if isinstance(item, Row | Claim):
        object.__setattr__(item, "runs", tuple(item.runs))
    if isinstance(item, Row | Part) and item.sample is not None and not item.sample.finite:
        object.__setattr__(item, "sample", None)

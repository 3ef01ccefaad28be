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
        paper: what the paper prints, if anything.
        measured: what the runs gave; None if they diverged.
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
    """One of the quantities behind a claim, e.g. one test set.

    Attributes:
        label: which one.
        paper: the paper's figure, or a word.
        measured: ours.
        ci95: its 95% interval.
        verdict: by itself, without a correction; None for what is shown and not judged.
        band: where the paper has it; an open end is None.
        power: the chance of ``reproduced`` if the paper's figure is true; None if that is not
            known.
        finds: how far beyond an end of the band it must lie to be told with 80% power.
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
    """A precondition of a claim, as the runs have it.

    Attributes:
        what: in words.
        measured: computed from the runs.
        ci95: its 95% interval.
        band: where it must lie; an open end is None.
        holds: whether it does, by its estimate.
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
        statement: what the paper says, in one sentence.
        where: section, table or page of the paper.
        statistic: what is measured, and the band if there is one.
        paper: the paper's figure, or a word such as ``"holds"``.
        measured: ours; None if a run diverged or the parts say it all.
        ci95: its 95% interval.
        verdict: ``reproduced``, ``contradicted``, ``undecided`` or ``not testable``.
        runs: hashes of the runs it comes from.
        note: a sentence for the reader.
        parts: the quantities behind it; the first is the headline.
        power: the chance of ``reproduced`` if the paper's figures are true, taking the parts as
            independent: the product over those parts whose figure it prints, so no less than that
            of all; None where it prints none.
        preconditions: of the paper's statement.
        because: why it is not testable.
        cannot_fail: why it holds by construction, if it does.
        p_value: of the verdict; None if it is not testable.
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
        """Whether its verdict says yes or no."""
        return self.verdict in ("reproduced", "contradicted")


@dataclass(frozen=True)
class Results:
    """Everything a reproduction found.

    Attributes:
        paper: e.g. ``"paper1"``.
        scale: ``smoke``, ``laptop``, ``overnight``, ``gpu`` or ``paper``.
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


LEVELS = 4
"""Of ``results.json`` that are laid out: exhibits, an exhibit, its rows, and a row is one line.

Indented throughout, the hashes of a report of nine seeds took as much space as all else."""


def write_results(path: Path, results: Results) -> None:
    """Write ``results`` atomically, each row and each part of a claim on one line."""
    atomic.write_json(path, {"schema": SCHEMA} | asdict(results), levels=LEVELS)


def _finite(value: object) -> Any:
    """Plain finite numbers, strings and None as they are; what is not finite as None."""
    if value is None or isinstance(value, str):
        return value
    number = cast(float, value)
    if not math.isfinite(number):
        return None
    return int(number) if isinstance(value, int) else float(number)


def _tidy(item: Row | Part | Condition | Claim) -> None:
    """Make the numbers of a frozen ``item`` plain and finite, once, at construction."""
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

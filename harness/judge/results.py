"""``results.json``: the results of a reproduction, machine-readable (schema 2).

The dataclasses are the file: field by field, in this order. JSON has no number that
is not finite: it becomes None at construction, so that memory and file agree.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from numbers import Real
from pathlib import Path
from typing import Any, Literal, cast

from harness.base.errors import UserError, name_error
from harness.base.settings import build
from harness.judge.claims import Here, Verdict, verdict_of
from harness.judge.curve import Curve
from harness.judge.interval import Interval, Sample
from harness.store import files as atomic
from harness.store.read import read_json

SCHEMA = 2
Kind = Literal["table", "figure"]
Number = float | int
"""A number that stays whole if it is; counts have no interval."""
Bounds = tuple[Number | None, Number | None]


def _finite(value: Any) -> Any:
    """A value with plain numbers; None in place of one, or of a sample, that is not finite."""
    if isinstance(value, tuple | list):
        return tuple(map(_finite, cast(Sequence[Any], value)))
    if isinstance(value, Sample):
        return value if value.finite else None
    if isinstance(value, bool) or not isinstance(value, Real):
        return value
    number = cast(float, value)
    if not math.isfinite(number):
        return None
    return int(number) if isinstance(value, int) else float(number)


class Finite:
    """Base of dataclasses whose numbers are plain and finite once they are made."""

    def __post_init__(self) -> None:
        # frozen dataclasses refuse assignment; object.__setattr__ bypasses that
        for name, value in vars(self).items():
            object.__setattr__(self, name, _finite(value))


@dataclass(frozen=True)
class Row(Finite):
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
    column: str | Number
    paper: Number | None = None
    measured: Number | None = None
    ci95: Bounds | None = None
    runs: tuple[str, ...] = ()
    sample: Sample | None = None

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
        curve: of a claim over scale, its laws and its value at the paper's size.
        simulated: of a table, the columns whose figures are simulated and not measured in training.
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
    curve: Curve | None = None
    simulated: tuple[str, ...] = ()


@dataclass(frozen=True)
class Part(Finite):
    """One of the quantities behind a claim, e.g. one test set.

    Attributes:
        label: name among the claim's parts.
        paper: the paper's figure, or a word.
        measured: measured value.
        ci95: its 95% interval.
        here: answer without a correction; None if the part is shown and not judged.
        band: band according to the paper; an unbounded end is None.
        power: probability of ``holds`` if the paper's figure is true; None if not computable.
        sample: the values of each seed that the interval is computed from.
        measure: error or reading that the part is about, e.g. ``"frames"``, where a claim judges
            several.
        is_log2: whether its numbers are logarithms to base 2 of a factor; a report prints factors.
    """

    label: str
    paper: Number | str | None = None
    measured: Number | None = None
    ci95: Bounds | None = None
    here: Here | None = None
    band: Bounds | None = None
    power: Number | None = None
    sample: Sample | None = None
    measure: str = ""
    is_log2: bool = False


@dataclass(frozen=True)
class Condition(Finite):
    """A condition of the paper's regime, measured on the runs.

    Attributes:
        what: the condition in words, with the unit.
        measured: measured value.
        ci95: its 95% interval.
        band: band that it must lie in, its limit; an unbounded end is None.
        holds: whether the measured value lies in the band.
        name: its name in the paper's ``registered.toml``.
        source: where the paper has the limit from.
        unmet: in plain words, with the value, that it does not hold; empty if it holds.
    """

    what: str
    measured: Number | None
    ci95: Bounds | None
    band: Bounds
    holds: bool
    name: str = ""
    source: str = ""
    unmet: str = ""


@dataclass(frozen=True)
class Claim(Finite):
    """A falsifiable statement of the paper, judged.

    Attributes:
        id: as in the list of claims, e.g. ``"p1.chunk-size"``.
        statement: the paper's statement, in one sentence.
        where: section, table or page of the paper.
        statistic: description of the measured statistic, and the band if there is one.
        paper: the paper's figure, or a word such as ``"holds"``.
        measured: measured value of the headline; None if a run diverged.
        ci95: its 95% interval.
        here: what the runs show: ``holds``, ``fails``, ``unclear`` or ``mixed``.
        undetermined: choice that the paper leaves open, if the answer depends on it.
        conditions: conditions of the paper's regime, each measured.
        cannot_fail: reason why it holds by construction, if it does.
        runs: hashes of the runs it comes from.
        note: a sentence for the reader.
        parts: the quantities behind it; the first is the headline.
        power: probability of ``holds`` if the paper's figures are true, taking the parts as
            independent: the product over the parts with a printed figure, so an upper bound of
            that of all; None where the paper prints none.
        p_value: p-value of ``here``.
        corrected: ``here`` after a correction over all claims of the paper.
        reasons: names of the fields that say why it does not bear on the paper: ``undetermined``,
            ``conditions`` and, for an unclear answer, ``power``; empty if it does.
        bears: whether the answer bears on the paper.
        verdict: both answers in a word: ``reproduced``, ``holds here``, ``unclear``, ``mixed``,
            ``fails here`` or ``contradicted``.
    """

    id: str
    statement: str
    where: str
    statistic: str
    paper: Number | str | None
    measured: Number | None
    ci95: Bounds | None
    here: Here
    undetermined: str = ""
    conditions: tuple[Condition, ...] = ()
    cannot_fail: str = ""
    runs: tuple[str, ...] = ()
    note: str = ""
    parts: tuple[Part, ...] = ()
    power: float | None = None
    p_value: float | None = None
    corrected: Here | None = None
    reasons: tuple[str, ...] = field(init=False)
    bears: bool = field(init=False)
    verdict: Verdict = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        is_weak = self.here == "unclear" and self.power is not None and self.power < ENOUGH
        is_unmet = not all(condition.holds for condition in self.conditions)
        reasons = {"undetermined": self.undetermined, "conditions": is_unmet, "power": is_weak}
        object.__setattr__(self, "reasons", tuple(name for name, is_so in reasons.items() if is_so))
        object.__setattr__(self, "bears", not self.reasons)
        object.__setattr__(self, "verdict", verdict_of(self.here, self.bears))

    @property
    def decided(self) -> bool:
        """Whether the runs show that it holds or fails."""
        return self.here in ("holds", "fails")


ENOUGH = 0.5
"""An unclear claim with a power below this does not bear on the paper."""


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


def read_results(path: Path) -> Results:
    """Read and check a results file.

    Raises:
        UserError: the file does not fit the schema; names file, key, value and allowed values.
    """
    data = read_json(path)
    if data.get("schema") != SCHEMA:
        raise UserError(f"{path}: schema: {data.get('schema')!r} is not allowed; allowed: {SCHEMA}")
    claims, verdicts = data.get("claims"), list[Any]()
    for claim in cast(list[Any], claims) if isinstance(claims, list) else ():
        if isinstance(claim, dict):
            # what follows from its other fields is no field of the file; a verdict is compared
            fields = cast(dict[str, Any], claim)
            verdicts.append([fields.pop(name, None) for name in ("reasons", "bears", "verdict")][2])
    results = build(Results, data, str(path))
    for claim, verdict in zip(results.claims, verdicts, strict=True):
        if verdict not in (None, claim.verdict):
            raise name_error(f"{path}: {claim.id}: verdict", str(verdict), (claim.verdict,))
    return results

"""``results.json``: the results of a reproduction, machine-readable (schema 2).

The dataclasses are the file: field by field, in this order. JSON has no number that
is not finite: it becomes None at construction, so that memory and file agree.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints

from harness.base.errors import UserError, name_error
from harness.judge.claims import Here, Verdict, verdict_of
from harness.judge.curve import Curve
from harness.judge.interval import Interval, Sample
from harness.store import files as atomic
from harness.store.read import read_json

SCHEMA = 2
_type_hints = cache(get_type_hints)
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
        curve: of a claim over scale, its laws and its value at the paper's size.
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


@dataclass(frozen=True)
class Part:
    """One of the quantities behind a claim, e.g. one test set.

    Attributes:
        label: name among the claim's parts.
        paper: the paper's figure, or a word.
        measured: measured value.
        ci95: its 95% interval.
        here: answer without a correction; None if the part is shown and not judged.
        band: band according to the paper; an unbounded end is None.
        power: probability of ``holds`` if the paper's figure is true; None if not computable.
        finds: distance beyond an end of the band that is detected with 80% power.
        sample: the values of each seed that the interval is computed from.
        measure: error or reading that the part is about, e.g. ``"frames"``, where a claim judges
            several.
        is_log2: whether its numbers are logarithms to base 2 of a factor; a report prints factors.
    """

    label: str
    paper: float | str | None = None
    measured: float | None = None
    ci95: Bounds | None = None
    here: Here | None = None
    band: Bounds | None = None
    power: float | None = None
    finds: float | None = None
    sample: Sample | None = None
    measure: str = ""
    is_log2: bool = False

    def __post_init__(self) -> None:
        _tidy(self)


@dataclass(frozen=True)
class Condition:
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
    measured: float | None
    ci95: Bounds | None
    band: Bounds
    holds: bool
    name: str = ""
    source: str = ""
    unmet: str = ""

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
        here: what the runs show: ``holds``, ``fails``, ``unclear`` or ``mixed``.
        undetermined: choice that the paper leaves open, if the answer depends on it.
        conditions: conditions of the paper's regime, each measured.
        cannot_fail: reason why it holds by construction, if it does.
        changed_after_runs: of a claim that was judged anew after its runs, what was changed.
        before: the verdict of before.
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
    paper: float | str | None
    measured: float | None
    ci95: Bounds | None
    here: Here
    undetermined: str = ""
    conditions: tuple[Condition, ...] = ()
    cannot_fail: str = ""
    changed_after_runs: str = ""
    before: str = ""
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
        _tidy(self)
        is_weak = self.here == "unclear" and self.power is not None and self.power < ENOUGH
        is_unmet = not all(each.holds for each in self.conditions)
        reasons = {"undetermined": self.undetermined, "conditions": is_unmet, "power": is_weak}
        # frozen dataclasses refuse assignment; object.__setattr__ bypasses that
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
    return _read_object(Results, data, f"{path}: ")


def _read_object(kind: type[Any], value: dict[str, Any], where: str) -> Any:
    """An instance of a dataclass from a JSON object; what follows from the rest is compared."""
    names = {entry.name: entry for entry in fields(kind)}
    for key in value:
        if key not in names:
            raise name_error(f"{where}key", key, names)
    hints = _type_hints(kind)
    given = {key: _read(hints[key], item, where + key) for key, item in value.items()}
    derived = {name: given.pop(name) for name in [*given] if not names[name].init}
    needed = [n for n, e in names.items() if e.default is e.default_factory is MISSING and e.init]
    if missing := [name for name in needed if name not in given]:
        raise UserError(f"{where}{missing[0]}: missing; needed: {_describe(hints[missing[0]])}")
    item = kind(**given)
    if "verdict" in derived and derived["verdict"] != item.verdict:
        raise name_error(f"{where}verdict", derived["verdict"], (item.verdict,))
    return item


def _read(kind: Any, value: object, where: str) -> Any:
    """A JSON value as the type of a field."""
    origin, inner = get_origin(kind), get_args(kind)
    kinds = inner if origin in (Union, UnionType) else (kind,)
    if value is None and (NoneType in kinds or float in kinds):  # a number that is not finite
        return None
    if len(chosen := [each for each in kinds if each is not NoneType]) == 1:
        kind, origin, inner = chosen[0], get_origin(chosen[0]), get_args(chosen[0])
    if is_dataclass(kind) and isinstance(value, dict):
        return _read_object(cast(type[Any], kind), cast(dict[str, Any], value), f"{where}: ")
    if origin is Literal:
        if value not in inner:
            raise name_error(where, str(value), inner)
        return value
    json_type = type(value)
    if origin is tuple and json_type is list:
        items = cast(list[Any], value)
        if inner[-1] is Ellipsis:
            return tuple(_read(inner[0], v, f"{where}[{_name(v, i)}]") for i, v in enumerate(items))
        if len(items) == len(inner):
            return tuple(_read(k, v, where) for k, v in zip(inner, items, strict=True))
    if any(json_type in JSON_TYPES.get(get_origin(each) or each, ()) for each in chosen):
        return value
    raise UserError(f"{where}: {value!r} is not allowed; allowed: {_describe(kind)}")


JSON_TYPES: Mapping[Any, tuple[type, ...]] = {
    str: (str,), bool: (bool,), int: (int,), float: (int, float), dict: (dict,), Mapping: (dict,),
}  # fmt: skip
"""Types of the values that JSON has for a type of a field."""

NAMES = {str: "a string", bool: "true or false", int: "a whole number", float: "a number",
         NoneType: "null", tuple: "a list"}  # fmt: skip


def _describe(kind: Any) -> str:
    """Allowed values of a type of a field, in words."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return " or ".join(_describe(each) for each in inner)
    if origin is tuple and inner[-1] is not Ellipsis:
        return f"a list of {len(inner)}, each {_describe(inner[0])}"
    if origin is Literal:
        return f"one of {', '.join(inner)}"
    return NAMES.get(origin or kind, "an object")


def _name(item: Any, place: int) -> Any:
    """Name of an item of a list in messages: its id, else its place."""
    return cast(dict[str, Any], item).get("id", place) if isinstance(item, dict) else place


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

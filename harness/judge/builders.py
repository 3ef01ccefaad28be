"""Build exhibits and claims from finished runs, and read ``results.json``.

A maker builds one exhibit or claim of any paper. A run that diverged or failed has a hash and a
configuration, but its metrics cannot be read: values that need them are missing. An error in
``results.json`` is reported with file, key and value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial, wraps
from pathlib import Path
from typing import Any, Generic, ParamSpec, TypeVar, cast, get_args

from harness.base.errors import UserError, name_error
from harness.judge.claims import ANSWERS, VERDICTS
from harness.judge.curve import WORDS, Curve, Extrapolation, Law, Trend
from harness.judge.interval import Matrix, Sample, Statistic
from harness.judge.results import (
    SCHEMA,
    Bounds,
    Claim,
    Condition,
    Exhibit,
    Kind,
    Part,
    Results,
    Row,
)
from harness.judge.statistics import Interval
from harness.store import Run, Store
from harness.store.read import read_json

Runs = Mapping[str, Sequence[Run]]
"""Finished runs by setting, one for each seed, in the order of the seeds."""

ASKED = "divergence_asked_of"
"""Provenance key of the runs that serve only to find out whether training diverges."""

Subject = TypeVar("Subject")

Made = TypeVar("Made", Exhibit, Claim)


@dataclass(frozen=True)
class Maker(Generic[Subject, Made]):
    """Recipe of one exhibit or claim: its id, the settings it needs and a function.

    Args:
        id: as in the list of exhibits and claims, e.g. ``"p1.table2"``.
        needs: names of settings; empty if no runs are needed.
        make: function of the report's subject and the finished runs by setting.
        smoke: whether it is made at smoke scale, which has two minutes for everything.
        divergence: whether the question is if training diverges: then it is made from diverged
            runs too, and a diverged run does not make the report a failure.
        timelines: number of runs per setting, in the order of seeds, that it reads timelines of.
        searches: whether its runs search for settings, which the others use as they are known.
        on_request: scales at which it is made only if named or with everything, since none of its
            own runs decides a claim; the published one stands in the report otherwise.
    """

    id: str
    needs: tuple[str, ...]
    make: Callable[[Subject, Runs], Made]
    smoke: bool = True
    divergence: bool = False
    timelines: float = 0
    searches: bool = False
    on_request: tuple[str, ...] = ()

    def sound(self, run: Run) -> bool:
        """Whether the run ended with a status that the maker can use."""
        return run.status == "done" or (self.divergence and run.status == "diverged")

    def readable(self, runs: Runs) -> Runs:
        """The needed runs by setting, each unsound one as `Unreadable`."""
        return {
            setting: [run if self.sound(run) else Unreadable.from_run(run) for run in runs[setting]]
            for setting in self.needs
        }


def build_exhibit(maker: Maker[Subject, Exhibit], subject: Subject, runs: Runs) -> Exhibit:
    """Build the exhibit; its note names the runs that did not end, if any."""
    try:
        made = maker.make(subject, maker.readable(runs))
    except DidNotEnd:
        made = Exhibit(maker.id, "table", maker.id)
    return replace(made, note=_explain_missing(made.note, maker, runs))


def build_claim(maker: Maker[Subject, Claim], subject: Subject, runs: Runs) -> Claim:
    """Build the claim from the parts that can be judged; its note names runs that did not end."""
    try:
        made = maker.make(subject, maker.readable(runs))
    except DidNotEnd:  # no part is left: the first line of the maker's docstring is the statement
        hashes = tuple(run.hash for setting in maker.needs for run in runs[setting])
        make: Any = maker.make
        make = make.func if isinstance(make, partial) else make
        made = Claim(
            maker.id, (make.__doc__ or maker.id).splitlines()[0], "", "", None, None, None,
            "unclear", "No run that it rests on ended.", runs=hashes,
        )  # fmt: skip
    missing = [p.label for p in made.parts if p.measured is None and p.ci95 == (None, None)]
    return replace(made, note=_explain_missing(made.note, maker, runs, missing))


def divergence_hashes(makers: Sequence[Maker[Any, Any]], runs: Runs) -> list[str]:
    """Hashes of the runs that only makers with ``divergence`` need."""
    asked, others = (
        {run.hash for m in makers if m.divergence == asks for s in m.needs for run in runs[s]}
        for asks in (True, False)
    )
    return sorted(asked - others)


def failures(store: Store, results: Results) -> list[str]:
    """Error lines, one per run behind the results that diverged or failed.

    A diverged run is left out if only makers with ``divergence`` need it (see `ASKED`).
    """
    asked = set(results.provenance.get(ASKED, ()))
    names: dict[str, str] = {}
    for setting, hashes in results.provenance["settings"].items():
        for hash_ in hashes:
            names.setdefault(hash_, setting)
    behind = [(setting, store.load(hash_)) for hash_, setting in names.items()]
    return [
        f"{results.paper}: {run.ending(_name_run(setting, run))}"
        for setting, run in behind
        if run.status != "done" and not (run.status == "diverged" and run.hash in asked)
    ]


def _explain_missing(
    note: str, maker: Maker[Any, Any], runs: Runs, missing: Sequence[str] = ()
) -> str:
    """Append to a note the parts that were not measured and the runs that did not end."""
    broken = {
        run.ending(_name_run(setting, run)): None
        for setting in maker.needs
        for run in runs[setting]
        if not maker.sound(run)
    }
    if not broken:
        return note
    what = f"Not measured: {', '.join(missing)}." if missing else ""
    return " ".join(filter(None, (note, what, f"{'; '.join(broken)}.")))


def _name_run(setting: str, run: Run) -> str:
    return f"{setting}, seed {run.config['seed']}" if "seed" in run.config else setting


P = ParamSpec("P")

T = TypeVar("T")

UNKNOWN = Interval(math.nan)
"""Statistic of runs that did not end: no estimate, an unbounded interval."""

NO_ROWS = tuple[Row, ...]()
"""Curve of runs that did not end: no points."""


class DidNotEnd(Exception):  # noqa: N818 (what happened, not what was wrong)
    """A maker read the results of a run that diverged or failed."""


@dataclass(frozen=True)
class Unreadable(Run):
    """Stand-in for a run that did not end: reading its results raises `DidNotEnd`."""

    @classmethod
    def from_run(cls, run: Run) -> Unreadable:
        """The same run, unreadable."""
        return cls(*(getattr(run, each.name) for each in fields(run)))

    def __getattribute__(self, name: str) -> Any:
        if name in ("status", "summary", "metrics", "curve", "path", "dir"):
            raise DidNotEnd
        return super().__getattribute__(name)


def unless_missing(otherwise: T) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorator of a function of runs: return ``otherwise`` if one of its runs did not end.

    Args:
        otherwise: NaN or an unbounded interval, which decides no verdict.
    """

    def decorate(reading: Callable[P, T]) -> Callable[P, T]:
        @wraps(reading)
        def read(*args: P.args, **choices: P.kwargs) -> T:
            try:
                return reading(*args, **choices)
            except DidNotEnd:
                return otherwise

        return read

    return decorate


def read_results(path: Path) -> Results:
    """Read and check a results file.

    Raises:
        UserError: the file does not fit the schema; names file, key, value and allowed values.
    """
    data = read_json(path)
    if data.get("schema") != SCHEMA:
        raise UserError(f"{path}: schema is {data.get('schema')!r}; allowed: {SCHEMA}")
    top = _Reader(str(path), data)
    return top.make(
        Results,
        exhibits=tuple(_exhibit(each) for each in top.children("exhibits")),
        claims=tuple(_claim(each) for each in top.children("claims")),
        seeds=tuple(top.sequence("seeds", int)),
        provenance=top.table("provenance"),
    )


def _exhibit(reader: _Reader) -> Exhibit:
    reader.one_of("kind", get_args(Kind))
    rows = tuple(_row(each) for each in reader.children("rows"))
    return reader.make(
        Exhibit,
        rows=rows,
        files=tuple(reader.sequence("files", str)),
        axes=reader.table("axes"),
        draw=reader.table("draw"),
        curve=_curve(reader),
    )


def _curve(reader: _Reader) -> Curve | None:
    """The curve over scale of an exhibit; None if it has none."""
    inner = reader.child("curve")
    if inner is None:
        return None
    trends = tuple(_trend(each) for each in inner.children("trends"))
    ends = inner.bounds("band") or (None, None)
    return inner.make(Curve, band=ends, trends=trends, missing=inner.table("missing"))


def _trend(reader: _Reader) -> Trend:
    reader.one_of("word", WORDS)
    reader.number("paper")
    return reader.make(Trend, laws=tuple(_law(each) for each in reader.children("laws")))


def _law(reader: _Reader) -> Law:
    for name in ("factor", "exponent", "floor", "value"):
        reader.number(name)
    held = reader.child("held_out")
    return reader.make(
        Law,
        ci95=reader.bounds("ci95") or (None, None),
        held_out=held and held.make(Extrapolation, ci95=held.bounds("ci95") or (None, None)),
        line=reader.matrix("line"),
    )


def _row(reader: _Reader) -> Row:
    reader.number("paper")
    return _read_measured(
        reader, Row, runs=tuple(reader.sequence("runs", str)), sample=_sample(reader)
    )


def _claim(reader: _Reader) -> Claim:
    reader.one_of("here", ANSWERS)
    reader.one_of("verdict", VERDICTS)
    reader.one_of("corrected", (*ANSWERS, None))
    reader.number("power")
    reader.number("p_value")
    parts = tuple(_part(each) for each in reader.children("parts"))
    conditions = tuple(
        _read_measured(each, Condition, band=each.bounds("band") or (None, None))
        for each in reader.children("conditions")
    )
    runs = tuple(reader.sequence("runs", str))
    reader.expect("bears", bool, "true or false")
    given = {k: v for k, v in reader.data.items() if k not in ("reasons", "bears", "verdict")}
    alone = _Reader(reader.where, given)
    made: Claim = _read_measured(alone, Claim, parts=parts, conditions=conditions, runs=runs)
    if made.verdict != reader.data["verdict"]:
        reader.one_of("verdict", (made.verdict,))  # refused: of other answers than beside it
    return made


def _part(reader: _Reader) -> Part:
    reader.one_of("here", (*ANSWERS, None))
    reader.number("power")
    reader.number("finds")
    return _read_measured(reader, Part, band=reader.bounds("band"), sample=_sample(reader))


def _sample(reader: _Reader) -> Sample | None:
    """The values behind an interval; None if the file has none."""
    if not (told := reader.table("sample")):
        return None
    inner = _Reader(f"{reader.where}: sample", told)
    inner.one_of("statistic", get_args(Statistic))
    return inner.make(
        Sample,
        values=inner.matrix("values"),
        tests=inner.matrix("tests"),
        at=tuple(inner.sequence("at", float)),
    )


def _read_measured(reader: _Reader, kind: type[Any], **given: object) -> Any:
    reader.number("measured")
    return reader.make(kind, ci95=reader.bounds("ci95"), **given)


@dataclass(frozen=True)
class _Reader:
    """One JSON object of the file, with its path in the file for error messages."""

    where: str
    data: dict[str, Any]

    def make(self, kind: type[Any], **given: object) -> Any:
        """Build ``kind`` from the object; strings are checked here, the rest was ``given``."""
        known = {each.name: each for each in fields(kind)}
        for key in self.data:
            if key not in known:
                raise name_error(f"{self.where}: key", key, known)
        for name, each in known.items():
            if name in self.data and each.type == "str":
                self.expect(name, str, "a string")
        try:
            return kind(**(self.data | given))
        except TypeError as error:  # unknown keys are refused above: an argument is missing
            lacks = str(error).partition("argument")[2].lstrip("s: ")
            raise UserError(f"{self.where}: missing {lacks}") from None

    def children(self, key: str) -> list[_Reader]:
        items = self.sequence(key, dict)
        return [
            _Reader(f"{self.where}: {key}[{item.get('id', index)}]", cast(dict[str, Any], item))
            for index, item in enumerate(items)
        ]

    def child(self, key: str) -> _Reader | None:
        """The object of a key; None if it is null or missing."""
        told = self.table(key)
        return _Reader(f"{self.where}: {key}", told) if told else None

    def sequence(self, key: str, kind: type[Any]) -> list[Any]:
        items = self.data.get(key, [])
        if not isinstance(items, list) or not all(
            isinstance(each, kind) for each in cast(list[object], items)
        ):
            raise self._wrong(key, f"a list of {kind.__name__}")
        return cast(list[Any], items)

    def matrix(self, key: str) -> Matrix:
        rows = cast(list[list[object]], self.sequence(key, list))
        if not all(isinstance(each, int | float) for row in rows for each in row):
            raise self._wrong(key, "lists of numbers")
        return tuple(tuple(cast(float, each) for each in row) for row in rows)

    def table(self, key: str) -> dict[str, Any]:
        if self.data.get(key) is not None:
            self.expect(key, dict, "an object")
        return self.data.get(key) or {}

    def number(self, key: str) -> None:
        if not _is_number_or_none(self.data.get(key)):
            raise self._wrong(key, "a number or null")

    def bounds(self, key: str) -> Bounds | None:
        value = self.data.get(key)
        if value is None:
            return None
        ends = cast(list[Any], value) if isinstance(value, list) else []
        if len(ends) != 2 or not all(_is_number_or_none(end) for end in ends):
            raise self._wrong(key, "null or two numbers")
        return ends[0], ends[1]

    def one_of(self, key: str, allowed: tuple[str | None, ...]) -> None:
        if self.data.get(key) not in allowed:
            words = tuple(filter(None, allowed))
            raise name_error(f"{self.where}: {key}", str(self.data.get(key)), words)

    def expect(self, key: str, kind: type[Any], words: str) -> None:
        if not isinstance(self.data.get(key), kind):
            raise self._wrong(key, words)

    def _wrong(self, key: str, allowed: str) -> UserError:
        return UserError(f"{self.where}: {key} is {self.data.get(key)!r}; allowed: {allowed}")


def _is_number_or_none(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))

"""Reading ``results.json``: every mistake in it is named by file, key and value."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, cast, get_args

from harness.base.errors import UserError, unknown
from harness.judge.claims import VERDICTS
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
from harness.store.read import read_json


def read_results(path: Path) -> Results:
    """Read and check a results file.

    Raises:
        UserError: naming the file, the key, its value and what is allowed.
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
    )


def _row(reader: _Reader) -> Row:
    reader.number("paper")
    return _measured(reader, Row, runs=tuple(reader.sequence("runs", str)), sample=_sample(reader))


def _claim(reader: _Reader) -> Claim:
    reader.one_of("verdict", VERDICTS)
    reader.one_of("corrected", (*VERDICTS, None))
    reader.number("power")
    reader.number("p_value")
    parts = tuple(_part(each) for each in reader.children("parts"))
    conditions = tuple(
        _measured(each, Condition, band=each.bounds("band") or (None, None))
        for each in reader.children("preconditions")
    )
    runs = tuple(reader.sequence("runs", str))
    return _measured(reader, Claim, parts=parts, preconditions=conditions, runs=runs)


def _part(reader: _Reader) -> Part:
    reader.one_of("verdict", (*VERDICTS, None))
    reader.number("power")
    reader.number("finds")
    return _measured(reader, Part, band=reader.bounds("band"), sample=_sample(reader))


def _sample(reader: _Reader) -> Sample | None:
    """The values behind an interval, if they are told."""
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


def _measured(reader: _Reader, kind: type[Any], **given: object) -> Any:
    reader.number("measured")
    return reader.make(kind, ci95=reader.bounds("ci95"), **given)


@dataclass(frozen=True)
class _Reader:
    """One JSON object of the file, with its place in it for error messages."""

    where: str
    data: dict[str, Any]

    def make(self, kind: type[Any], **given: object) -> Any:
        """Build ``kind`` from the object; strings are checked here, the rest was ``given``."""
        known = {each.name: each for each in fields(kind)}
        for key in self.data:
            if key not in known:
                raise unknown(f"{self.where}: key", key, known)
        for name, each in known.items():
            if name in self.data and each.type == "str":
                self._expect(name, str, "a string")
        try:
            return kind(**(self.data | given))
        except TypeError as error:
            lacks = str(error).partition("argument")[2].lstrip("s: ")
            raise UserError(f"{self.where}: missing {lacks}") from None

    def children(self, key: str) -> list[_Reader]:
        items = self.sequence(key, dict)
        return [
            _Reader(f"{self.where}: {key}[{item.get('id', index)}]", cast(dict[str, Any], item))
            for index, item in enumerate(items)
        ]

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
            self._expect(key, dict, "an object")
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
            raise unknown(f"{self.where}: {key}", str(self.data.get(key)), words)

    def _expect(self, key: str, kind: type[Any], words: str) -> None:
        if not isinstance(self.data[key], kind):
            raise self._wrong(key, words)

    def _wrong(self, key: str, allowed: str) -> UserError:
        return UserError(f"{self.where}: {key} is {self.data.get(key)!r}; allowed: {allowed}")


def _is_number_or_none(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))

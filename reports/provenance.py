"""Provenance of a report's figures: commit, versions, and every run behind them.

The last page has commit and versions, and the differences between runs: their configurations
compared key by key. ``runs.csv`` has a line for each run: a report that is built beside its runs
writes the file; one that is built from published results reads it. So the differences are known
wherever the results are.
"""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar, cast

from harness.base.errors import UserError
from harness.judge.builders import ASKED
from harness.judge.results import Results
from harness.store import Run, Store, files
from reports import numbers
from reports.tables import format_csv

BAD = ("diverged", "failed")

NAMES = {"git": "commit", "wall_s": "time"}

TIMES = ("reused", "runs_s", "runs_processor_s")
PLANNED = "planned_seeds"
"""Entry of provenance: the number of seeds that the verdicts are planned to rest on."""
ELSEWHERE = ("reference", "differences", "settings", "corpora", ASKED, PLANNED, *TIMES)
"""Entries of provenance that are not printed as a line of their own."""

SOURCES = ("results.json", "reasons.toml", "runs.csv")
"""Files of words and figures that a report is made from; beside them lie timelines."""

Data = dict[str, Any]


def where_from(results: Results) -> Data:
    """Facts, and differences from the paper."""
    facts = results.provenance
    return {
        "facts": [
            (NAMES.get(key, key), _fact(facts, key))
            for key in facts
            if key not in ELSEWHERE and facts[key] != []
        ],
        "differences": [
            [str(difference.get(key, "")) for key in ("what", "paper", "here")]
            for difference in facts.get("differences", [])
        ],
    }


def how_to_check(results: Results) -> list[str]:
    """The command that makes the results again, its time, and the registration they are under."""
    facts = results.provenance
    command, registration = (str(facts.get(key, "")) for key in ("command", "registration"))
    return list(filter(None, (command, wall_time(facts), registration)))


def source_digests(out: Path) -> list[tuple[str, str]]:
    """Name and SHA-256 of each file in ``out`` that its report is made from."""
    return [(name, files.sha256_of(out / name)) for name in SOURCES if (out / name).is_file()]


def cited_runs(results: Results) -> set[str]:
    """Hashes that a row or a claim rests on."""
    rows = [row for exhibit in results.exhibits for row in exhibit.rows]
    return {run for item in (*rows, *results.claims) for run in item.runs}


AnyRun = TypeVar("AnyRun", Run, "Line")


def find_failures(facts: Mapping[str, Any], runs: Sequence[AnyRun]) -> list[AnyRun]:
    """Runs that diverged or failed unexpectedly.

    Where settings are known, only their runs count: the trials within a search for the largest
    stable rate are expected to diverge.

    Args:
        facts: the provenance of the results.
        runs: every run of the store, or lines about them.
    """
    names, divergence = settings_of(facts.get("settings", {})), set(facts.get(ASKED, ()))
    return [
        run for run in runs
        if run.status in BAD
        and (run.hash in names or not names)
        and not (run.status == "diverged" and run.hash in divergence)
    ]  # fmt: skip


def settings_of(settings: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Hash -> the settings that have it, in one string.

    Example:
        >>> settings_of({"search": ["ab"], "one_pass": ["ab"]})
        {'ab': 'search = one_pass'}
    """
    names: dict[str, list[str]] = {}
    for setting, hashes in settings.items():
        for hash_ in dict.fromkeys(hashes):  # seeds that share a run name it once
            names.setdefault(hash_, []).append(setting)
    return {hash_: " = ".join(group) for hash_, group in names.items()}


def wall_time(facts: Mapping[str, Any]) -> str:
    """Time of a processor that the runs took, and the time of the command that made the report.

    Of runs that kept no processor time, the sum of their wall times.
    """
    wall, together, busy, reused = (
        facts.get(key) for key in ("wall_s", "runs_s", "runs_processor_s", "reused")
    )
    parts: list[str] = []
    if isinstance(busy, int | float):
        parts.append(f"runs: {numbers.duration(busy)} of a processor")
    elif isinstance(together, int | float):
        parts.append(f"runs: {numbers.duration(together)} one by one")
    if isinstance(wall, int | float):
        reuse = f", with {reused} runs finished before" if reused else ""
        parts.append(f"this command: {numbers.duration(wall)}{reuse}")
    return "; ".join(parts)


def _fact(facts: Mapping[str, Any], key: str) -> str:
    value: object = facts[key]
    if key == "wall_s":
        return wall_time(facts)
    if isinstance(value, dict):
        table = cast(dict[str, object], value)
        return ", ".join(f"{name} {text}" for name, text in table.items())
    if isinstance(value, list):
        return ", ".join(map(str, cast(list[object], value)))
    return str(value)


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """A configuration as dotted keys and values as text.

    Example:
        >>> flat({"schedule": {"is": "Hand", "rate": 0.1}})
        {'schedule.is': 'Hand', 'schedule.rate': '0.1'}
    """
    items: dict[str, str] = {}
    for key, value in config.items():
        inner = _inner(value)
        if inner:
            items |= flat(inner, f"{prefix}{key}.")
        else:
            items[prefix + key] = _text(value)
    return items


def group_by_keys(configs: Sequence[Mapping[str, Any]]) -> list[list[int]]:
    """Indices of configurations grouped by their keys: different keys, different kinds of run."""
    groups: dict[frozenset[str], list[int]] = {}
    for index, config in enumerate(configs):
        groups.setdefault(frozenset(config), []).append(index)
    return list(groups.values())


def _inner(value: Any) -> Mapping[str, Any]:
    """Entries of a table, or of a list of tables by position; empty for any other value."""
    if isinstance(value, Mapping):
        return cast(Mapping[str, Any], value)
    if isinstance(value, list):
        items = cast(list[object], value)
        if all(isinstance(item, Mapping) for item in items):
            return {str(position): item for position, item in enumerate(items, 1)}
    return {}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


RUNS_CSV = "runs.csv"

USUAL = "usual"

UNKNOWN = "not stored"


@dataclass(frozen=True)
class Line:
    """One run, or the commonest values among runs of its kind.

    Attributes:
        kind: number of the kind, from 1; configurations of one kind have the same keys.
        setting: name in the paper's experiments, or ``usual`` for the commonest values.
        hash: of its configuration; empty for ``usual``.
        seed: of its configuration; empty if it has none.
        status: final status; ``not stored`` if that is not known.
        apart: ``key value`` pairs that are not the usual ones of its kind, nearest keys first; of
            ``usual`` the commonest of every key.
        note: the run's own note about its end.
    """

    kind: str
    setting: str
    hash: str
    seed: str
    status: str
    apart: str
    note: str = ""


HEADER = tuple(field.name for field in fields(Line))


def lines(results: Results, out: Path) -> list[Line]:
    """A line for each run that a row or a claim rests on, or that did not end well.

    From the runs in ``out`` if there are any, else from ``runs.csv``, else from the results.

    Raises:
        UserError: ``runs.csv`` has other columns than it should.
    """
    stored = Store(out / "runs").runs()
    if stored:
        return lines_from_runs(results, stored)
    path = out / RUNS_CSV
    if path.is_file():
        return runs_from_csv(path)
    return _lines_without_runs(results, cited_runs(results))


def lines_from_runs(results: Results, stored: Sequence[Run]) -> list[Line]:
    """From runs of the store: kinds in order, settings in the order of the experiments."""
    names = settings_of(results.provenance.get("settings", {}))
    cited = cited_runs(results)
    hashes = cited | {run.hash for run in find_failures(results.provenance, stored)}
    listed = [run for run in stored if run.hash in hashes]
    order = {hash_: place for place, hash_ in enumerate(names)}
    listed.sort(key=lambda run: order.get(run.hash, len(order)))
    kinds = group_by_keys([run.config for run in listed])
    rows = [
        line
        for number, kind in enumerate(kinds, 1)
        for line in _kind(str(number), [listed[index] for index in kind], names)
    ]
    return [*rows, *_lines_without_runs(results, cited - {run.hash for run in stored})]


def runs_to_csv(rows: Sequence[Line]) -> str:
    """The file's text."""
    return format_csv(HEADER, (astuple(line) for line in rows))


def runs_from_csv(path: Path) -> list[Line]:
    """The file's lines.

    Raises:
        UserError: it has other columns.
    """
    head, *rows = list(csv.reader(io.StringIO(path.read_text(encoding="utf-8")))) or [[""]]
    if tuple(head) != HEADER or any(len(row) != len(HEADER) for row in rows):
        raise UserError(f"{path}: columns {', '.join(head)}; allowed: {', '.join(HEADER)}")
    return [Line(*row) for row in rows]


def _kind(number: str, runs: Sequence[Run], names: Mapping[str, str]) -> Iterator[Line]:
    flats = [flat(run.config) for run in runs]
    seeds = [values.pop("seed", "") for values in flats]
    counts = Counter(pair for values in flats for pair in values.items())
    usual = dict(pair for pair, _ in reversed(counts.most_common()))  # the commonest comes last
    yield Line(number, USUAL, "", "", "", _format_items(usual))
    for run, values, seed in zip(runs, flats, seeds, strict=True):
        apart = {key: value for key, value in values.items() if usual.get(key) != value}
        setting = names.get(run.hash, "")
        yield Line(number, setting, run.hash, seed, run.status, _format_items(apart), run.note)


def _format_items(items: Mapping[str, str]) -> str:
    return "; ".join(f"{key} {items[key]}" for key in sorted(items, key=lambda key: key.count(".")))


def _lines_without_runs(results: Results, cited: set[str]) -> list[Line]:
    """Runs of which only the hash is known, and the setting if the results name it."""
    names = settings_of(results.provenance.get("settings", {}))
    lines = [Line("", names.get(hash_, ""), hash_, "", UNKNOWN, "") for hash_ in sorted(cited)]
    return sorted(lines, key=lambda line: line.setting)

"""The runs behind a report, one line each: what ``runs.csv`` holds.

A report that is built where the runs are writes the file; one that is built from published results
reads it. So what sets a run apart is known wherever the results are.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path

from harness.base.errors import UserError
from harness.judge import Results
from harness.store import Run, Store
from reports import provenance
from reports.provenance import cited_runs, settings_of, unexpected

NAME = "runs.csv"
USUAL = "usual"
UNKNOWN = "not stored"


@dataclass(frozen=True)
class Line:
    """One run, or what is commonest among runs of its kind.

    Attributes:
        kind: runs whose configurations have the same keys share a number, from 1.
        setting: what the paper's experiments call it, or ``usual`` for what is commonest.
        hash: of its configuration; empty for what is usual.
        seed: as its configuration has it; empty if it has none.
        status: how it ended; ``not stored`` if that is not known.
        apart: ``key value`` pairs that are not the usual ones of its kind, nearest keys first; of
            ``usual`` the commonest of every key.
        note: what it says of its end.
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

    From the runs in ``out`` if there are any, else from ``runs.csv``, else what the results say.

    Raises:
        UserError: ``runs.csv`` has other columns than it should.
    """
    stored = Store(out / "runs").runs()
    if stored:
        return of_runs(results, stored)
    path = out / NAME
    return from_csv(path) if path.is_file() else _unstored(results, cited_runs(results))


def of_runs(results: Results, stored: Sequence[Run]) -> list[Line]:
    """From runs of the store: kinds in order, settings in the order of the experiments."""
    names = settings_of(results.provenance.get("settings", {}))
    cited = cited_runs(results)
    wanted = cited | {run.hash for run in unexpected(results.provenance, stored)}
    listed = [run for run in stored if run.hash in wanted]
    order = {hash_: place for place, hash_ in enumerate(names)}
    listed.sort(key=lambda run: order.get(run.hash, len(order)))
    kinds = provenance.alike([run.config for run in listed])
    made = [
        line
        for number, kind in enumerate(kinds, 1)
        for line in _kind(str(number), [listed[index] for index in kind], names)
    ]
    return [*made, *_unstored(results, cited - {run.hash for run in stored})]


def to_csv(found: Sequence[Line]) -> str:
    """The file's text."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([HEADER, *(astuple(line) for line in found)])
    return text.getvalue()


def from_csv(path: Path) -> list[Line]:
    """The file's lines.

    Raises:
        UserError: it has other columns.
    """
    head, *rows = list(csv.reader(io.StringIO(path.read_text(encoding="utf-8")))) or [[""]]
    if tuple(head) != HEADER or any(len(row) != len(HEADER) for row in rows):
        raise UserError(f"{path}: columns {', '.join(head)}; allowed: {', '.join(HEADER)}")
    return [Line(*row) for row in rows]


def _kind(number: str, runs: Sequence[Run], names: Mapping[str, str]) -> Iterator[Line]:
    flats = [provenance.flat(run.config) for run in runs]
    seeds = [own.pop("seed", "") for own in flats]
    counts = Counter(pair for own in flats for pair in own.items())
    usual = dict(pair for pair, _ in reversed(counts.most_common()))  # the commonest comes last
    yield Line(number, USUAL, "", "", "", _told(usual))
    for run, own, seed in zip(runs, flats, seeds, strict=True):
        apart = {key: value for key, value in own.items() if usual.get(key) != value}
        setting = names.get(run.hash, "")
        yield Line(number, setting, run.hash, seed, run.status, _told(apart), run.note)


def _told(items: Mapping[str, str]) -> str:
    return "; ".join(f"{key} {items[key]}" for key in sorted(items, key=lambda key: key.count(".")))


def _unstored(results: Results, cited: set[str]) -> list[Line]:
    """Runs of which only the hash is known, and the setting and seed if the results name them."""
    settings = results.provenance.get("settings", {})
    names = settings_of(settings)
    seeds: dict[str, set[str]] = {}
    for hashes in settings.values():
        for hash_, seed in zip(hashes, results.seeds, strict=False):
            seeds.setdefault(hash_, set()).add(str(seed))
    order = [hash_ for hash_ in names if hash_ in cited]
    order += sorted(cited - names.keys())
    return [
        Line("", names.get(each, ""), each, " ".join(sorted(seeds.get(each, ()))), UNKNOWN, "")
        for each in order
    ]

"""The last pages: which commit, versions and runs the figures come from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, cast

from harness.identity import SHORT
from harness.judge import Results
from harness.judge.makers import ASKED
from harness.store import Run
from reports import differences, numbers

BAD = ("diverged", "failed")
NAMES = {"git": "commit", "wall_s": "wall time", "corpora": "corpora, SHA-256"}
ELSEWHERE = ("reference", "differences", "settings", "reused", "runs_s", ASKED)
"""Entries of provenance that are not printed as a line of their own."""
MOST = 5
"""Keys told of one setting; the rest is in its ``config.json``."""

Data = dict[str, Any]


def where_from(results: Results, runs: Sequence[Run], cited: set[str]) -> Data:
    """Facts, differences from the paper, and runs by what sets them apart.

    ``provenance`` may hold ``settings``, names of settings to the hashes of their runs in the
    order of the seeds: then each has one line.

    Args:
        results: what was found.
        runs: every run of the store.
        cited: hashes that a row or a claim rests on.
    """
    facts = results.provenance
    odd = {run.hash for run in unexpected(facts, runs)}
    listed = [run for run in runs if run.hash in cited or run.hash in odd]
    kinds = differences.alike([run.config for run in listed])
    names = settings_of(facts.get("settings", {}))
    return {
        "facts": [
            (NAMES.get(key, key), _fact(facts, key))
            for key in facts
            if key not in ELSEWHERE and facts[key] != []
        ],
        "differences": [
            [str(each.get(key, "")) for key in ("what", "paper", "here")]
            for each in facts.get("differences", [])
        ],
        "runs-note": _runs_note(len(listed), len(cited - {run.hash for run in runs})),
        "groups": [_group([listed[index] for index in kind], names) for kind in kinds],
    }


def unexpected(facts: Mapping[str, Any], runs: Sequence[Run]) -> list[Run]:
    """Runs that diverged or failed where that is not what they were to find out.

    Where the settings are known these are theirs: what a search for the largest stable rate tries
    within a run of its own is to diverge sooner or later.

    Args:
        facts: the provenance of the results.
        runs: every run of the store.
    """
    named, asked = settings_of(facts.get("settings", {})), set(facts.get(ASKED, ()))
    return [
        run for run in runs
        if run.status in BAD
        and (run.hash in named or not named)
        and not (run.status == "diverged" and run.hash in asked)
    ]  # fmt: skip


def settings_of(settings: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Hash -> the settings that have it, in one string.

    Example:
        >>> settings_of({"search": ["ab"], "one_pass": ["ab"]})
        {'ab': 'search = one_pass'}
    """
    names: dict[str, list[str]] = {}
    for setting, hashes in settings.items():
        for each in dict.fromkeys(hashes):  # seeds that share a run name it once
            names.setdefault(each, []).append(setting)
    return {each: " = ".join(own) for each, own in names.items()}


def wall_time(facts: Mapping[str, Any]) -> str:
    """How long the command took, and how much of it was there already."""
    wall, together, reused = (facts.get(key) for key in ("wall_s", "runs_s", "reused"))
    if not isinstance(wall, int | float):
        return ""
    told = numbers.duration(wall)
    if isinstance(together, int | float):
        told += f"; its runs one after another {numbers.duration(together)}"
    return told + (f" ({reused} of them were there already)" if reused else "")


def _runs_note(listed: int, missing: int) -> str:
    plural = "s" if listed != 1 else ""
    note = f"{listed} run{plural}, by the first {SHORT} digits of their configuration's hash."
    return note + (f" {missing} cited runs are not stored." if missing else "")


def _group(runs: Sequence[Run], names: Mapping[str, str]) -> Data:
    """Runs of one kind: a line a setting, and what all of them share."""
    shared, apart = differences.split([run.config for run in runs])
    lines: dict[str, list[int]] = {}
    for index, run in enumerate(runs):
        lines.setdefault(names.get(run.hash, run.hash), []).append(index)
    order = {name: place for place, name in enumerate(dict.fromkeys(names.values()))}
    usual = {
        pair
        for pair, count in Counter(pair for own in apart for pair in own.items()).items()
        if 2 * count > len(runs)
    }
    told = [
        _line(name if name in order else "", [runs[i] for i in own], [apart[i] for i in own], usual)
        for name, own in sorted(lines.items(), key=lambda line: order.get(line[0], len(order)))
    ]
    return {"runs": told, "named": any(line["name"] for line in told), "shared": [*shared.items()]}


def _line(
    name: str,
    runs: Sequence[Run],
    apart: Sequence[Mapping[str, str]],
    usual: Collection[tuple[str, str]],
) -> Data:
    """A setting: what all its runs have and most runs of its kind have not, nearest keys first."""
    common = [
        pair for pair in apart[0].items()
        if pair not in usual and all(own.get(pair[0]) == pair[1] for own in apart)
    ]  # fmt: skip
    nearest = sorted(common, key=lambda pair: pair[0].count("."))
    told = ", ".join(f"{key} {_short(value)}" for key, value in nearest[:MOST])
    further = len(common) - MOST
    return {
        "name": name,
        "hash": ", ".join(run.hash[:SHORT] for run in runs),
        "status": ", ".join(dict.fromkeys(run.status for run in runs)),
        "bad": any(run.status in BAD for run in runs),
        "note": " ".join(run.note for run in runs if run.note),
        "apart": (told or "as most")
        + (f" and {further} more in config.json" if further > 0 else ""),
    }


def _short(value: str) -> str:
    """A value as it is printed: of a SHA-256 the first digits."""
    return value[:SHORT] if len(value) == 64 and value.isalnum() else value


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

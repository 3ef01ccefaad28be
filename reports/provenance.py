"""The last page: which commit and versions the figures come from, and what differs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

from harness.judge import Results
from harness.judge.makers import ASKED
from harness.store import files
from reports import numbers

BAD = ("diverged", "failed")
NAMES = {"git": "commit", "wall_s": "wall time", "corpora": "corpora, SHA-256"}
ELSEWHERE = ("reference", "differences", "settings", "reused", "runs_s", "runs_processor_s", ASKED)
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
            [str(each.get(key, "")) for key in ("what", "paper", "here")]
            for each in facts.get("differences", [])
        ],
    }


def made_from(out: Path) -> list[tuple[str, str]]:
    """Name and SHA-256 of each file in ``out`` that its report is made from."""
    return [(name, files.of(out / name)) for name in SOURCES if (out / name).is_file()]


def cited_runs(results: Results) -> set[str]:
    """Hashes that a row or a claim rests on."""
    rows = [row for exhibit in results.exhibits for row in exhibit.rows]
    return {run for item in (*rows, *results.claims) for run in item.runs}


class Ended(Protocol):
    """A run, or a line about one."""

    @property
    def hash(self) -> str:
        """Of its configuration."""
        ...

    @property
    def status(self) -> str:
        """How it ended."""
        ...


AnyRun = TypeVar("AnyRun", bound=Ended)


def unexpected(facts: Mapping[str, Any], runs: Sequence[AnyRun]) -> list[AnyRun]:
    """Runs that diverged or failed where that is not what they were to find out.

    Where the settings are known these are theirs: what a search for the largest stable rate tries
    within a run of its own is to diverge sooner or later.

    Args:
        facts: the provenance of the results.
        runs: every run of the store, or lines about them.
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
        busy = facts.get("runs_processor_s")
        if isinstance(busy, int | float):
            told += f", of a processor {numbers.duration(busy)}"
    return told + (f" ({reused} of them were there already)" if reused else "")


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

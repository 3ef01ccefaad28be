"""Measured durations for an empirical law of jitter, from a text file that a cluster file names."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, cast

from harness.base.errors import UserError
from harness.base.settings import text_of

MOST_DURATIONS = 100_000

LONGEST_S = 1e9


def with_durations(table: dict[str, Any], path: Path) -> None:
    """Replace every ``file`` of a jitter table by the file's durations.

    Args:
        table: of a cluster file; malformed entries are left for the schema to reject.
        path: the cluster file; file names are relative to its folder.

    Raises:
        UserError: such a file cannot be read, or contains a line that is not a duration.
    """
    server = table.get("server")
    inner = cast(dict[str, Any], server) if isinstance(server, dict) else {}
    for key, value in (("jitter", table.get("jitter")), ("server.jitter", inner.get("jitter"))):
        if not isinstance(value, dict):
            continue
        jitter = cast(dict[str, Any], value)
        name = jitter.get("file")
        if isinstance(name, str) and name and "values" not in jitter:
            place = f"{path}: {key}.file"
            jitter["values"] = read_durations(path.parent / name, place)
            del jitter["file"]


def read_durations(path: Path, place: str) -> list[float]:
    """The numbers of a text file, one per line; empty lines and ``#`` comments are skipped.

    Args:
        path: the file.
        place: the key that refers to it, for messages.

    Raises:
        UserError: it cannot be read, or a line is not a finite number of at least 0.
    """
    lines = text_of(path, place).splitlines()
    numbered = ((number, line.partition("#")[0].strip()) for number, line in enumerate(lines, 1))
    seconds = [
        _duration(text, f"{place}: {path.name} line {number}") for number, text in numbered if text
    ]
    if len(seconds) > MOST_DURATIONS:
        allowed = f"at most {MOST_DURATIONS}"
        raise UserError(f"{place}: {path.name} has {len(seconds)} durations; allowed: {allowed}")
    return seconds


def _duration(text: str, place: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0.0 <= seconds <= LONGEST_S:
        allowed = f"a number from 0 to {LONGEST_S:g}"
        raise UserError(f"{place}: {text[:40]!r} is not allowed; allowed: {allowed}")
    return seconds

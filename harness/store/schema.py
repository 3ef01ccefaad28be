"""The files of a run, and the values of its summary."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, cast, get_args

import numpy as np

from harness.base.log import one_line

SCHEMA = 2
CONFIG, RUN, METRICS = "config.json", "run.json", "metrics.parquet"
PROVENANCE, CHECKPOINT = "provenance.json", "checkpoint"
TIMELINE = "timeline.parquet"
"""The attached file of a training run: its timeline, with the times of computations and folds."""
MODEL = "model.safetensors"
"""The attached file of a training run: its final parameters."""
STATE = "buffers.safetensors"
"""The attached file of a training run: the deployed state of replicas, such as running statistics;
each tensor has a row, or one for each worker."""
TARGETS = "targets.safetensors"
"""The attached file of an alignment: int32 [N] for all frames of the corpus."""
TEST_ERRORS = "word_errors.safetensors"
"""The attached file: errors ``[utterances]`` for each ``test/candidate/stage``, and lengths."""
LARGE = frozenset({TIMELINE, MODEL, STATE, TARGETS})
"""Files that a finished run may lack, which is then light; no metric or error is in them."""
UNDER = "under"
"""Key of the provenance: facts of the program when the run was begun, see `Store.under`."""
UNREAD = "unread"
"""Key of the provenance: keys of the run's settings that are not at their defaults and that
nothing read, see `harness.base.reads`."""
RESERVED = frozenset({CONFIG, RUN, METRICS, PROVENANCE, CHECKPOINT})

Outcome = Literal["done", "diverged", "failed"]
Status = Literal["done", "diverged", "failed", "unfinished", "damaged"]


MOST_BYTES, MOST_LEVELS, MOST_DIGITS, MOST_LETTERS = 2**26, 50, 64, 200
"""Most bytes of a JSON file, levels of nesting in it, binary digits of its whole numbers, and
letters of an attached file's name."""

MOMENT = {UNDER: dict, UNREAD: list, "wall_s": float | int, "processor_s": float | int}
"""Types of those values of a provenance that commands use, if they are there."""


def is_file_name(name: str) -> bool:
    """Whether an attached file may have a name: one of this folder, that is not the store's own."""
    is_plain = name.isascii() and name.isprintable() and len(name) <= MOST_LETTERS
    return is_plain and not name.startswith(".") and "/" not in name and name not in RESERVED


def check_values(value: object, levels: int = MOST_LEVELS) -> None:
    """Check that JSON is neither nested so deep nor has such numbers that using it fails.

    Raises:
        ValueError: it is, or has.
    """
    if isinstance(value, int) and value.bit_length() > MOST_DIGITS:
        raise ValueError(f"a number of more than {MOST_DIGITS} binary digits")
    if isinstance(value, dict | list):
        if not levels:
            raise ValueError(f"nested deeper than {MOST_LEVELS} levels")
        items = cast("dict[str, object] | list[object]", value)
        for item in items.values() if isinstance(items, dict) else items:
            check_values(item, levels - 1)


def check_record(record: Mapping[str, Any]) -> None:
    """Check the types of the values in a finished run's record.

    Raises:
        ValueError: one is missing or of another type; names its key.
    """
    tables = {key: cast("dict[str, object]", record.get(key)) for key in ("summary", "files")}
    for key, table in tables.items():
        if type(table) is not dict:
            raise ValueError(f"{key}: missing, or of another type than the store writes")
    figures, digests = tables.values()
    right = {
        "status": record.get("status") in get_args(Outcome),
        "note": isinstance(record.get("note"), str),
        "config": isinstance(record.get("config"), dict),
        "summary": all(isinstance(value, float | int | str | None) for value in figures.values()),
        "files": all(isinstance(digest, str) for digest in digests.values())
        and all(name == METRICS or is_file_name(name) for name in digests),
    }
    for key, is_right in right.items():
        if not is_right:
            raise ValueError(f"{key}: missing, or of another type than the store writes")


def finite_or_none(value: object) -> float | int | str | None:
    """Convert a summary value for JSON: non-finite numbers become None.

    Raises:
        TypeError: the value is neither number nor string.
    """
    if isinstance(value, np.generic):
        value = cast(object, value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, float | int | str):
        return value
    raise TypeError(f"a summary holds numbers and strings, not {type(value).__name__}")


def nan_for_none(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a summary from JSON: None becomes NaN, the inverse of ``finite_or_none``.

    Names and strings become lines that a terminal can show.
    """
    return {
        one_line(key): math.nan
        if value is None
        else one_line(value)
        if isinstance(value, str)
        else value
        for key, value in summary.items()
    }

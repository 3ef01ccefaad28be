"""The files of a run, and what may stand in its summary."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, cast

import numpy as np

SCHEMA = 2
CONFIG, RUN, METRICS = "config.json", "run.json", "metrics.parquet"
PROVENANCE, CHECKPOINT = "provenance.json", "checkpoint"
TIMELINE = "timeline.parquet"
"""The attached file of a run that trained: what was computed when, and folded when."""
MODEL = "model.safetensors"
"""The attached file of a run that trained: its final parameters."""
TARGETS = "targets.safetensors"
"""The attached file of an alignment: int32 [N] for all frames of the corpus."""
WORD_ERRORS = "word_errors.safetensors"
"""The attached file: errors ``[utterances]`` for each ``test/candidate/stage``, and lengths."""
LARGE = frozenset({TIMELINE, MODEL, TARGETS})
"""What may be absent from a finished run, which is then light: metrics and errors are elsewhere."""
RESERVED = frozenset({CONFIG, RUN, METRICS, PROVENANCE, CHECKPOINT})

Outcome = Literal["done", "diverged", "failed"]
Status = Literal["done", "diverged", "failed", "unfinished", "damaged"]


def finite_or_none(value: object) -> float | int | str | None:
    """A summary value as JSON can hold it: non-finite numbers become None.

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
    """The reader's side of ``finite_or_none``."""
    return {key: math.nan if value is None else value for key, value in summary.items()}

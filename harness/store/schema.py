"""The files of a run, and the values of its summary."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, cast

import numpy as np

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
"""The attached file of a run tested on utterances: errors ``[utterances]`` for each
``test/candidate/stage``, and lengths."""
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
    """Convert a summary from JSON: None becomes NaN, the inverse of ``finite_or_none``."""
    return {key: math.nan if value is None else value for key, value in summary.items()}

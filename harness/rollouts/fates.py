"""Which rollouts of a finished run were thrown away: shares by difficulty and by length."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file  # pyright: ignore[reportUnknownVariableType]

from harness.rollouts.records import TRAINED
from harness.store import Run

__all__ = ["ROLLOUTS", "Record", "figures_of", "load_record", "share_thrown_away"]

ROLLOUTS = "rollouts.safetensors"
"""Attached file of a run: of each rollout with a known fate its prompt, difficulty, reward, tokens,
fate (`harness.rollouts.records`) and the version at that instant."""
Record = Mapping[str, NDArray[Any]]
"""The columns of `ROLLOUTS`."""


def load_record(run: Run) -> Record:
    """Read the record of a run's rollouts.

    Raises:
        UserError: the run has no record, or a damaged one.
    """
    return load_file(run.path(ROLLOUTS))


def figures_of(run: Run) -> dict[str, Any]:
    """A run's summary, with ``thrown_away/D``: the share thrown away of difficulty D.

    Raises:
        UserError: see `load_record`.
    """
    shares = share_thrown_away(load_record(run))
    return run.summary | {f"thrown_away/{level}": share for level, share in shares.items()}


def share_thrown_away(record: Record, by: str = "difficulty") -> dict[int, float]:
    """Share of rollouts thrown away at each value of a column; 1 where none was trained on.

    Args:
        record: the record of a run.
        by: column of whole numbers: ``"difficulty"``, or ``"tokens"`` for the length. A rollout
            that was thrown away in flight has the length that it would have had, or 0 if that was
            never known.

    Example:
        >>> rollouts = {"difficulty": np.array([1, 1, 2]), "fate": np.array([0, 1, 1])}
        >>> share_thrown_away(rollouts)
        {1: 0.5, 2: 1.0}
    """
    values, where = np.unique(record[by], return_inverse=True)
    gone = np.bincount(where, weights=record["fate"] != TRAINED)
    shares = gone / np.bincount(where)
    return dict(zip(values.tolist(), shares.tolist(), strict=True))

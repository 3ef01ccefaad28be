"""Rows of contributions, as protocols keep them, and the tables of a timeline made of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from harness.simulator.timeline import SERVER, Contributions, Spans

ROW = (
    *((name, np.int64) for name in ("worker", "fold", "read_version", "first_step", "steps")),
    ("read_at_s", np.float64),
)
"""Fields of a row of `contributions_of`: its worker, its fold (or `LOST`, `IN_FLIGHT`), and the
rest as in `Contributions`."""


class Stage(NamedTuple):
    """A part of a contribution's way that takes time: a kind of span and two fields of a row."""

    kind: str
    start: str
    end: str
    is_servers: bool = False


def contributions_of(rows: Any) -> Contributions:
    """Contributions of [C] rows with the fields of `ROW`."""
    return Contributions(
        fold=rows["fold"].copy(),
        worker=rows["worker"].astype(np.int32),
        read_version=rows["read_version"].copy(),
        read_time_s=rows["read_at_s"].copy(),
        first_step=rows["first_step"].copy(),
        steps=rows["steps"].astype(np.int32),
    )


def spans_of(rows: Any, stages: Sequence[Stage], kinds: Sequence[str]) -> Spans:
    """Busy times of [C] rows: stage after stage of a row, without those of no time."""
    start_s = np.stack([rows[stage.start] for stage in stages], axis=1)
    end_s = np.stack([rows[stage.end] for stage in stages], axis=1)
    worker = np.tile(rows["worker"].astype(np.int32)[:, None], len(stages))
    worker[:, [stage.is_servers for stage in stages]] = SERVER
    kind = np.array([kinds.index(stage.kind) for stage in stages], np.int32)
    columns: list[Any] = [worker, np.broadcast_to(kind, worker.shape), start_s, end_s]
    return Spans(*(column[end_s > start_s] for column in columns))

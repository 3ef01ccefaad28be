"""Rows of contributions, as protocols keep them, and the tables of a timeline made of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from harness.simulator.timeline import IN_FLIGHT, SERVER, Contributions, Spans

ROW = (
    *((name, np.int64) for name in ("worker", "fold", "read_version", "first_step", "steps")),
    ("read_at_s", np.float64),
)
"""Fields of a row of protocols in rounds: its worker, its fold (or `LOST`, `IN_FLIGHT`), and the
rest as in `Contributions`."""


class Stage(NamedTuple):
    """A part of a contribution's way that takes time: a kind of span and two fields of a row."""

    kind: str
    start: str
    end: str
    is_servers: bool = False


def contributions_of(rows: Any) -> Contributions:
    """Contributions of [C] rows with the fields of `ROW`."""
    return columns_of(rows, rows["fold"], rows["steps"])


def columns_of(rows: Any, fold: Any, steps: Any, places: Any = slice(None)) -> Contributions:
    """Contributions of rows without their folds or numbers of minibatches.

    Args:
        rows: with ``worker``, ``read_version``, ``read_at_s`` and ``first_step``.
        fold: of each row, or of all.
        steps: minibatches of each row, or of all.
        places: indices of the rows; by default all.
    """
    # Column by column: for many workers the rows themselves are most of the memory.
    worker = rows["worker"][places].astype(np.int32)
    return Contributions(
        fold=np.array(np.broadcast_to(fold, worker.shape), np.int64),
        worker=worker,
        read_version=rows["read_version"][places].copy(),
        read_time_s=rows["read_at_s"][places].copy(),
        first_step=rows["first_step"][places].copy(),
        steps=np.array(np.broadcast_to(steps, worker.shape), np.int32),
    )


def rows_under_way(rows: Any, phases: tuple[int, int], steps: int = 1) -> Contributions:
    """The contributions in one of the phases from the first to the last, by first step."""
    places = np.flatnonzero((rows["phase"] >= phases[0]) & (rows["phase"] <= phases[1]))
    places = places[np.argsort(rows["first_step"][places])]
    return columns_of(rows, IN_FLIGHT, steps, places)


def spans_of(rows: Any, stages: Sequence[Stage], kinds: Sequence[str]) -> Spans:
    """Busy times of [C] rows: stage after stage of a row, without those of no time."""
    start_s = np.stack([rows[stage.start] for stage in stages], axis=1)
    end_s = np.stack([rows[stage.end] for stage in stages], axis=1)
    worker = np.tile(rows["worker"].astype(np.int32)[:, None], len(stages))
    worker[:, [stage.is_servers for stage in stages]] = SERVER
    kind = np.array([kinds.index(stage.kind) for stage in stages], np.int32)
    return busy_spans(worker, kind, start_s, end_s)


def busy_spans(worker: Any, kind: Any, start_s: Any, end_s: Any) -> Spans:
    """The spans of [C, S] stages that take time, stage after stage of a row."""
    columns = worker, np.broadcast_to(kind, worker.shape), start_s, end_s
    return Spans(*(column[end_s > start_s] for column in columns))

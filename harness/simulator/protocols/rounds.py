"""Rounds in which every worker takes part, as the tables of a timeline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from harness.simulator.timeline import (
    IN_FLIGHT,
    KINDS,
    SERVER,
    Contributions,
    Folds,
    Spans,
    Timeline,
)

__all__ = ["TASK", "recorded", "under_way"]

TASK = np.dtype(
    [(name, np.int64) for name in ("is_read", "read_version", "first_step", "steps")]
    + [
        (name, np.float64)
        for name in (
            *("read_at_s", "start_s", "compute_end_s"),
            *("join_s", "pushed_s", "reduced_s", "fetched_s"),
        )
    ]
)
"""A worker's part in one round: what it has read and been handed, and the instants of its life."""

EPOCH, AVERAGE, REDUCE = "epoch", "average", "all-reduce"
SPAN_KINDS = (*KINDS, EPOCH, AVERAGE, REDUCE)
BEFORE = ((EPOCH, "read_at_s", "start_s"), ("compute", "start_s", "compute_end_s"))
AFTER = (
    (AVERAGE, "compute_end_s", "join_s"),
    ("push", "join_s", "pushed_s"),
    (REDUCE, "pushed_s", "reduced_s"),
    ("fetch", "reduced_s", "fetched_s"),
)
"""What a worker is busy with, from when to when."""


def recorded(first_fold: int, rounds: Sequence[Any], spans: bool, overlap: bool) -> Timeline:
    """Rounds that have been folded.

    Args:
        first_fold: number of the first one's fold.
        rounds: for each round [N] of `TASK`.
        spans: whether to say who was busy with what.
        overlap: whether workers went on while their parameters travelled.
    """
    if not rounds:
        return Timeline(kinds=SPAN_KINDS)
    tasks = np.stack(rounds)
    folds = np.arange(first_fold, first_fold + len(tasks), dtype=np.int64)
    return Timeline(
        folds=Folds(folds, tasks["fetched_s"].max(axis=1)),
        contributions=_contributions(folds[:, None], tasks),
        spans=_spans(tasks, overlap) if spans else Spans(),
        kinds=SPAN_KINDS,
    )


def under_way(rounds: Sequence[Any]) -> Contributions:
    """What has been read in rounds that have not been folded, by first step."""
    if not rounds:
        return Contributions()
    tasks = np.stack(rounds)
    rows = _contributions(np.full((1, 1), IN_FLIGHT, np.int64), tasks)
    return rows.where(tasks["is_read"].reshape(-1) == 1)


def _contributions(folds: Any, tasks: Any) -> Contributions:
    """[F·N] rows of tasks [F, N], round by round."""
    return Contributions(
        fold=np.broadcast_to(folds, tasks.shape).reshape(-1),
        worker=np.tile(np.arange(tasks.shape[1], dtype=np.int32), len(tasks)),
        read_version=tasks["read_version"].reshape(-1),
        read_time_s=tasks["read_at_s"].reshape(-1),
        first_step=tasks["first_step"].reshape(-1),
        steps=tasks["steps"].reshape(-1).astype(np.int32),
    )


def _spans(tasks: Any, overlap: bool) -> Spans:
    """What each worker was busy with in rounds [F, N]; what took no time is left out.

    Overlapped, a worker computes while its parameters travel, so the all-reduce is shown
    with the server: it is what folds.
    """
    stages = BEFORE if overlap else BEFORE + AFTER
    rounds, workers = tasks.shape
    who = np.repeat(np.arange(workers, dtype=np.int32), len(stages))
    kind = np.tile(np.array([SPAN_KINDS.index(name) for name, *_ in stages], np.int32), workers)
    start_s = np.stack([tasks[start] for _, start, _ in stages], axis=2).reshape(rounds, -1)
    end_s = np.stack([tasks[end] for *_, end in stages], axis=2).reshape(rounds, -1)
    if overlap:
        who = np.append(who, np.int32(SERVER))
        kind = np.append(kind, np.int32(SPAN_KINDS.index(REDUCE)))
        start_s = np.column_stack([start_s, tasks["join_s"].min(axis=1)])
        end_s = np.column_stack([end_s, tasks["fetched_s"].max(axis=1)])
    busy = (end_s > start_s).reshape(-1)
    lanes, kinds = (np.tile(column, rounds)[busy] for column in (who, kind))
    return Spans(lanes, kinds, start_s.reshape(-1)[busy], end_s.reshape(-1)[busy])

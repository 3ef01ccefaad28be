"""Rounds in which every worker that is there takes part, as the tables of a timeline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from harness.simulator.timeline import (
    IN_FLIGHT,
    KINDS,
    LOST,
    SERVER,
    Contributions,
    Folds,
    Spans,
    Timeline,
)

__all__ = ["AFTER", "BEFORE", "LOST_TASK", "SERVED", "TASK", "recorded", "under_way"]

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

LOST_TASK = np.dtype([("worker", np.int64), ("task", TASK)])
"""A worker's part in a round whose end it did not live to see."""

EPOCH, AVERAGE, REDUCE = "epoch", "average", "all-reduce"
SPAN_KINDS = (*KINDS, EPOCH, AVERAGE, REDUCE)
BEFORE = ((EPOCH, "read_at_s", "start_s"), ("compute", "start_s", "compute_end_s"))
AFTER = (
    (AVERAGE, "compute_end_s", "join_s"),
    ("push", "join_s", "pushed_s"),
    (REDUCE, "pushed_s", "reduced_s"),
    ("fetch", "reduced_s", "fetched_s"),
)
SERVED = (
    ("fetch", "read_at_s", "start_s"),
    ("compute", "start_s", "compute_end_s"),
    (AVERAGE, "compute_end_s", "join_s"),
    ("push", "join_s", "pushed_s"),
)
"""What a worker is busy with, from when to when: in averaging, and with a server."""


def recorded(
    first_fold: int,
    rounds: Sequence[Any],
    lost: Any,
    spans: bool,
    stages: Sequence[tuple[str, str, str]],
    overlap: bool = False,
) -> Timeline:
    """Rounds that have been folded.

    Args:
        first_fold: number of the first one's fold.
        rounds: for each round [N] of `TASK`; those take part in it who have read.
        lost: [L] of `LOST_TASK`.
        spans: whether to say who was busy with what.
        stages: what that may be, and between which instants of a task.
        overlap: whether workers went on while their parameters travelled.
    """
    if not rounds:
        losses = _contributions(LOST, lost["worker"], lost["task"])
        return Timeline(contributions=losses, kinds=SPAN_KINDS)
    tasks = np.stack(rounds)
    folds = np.arange(first_fold, first_fold + len(tasks), dtype=np.int64)
    round_, who = np.nonzero(tasks["is_read"])
    fates = np.concatenate([folds[round_], np.full(len(lost), LOST, np.int64)])
    workers = np.concatenate([who, lost["worker"]])
    parts = np.concatenate([tasks[round_, who], lost["task"]])
    return Timeline(
        folds=Folds(folds, tasks["fetched_s"].max(axis=1)),
        contributions=_contributions(fates, workers, parts),
        spans=_spans(tasks, stages, overlap) if spans else Spans(),
        kinds=SPAN_KINDS,
    )


def under_way(rounds: Sequence[Any]) -> Contributions:
    """What has been read in rounds that have not been folded, by first step."""
    if not rounds:
        return Contributions()
    tasks = np.stack(rounds)
    round_, who = np.nonzero(tasks["is_read"])
    return _contributions(IN_FLIGHT, who, tasks[round_, who])


def _contributions(fates: Any, workers: Any, parts: Any) -> Contributions:
    """[C] rows: what became of each, whose it is, and its `TASK`."""
    return Contributions(
        fold=np.array(np.broadcast_to(np.asarray(fates, np.int64), len(parts))),
        worker=workers.astype(np.int32),
        read_version=parts["read_version"].copy(),
        read_time_s=parts["read_at_s"].copy(),
        first_step=parts["first_step"].copy(),
        steps=parts["steps"].astype(np.int32),
    )


def _spans(tasks: Any, stages: Sequence[tuple[str, str, str]], overlap: bool) -> Spans:
    """What each worker was busy with in rounds [F, N]; what took no time is left out.

    Overlapped, a worker computes while its parameters travel, so the all-reduce is shown
    with the server: it is what folds.
    """
    rounds, workers = tasks.shape
    there = np.repeat(tasks["is_read"] == 1, len(stages), axis=1)
    who = np.repeat(np.arange(workers, dtype=np.int32), len(stages))
    kind = np.tile(np.array([SPAN_KINDS.index(name) for name, *_ in stages], np.int32), workers)
    start_s = np.stack([tasks[start] for _, start, _ in stages], axis=2).reshape(rounds, -1)
    end_s = np.stack([tasks[end] for *_, end in stages], axis=2).reshape(rounds, -1)
    if overlap:
        who = np.append(who, np.int32(SERVER))
        kind = np.append(kind, np.int32(SPAN_KINDS.index(REDUCE)))
        start_s = np.column_stack([start_s, tasks["join_s"].min(axis=1)])
        end_s = np.column_stack([end_s, tasks["fetched_s"].max(axis=1)])
        there = np.column_stack([there, np.ones(rounds, np.bool_)])
    busy = (there & (end_s > start_s)).reshape(-1)
    lanes, kinds = (np.tile(column, rounds)[busy] for column in (who, kind))
    return Spans(lanes, kinds, start_s.reshape(-1)[busy], end_s.reshape(-1)[busy])

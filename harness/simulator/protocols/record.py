"""What the asynchronous kernel records, and the timeline that it makes."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from harness.simulator.protocols.rows import busy_spans, columns_of
from harness.simulator.protocols.shards import PIECE
from harness.simulator.protocols.state import SLOT
from harness.simulator.timeline import LOST, SERVER, Folds, Pieces, Restarts, Spans, Timeline, stack

FETCH, COMPUTE, PUSH, FOLD = range(4)
"""Kinds of spans, as in `timeline.KINDS`."""

RESTART = np.dtype([("time_s", np.float64), ("version", np.int64), ("restored_version", np.int64)])


class Record(NamedTuple):
    """Recorded events: slots of [M] folded and of lost contributions, restarts, their counts.

    With several shards, [M, S] ``pieces`` of folded contributions.
    """

    folded: Any
    lost: Any
    restarts: Any
    counts: Any
    pieces: Any


def space(folds: int, losses: int = 0, shards: int = 0) -> Record:
    """An empty record.

    Args:
        folds: largest number of folds, and of restarts.
        losses: largest number of lost contributions.
        shards: number of shards that record pieces; 0 for one shard.
    """
    # Of what is not filled, no page is in memory.
    return Record(
        folded=np.empty(folds, SLOT),
        lost=np.empty(losses, SLOT),
        restarts=np.empty(folds, RESTART),
        counts=np.zeros(3, np.int64),
        pieces=np.empty((folds, shards), PIECE),
    )


def timeline(record: Record, start: int, steps: int, spans: bool) -> Timeline:
    """The timeline of a record.

    Args:
        record: of a kernel.
        start: number of the first fold.
        steps: minibatches of each contribution.
        spans: whether it has busy times.
    """
    count, lost, restarts = record.counts.tolist()
    numbers, struck = np.arange(start, start + count, dtype=np.int64), record.restarts[:restarts]
    rows, pieces = record.folded[:count], record.pieces[:count]
    parts = [columns_of(rows, numbers, steps), columns_of(record.lost[:lost], LOST, steps)]
    return Timeline(
        folds=Folds(numbers, rows["fold_end_s"].copy()),
        contributions=stack(parts),
        spans=_spans(rows, pieces) if spans else Spans(),
        restarts=Restarts(*(struck[name].copy() for name in RESTART.names or ())),
        pieces=_pieces(numbers, pieces),
    )


def _pieces(folds: Any, rows: Any) -> Pieces:
    """One row for each shard of each fold; none for one shard."""
    count = rows.shape[1]
    return Pieces(
        fold=np.repeat(folds, count),
        worker=np.tile(SERVER - np.arange(count, dtype=np.int32), len(rows)),
        read_version=rows["read_version"].reshape(-1),
        version=rows["version"].reshape(-1),
        time_s=rows["end_s"].reshape(-1),
    )


def _spans(rows: Any, pieces: Any) -> Spans:
    """Fetch, compute, push of each contribution and folds of its pieces, if they take time."""
    begun_s, folded_s = rows["fold_start_s"][:, None], rows["fold_end_s"][:, None]
    if pieces.shape[1]:
        begun_s, folded_s = pieces["start_s"], pieces["end_s"]
    servers = np.arange(begun_s.shape[1], dtype=np.int32)
    start_s = [rows["fetch_start_s"], rows["fetch_end_s"], rows["push_start_s"]]
    end_s = [rows["fetch_end_s"], rows["compute_end_s"], rows["push_end_s"]]
    worker = np.tile(rows["worker"][:, None], len(start_s))
    return busy_spans(
        np.hstack([worker, np.broadcast_to(SERVER - servers, begun_s.shape)]),
        np.array([FETCH, COMPUTE, PUSH, *(FOLD + 0 * servers)], np.int32),
        np.column_stack([*start_s, begun_s]),
        np.column_stack([*end_s, folded_s]),
    )

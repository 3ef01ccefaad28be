"""What protocols record, and the tables of a timeline that they make of it.

`Record` is of the server's event loop; rows with the fields of `ROW` are of protocols in rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from harness.simulator.events import part
from harness.simulator.protocols.state import PIECE, SLOT
from harness.simulator.timeline import (
    LOST,
    SERVER,
    Contributions,
    Folds,
    Pieces,
    Restarts,
    Spans,
    Timeline,
    stack,
)

FETCH, COMPUTE, PUSH, FOLD = range(4)
"""Kinds of spans, as in `timeline.KINDS`."""

SPANNED = np.dtype(
    [(name, np.float64) for name in ("fetch_start_s", "fetch_end_s", "compute_end_s")]
    + [(name, np.float64) for name in ("push_start_s", "push_end_s", "fold_start_s")]
)
"""The instants of a contribution from which spans are made, besides the fold's end."""

ROUND = np.dtype([("time_s", np.float64), ("rows", np.int64)])
"""The end of a round, and the number of folded contributions up to it."""

RESTART = np.dtype([("time_s", np.float64), ("version", np.int64), ("restored_version", np.int64)])


class Record(NamedTuple):
    """Recorded events: [M] columns of folded contributions, lost slots, restarts, their counts.

    ``instants`` is empty without spans. With several shards, [M, S] ``pieces`` of folded
    contributions. ``rounds`` is empty if each contribution is a fold of its own.
    """

    fold_end_s: Any
    worker: Any
    read_version: Any
    read_at_s: Any
    first_step: Any
    instants: Any
    lost: Any
    restarts: Any
    counts: Any
    pieces: Any
    rounds: Any


def space(folds: int, spans: bool, losses: int = 0, shards: int = 0, rounds: int = 0) -> Record:
    """An empty record.

    Args:
        folds: largest number of folded contributions, and of restarts.
        spans: whether to record spans.
        losses: largest number of lost contributions.
        shards: number of shards that record pieces; 0 for one shard.
        rounds: largest number of rounds.
    """
    kinds = (np.float64, np.int32, np.int64, np.float64, np.int64)
    return Record(
        *(np.empty(folds, kind) for kind in kinds),
        instants=np.empty(folds if spans else 0, SPANNED),
        lost=np.empty(losses, SLOT),
        restarts=np.empty(folds, RESTART),
        counts=np.zeros(4, np.int64),
        pieces=np.empty((folds, shards), PIECE),
        rounds=np.empty(rounds, ROUND),
    )


@part
def write_row(record: Record, row: int, slot: Any, end_s: float) -> None:
    """Write a folded contribution to the columns; ``slot`` has the same fields."""
    record.fold_end_s[row] = end_s
    record.worker[row] = slot.worker
    record.read_version[row] = slot.read_version
    record.read_at_s[row] = slot.read_at_s
    record.first_step[row] = slot.first_step


@part
def write_instants(instants: Any, slot: Any) -> None:
    """Write the instants of a folded contribution, from which spans are made."""
    instants.fetch_start_s = slot.fetch_start_s
    instants.fetch_end_s = slot.fetch_end_s
    instants.compute_end_s = slot.compute_end_s
    instants.push_start_s = slot.push_start_s
    instants.push_end_s = slot.push_end_s
    instants.fold_start_s = slot.fold_start_s


def timeline(record: Record, start: int, steps: int) -> Timeline:
    """The timeline of a record.

    Args:
        record: of a kernel.
        start: number of the first fold.
        steps: minibatches of each contribution.
    """
    count, lost, restarts, rounds = record.counts.tolist()
    struck, ends = record.restarts[:restarts], record.rounds[:rounds]
    folds = Folds(np.arange(start, start + count, dtype=np.int64), record.fold_end_s[:count])
    numbers = folds.fold
    if len(record.rounds):
        folds = Folds(np.arange(start, start + rounds, dtype=np.int64), ends["time_s"].copy())
        numbers = np.repeat(folds.fold, np.diff(ends["rows"], prepend=0))
    # Views: of what is not filled, no page is in memory.
    columns = (record.worker, record.read_version, record.read_at_s, record.first_step)
    worker, read_version, read_at_s, first_step = (column[:count] for column in columns)
    counts = np.full(count, steps, np.int32)
    rows = Contributions(numbers, worker, read_version, read_at_s, first_step, counts)
    return Timeline(
        folds=folds,
        contributions=stack([rows, columns_of(record.lost[:lost], LOST, steps)]),
        spans=_spans(record, count) if len(record.instants) else Spans(),
        restarts=Restarts(*(struck[name].copy() for name in RESTART.names or ())),
        pieces=_pieces(numbers, record.pieces[:count]),
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


def _spans(record: Record, folds: int) -> Spans:
    """Fetch, compute, push of each contribution and folds of its pieces, if they take time."""
    rows, pieces = record.instants[:folds], record.pieces[:folds]
    begun_s, folded_s = rows["fold_start_s"][:, None], record.fold_end_s[:folds, None]
    if pieces.shape[1]:
        begun_s, folded_s = pieces["start_s"], pieces["end_s"]
    servers = np.arange(begun_s.shape[1], dtype=np.int32)
    start_s = [rows["fetch_start_s"], rows["fetch_end_s"], rows["push_start_s"]]
    end_s = [rows["fetch_end_s"], rows["compute_end_s"], rows["push_end_s"]]
    worker = np.tile(record.worker[:folds, None], len(start_s))
    return busy_spans(
        np.hstack([worker, np.broadcast_to(SERVER - servers, begun_s.shape)]),
        np.array([FETCH, COMPUTE, PUSH, *(FOLD + 0 * servers)], np.int32),
        np.column_stack([*start_s, begun_s]),
        np.column_stack([*end_s, folded_s]),
    )


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

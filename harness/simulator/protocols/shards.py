"""Server shards: each has a queue and folds its own piece of every contribution.

A worker sends a contribution as one piece for each shard, one after the other; neighbouring
workers begin with different shards. So pieces reach shards at different instants, and a read
finds some shards that have folded more contributions than others.

A shard folds in the order of arrival, so the instant of a piece's fold is known once it is
queued. How many a shard has folded is counted only when a worker reads.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from harness.simulator.jit import kernel

__all__ = ["PIECE", "Shards", "begin", "fold_end_s", "look", "new_shards", "queue"]

SHARD = np.dtype([("queued", np.int64), ("version", np.int64), ("free_s", np.float64)])
"""Pieces ever queued, pieces folded as far as counted, until when it is busy."""

PIECE = np.dtype(
    [(name, np.int64) for name in ("read_version", "version")]
    + [(name, np.float64) for name in ("start_s", "end_s")]
)
"""The shard's version that was read, its version before the fold, and when it folds."""


class Shards(NamedTuple):
    """What several shards add to the state; arrays without entries where there is one shard.

    Attributes:
        queues: [S] of `SHARD`.
        ends_s: [S, C] rings: when each queued piece is folded.
        seen: [N, S] version of each shard at a worker's last fetch.
        sent: [C] pieces of each slot that are queued or folded.
        pieces: [C, S] of `PIECE`.
    """

    queues: Any
    ends_s: Any
    seen: Any
    sent: Any
    pieces: Any


def new_shards(shards: int, workers: int, slots: int) -> Shards:
    """Shards of version 0 with nothing queued."""
    if shards == 1:
        shards = workers = slots = 0
    return Shards(
        queues=np.zeros(shards, SHARD),
        ends_s=np.zeros((shards, slots)),
        seen=np.zeros((workers, shards), np.int64),
        sent=np.zeros(slots, np.int64),
        pieces=np.zeros((slots, shards), PIECE),
    )


@kernel
def settle(shards: Shards, where: int, now_s: float) -> None:
    """Count what a shard has folded up to this instant."""
    shard, ring = shards.queues[where], shards.ends_s.shape[1]
    while shard.version < shard.queued and shards.ends_s[where, shard.version % ring] <= now_s:
        shard.version += 1


@kernel
def look(shards: Shards, who: int, now_s: float) -> None:
    """A worker reads every shard at this instant."""
    for where in range(len(shards.queues)):
        settle(shards, where, now_s)
        shards.seen[who, where] = shards.queues[where].version


@kernel
def begin(shards: Shards, who: int, place: int) -> None:
    """A contribution at the versions its worker read last."""
    shards.sent[place] = 0
    for where in range(len(shards.queues)):
        shards.pieces[place, where].read_version = shards.seen[who, where]


@kernel
def queue(
    shards: Shards, who: int, place: int, now_s: float, arrival_s: float, fold_s: float
) -> bool:
    """The next piece is at its shard, a part of ``fold_s`` to fold; whether it was the last.

    A piece that is not yet folded keeps its slot taken, so C entries in a ring are enough.
    """
    count, ring = shards.ends_s.shape
    where = (who + shards.sent[place]) % count
    settle(shards, where, now_s)
    shard, piece = shards.queues[where], shards.pieces[place, where]
    piece.version = shard.queued
    piece.start_s = max(arrival_s, shard.free_s)
    piece.end_s = piece.start_s + fold_s / count
    shards.ends_s[where, shard.queued % ring] = shard.free_s = piece.end_s
    shard.queued += 1
    shards.sent[place] += 1
    return shards.sent[place] == count


@kernel
def fold_end_s(shards: Shards, place: int) -> float:
    """When the last shard has folded its piece."""
    end_s = shards.pieces[place, 0].end_s
    for where in range(1, len(shards.queues)):
        end_s = max(end_s, shards.pieces[place, where].end_s)
    return end_s

"""A server in shards: each has a queue and folds its own piece of every contribution.

A worker sends a contribution as one piece for each shard, one after the other; neighbouring workers
begin with different shards. So pieces reach shards at different instants, and at a read some shards
have folded more contributions than others. A shard folds in the order of arrival, so the instant of
a piece's fold is known once it is queued. A shard's version is counted only when a worker reads.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from harness.simulator.events import kernel

SHARD = np.dtype([("queued", np.int64), ("version", np.int64), ("free_s", np.float64)])
"""Pieces ever queued, pieces folded as of the last count, instant at which it is free."""

PIECE = np.dtype(
    [(name, np.int64) for name in ("read_version", "version")]
    + [(name, np.float64) for name in ("start_s", "end_s")]
)
"""The shard's version that was read, its version before the fold, and the interval of the fold."""


class Shards(NamedTuple):
    """State of several shards; arrays are empty for one shard.

    Attributes:
        queues: [S] of `SHARD`.
        ends_s: [S, C] rings of the ends of queued pieces' folds.
        seen: [N, S] version of each shard at a worker's last fetch.
        sent: [C] number of each slot's pieces that are queued or folded.
        pieces: [C, S] of `PIECE`.
    """

    queues: Any
    ends_s: Any
    seen: Any
    sent: Any
    pieces: Any


def new_shards(shards: int, workers: int, slots: int) -> Shards:
    """Shards of version 0 with empty queues."""
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
def settle(shards: Shards, index: int, now_s: float) -> None:
    """Count a shard's folds up to this instant."""
    # Ends rise along the ring, so counting stops at the first piece that is not yet folded.
    shard, ring = shards.queues[index], shards.ends_s.shape[1]
    while shard.version < shard.queued and shards.ends_s[index, shard.version % ring] <= now_s:
        shard.version += 1


@kernel
def look(shards: Shards, worker: int, now_s: float) -> None:
    """Let a worker read every shard at this instant."""
    for index in range(len(shards.queues)):
        settle(shards, index, now_s)
        shards.seen[worker, index] = shards.queues[index].version


@kernel
def begin(shards: Shards, worker: int, place: int) -> None:
    """Begin a contribution at the versions that its worker read last."""
    shards.sent[place] = 0
    for index in range(len(shards.queues)):
        shards.pieces[place, index].read_version = shards.seen[worker, index]


@kernel
def queue(
    shards: Shards, worker: int, place: int, now_s: float, arrival_s: float, fold_s: float
) -> bool:
    """Queue the next piece at its shard, with a part of ``fold_s``; whether it was the last.

    A piece that is not yet folded keeps its slot taken, so C entries in a ring are enough.
    """
    count, ring = shards.ends_s.shape
    # Neighbouring workers begin with different shards, which spreads the load.
    index = (worker + shards.sent[place]) % count
    settle(shards, index, now_s)
    shard, piece = shards.queues[index], shards.pieces[place, index]
    piece.version = shard.queued
    piece.start_s = max(arrival_s, shard.free_s)
    piece.end_s = piece.start_s + fold_s / count
    shards.ends_s[index, shard.queued % ring] = shard.free_s = piece.end_s
    shard.queued += 1
    shards.sent[place] += 1
    return shards.sent[place] == count


@kernel
def fold_end_s(shards: Shards, place: int) -> float:
    """Instant at which the last shard has folded its piece."""
    end_s = shards.pieces[place, 0].end_s
    for index in range(1, len(shards.queues)):
        end_s = max(end_s, shards.pieces[place, index].end_s)
    return end_s

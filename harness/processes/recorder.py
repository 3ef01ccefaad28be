"""A timeline of what really happened, from the clock readings of a server and its workers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from harness.simulator.protocols.rounds import AVERAGE, SPAN_KINDS
from harness.simulator.timeline import (
    IN_FLIGHT,
    KINDS,
    LOST,
    SERVER,
    Contributions,
    Decodes,
    Folds,
    Pieces,
    Spans,
    Timeline,
)

PAUSE = "evaluate"

RECORDED = (*SPAN_KINDS, PAUSE)
"""Kinds of spans in a recorded timeline."""

COMPUTE_KIND, AVERAGE_KIND = RECORDED.index("compute"), RECORDED.index(AVERAGE)


class Work(NamedTuple):
    """A contribution that a worker was asked for.

    Attributes:
        worker: who makes it.
        step, steps: its first minibatch and how many.
        read_version, read_time_s: the version sent to the worker, and when.
    """

    worker: int
    step: int
    steps: int
    read_version: int
    read_time_s: float


class Piece(NamedTuple):
    """What a shard has to do with a contribution.

    Attributes:
        read_version: its version that was read.
        version: its version before it folded its piece; `LOST` if that never came.
        begun_s, ended_s: of folding it, or when it was given up.
    """

    read_version: int
    version: int
    begun_s: float
    ended_s: float


class Recorder:
    """Collects the rows of one segment after another."""

    def __init__(self) -> None:
        self._left_s: float | None = None
        self._clear()

    def _clear(self) -> None:
        self._folds: list[tuple[int, float]] = []
        self._rows: list[tuple[float, ...]] = []
        self._spans: list[tuple[int, int, float, float]] = []
        self._pieces: list[tuple[int, int, int, int, float]] = []

    def record_fold(self, fold: int, work: Work, *, moments_s: tuple[float, ...]) -> None:
        """A contribution has entered.

        Args:
            fold: which fold.
            work: the contribution.
            moments_s: when the fetch, the computation, the push, the wait for the server and
                the fold ended.
        """
        fetched, computed, pushed, begun, ended = moments_s
        self._folds.append((fold, ended))
        self._rows.append(_row(fold, work))
        busy = [(work.read_time_s, fetched), (fetched, computed), (computed, pushed)]
        spans = [(work.worker, kind, *span) for kind, span in enumerate(busy)]
        spans.append((SERVER, KINDS.index("fold"), begun, ended))
        self._spans += [span for span in spans if span[3] > span[2]]

    def record_fold_in_pieces(
        self,
        fold: int,
        work: Work,
        pieces: Sequence[Piece],
        moments_s: tuple[float, ...],
        at: float,
    ) -> None:
        """What the shards have of a contribution is folded.

        Args:
            fold: which fold.
            work: the contribution.
            pieces: of every shard, in their order.
            moments_s: when the fetch, the computation and the push ended; empty if nobody is
                left to say.
            at: when the fold was complete.
        """
        self._folds.append((fold, at))
        self._rows.append(_row(fold, work))
        ends = zip((work.read_time_s, *moments_s), moments_s, strict=False)
        spans = [(work.worker, kind, *span) for kind, span in enumerate(ends)]
        kind = KINDS.index("fold")
        for shard, piece in enumerate(pieces):
            lane = SERVER - shard
            self._pieces.append((fold, lane, piece.read_version, piece.version, piece.ended_s))
            spans.append((lane, kind, piece.begun_s, piece.ended_s))
        self._spans += [span for span in spans if span[3] > span[2]]

    def record_round(
        self, fold: int, works: Sequence[Work], computed_s: Sequence[float], ends_s: Sequence[float]
    ) -> None:
        """A round of everybody's is complete.

        Args:
            fold: which.
            works: every worker's contribution.
            computed_s: when each had computed it.
            ends_s: when each had the average.
        """
        self._folds.append((fold, max(ends_s)))
        for work, computed, end in zip(works, computed_s, ends_s, strict=True):
            self._rows.append(_row(fold, work))
            self._spans.append((work.worker, COMPUTE_KIND, work.read_time_s, computed))
            self._spans.append((work.worker, AVERAGE_KIND, computed, end))

    def record_pause(self, start_s: float, end_s: float) -> None:
        """The server did something else than to fold."""
        self._spans.append((SERVER, RECORDED.index(PAUSE), start_s, end_s))

    def leave(self, at_s: float) -> None:
        """The server turns to something else than folds, until `go_on`."""
        self._left_s = at_s

    def go_on(self, at_s: float) -> None:
        """Folds go on; if they had begun before, the server has paused in between."""
        if self._left_s is not None:
            self.record_pause(self._left_s, at_s)

    def record_loss(self, work: Work) -> None:
        """A contribution will never come."""
        self._rows.append(_row(LOST, work))

    def segment(self, in_flight: Iterable[Work]) -> Timeline:
        """What was collected since the last segment, and what is under way now."""
        under_way = sorted(in_flight, key=lambda work: work.step)
        rows = [*self._rows, *(_row(IN_FLIGHT, work) for work in under_way)]
        timeline = Timeline(
            table(Folds, self._folds),
            table(Contributions, rows),
            table(Spans, self._spans),
            RECORDED,
            pieces=table(Pieces, self._pieces),
        )
        self._clear()
        return timeline


def _row(fold: int, work: Work) -> tuple[float, ...]:
    """A contribution's row of `Contributions`."""
    read = work.read_version, work.read_time_s
    return (fold, work.worker, *read, work.step, work.steps)


T = TypeVar("T", Folds, Contributions, Spans, Pieces, Decodes)


def table(of: type[T], rows: Sequence[Sequence[float]]) -> T:
    """A timeline's table of rows, which have its columns in their order."""
    columns = of().columns()
    values = zip(*rows, strict=True) if rows else ((),) * len(columns)
    return of(*(np.array(v, c.dtype) for v, c in zip(values, columns.values(), strict=True)))

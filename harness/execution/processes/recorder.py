"""A timeline of what really happened, from the clock readings of a server and its workers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from harness.simulator.protocols.rounds import AVERAGE, SPAN_KINDS
from harness.simulator.timeline import (
    IN_FLIGHT,
    KINDS,
    LOST,
    SERVER,
    Contributions,
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
        self._rows: list[tuple[int, Work]] = []
        self._spans: list[tuple[int, int, float, float]] = []
        self._pieces: list[tuple[int, int, int, int, float]] = []

    def folded(self, fold: int, work: Work, *, moments_s: tuple[float, ...]) -> None:
        """A contribution has entered.

        Args:
            fold: which fold.
            work: the contribution.
            moments_s: when the fetch, the computation, the push, the wait for the server and
                the fold ended.
        """
        fetched, computed, pushed, begun, ended = moments_s
        self._folds.append((fold, ended))
        self._rows.append((fold, work))
        busy = [(work.read_time_s, fetched), (fetched, computed), (computed, pushed)]
        spans = [(work.worker, kind, *span) for kind, span in enumerate(busy)]
        spans.append((SERVER, KINDS.index("fold"), begun, ended))
        self._spans += [span for span in spans if span[3] > span[2]]

    def folded_in_pieces(
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
        self._rows.append((fold, work))
        ends = zip((work.read_time_s, *moments_s), moments_s, strict=False)
        spans = [(work.worker, kind, *span) for kind, span in enumerate(ends)]
        kind = KINDS.index("fold")
        for shard, piece in enumerate(pieces):
            lane = SERVER - shard
            self._pieces.append((fold, lane, piece.read_version, piece.version, piece.ended_s))
            spans.append((lane, kind, piece.begun_s, piece.ended_s))
        self._spans += [span for span in spans if span[3] > span[2]]

    def averaged(
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
            self._rows.append((fold, work))
            self._spans.append((work.worker, COMPUTE_KIND, work.read_time_s, computed))
            self._spans.append((work.worker, AVERAGE_KIND, computed, end))

    def paused(self, start_s: float, end_s: float) -> None:
        """The server did something else than to fold."""
        self._spans.append((SERVER, RECORDED.index(PAUSE), start_s, end_s))

    def leave(self, at_s: float) -> None:
        """The server turns to something else than folds, until `go_on`."""
        self._left_s = at_s

    def go_on(self, at_s: float) -> None:
        """Folds go on; if they had begun before, the server has paused in between."""
        if self._left_s is not None:
            self.paused(self._left_s, at_s)

    def lost(self, work: Work) -> None:
        """A contribution will never come."""
        self._rows.append((LOST, work))

    def segment(self, in_flight: Iterable[Work]) -> Timeline:
        """What was collected since the last segment, and what is under way now."""
        under_way = sorted(in_flight, key=lambda work: work.step)
        rows = [*self._rows, *((IN_FLIGHT, work) for work in under_way)]
        timeline = Timeline(
            _folds(self._folds),
            _contributions(rows),
            _spans(self._spans),
            RECORDED,
            pieces=_pieces(self._pieces),
        )
        self._clear()
        return timeline


def _folds(rows: list[tuple[int, float]]) -> Folds:
    return Folds(
        np.array([fold for fold, _ in rows], np.int64),
        np.array([time for _, time in rows], np.float64),
    )


def _contributions(rows: list[tuple[int, Work]]) -> Contributions:
    return Contributions(
        fold=np.array([fold for fold, _ in rows], np.int64),
        worker=np.array([work.worker for _, work in rows], np.int32),
        read_version=np.array([work.read_version for _, work in rows], np.int64),
        read_time_s=np.array([work.read_time_s for _, work in rows], np.float64),
        first_step=np.array([work.step for _, work in rows], np.int64),
        steps=np.array([work.steps for _, work in rows], np.int32),
    )


def _spans(rows: list[tuple[int, int, float, float]]) -> Spans:
    return Spans(
        np.array([who for who, *_ in rows], np.int32),
        np.array([kind for _, kind, *_ in rows], np.int32),
        np.array([start for *_, start, _ in rows], np.float64),
        np.array([end for *_, end in rows], np.float64),
    )


def _pieces(rows: list[tuple[int, int, int, int, float]]) -> Pieces:
    return Pieces(
        np.array([fold for fold, *_ in rows], np.int64),
        np.array([lane for _, lane, *_ in rows], np.int32),
        np.array([read for *_, read, _, _ in rows], np.int64),
        np.array([version for *_, version, _ in rows], np.int64),
        np.array([at for *_, at in rows], np.float64),
    )

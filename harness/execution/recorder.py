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


class Recorder:
    """Collects the rows of one segment after another."""

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self._folds: list[tuple[int, float]] = []
        self._rows: list[tuple[int, Work]] = []
        self._spans: list[tuple[int, int, float, float]] = []

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

    def lost(self, work: Work) -> None:
        """A contribution will never come."""
        self._rows.append((LOST, work))

    def segment(self, in_flight: Iterable[Work]) -> Timeline:
        """What was collected since the last segment, and what is under way now."""
        under_way = sorted(in_flight, key=lambda work: work.step)
        rows = [*self._rows, *((IN_FLIGHT, work) for work in under_way)]
        timeline = Timeline(
            _folds(self._folds), _contributions(rows), _spans(self._spans), RECORDED
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

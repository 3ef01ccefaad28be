"""Timeline of a run on real processes, from the clock readings of a server and its workers."""

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
    Folds,
    Spans,
    Timeline,
)

PAUSE = "evaluate"

RECORDED = (*SPAN_KINDS, PAUSE)
"""Kinds of spans in a recorded timeline."""

COMPUTE_KIND, AVERAGE_KIND = RECORDED.index("compute"), RECORDED.index(AVERAGE)


class Work(NamedTuple):
    """A contribution that the server has assigned to a worker.

    Attributes:
        worker: index of the worker.
        step, steps: number of its first minibatch, and number of minibatches.
        read_version: version of the model sent to the worker.
        read_time_s: time at which it was sent, in seconds since the run began.
    """

    worker: int
    step: int
    steps: int
    read_version: int
    read_time_s: float


class Recorder:
    """Collects the rows of a timeline, segment by segment."""

    def __init__(self) -> None:
        self._left_s: float | None = None
        self._clear()

    def _clear(self) -> None:
        self._folds: list[tuple[int, float]] = []
        self._rows: list[tuple[float, ...]] = []
        self._spans: list[tuple[int, int, float, float]] = []

    def record_fold(self, fold: int, work: Work, *, moments_s: tuple[float, ...]) -> None:
        """Record a folded contribution.

        Args:
            fold: number of the fold.
            work: the contribution.
            moments_s: ends of the fetch, the computation, the push, the wait for the server and
                the fold.
        """
        fetched, computed, pushed, start, ended = moments_s
        self._folds.append((fold, ended))
        self._rows.append(_row(fold, work))
        busy = [(work.read_time_s, fetched), (fetched, computed), (computed, pushed)]
        spans = [(work.worker, kind, *span) for kind, span in enumerate(busy)]
        spans.append((SERVER, KINDS.index("fold"), start, ended))
        # Offsets between clocks are estimates: a span that would end before its start is left out.
        self._spans += [span for span in spans if span[3] > span[2]]

    def record_round(
        self, fold: int, works: Sequence[Work], computed_s: Sequence[float], ends_s: Sequence[float]
    ) -> None:
        """Record a complete round.

        Args:
            fold: number of the fold.
            works: the contribution of each worker, ``[workers]``.
            computed_s: end of each worker's computation, ``[workers]``.
            ends_s: time at which each worker had the average, ``[workers]``.
        """
        self._folds.append((fold, max(ends_s)))
        for work, computed, end in zip(works, computed_s, ends_s, strict=True):
            self._rows.append(_row(fold, work))
            self._spans.append((work.worker, COMPUTE_KIND, work.read_time_s, computed))
            self._spans.append((work.worker, AVERAGE_KIND, computed, end))

    def record_pause(self, start_s: float, end_s: float) -> None:
        """Record an interval in which the server did not serve folds."""
        self._spans.append((SERVER, RECORDED.index(PAUSE), start_s, end_s))

    def leave(self, at_s: float) -> None:
        """Mark the time at which the server stops serving folds, until `go_on`."""
        self._left_s = at_s

    def go_on(self, at_s: float) -> None:
        """Mark the time at which folds continue, and record the pause since `leave`."""
        if self._left_s is not None:
            self.record_pause(self._left_s, at_s)

    def record_loss(self, work: Work) -> None:
        """Record a contribution as lost."""
        self._rows.append(_row(LOST, work))

    def segment(self, in_flight: Iterable[Work]) -> Timeline:
        """Timeline of the rows since the last segment, with the contributions now in flight."""
        under_way = sorted(in_flight, key=lambda work: work.step)
        rows = [*self._rows, *(_row(IN_FLIGHT, work) for work in under_way)]
        tables = table(Folds, self._folds), table(Contributions, rows), table(Spans, self._spans)
        timeline = Timeline(*tables, RECORDED)
        self._clear()
        return timeline


def _row(fold: int, work: Work) -> tuple[float, ...]:
    """A contribution's row of `Contributions`."""
    version_and_time = work.read_version, work.read_time_s
    return (fold, work.worker, *version_and_time, work.step, work.steps)


T = TypeVar("T", Folds, Contributions, Spans)


def table(of: type[T], rows: Sequence[Sequence[float]]) -> T:
    """Convert rows to a table of a timeline; a row has its values in the order of the columns."""
    columns = of().columns()
    values = zip(*rows, strict=True) if rows else ((),) * len(columns)
    return of(*(np.array(v, c.dtype) for v, c in zip(values, columns.values(), strict=True)))

"""The queues of a timeline: when each contribution came to a stage, was served, and left.

A worker's life is a chain of stages (fetch, compute, push, fold). What a timeline records is
when each stage was busy with a contribution; the gap before it is the wait in that stage's
queue. This holds for protocols in which a worker has one contribution under way at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.simulator.timeline import SERVER, Timeline

__all__ = ["Visits", "visits"]

STAGES = ("fetch", "compute", "push", "fold")
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Visits:
    """[C] visits to one stage, a row a contribution.

    Attributes:
        arrive_s: when the contribution came.
        start_s: when its service began.
        end_s: when it left.
    """

    arrive_s: Floats
    start_s: Floats
    end_s: Floats

    def mean_present(self, from_s: float, to_s: float) -> float:
        """L: the number present, averaged over time by following every arrival and departure."""
        return _mean_count(self.arrive_s, self.end_s, from_s, to_s)

    def utilisation(self, from_s: float, to_s: float) -> float:
        """ρ: the mean number in service."""
        return _mean_count(self.start_s, self.end_s, from_s, to_s)

    def littles_product(self, from_s: float, to_s: float) -> float:
        """λ·W of the contributions that came in that time, W the whole stay."""
        came = (self.arrive_s >= from_s) & (self.arrive_s < to_s)
        stay_s = (self.end_s - self.arrive_s)[came]
        return float(stay_s.sum()) / (to_s - from_s)


def _mean_count(enter_s: Floats, leave_s: Floats, from_s: float, to_s: float) -> float:
    """Time average of a count that goes up at ``enter_s`` and down at ``leave_s``."""
    times_s = np.clip(np.concatenate([enter_s, leave_s]), from_s, to_s)
    steps = np.concatenate([np.ones(len(enter_s)), -np.ones(len(leave_s))])
    order = np.argsort(times_s, kind="stable")
    counts, edges_s = np.cumsum(steps[order]), np.append(times_s[order], to_s)
    return float(counts @ np.diff(edges_s)) / (to_s - from_s)


def visits(timeline: Timeline) -> dict[str, Visits]:
    """The visits to every stage of the contributions that were folded.

    A stage that took no time has no span; its visit is the instant at which the stage before
    it ended.

    Args:
        timeline: of one server, recorded with spans.
    """
    rows = timeline.folded()
    start_s = np.full((len(STAGES), len(rows)), np.nan)
    end_s = start_s.copy()
    spans, owner = timeline.spans, _owners(timeline)
    for stage, name in enumerate(STAGES):
        mine = (spans.kind == timeline.kinds.index(name)) & (owner >= 0)
        start_s[stage, owner[mine]] = spans.start_s[mine]
        end_s[stage, owner[mine]] = spans.end_s[mine]
    came_s, found = rows.read_time_s, dict[str, Visits]()
    for stage, name in enumerate(STAGES):
        started_s = np.where(np.isnan(start_s[stage]), came_s, start_s[stage])
        ended_s = np.where(np.isnan(end_s[stage]), came_s, end_s[stage])
        found[name] = Visits(came_s, started_s, ended_s)
        came_s = ended_s
    return found


def _owners(timeline: Timeline) -> NDArray[Any]:
    """[S] row of the folded contribution that each span belongs to, −1 for none.

    The server's span ends at the instant of the fold; a worker's begins after the last read
    of that worker.
    """
    rows, spans = timeline.folded(), timeline.spans
    served = spans.worker == SERVER
    owner = np.full(len(spans), -1, dtype=np.int64)
    owner[served] = _matching(timeline.folds.time_s, spans.end_s[served])
    away = ~served
    owner[away] = _latest(rows.worker, rows.read_time_s, spans.worker[away], spans.start_s[away])
    return owner


def _latest(worker: Any, read_s: Floats, who: Any, start_s: Floats) -> NDArray[Any]:
    """[S] index of the last read of ``who`` that is not after ``start_s``, −1 for none."""
    reads = len(worker)
    lanes, times_s = np.concatenate([worker, who]), np.concatenate([read_s, start_s])
    is_span = np.arange(len(lanes)) >= reads
    order = np.lexsort((is_span, times_s, lanes))
    last = np.maximum.accumulate(np.where(is_span[order], -1, np.arange(len(order))))
    found = np.empty(len(order), dtype=np.int64)
    found[order] = np.where(last >= 0, order[last], -1)
    found = found[reads:]
    return np.where((found >= 0) & (lanes[found] == who), found, -1)


def _matching(sorted_s: Floats, wanted_s: Floats) -> NDArray[Any]:
    """[W] index of each wanted instant in ``sorted_s``, −1 where it is not there."""
    if len(sorted_s) == 0:
        return np.full(len(wanted_s), -1, dtype=np.int64)
    place = np.minimum(np.searchsorted(sorted_s, wanted_s), len(sorted_s) - 1)
    return np.where(sorted_s[place] == wanted_s, place, -1)

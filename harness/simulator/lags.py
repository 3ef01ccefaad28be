"""How old what is folded was, from each of the moments that its age is counted from."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.simulator.timeline import Decodes, Timeline

__all__ = ["Lag", "inner_lag", "outer_lag", "pass_lag", "push_lag"]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class Lag(NamedTuple):
    """Of everything that was folded, the time from some moment to its fold.

    Attributes:
        staleness: [K] folds between the two.
        lag_s: [K] seconds between them.
    """

    staleness: Ints
    lag_s: Floats


def inner_lag(timeline: Timeline) -> Lag:
    """[C] from the read of each contribution's worker."""
    return Lag(timeline.staleness(), timeline.lag_s())


def push_lag(timeline: Timeline) -> Lag:
    """[C] from the end of each contribution's computing."""
    rows, spans = timeline.folded(), timeline.spans
    compute = spans.where(spans.kind == timeline.kinds.index("compute"))
    time_s = timeline.folds.time_s
    ends = np.zeros(len(rows))
    for worker in np.unique(rows.worker).tolist():
        mine = np.flatnonzero(rows.worker == worker)
        own = np.sort(compute.end_s[compute.worker == worker])
        folded = time_s[rows.fold[mine]]
        # A worker has one contribution under way: the last computing before its fold is its own.
        at = np.searchsorted(own, folded, "right") - 1
        ends[mine] = np.where(at >= 0, own[np.maximum(at, 0)], folded) if len(own) else folded
    before = np.searchsorted(time_s, ends, "right")
    return Lag(np.maximum(rows.fold - before, 0), time_s[rows.fold] - ends)


def pass_lag(timeline: Timeline) -> Lag:
    """[C] from the beginning of each contribution's pass.

    A pass begins where the cluster stands still and decodes; if it never does, there is one pass.
    """
    spans, kinds, time_s = timeline.spans, timeline.kinds, timeline.folds.time_s
    fold = timeline.folded().fold
    if "decode" not in kinds:
        return Lag(fold, time_s[fold])
    began = np.unique(spans.start_s[spans.kind == kinds.index("decode")])
    at = began[np.searchsorted(began, time_s[fold]) - 1]
    return Lag(fold - np.searchsorted(time_s, at, "right"), time_s[fold] - at)


def outer_lag(timeline: Timeline, slots: int | None = None) -> Lag:
    """[K] from the decoder's read of each frame that was folded.

    Args:
        timeline: from the simulation's start, so that each worker's minibatches can be counted.
        slots: frames of a minibatch where they are not shuffled; None is one of each utterance.
    """
    rows, decodes = timeline.folded(), timeline.decodes
    order = np.argsort(rows.worker, kind="stable")
    counts = np.bincount(rows.worker, minlength=int(decodes.worker.max(initial=0)) + 1)
    begins = np.concatenate([[0], np.cumsum(counts)])
    frame = np.repeat(np.arange(len(decodes)), decodes.steps)
    starts = np.concatenate([[0], np.cumsum(decodes.steps)])[:-1]
    within = np.arange(len(frame)) - starts[frame]
    if slots is None:
        step = decodes.first_step[frame] + within
    else:
        step = (_frames_before(decodes)[frame] + within) // slots
    done = step < counts[decodes.worker[frame]]
    frame, step = frame[done], step[done]
    fold = rows.fold[order[begins[decodes.worker[frame]] + step]]
    seconds = timeline.folds.time_s[fold] - decodes.decode_time_s[frame]
    return Lag(fold - decodes.decode_version[frame], seconds)


def _frames_before(decodes: Decodes) -> Ints:
    """[D] frames that an utterance's worker had trained on when it came to this utterance."""
    before = np.zeros(len(decodes), np.int64)
    for worker in np.unique(decodes.worker):
        mine = decodes.worker == worker
        before[mine] = np.cumsum(decodes.steps[mine]) - decodes.steps[mine]
    return before

"""The three stalenesses of sequence training, read off a run's timeline."""

from __future__ import annotations

import numpy as np

from harness.execution.runs.sequence import SequenceConfig
from harness.simulator import Timeline
from harness.simulator.protocols.sequence import outer_lag


def lags(timeline: Timeline, config: SequenceConfig) -> dict[str, float]:
    """Means and percentiles of each path's age when it is folded, in folds and in seconds.

    ``outer``: since the decoder's read, frame by frame (minibatch by minibatch where everything
    is decoded as a pass begins); ``inner``: since the trainer's read;
    ``push``: since the contribution was computed.
    """
    if not len(timeline.folds):
        return {}
    found = {
        "inner": (timeline.staleness(), timeline.lag_s()),
        "push": push_lag(timeline),
    }
    if config.shuffling == "full":
        if config.decode_cost or config.passes == 1:  # else nothing says where a pass begins
            found["outer"] = pass_lag(timeline)
    elif len(timeline.decodes):
        slots = None if config.shuffling == "on the fly" else config.slots
        found["outer"] = outer_lag(timeline, slots)
    return {
        f"{path}_{unit}_{name}": value
        for path, pair in found.items()
        for unit, values in zip(("staleness", "lag_s"), pair, strict=True)
        for name, value in _described(values).items()
    }


def pass_lag(timeline: Timeline) -> tuple[np.ndarray, np.ndarray]:
    """Folds [C] and seconds [C] between the beginning of a contribution's pass and its fold.

    A pass begins where the cluster stands still and decodes; if it never does, there is one pass.
    """
    spans, kinds, time_s = timeline.spans, timeline.kinds, timeline.folds.time_s
    fold = timeline.folded().fold
    if "decode" not in kinds:
        return fold, time_s[fold]
    began = np.unique(spans.start_s[spans.kind == kinds.index("decode")])
    at = began[np.searchsorted(began, time_s[fold]) - 1]
    return fold - np.searchsorted(time_s, at, "right"), time_s[fold] - at


def push_lag(timeline: Timeline) -> tuple[np.ndarray, np.ndarray]:
    """Folds [C] and seconds [C] between the end of a contribution's computing and its fold."""
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
    return np.maximum(rows.fold - before, 0), time_s[rows.fold] - ends


def _described(values: np.ndarray) -> dict[str, float]:
    if not len(values):
        return {}
    p50, p95 = np.percentile(values, (50, 95)).tolist()
    return {"mean": float(values.mean()), "p50": p50, "p95": p95}

"""Ages of folded contributions and frames in sequence training, from different starting points.

`harness.simulator.timeline.inner_lag` has the age since the read.
"""

from __future__ import annotations

import numpy as np

from harness.simulator.timeline import Decodes, Ints, Lag, Timeline, inner_lag


def summarise_lags(timeline: Timeline, slots: int | None = None) -> dict[str, float]:
    """Mean, median and 95th percentile of the lags from each kind of read, in folds and seconds.

    ``inner`` are the trainers' reads, ``outer`` the decoders', and ``push`` the end of computing.

    Args:
        timeline: timeline of a run.
        slots: see `outer_lag`.
    """
    lags = {
        "inner": inner_lag(timeline),
        "outer": outer_lag(timeline, slots),
        "push": push_lag(timeline),
    }
    return {
        f"{name}_{unit}_{figure}": value
        for name, lag in lags.items()
        for unit, values in lag._asdict().items()
        for figure, value in _summarise(values).items()
    }


def _summarise(values: np.ndarray) -> dict[str, float]:
    if not len(values):
        return {}
    p50, p95 = np.percentile(values, (50, 95)).tolist()
    return {"mean": float(values.mean()), "p50": p50, "p95": p95}


def push_lag(timeline: Timeline) -> Lag:
    """[C] ages of contributions since the ends of their computations."""
    rows, spans = timeline.folded(), timeline.spans
    compute = spans.where(spans.kind == timeline.kinds.index("compute"))
    time_s = timeline.folds.time_s
    ends = np.zeros(len(rows))
    for worker in np.unique(rows.worker).tolist():
        mine = np.flatnonzero(rows.worker == worker)
        done_s = np.sort(compute.end_s[compute.worker == worker])
        folded = time_s[rows.fold[mine]]
        # With one contribution in flight, the worker's last computing before the fold is its own.
        at = np.searchsorted(done_s, folded, "right") - 1
        ends[mine] = np.where(at >= 0, done_s[np.maximum(at, 0)], folded) if len(done_s) else folded
    before = np.searchsorted(time_s, ends, "right")
    return Lag(np.maximum(rows.fold - before, 0), time_s[rows.fold] - ends)


def outer_lag(timeline: Timeline, slots: int | None = None) -> Lag:
    """[K] ages of folded frames since the reads of the versions that decoded them.

    Args:
        timeline: from the simulation's start, so that each worker's minibatches can be counted.
        slots: frames of a minibatch without shuffling; None for one frame of each utterance.
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
    # Frames that were decoded last may wait for their minibatch.
    folded = step < counts[decodes.worker[frame]]
    frame, step = frame[folded], step[folded]
    fold = rows.fold[order[begins[decodes.worker[frame]] + step]]
    seconds = timeline.folds.time_s[fold] - decodes.decode_time_s[frame]
    return Lag(fold - decodes.decode_version[frame], seconds)


def _frames_before(decodes: Decodes) -> Ints:
    """[D] number of frames that an utterance's worker had trained on before this utterance."""
    before = np.zeros(len(decodes), np.int64)
    for worker in np.unique(decodes.worker):
        mine = decodes.worker == worker
        before[mine] = np.cumsum(decodes.steps[mine]) - decodes.steps[mine]
    return before

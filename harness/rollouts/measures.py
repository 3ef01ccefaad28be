"""Figures of a simulated timeline of rollouts, of those with a known fate."""

from __future__ import annotations

import numpy as np

from harness.rollouts.records import TRAINED, rollout_rows
from harness.simulator.timeline import SERVER, Timeline


def measure(timeline: Timeline, slots: int, scale: int) -> dict[str, float]:
    """Figures of a timeline by title; an empty dict if nothing was trained on.

    Args:
        timeline: of a simulation with spans, or a part of one.
        slots: slots of all generators.
        scale: simulated tokens for each token of a rollout.
    """
    rows, folds = rollout_rows(timeline), timeline.folds
    begin_s = 0.0
    if len(folds) and folds.fold[0] > 0:  # a part: from its first fold on
        begin_s = float(folds.time_s[0])
        rows = rows.where((rows.taken_s > begin_s) & (rows.trained_version > folds.fold[0]))
    trained = rows.fate == TRAINED
    if not trained.any():
        return {}
    used, gone = rows.where(trained), rows.where(~trained)
    seconds = float(folds.time_s[-1]) - begin_s
    by_token = (used.trained_version - used.mean_version) * used.decoded
    stale = used.trained_version - used.oldest_version
    # slots are free again also after rollouts that were thrown away
    left_s = np.where(np.isnan(rows.left_s), rows.taken_s, rows.left_s)
    spans = timeline.spans
    lengths = np.maximum(spans.end_s - np.maximum(spans.start_s, begin_s), 0.0)
    generators = 1 + int(timeline.contributions.worker.max())
    figures = {
        "tokens/s, trained": scale * float(used.decoded.sum()) / seconds,
        "tokens/s, decoded": scale * float(rows.decoded.sum()) / seconds,
        "trainer works, %": 100.0 * float(lengths[spans.worker == SERVER].sum()) / seconds,
        "generators decode, %": (
            100.0 * float(lengths[spans.worker >= 0].sum()) / (seconds * generators)
        ),
        "slots in use, %": 100.0 * float((left_s - rows.start_s).sum()) / (seconds * slots),
        "staleness of a token, mean": float(by_token.sum() / used.decoded.sum()),
        "staleness of a rollout, mean": float(stale.mean()),
        "staleness of a rollout, p95": float(np.percentile(stale, 95)),
        "staleness of a rollout, max": float(stale.max()),
        "in flight, mean s": float((used.left_s - used.start_s).mean()),
        "in the queue, mean s": float((used.taken_s - used.ready_s).mean()),
        "tokens of a trained rollout": float(used.tokens.mean()),
        "thrown away, %": 100.0 * len(gone) / len(rows),
    }
    if len(gone):
        sizes = gone.tokens[gone.tokens > 0]
        figures["tokens of one thrown away"] = float(sizes.mean()) if len(sizes) else 0.0
        figures["of which were decoded"] = float(gone.decoded.mean())
    return figures

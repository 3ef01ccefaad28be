"""Figures of a simulated timeline of rollouts, of those with a known fate."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from harness.rollouts.records import TRAINED, RolloutRows, TokenRows, rollout_rows, token_rows
from harness.simulator.timeline import SERVER, Timeline

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def token_staleness(timeline: Timeline) -> tuple[Ints, Ints]:
    """Staleness of trained tokens: values, and the number of tokens with each.

    Rollouts that began before the timeline are left out: versions of their first tokens are not in
    it.
    """
    rows, stretches = rollout_rows(timeline), token_rows(timeline)
    begun_s = stretches.time_s.min() if len(stretches) else np.inf
    rows = rows.where((rows.fate == TRAINED) & (rows.start_s >= begun_s))
    order = np.argsort(stretches.rollout, kind="stable")
    ordered = {name: column[order] for name, column in stretches.columns().items()}
    stretches = TokenRows(**ordered)
    chosen = np.argsort(rows.rollout)
    place: Ints = np.searchsorted(rows.rollout, stretches.rollout, sorter=chosen)
    mask: NDArray[np.bool_] = place < len(rows)
    mask[mask] = rows.rollout[chosen[place[mask]]] == stretches.rollout[mask]
    stretches, owner = stretches.where(mask), chosen[place[mask]]
    ends = rows.decoded[owner]
    goes_on = owner[1:] == owner[:-1]
    ends[:-1][goes_on] = stretches.first[1:][goes_on]
    ages = rows.trained_version[owner] - stretches.version
    values, places = np.unique(ages, return_inverse=True)
    counts = np.bincount(places, weights=ends - stretches.first, minlength=len(values))
    return values, counts.astype(np.int64)


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
    ages, counts = token_staleness(timeline)
    stale = used.trained_version - used.oldest_version
    left_s = _slot_ends_s(rows)
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
        "staleness of a token, mean": _mean(ages, counts),
        "staleness of a token, p95": _percentile(ages, counts, 0.95),
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


def _slot_ends_s(rows: RolloutRows) -> Floats:
    """Instants at which slots were free again, also after rollouts that were thrown away."""
    return np.where(np.isnan(rows.left_s), rows.taken_s, rows.left_s)


def _mean(values: Ints, counts: Ints) -> float:
    return float((values * counts).sum() / counts.sum()) if counts.sum() else 0.0


def _percentile(values: Ints, counts: Ints, share: float) -> float:
    """The smallest value that at least a share of the items does not exceed."""
    if not counts.sum():
        return 0.0
    return float(values[np.searchsorted(np.cumsum(counts), share * counts.sum())])

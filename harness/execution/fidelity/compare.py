"""What a real run's timeline says, beside what the simulator predicts for its cluster."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import ks_2samp

from data_synth.corpus import Utterances
from harness.errors import UserError
from harness.execution.processes.recorder import PAUSE
from harness.execution.runs.config import RunConfig
from harness.simulator import Cluster, Timeline

LEAST_FOLDS = 50
QUANTILES = (0.5, 0.95, 0.99)


@dataclass(frozen=True)
class Behaviour:
    """How a cluster behaved while all its workers were at work.

    Args:
        throughput_per_s: folds a second.
        staleness: of each contribution, in folds.
        lag_s: of each contribution.
    """

    throughput_per_s: float
    staleness: np.ndarray
    lag_s: np.ndarray


@dataclass(frozen=True)
class Comparison:
    """A recorded run beside its prediction."""

    recorded: Behaviour
    predicted: Behaviour

    @property
    def throughput_error(self) -> float:
        """Of the prediction, relative to what was recorded."""
        return self.predicted.throughput_per_s / self.recorded.throughput_per_s - 1.0

    @property
    def staleness_error(self) -> float:
        """Of the mean, relative; infinite where the recorded mean is 0 and the other is not."""
        there, ours = self.recorded.staleness.mean(), self.predicted.staleness.mean()
        if there == 0.0:
            return 0.0 if ours == 0.0 else float("inf")
        return float(ours / there - 1.0)

    @property
    def staleness_distance(self) -> float:
        """Kolmogorov and Smirnov's: the largest difference of the two distributions."""
        found: Any = ks_2samp(self.recorded.staleness, self.predicted.staleness, method="asymp")
        return float(found.statistic)


def behaviour(timeline: Timeline, workers: int) -> Behaviour:
    """Of the part of a timeline in which everybody is at work.

    The first and last folds, three a worker, are left out, and so is whatever was under way
    during a pause of the server's.

    Raises:
        UserError: too few folds are left.
    """
    edge = 3 * workers
    rows, times = timeline.folded(), timeline.folds.time_s
    if len(times) < 2 * edge + LEAST_FOLDS:
        raise UserError(f"timeline: {len(times)} folds; needed: {2 * edge + LEAST_FOLDS}")
    pauses = _pauses(timeline)
    inside = (rows.fold >= edge) & (rows.fold < len(times) - edge)
    folded_s = times[rows.fold]
    for start, end in pauses:
        inside &= (folded_s <= start) | (rows.read_time_s >= end)
    first, last = times[edge - 1], times[len(times) - edge - 1]
    away = sum(max(0.0, min(end, last) - max(start, first)) for start, end in pauses)
    rate = (len(times) - 2 * edge) / (last - first - away)
    staleness = (rows.fold - rows.read_version)[inside]
    return Behaviour(float(rate), staleness, (folded_s - rows.read_time_s)[inside])


def _pauses(timeline: Timeline) -> list[tuple[float, float]]:
    if PAUSE not in timeline.kinds:
        return []
    spans = timeline.spans
    rows = spans.where(spans.kind == timeline.kinds.index(PAUSE))
    return list(zip(rows.start_s.tolist(), rows.end_s.tolist(), strict=True))


def compare(
    config: RunConfig, train: Utterances, timeline: Timeline, cluster: Cluster | None = None
) -> Comparison:
    """A recorded run beside as many simulated folds.

    Args:
        config: of the run.
        train: the training utterances.
        timeline: its record.
        cluster: predicts; None for the run's own.
    """
    predicted = config.simulation(train, cluster).advance(folds=len(timeline.folds))
    return Comparison(behaviour(timeline, config.workers), behaviour(predicted, config.workers))


def shown(found: Comparison) -> Iterator[str]:
    """Lines of a table: recorded, predicted and how they differ."""
    there, ours = found.recorded, found.predicted
    yield f"{'':24}{'recorded':>12}{'predicted':>12}{'difference':>12}"
    rows = [("folds a second", there.throughput_per_s, ours.throughput_per_s)]
    rows += [("mean staleness", float(there.staleness.mean()), float(ours.staleness.mean()))]
    rows += [
        (f"lag, {q:.0%} quantile, s", *(float(np.quantile(b.lag_s, q)) for b in (there, ours)))
        for q in QUANTILES
    ]
    for name, a, b in rows:
        difference = f"{b / a - 1.0:+.1%}" if a else "-"
        yield f"{name:24}{a:12.4g}{b:12.4g}{difference:>12}"
    yield f"{'staleness, KS distance':24}{'':24}{found.staleness_distance:12.3f}"

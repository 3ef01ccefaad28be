"""A run from its beginning to its end in simulated time.

A long run is simulated for its first folds and goes on at the rate that it has after its start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from harness.simulator.steady import Estimate, steady_estimate
from harness.simulator.timeline import Timeline

__all__ = ["Whole", "overall_rate", "steady_rate"]


@dataclass(frozen=True)
class Whole:
    """A run from its beginning to its end, in simulated time.

    Attributes:
        timeline: of the folds that were simulated: all, or the first ones of a long run.
        per_s: folds a second; of a long run, without its start.
        folds: of every pass.
        ends_s: when each pass ends; beyond the simulated folds, at their rate.
        beyond: of a long run, the rate with its 95% interval; None if all was simulated.
    """

    timeline: Timeline
    per_s: float
    folds: tuple[int, ...]
    ends_s: tuple[float, ...]
    beyond: Estimate | None = None

    @classmethod
    def from_timeline(
        cls,
        timeline: Timeline,
        per_s: float,
        folds: Sequence[int],
        ends_s: Sequence[float] = (),
    ) -> Whole:
        """A run of which the ends of the first passes are known, or of none."""
        known = cls(timeline, per_s, tuple(folds), tuple(ends_s))
        if sum(folds) > len(timeline.folds) > 1:
            rate = steady_estimate(timeline)[1]
            known = replace(known, per_s=rate.value, beyond=rate)
        rest = list(accumulate(folds))[len(ends_s) :]
        return replace(known, ends_s=(*ends_s, *map(known.second_of, rest)))

    @property
    def minibatches_per_s(self) -> float:
        """Minibatches a second that have entered folds."""
        steps = int(self.timeline.folded().steps.sum())
        return self.per_s * steps / len(self.timeline.folds)

    def second_of(self, fold: int) -> float:
        """When so many folds are done."""
        times = self.timeline.folds.time_s
        if fold <= len(times):
            return float(times[fold - 1]) if fold else 0.0
        return float(times[-1]) + (fold - len(times)) / self.per_s


def overall_rate(timeline: Timeline) -> float:
    """Folds a second, pauses included."""
    return _rate(len(timeline.folds), float(timeline.folds.time_s[-1]))


def steady_rate(timeline: Timeline) -> float:
    """Folds a second in the middle half: while slots are filled and emptied, there are fewer."""
    times = timeline.folds.time_s
    quarter = len(times) // 4
    first, last = quarter, len(times) - 1 - quarter
    return _rate(last - first, float(times[last] - times[first]))


def _rate(folds: int, seconds: float) -> float:
    return folds / seconds if seconds > 0.0 else float("inf")

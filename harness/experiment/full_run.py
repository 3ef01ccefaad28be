"""A whole run in simulated time.

Of a long run only the first folds are simulated; it is extrapolated at the rate after its start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from harness.simulator.steady import Estimate, steady_estimate
from harness.simulator.timeline import Timeline


@dataclass(frozen=True)
class Whole:
    """A whole run in simulated time.

    Attributes:
        timeline: of the folds that were simulated: all, or the first ones of a long run.
        per_s: folds per second; of a long run, without its start.
        folds: number of folds of every pass.
        ends_s: end of each pass; beyond the simulated folds, at their rate.
        beyond: of a long run, the rate with its 95% interval; None if all was simulated.
    """

    timeline: Timeline
    per_s: float
    folds: tuple[int, ...]
    ends_s: tuple[float, ...]
    beyond: Estimate | None = None

    @classmethod
    def from_timeline(
        cls, timeline: Timeline, per_s: float, folds: Sequence[int], ends_s: Sequence[float] = ()
    ) -> Whole:
        """A run from its timeline; ``ends_s`` has the known ends of the first passes, if any."""
        run = cls(timeline, per_s, tuple(folds), tuple(ends_s))
        if sum(folds) > len(timeline.folds) > 1:  # not all folds were simulated
            rate = steady_estimate(timeline)[1]
            run = replace(run, per_s=rate.value, beyond=rate)
        ends = list(accumulate(folds))[len(ends_s) :]
        return replace(run, ends_s=(*ends_s, *map(run.second_of, ends)))

    @property
    def minibatches_per_s(self) -> float:
        """Minibatches per second that have entered folds."""
        steps = int(self.timeline.folded().steps.sum())
        return self.per_s * steps / len(self.timeline.folds)

    def second_of(self, fold: int) -> float:
        """Instant of the fold with this number, counted from 1; 0 for none."""
        times = self.timeline.folds.time_s
        if fold <= len(times):
            return float(times[fold - 1]) if fold else 0.0
        return float(times[-1]) + (fold - len(times)) / self.per_s


def overall_rate(timeline: Timeline) -> float:
    """Folds per second, pauses included."""
    seconds = float(timeline.folds.time_s[-1])
    return len(timeline.folds) / seconds if seconds > 0.0 else float("inf")

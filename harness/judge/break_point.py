"""The point at which training breaks, from errors at several values and at a reference.

The ratio of two errors has its interval on the logarithm. Two things limit it: the scatter over
seeds, and the development set, whose errors are counts of so many examples. So what cannot be
decided can be told how many examples or seeds it needs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from harness.judge.bounds import MOST_SEEDS, count_seeds
from harness.judge.comparison import reach
from harness.judge.direction import as_error, final_error
from harness.judge.interval import Interval
from harness.judge.statistics import t_quantile
from harness.store import Cell

ROUNDING = 1e-24
"""Variance of ratios that differ by rounding only."""


@dataclass(frozen=True)
class Need:
    """Data that would decide, if means and scatter stayed as they are.

    Attributes:
        examples: development examples, with the seeds as they are; infinite if none suffice.
        seeds: seeds, with the development set as it is; infinite if none suffice.
        both: examples and seeds that would suffice together.
    """

    examples: float
    seeds: float
    both: tuple[float, float]

    def __str__(self) -> str:
        if math.isinf(max(self.both)):
            return f"more than {MOST_SEEDS} seeds: it is at the margin"
        ways = [_count(self.examples, "development example"), _count(self.seeds, "seed")]
        alternatives = " or ".join(way for way in ways if way)
        together = (_count(self.both[0], "development example"), _count(self.both[1], "seed"))
        return f"about {alternatives or ' and '.join(way for way in together if way)}"


def _count(number: float, name: str) -> str:
    """A number of two figures with its name; empty if it is infinite or none."""
    if not 0.0 < number < math.inf:
        return ""
    step = 10 ** max(0, math.floor(math.log10(number)) - 1)
    rounded = math.ceil(number / step) * step
    return f"{rounded:,} {name}{'' if rounded == 1 else 's'}"


@dataclass(frozen=True)
class Comparison:
    """Errors against reference errors of the same seeds, on the scale where they are compared.

    Attributes:
        location: logarithm of the ratio of the means where both are positive, else the relative
            increase of the mean.
        logarithmic: which of the two it is.
        by_seed: variance of the location for a single seed.
        by_example: the same for a single development example; 0 if no count of them is known.
        seeds, examples: how many there are.
    """

    location: float
    logarithmic: bool
    by_seed: float
    by_example: float
    seeds: int
    examples: int

    @property
    def variance(self) -> float:
        """Variance of the location over seeds and development sets."""
        return self.by_seed / self.seeds + self._example_variance

    @property
    def _example_variance(self) -> float:
        return self.by_example / self.examples if self.examples else 0.0

    def interval(self) -> Interval:
        """The 95% interval of the ratio; the whole half line from 0 for one seed.

        Its degrees of freedom are Satterthwaite's (1946), of both variances.
        """
        estimate = self.ratio(self.location)
        if self.seeds < 2:
            return Interval(estimate, 0.0 if self.logarithmic else -math.inf)
        over_seeds = self.by_seed / self.seeds
        share = self.variance / over_seeds if over_seeds else math.inf
        degrees = (self.seeds - 1) * share**2
        half = t_quantile(degrees) * math.sqrt(self.variance)
        low, high = self.ratio(self.location - half), self.ratio(self.location + half)
        return Interval(estimate, low, high, degrees)

    def ratio(self, location: float) -> float:
        """A place on the scale as a ratio."""
        if not self.logarithmic:
            return 1.0 + location
        return math.exp(location) if location < 709.0 else math.inf

    def find_need(self, margin: float) -> Need:
        """Data that would tell the location from the margin.

        Args:
            margin: relative increase of the error that counts as broken.
        """
        edge = math.log1p(margin) if self.logarithmic else margin
        unit = t_quantile(math.inf) ** 2
        room, scatter = (self.location - edge) ** 2 / unit, math.sqrt(self.by_seed)
        return Need(
            _examples(self, room, self.seeds),
            count_seeds(scatter, (room - self._example_variance) * unit),
            (_examples(self, room / 2), count_seeds(scatter, room / 2 * unit)),
        )


def _examples(comparison: Comparison, room: float, seeds: int = 0) -> float:
    """Development examples for which the variance is at most ``room``; 0 if it has no such part.

    Args:
        comparison: the comparison.
        room: the variance, as of a normal.
        seeds: seeds whose scatter has part of it; 0 for none.
    """
    if seeds == 1:
        return math.inf
    # a variance estimated from few seeds counts as that of a normal with the same interval
    wider = (t_quantile(seeds - 1) / t_quantile(math.inf)) ** 2 if seeds else 0.0
    remainder = room - (comparison.by_seed / seeds * wider if seeds else 0.0)
    if not comparison.by_example:
        return math.inf if seeds else 0.0
    return comparison.by_example / remainder if remainder > 0.0 else math.inf


def compare_errors(
    errors: Sequence[float], reference: Sequence[float], weight: float = 0.0
) -> Comparison:
    """Compare errors with reference errors, paired by seed.

    The variance over seeds is the delta method's, of the pairs. That of a development set is the
    binomial one of two shares; examples that are wrong for both models would make it smaller, so
    it is a limit. A share of no errors counts as half an example there (Agresti, Categorical Data
    Analysis, section 3.1.1).

    Args:
        errors: finite errors, one for each seed.
        reference: the same of the same seeds, in their order.
        weight: share that one development example is of the error; 0 if errors are no shares.

    Raises:
        ValueError: the lengths differ or are zero.

    Example:
        >>> found = compare_errors([0.2, 0.4], [0.1, 0.2]).interval()
        >>> round(found.estimate, 6), round(found.low, 6), round(found.high, 6)
        (2.0, 2.0, 2.0)
    """
    if len(errors) != len(reference) or not errors:
        raise ValueError(f"{len(errors)} and {len(reference)} seeds cannot be paired")
    tried, base_errors = np.asarray(errors, np.float64), np.asarray(reference, np.float64)
    mean, base = float(tried.mean()), float(base_errors.mean())
    seeds, examples = len(errors), round(1.0 / weight) if weight else 0
    if base == 0.0 and not weight:
        return Comparison(math.inf if mean > 0.0 else mean, False, 0.0, 0.0, seeds, 0)
    # The size of a metric of which more is better is a share too; its errors are negative.
    sizes = [max(abs(error), weight / 2) for error in (mean, base)]
    logarithmic = min(mean, base) >= 0.0
    scale = 1.0 if logarithmic else sizes[0] / sizes[1]
    location = math.log(sizes[0] / sizes[1]) if logarithmic else (mean - base) / sizes[1]
    scatter = float(np.var(tried / sizes[0] - base_errors / sizes[1], ddof=1)) if seeds > 1 else 0.0
    scatter = scatter if scatter > ROUNDING else 0.0
    by_example = sum(max(0.0, 1.0 - size) / size for size in sizes) if weight else 0.0
    variances = scatter * scale**2, by_example * scale**2
    return Comparison(location, logarithmic, *variances, seeds, examples)


@dataclass(frozen=True)
class Point:
    """One value that a tolerance search tried.

    Attributes:
        value: value of the axis, e.g. the number of workers.
        cell: the runs at this value.
        errors: final errors, one per seed; infinite where training diverged.
        ratio: mean error over that of the reference, 95% over seeds and development sets; None
            where a seed diverged.
        broken: whether the ratio's estimate exceeds 1 by more than the margin.
        decided: whether the whole interval lies on the same side of that limit.
        need: data that would decide; None if it is decided.
    """

    value: float
    cell: Cell
    errors: Sequence[float]
    ratio: Interval | None
    broken: bool
    decided: bool
    need: Need | None = None


@dataclass(frozen=True)
class Tolerance:
    """Result of a tolerance search.

    Attributes:
        what: name of the axis, e.g. ``"workers"``.
        axis: the same with its unit.
        margin: relative increase of the error above which quality counts as broken.
        points: every value tried, in order; the first is the reference.
        tolerated, broken: the largest value with intact quality and the smallest with broken
            quality, by the estimates; ``broken`` is infinite if none was found.
    """

    what: str
    axis: str
    margin: float
    points: Sequence[Point]
    tolerated: float
    broken: float

    @property
    def interval(self) -> tuple[float, float]:
        """Values between which training breaks, as far as the data decide.

        The first is the largest value that is decidedly tolerated, or the reference; the second is
        the smallest that is decidedly broken, infinite if none is.
        """
        broken = [p.value for p in self.points if p.broken and p.decided]
        high = min(broken, default=math.inf)
        tolerated = [p.value for p in self.points if p.decided and not p.broken and p.value < high]
        return max([self.points[0].value, *tolerated]), high

    @property
    def target(self) -> float:
        """Error above which quality counts as broken."""
        errors = self.points[0].errors
        mean = sum(errors) / len(errors)
        return mean + self.margin * abs(mean)

    def seconds(self, point: Point) -> list[float]:
        """Simulated seconds to ``target``, one per seed; infinite if it is not reached."""
        return [
            reach(run, point.cell.judged, as_error(run, self.target)).seconds
            for run in point.cell.runs
        ]


def point(value: float, cell: Cell, reference: Sequence[float], margin: float) -> Point:
    """Compare the errors at one value with those of the reference.

    Args:
        value: value of the axis.
        cell: the runs at this value.
        reference: errors at the reference value, one per seed.
        margin: relative increase of the error above which quality counts as broken.
    """
    errors = errors_of(cell)
    # a seed without an error has no finite ratio: quality is broken beyond doubt
    if not all(math.isfinite(error) for error in errors):
        return Point(value, cell, errors, None, broken=True, decided=True)
    comparison = compare_errors(errors, reference, cell.example_weight)
    ratio, edge = comparison.interval(), 1.0 + margin
    broken = ratio.estimate > edge
    decided = ratio.low > edge if broken else ratio.high <= edge
    need = None if decided else comparison.find_need(margin)
    return Point(value, cell, errors, ratio, broken, decided, need)


def reference_point(value: float, cell: Cell) -> Point:
    """The reference, whose ratio to itself is exactly 1."""
    return Point(value, cell, errors_of(cell), Interval.exact(1.0), broken=False, decided=True)


def errors_of(cell: Cell) -> list[float]:
    """Final errors, one per seed; see `final_error`."""
    return [final_error(run, cell.judged) for run in cell.runs]

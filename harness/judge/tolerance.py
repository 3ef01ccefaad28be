"""Whether quality has broken: errors at one value beside those where a search began."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from harness.judge.comparison import last, time_to
from harness.judge.interval import Interval
from harness.judge.statistics import ratio_ci
from harness.store import Cell


@dataclass(frozen=True)
class Point:
    """One value that was tried.

    Attributes:
        value: of what is turned up.
        cell: its runs.
        errors: at the end, one a seed; infinite where training diverged.
        ratio: of the mean error to that of the reference, 95% over seeds; None where a seed
            diverged.
        broken: whether the ratio exceeds 1 by more than the margin.
        decided: whether its whole interval lies on that side.
    """

    value: float
    cell: Cell
    errors: Sequence[float]
    ratio: Interval | None
    broken: bool
    decided: bool


@dataclass(frozen=True)
class Tolerance:
    """What a search found.

    Attributes:
        what: was turned up, e.g. ``"workers"``.
        axis: the same with its unit.
        margin: relative, above which quality counts as broken.
        points: every value tried, in order; the first is the reference.
        tolerated, broken: the largest value that was and the smallest that was not; the second is
            infinite if none was found.
    """

    what: str
    axis: str
    margin: float
    points: Sequence[Point]
    tolerated: float
    broken: float

    @property
    def target(self) -> float:
        """The error beyond which quality counts as broken."""
        errors = self.points[0].errors
        return (1.0 + self.margin) * sum(errors) / len(errors)

    def seconds(self, point: Point) -> list[float]:
        """Simulated seconds to ``target``, one a seed; infinite if it is not reached."""
        metric = point.cell.judged
        return [
            time_to(run, run.deployed(metric), self.target) if run.status == "done" else math.inf
            for run in point.cell.runs
        ]


def point(value: float, cell: Cell, reference: Sequence[float], margin: float) -> Point:
    """One value's errors beside the reference's.

    Args:
        value: of what is turned up.
        cell: its runs.
        reference: errors where the search began, one a seed.
        margin: relative.
    """
    errors = errors_of(cell)
    if not all(math.isfinite(each) for each in errors):
        return Point(value, cell, errors, None, broken=True, decided=True)
    ratio = ratio_ci(errors, reference)
    edge = 1.0 + margin
    broken = ratio.estimate > edge
    return Point(
        value, cell, errors, ratio, broken, ratio.low > edge if broken else ratio.high <= edge
    )


def errors_of(cell: Cell) -> list[float]:
    """The errors at the end, one a seed; infinite where training diverged."""
    return [last(run, cell.judged) if run.status == "done" else math.inf for run in cell.runs]

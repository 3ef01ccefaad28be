"""Search for the value of a quantity at which training breaks."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from harness.base.errors import UserError
from harness.base.log import LOG
from harness.experiment.display import Tally
from harness.experiment.run import Runner
from harness.judge.break_point import Point, Tolerance, errors_of, point, reference_point
from harness.search.comparison import SEARCHES, Grid, scale_linearly
from harness.search.search import Steps, bisect, geometric_mean, solve
from harness.store import Cell


@dataclass(frozen=True)
class Search:
    """Range and precision of a search for the value at which training breaks.

    Args:
        what: name of the quantity, e.g. ``"workers"``.
        axis: label of the quantity with its unit.
        whole: whether its values are whole numbers.
        between: reference value, and the largest value that is tried.
        margin: relative increase of the mean error over the reference's that counts as broken.
        halvings: largest number of halvings of the distance between the logarithms.

    Raises:
        UserError: an invalid range, or an invalid margin.
    """

    what: str
    axis: str
    whole: bool
    between: tuple[float, float]
    margin: float = 0.01
    halvings: int = 6

    def __post_init__(self) -> None:
        low, high = self.between
        if not 0.0 <= low < high < math.inf:
            mistake = f"from {low:g} to {high:g}; allowed: from less to more, from 0"
            raise UserError(f"tolerate: {mistake}")
        if self.whole and not (float(low).is_integer() and float(high).is_integer()):
            mistake = f"from {low:g} to {high:g} {self.what}; allowed: whole numbers"
            raise UserError(f"tolerate: {mistake}")
        if not 0.0 <= self.margin < math.inf:
            raise UserError(f"margin: {self.margin}; allowed: a number from 0, relative")
        if self.whole:
            object.__setattr__(self, "between", (int(low), int(high)))

    def middle(self, low: float, high: float) -> float | None:
        """The value to try next, in the middle on a logarithmic scale; None if there is none."""
        middle = geometric_mean(low, high) if low > 0.0 else high / 2.0
        if not self.whole:
            return middle
        inside = round(middle)
        return inside if low < inside < high else None


def bracket(search: Search) -> Steps[float, bool, tuple[float, float]]:
    """Find the largest tolerated value and the smallest broken one.

    The last value is tried first; the first is tolerated by definition.

    Args:
        search: range of the search.

    Returns:
        Both values; infinity for the second if even the last value is tolerated.

    Example:
        >>> search = Search("workers", "workers", True, (1, 64), halvings=10)
        >>> solve(bracket(search), lambda value: value > 11)
        (11, 12)
    """
    low, high = search.between
    if not (yield [high])[0]:
        return high, math.inf
    return (yield from bisect(low, high, search.halvings, search.middle))


@dataclass
class ToleranceSearch:
    """A search for the value at which training breaks.

    Args:
        search: quantity, range and margin.
        grid_at: the grid of a value: one method with one number of workers.
        runner: executes runs that its store lacks.
    """

    search: Search
    grid_at: Callable[[float], Grid]
    runner: Runner

    def find(self) -> Tolerance:
        """Raise the quantity until the final error breaks the margin.

        Lines say beforehand how many trainings there can be, and then the state at each value.

        Raises:
            UserError: training diverged at the reference value.
        """
        search, low, quantity = self.search, self.search.between[0], self.search.what
        grid, values = self.grid_at(low), 2 + search.halvings
        most, usual = map(grid.count_trainings, SEARCHES)
        tally = Tally(values * most, values * usual)
        LOG.info(
            f"tolerate: at most {values} values of {quantity}, {most} trainings each; those in the"
            " store are not trained again"
        )
        cells: dict[float, Cell] = {}

        def cell(value: float) -> Cell:
            grid = self._start_near(self.grid_at(value), value, cells)
            (cells[value],) = grid.run(self.runner, tally)
            tally.most += grid.count_trainings() - most
            tally.usual += grid.count_trainings() - usual
            return cells[value]

        start = cell(low)
        reference = errors_of(start)
        if not all(math.isfinite(error) for error in reference):
            is_done = all(run.status == "done" for run in start.runs)
            reason = "the metric is not finite" if is_done else "training diverged"
            raise UserError(f"tolerate: {reason} at {quantity} {low:g}; nothing to compare")
        points = {low: reference_point(low, start)}

        def breaks(value: float) -> bool:
            points[value] = tried = point(value, cell(value), reference, search.margin)
            LOG.info(f"{quantity} {value:g}: {describe_state(tried)}")
            return tried.broken

        ends = solve(bracket(search), breaks)
        tried = [points[value] for value in sorted(points)]
        return Tolerance(quantity, search.axis, search.margin, tried, *ends)

    def _start_near(self, grid: Grid, value: float, cells: dict[float, Cell]) -> Grid:
        """The grid with its search for a rate starting at the rate of the nearest value."""
        if not (cells and grid.searches):
            return grid
        algorithm, (workers,) = grid.methods[0].algorithm, grid.workers
        nearest = cells[min(cells, key=lambda other: abs(other - value))]
        # the grid's guess is that of one worker
        guess = scale_linearly(nearest.rate, algorithm, nearest.workers, 1)
        return replace(grid, guess=guess, workers=[workers])


def describe_state(point: Point) -> str:
    """Whether a value is broken, and how sure that is, in a few words."""
    state = "broken" if point.broken else "tolerated"
    if point.decided:
        return state
    if len(point.errors) == 1:
        return f"{state} (one seed has no interval: not decided)"
    return f"{state} (undecided: needs {point.need})"

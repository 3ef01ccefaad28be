"""The search for the point at which training breaks: values tried one by one, each judged."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from harness.base.errors import UserError
from harness.judge.comparison import Point, Tolerance, errors_of, point
from harness.store import Cell


@dataclass(frozen=True)
class Search:
    """What is turned up, and how far.

    Args:
        what: e.g. ``"workers"``.
        axis: the same with its unit.
        whole: whether its values are whole numbers.
        between: the value that quality is compared with, and the largest that is tried.
        margin: relative; a mean error above the first one by more counts as broken.
        halvings: of the distance between the logarithms, at most.

    Raises:
        UserError: no search can go on between these, or a margin that is none.
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
            told = f"from {low:g} to {high:g}; allowed: from less to more, from 0"
            raise UserError(f"tolerate: {told}")
        if self.whole and not (float(low).is_integer() and float(high).is_integer()):
            told = f"from {low:g} to {high:g} {self.what}; allowed: whole numbers"
            raise UserError(f"tolerate: {told}")
        if not 0.0 <= self.margin < math.inf:
            raise UserError(f"margin: {self.margin}; allowed: a number from 0, relative")
        if self.whole:
            object.__setattr__(self, "between", (int(low), int(high)))

    def middle(self, low: float, high: float) -> float | None:
        """The value to try next, in the middle on a logarithmic scale; None if there is none."""
        found = math.sqrt(low * high) if low > 0.0 else high / 2.0
        if not self.whole:
            return found
        inside = round(found)
        return inside if low < inside < high else None


def bracketed(search: Search, breaks: Callable[[float], bool]) -> tuple[float, float]:
    """The largest value that was tolerated and the smallest that was not.

    What breaks at a value is taken to break at all larger ones; the first value is tolerated by
    definition.

    Args:
        search: between which values; the last is tried first.
        breaks: asked once for each value that is tried.

    Returns:
        The two; infinity for the second if even the last value is tolerated.

    Example:
        >>> search = Search("workers", "workers", True, (1, 64), halvings=10)
        >>> bracketed(search, lambda value: value > 11)
        (11, 12)
    """
    low, high = search.between
    if not breaks(high):
        return high, math.inf
    for _ in range(search.halvings):
        middle = search.middle(low, high)
        if middle is None:
            break
        low, high = (low, middle) if breaks(middle) else (middle, high)
    return low, high


def tolerance(
    search: Search,
    cell: Callable[[float], Cell],
    watch: Callable[[Point], object] = lambda point: None,
) -> Tolerance:
    """Turn something up until the error at the end breaks.

    Args:
        search: what, and how far.
        cell: the finished runs at a value.
        watch: told of every point as it is known.

    Raises:
        UserError: training diverged where the search begins.
    """
    low, what = search.between[0], search.what
    first = cell(low)
    reference = errors_of(first)
    if not all(math.isfinite(error) for error in reference):
        raise UserError(f"tolerate: training diverged at {what} {low:g}; nothing to compare")
    points: dict[float, Point] = {}

    def breaks(value: float) -> bool:
        there = first if value == low else cell(value)
        points[value] = point(value, there, reference, search.margin)
        watch(points[value])
        return points[value].broken

    breaks(low)
    ends = bracketed(search, breaks)
    tried = [points[value] for value in sorted(points)]
    return Tolerance(what, search.axis, search.margin, tried, *ends)

"""The two neighbours between which something ends, by bisection."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence


def bisected(
    tried: Sequence[float], halvings: int, holds: Callable[[float], bool]
) -> tuple[float, float]:
    """The largest value at which something holds and the smallest at which it does not.

    What does not hold at a value is taken not to hold at all larger ones.

    Args:
        tried: above 0, ascending, at least two. An end is tried only if the search comes to lie
            next to it.
        halvings: of the distance between the logarithms of the two neighbours that remain.
        holds: asked once for each value that is tried.

    Returns:
        The two; 0 for the first if it holds nowhere, infinity for the second if everywhere.

    Example:
        >>> bisected((1.0, 4.0, 16.0, 64.0), 1, lambda value: value < 10)
        (8.0, 16.0)
    """
    left, right = 0, len(tried) - 1
    while right - left > 1:
        middle = (left + right) // 2
        left, right = (middle, right) if holds(tried[middle]) else (left, middle)
    low, high = tried[left], tried[right]
    for _ in range(halvings):
        between = math.sqrt(low * high)
        low, high = (between, high) if holds(between) else (low, between)
    if low == tried[0] and not holds(low):
        return 0.0, low
    if high == tried[-1] and holds(high):
        return high, math.inf
    return low, high

"""A rate of its own for every algorithm: the best of a ladder, climbed on development data.

Errors over rates have one valley: from the first guess the search goes to the better side, a
factor of 2 at a time, until it gets worse on both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

FACTOR = 2.0
MOST_RUNGS = 6
"""The search goes no further from its first guess."""


def wanted(errors: Mapping[int, float]) -> list[int]:
    """The rungs to try next, of the ladder ``guess * FACTOR**rung``; none if the best is known.

    Args:
        errors: of the rungs that were tried.

    Example:
        >>> wanted({})
        [-1, 0, 1]
        >>> wanted({-1: 0.5, 0: 0.4, 1: 0.3})
        [2]
        >>> wanted({-1: 0.5, 0: 0.4, 1: 0.3, 2: float('inf')})
        []
    """
    if not errors:
        return [-1, 0, 1]
    best = best_of(errors)
    return [k for k in (best - 1, best + 1) if k not in errors and abs(k) <= MOST_RUNGS]


def best_of(errors: Mapping[int, float]) -> int:
    """The rung with the lowest error, of equals the lowest; where nothing ended, the lowest."""
    return min(errors, key=lambda rung: (errors[rung], rung))


def climbed(
    tried: Callable[[Mapping[str, list[int]]], Mapping[str, list[float]]], names: list[str]
) -> dict[str, int]:
    """The best rung of each of several ladders, which are climbed side by side.

    Args:
        tried: the errors of rungs, by name.
        names: of the ladders.
    """
    errors: dict[str, dict[int, float]] = {name: {} for name in names}
    while asked := {name: rungs for name in names if (rungs := wanted(errors[name]))}:
        for name, found in tried(asked).items():
            errors[name] |= dict(zip(asked[name], found, strict=True))
    return {name: best_of(errors[name]) for name in names}

"""Runs that did not end have a name and nothing to read: what rests on them is missing."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from harness.judge.results import Row
from harness.judge.statistics import Interval
from harness.store import Run

P = ParamSpec("P")
T = TypeVar("T")

UNKNOWN = Interval(math.nan)
"""A statistic of runs that did not end: the whole line."""
NO_ROWS = tuple[Row, ...]()
"""A curve of runs that did not end."""


class DidNotEnd(Exception):  # noqa: N818 (what happened, not what was wrong)
    """Something was to be read of a run that diverged or failed."""


@dataclass(frozen=True)
class Unreadable(Run):
    """A run that did not end, as a maker sees it."""

    @classmethod
    def of(cls, run: Run) -> Unreadable:
        """This run, closed."""
        return cls(*(getattr(run, each.name) for each in fields(run)))

    def __getattribute__(self, name: str) -> Any:
        if name in ("status", "summary", "metrics", "curve", "path", "dir"):
            raise DidNotEnd
        return super().__getattribute__(name)


def unless_missing(otherwise: T) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorate a reading: if one of its runs did not end, it gives this, and others still count.

    Args:
        otherwise: NaN, or an interval that is the whole line: what no verdict rests on.
    """

    def guarded(reading: Callable[P, T]) -> Callable[P, T]:
        @wraps(reading)
        def read(*args: P.args, **choices: P.kwargs) -> T:
            try:
                return reading(*args, **choices)
            except DidNotEnd:
                return otherwise

        return read

    return guarded

"""An estimate with its interval, and the values it is computed from.

``statistics.interval_of`` computes the interval of a ``Sample`` again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Literal

from harness.base.settings import round_to

Statistic = Literal["mean", "ratio", "bounds", "rank correlation"]
Matrix = tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Sample:
    """Values that an interval is computed from.

    Attributes:
        statistic: ``mean`` of the one column, ``ratio`` of the means of two columns, mean of a
            value between the two columns ``bounds``, or mean ``rank correlation`` of the rows
            with ``at``.
        values: one row per seed, [S, K].
        tests: covariance over test utterances of the columns' means, [K, K], where all seeds were
            tested on the same utterances; empty where each seed has a corpus of its own, since
            its utterances then vary with the seed.
        utterances: number of test utterances that all seeds share; 0 if none.
        at: settings that outcomes are rank-correlated with, [K].
    """

    statistic: Statistic
    values: Matrix
    tests: Matrix = ()
    utterances: int = 0
    at: tuple[float, ...] = ()

    @property
    def finite(self) -> bool:
        """Whether all its values are numbers."""
        return all(math.isfinite(x) for row in self.values for x in row)

    def rescale(self, factor: float, shift: float) -> Sample | None:
        """The sample of ``factor x + shift``; None if values behind it cannot be rescaled."""
        if self.statistic == "mean":
            values = tuple((factor * x + shift,) for (x,) in self.values)
            tests = tuple((factor**2 * v,) for (v,) in self.tests)
            return replace(self, values=values, tests=tests)
        if self.statistic == "ratio":  # f (a / b) + s = (f a + s b) / b
            values = tuple((factor * a + shift * b, b) for a, b in self.values)
            return replace(self, values=values, tests=self._map_covariance(factor, shift))
        if self.statistic == "bounds":
            ends = ([factor * x + shift for x in row] for row in self.values)
            return replace(self, values=tuple((min(row), max(row)) for row in ends))
        # ranks keep no scale: only the sign of a correlation maps to values
        if shift == 0 and factor in (1.0, -1.0):
            return replace(self, values=tuple(tuple(factor * x for x in r) for r in self.values))
        return None

    def _map_covariance(self, f: float, s: float) -> Matrix:
        """Covariance of (f a + s b, b) from that of (a, b)."""
        if not self.tests:
            return ()
        (aa, ab), (_, bb) = self.tests
        top, cross = f * f * aa + 2 * f * s * ab + s * s * bb, f * ab + s * bb
        return ((top, cross), (cross, bb))


@dataclass(frozen=True)
class Interval:
    """An estimate with its 95% interval, ``low <= high``; the whole line if unbounded.

    Attributes:
        estimate: the estimate; NaN if undefined.
        low, high: ends of the interval, in the estimate's unit.
        degrees: degrees of freedom of its Student's t; infinite for a normal.
        sample: values that it was computed from; None if they are not known.
    """

    estimate: float
    low: float = -math.inf
    high: float = math.inf
    degrees: float = field(default=math.inf, compare=False, repr=False)
    sample: Sample | None = field(default=None, compare=False, repr=False)

    @classmethod
    def exact(cls, value: float) -> Interval:
        """Interval of zero width, of a quantity without randomness: a time without jitter, say."""
        return cls(value, value, value) if math.isfinite(value) else cls(value)

    @property
    def width(self) -> float:
        """Distance of its ends; infinite if unbounded."""
        return self.high - self.low

    def show(self, digits: int) -> str:
        """Estimate and ends as text, with more digits than these where the interval is narrow.

        Example:
            >>> Interval(1.002, 0.9998, 1.0042).show(3)
            '1.002 [1, 1.004]'
        """
        ends = (self.low, self.high) if math.isfinite(self.width) else ()
        estimate, *around = (f"{round_to(x, digits, self.width):g}" for x in (self.estimate, *ends))
        return f"{estimate} [{', '.join(around)}]" if around else estimate

    @property
    def ci95(self) -> tuple[float, float]:
        """The pair ``(low, high)``, as in ``results.json``."""
        return self.low, self.high

    def __neg__(self) -> Interval:
        return self._rescale(-1.0, 0.0)

    def __sub__(self, other: Interval | float) -> Interval:
        """Interval from the smallest to the largest difference that the bounds allow."""
        if not isinstance(other, Interval):
            return self._rescale(1.0, -other)
        low, high = self.low - other.high, self.high - other.low
        return Interval(self.estimate - other.estimate, low, high)

    def __rsub__(self, other: float) -> Interval:
        return self._rescale(-1.0, other)

    def __rmul__(self, factor: float) -> Interval:
        """The interval scaled by ``factor``, e.g. 100 for percent."""
        return self._rescale(factor, 0.0)

    def _rescale(self, factor: float, shift: float) -> Interval:
        low, high = sorted((factor * self.low + shift, factor * self.high + shift))
        sample = None if self.sample is None else self.sample.rescale(factor, shift)
        return Interval(factor * self.estimate + shift, low, high, self.degrees, sample)

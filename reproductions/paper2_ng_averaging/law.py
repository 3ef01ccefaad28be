"""A law of what averaging costs: the excess error of N workers after R averages.

``error(N) / error(1) = 1 + A N^w R^-a``, both on the same data. With the error of one worker
falling as ``D^-b`` in the data D, and D growing as ``N R``, it also says how many workers still
pay: in the same time, R averages, more workers see more data and lose more by averaging.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np

WORKERS, AVERAGES = 16.0, 100.0
"""Units of both, so that A is the excess of 16 workers after 100 averages."""
LIMITS = ((math.log(1e-6), -3.0, 0.0), (math.log(1e3), 3.0, 3.0))
"""Of log A, w and a: more averages never harm."""


class Cell(NamedTuple):
    """What was measured: the error of ``workers`` over that of one, after so many averages."""

    workers: float
    averages: float
    ratio: float


@dataclass(frozen=True)
class Law:
    """The law with its constants.

    Args:
        size: A, in the units above.
        by_workers: w.
        by_averages: a.
    """

    size: float
    by_workers: float
    by_averages: float

    def ratio(self, workers: float, averages: float) -> float:
        """The error of so many workers over that of one, after so many averages."""
        grown = (workers / WORKERS) ** self.by_workers
        return 1.0 + self.size * grown * (averages / AVERAGES) ** -self.by_averages

    def most_that_pay(self, averages: float, by_data: float) -> float:
        """The number of workers at which one more, in the same time, no longer helps.

        The error goes as ``N^-b (1 + x)`` with ``x`` as ``N^w``: it is lowest where
        ``x = b / (w - b)``.

        Args:
            averages: R, the time that is to be had.
            by_data: b, from `slope`.

        Returns:
            1 if more data give nothing, infinity if the loss never outgrows what they give.
        """
        if by_data <= 0.0:
            return 1.0
        if self.by_workers <= by_data:
            return math.inf
        excess = by_data / (self.by_workers - by_data)
        unit = excess / self.size * (averages / AVERAGES) ** self.by_averages
        return WORKERS * unit ** (1.0 / self.by_workers)


def fit(cells: Sequence[Cell]) -> Law:
    """The law that comes closest to measured ratios, by least squares of the ratios themselves.

    An excess that chance has made negative counts as it is: logarithms would drop it.

    Args:
        cells: at least three, of two numbers of workers and two of averages.

    Raises:
        ValueError: a ratio that is not finite.
    """
    from scipy import optimize  # pyright: ignore[reportMissingTypeStubs]

    workers, averages, ratios = (np.array(column) for column in zip(*cells, strict=True))

    def apart(constants: Sequence[float]) -> Any:
        size, by_workers, by_averages = constants
        grown = size + by_workers * np.log(workers / WORKERS)
        return 1.0 + np.exp(grown - by_averages * np.log(averages / AVERAGES)) - ratios

    excess = max(float(np.mean(ratios)) - 1.0, 1e-3)
    start = (math.log(excess), 0.5, 0.5)
    found = cast(Any, optimize).least_squares(apart, start, bounds=LIMITS, x_scale=(1.0, 0.3, 0.3))
    size, by_workers, by_averages = map(float, found.x)
    return Law(math.exp(size), by_workers, by_averages)


def slope(data: Sequence[float], errors: Sequence[float]) -> float:
    """b, the power with which the error of one worker falls as its data grow."""
    return -float(np.polyfit(np.log(data), np.log(errors), 1)[0])


def pseudo_values(statistic: Callable[[Sequence[int]], float], seeds: int) -> list[float]:
    """The jackknife's values of a statistic, one a seed: their mean and scatter bound it.

    Args:
        statistic: of the seeds it is given, by their place.
        seeds: S.
    """
    every = range(seeds)
    if seeds < 2:
        return [statistic(every)]
    whole = statistic(every)
    left_out = ([s for s in every if s != out] for out in every)
    return [seeds * whole - (seeds - 1) * statistic(rest) for rest in left_out]

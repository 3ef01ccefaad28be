"""Laws of staleness and rate: exponents over grids of finished runs.

A law of stale gradients says how they scale: the bias of the gradient with staleness times rate,
the updates until a collapse with one over the rate, the largest stable rate with one over the
staleness (Song et al., arXiv 2607.01083). Each is an exponent over a grid of trainings, which a
reproduction declares and makes.

Shape letters: S seeds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from harness.judge.builders import Runs
from harness.judge.interval import Interval
from harness.judge.results import Row
from harness.judge.statistics import Array, exponents_ci, mean_ci, root_ci
from reproductions.run_metrics import hashes, summary_values


@dataclass(frozen=True)
class BiasGrid:
    """Rates and stalenesses at which the bias of stale gradients is measured.

    Args:
        rates: of the trainings without an allowance that make the versions.
        ages: stalenesses, in versions.
    """

    rates: tuple[float, ...]
    ages: tuple[int, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of its settings."""
        return tuple(map(self.name, self.rates))

    def name(self, rate: float) -> str:
        """Name of the setting of a rate."""
        return f"bias, rate {rate:g}"

    def squares(self, runs: Runs, rate: float, age: int) -> Array:
        """Unbiased squared norms of the bias, [S], of which some may be negative."""
        return summary_values(runs[self.name(rate)], f"bias_square/{age}")

    def exponents(self, runs: Runs) -> dict[str, Interval]:
        """Exponents of the norm of the bias, by what it is a power of."""
        cells = list(product(self.rates, self.ages))
        squares = np.stack([self.squares(runs, *cell) for cell in cells], axis=1)
        rates, ages = np.array(cells).T
        exponents = *exponents_ci(squares, rates * ages), *exponents_ci(squares, ages, rates)
        names = "staleness × rate", "staleness alone", "rate alone"
        return {name: 0.5 * exponent for name, exponent in zip(names, exponents, strict=True)}

    def rows(self, runs: Runs) -> tuple[Row, ...]:
        """The norm of the bias by 1,000 times staleness times rate, a curve for each rate."""
        return tuple(
            Row.from_interval(
                f"rate {rate:g}", 1e3 * rate * age, None,
                root_ci(self.squares(runs, rate, age)), hashes(runs[self.name(rate)]),
            )
            for rate, age in product(self.rates, self.ages)
        )  # fmt: skip


@dataclass(frozen=True)
class CollapseGrid:
    """Allowances and rates with which trainings are followed to their collapse.

    Args:
        etas: allowances, ascending, all of them used in full.
        slow: rates, ascending, at which only the largest stable rate is looked for.
        fast: larger rates, ascending, at which the updates until the collapse are compared, too.
    """

    etas: tuple[int, ...]
    slow: tuple[float, ...]
    fast: tuple[float, ...]

    @property
    def rates(self) -> tuple[float, ...]:
        """All rates, ascending."""
        return self.slow + self.fast

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all its settings."""
        return tuple(self.name(*place) for place in product(self.etas, self.rates))

    @property
    def fast_names(self) -> tuple[str, ...]:
        """Names of the settings of which the collapses are compared."""
        return tuple(self.name(*place) for place in product(self.etas, self.fast))

    def name(self, eta: int, rate: float) -> str:
        """Name of a setting."""
        return f"collapse, η = {eta}, rate {rate:g}"

    def read(self, runs: Runs, eta: int, rate: float, key: str) -> Array:
        """A figure of a setting's runs, [S]; NaN where a run has none."""
        return summary_values(runs[self.name(eta, rate)], key)

    def exponents(self, runs: Runs) -> dict[str, Interval]:
        """Exponent of the updates until the collapse over the fast rates, by allowance.

        It has no interval where a training of a seed has not collapsed.
        """
        exponents, rates = dict[str, Interval](), np.array(self.fast)
        for eta in self.etas:
            updates = [self.read(runs, eta, rate, "collapse") for rate in self.fast]
            [exponents[f"η = {eta}"]] = exponents_ci(np.stack(updates, axis=1), rates)
        return exponents

    def limits(self, runs: Runs) -> Array:
        """The largest stable rate by allowance, [S, allowances]."""
        columns = list[list[float]]()
        for eta in self.etas:
            stable = [self.read(runs, eta, rate, "stable") for rate in self.rates]
            columns.append(largest_stable(self.rates, np.stack(stable, axis=1)))
        return np.array(columns).T

    def limit(self, runs: Runs) -> dict[str, Interval]:
        """Exponent of the largest stable rate over the allowance, by name."""
        exponent = exponents_ci(self.limits(runs), np.array(self.etas, np.float64))[0]
        return {"largest stable rate": exponent}

    def clip_share(self, runs: Runs, etas: Sequence[int]) -> Interval:
        """Share of tokens that the clip cut off until the collapse, at the fast rates."""
        cells = product(etas, self.fast)
        return mean_ci(np.mean([self.read(runs, *cell, "clipped") for cell in cells], axis=0))

    def collapse_rows(self, runs: Runs) -> tuple[Row, ...]:
        """Updates until the collapse times the rate, by rate, a curve for each allowance."""
        return tuple(
            Row.from_interval(
                f"η = {eta}", 1e3 * rate, None,
                mean_ci(rate * self.read(runs, eta, rate, "collapse")),
                hashes(runs[self.name(eta, rate)]),
            )
            for eta, rate in product(self.etas, self.fast)
        )  # fmt: skip

    def limit_rows(self, runs: Runs) -> tuple[Row, ...]:
        """The largest stable rate times 1,000, by allowance."""
        names = {eta: [self.name(eta, rate) for rate in self.rates] for eta in self.etas}
        return tuple(
            Row.from_interval(
                "largest stable rate", eta, None, mean_ci(1e3 * column),
                hashes(*(runs[name] for name in names[eta])),
            )
            for eta, column in zip(self.etas, self.limits(runs).T, strict=True)
        )  # fmt: skip


def largest_stable(rates: Sequence[float], stable: Array) -> list[float]:
    """The largest rate of each seed that is stable with all smaller ones.

    Args:
        rates: ascending, K of them.
        stable: 1 where a training was stable and 0 where it collapsed, [S, K].

    Returns:
        One a seed; NaN where the smallest rate collapsed, or a training is missing (NaN) that
        decides.

    Example:
        >>> largest_stable([1.0, 2.0, 4.0], np.array([[1, 1, 0], [1, 0, 1], [0, 1, 1]]))
        [2.0, 1.0, nan]
    """
    largest = list[float]()
    for row in stable:
        end = next((k for k, flag in enumerate(row) if not flag > 0.5), len(rates))
        is_known = end > 0 and (end == len(rates) or not np.isnan(row[end]))
        largest.append(rates[end - 1] if is_known else math.nan)
    return largest

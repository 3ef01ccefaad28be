"""Laws of staleness and rate: what is run for them, and what the runs show.

A law of stale gradients says how they scale: the bias of the gradient with staleness times rate,
the updates until a collapse with one over the rate, the largest stable rate with one over the
staleness (Song et al., arXiv 2607.01083). Each is an exponent over a grid of trainings, which a
reproduction declares.

Shape letters: S seeds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from harness.algorithms.descent import LocalOptimizer
from harness.judge.builders import Runs, unless_missing
from harness.judge.exponents import exponents_ci, root_ci
from harness.judge.interval import Interval
from harness.judge.results import Row
from harness.judge.statistics import Array, mean_ci
from harness.rollouts.rollout_config import RolloutConfig
from harness.rollouts.stability import StabilityConfig, largest_stable
from harness.rollouts.stale_gradients import StaleGradientConfig
from harness.store import Run

__all__ = ["BiasGrid", "CollapseGrid"]

Made = Callable[[float, float], RolloutConfig]
"""Function from an allowance and a rate to a training."""


@unless_missing(math.nan)
def _number(run: Run, key: str) -> float:
    return float(run.summary.get(key, math.nan))


@dataclass(frozen=True)
class BiasGrid:
    """Rates and stalenesses at which the bias of stale gradients is measured.

    Args:
        rates: of the trainings without an allowance that make the versions.
        ages: stalenesses, in versions.
        versions: versions at which gradients are measured.
        group: rollouts of a group. A group's weight is a product over its rollouts, so small
            groups have weights that scatter less.
        blocks: independent blocks of groups.
    """

    rates: tuple[float, ...]
    ages: tuple[int, ...]
    versions: tuple[int, ...]
    group: int
    blocks: int

    @property
    def names(self) -> tuple[str, ...]:
        """Names of its settings."""
        return tuple(map(self.name, self.rates))

    def name(self, rate: float) -> str:
        """Name of the setting of a rate."""
        return f"bias, rate {rate:g}"

    def configs(self, made: Made, groups: int) -> Iterator[tuple[str, StaleGradientConfig]]:
        """Settings by name; ``groups`` are those of a block.

        A batch has as many rollouts as that of ``made``.
        """
        for rate in self.rates:
            base = made(0.0, rate)
            held = base.protocol
            rollouts = held.batch * held.group
            held = replace(held, group=self.group, batch=rollouts // self.group)
            base = replace(base, protocol=held)
            shape = self.ages, self.versions, self.blocks, groups
            yield self.name(rate), StaleGradientConfig(base, *shape)

    def squares(self, runs: Runs, rate: float, age: int) -> Array:
        """Unbiased squared norms of the bias, [S], of which some may be negative."""
        key = f"bias_square/{age}"
        return np.array([_number(run, key) for run in runs[self.name(rate)]], np.float64)

    def exponents(self, runs: Runs) -> dict[str, Interval]:
        """Exponents of the norm of the bias, by what it is a power of."""
        cells = list(product(self.rates, self.ages))
        squares = np.stack([self.squares(runs, *cell) for cell in cells], axis=1)
        rates, ages = np.array(cells).T
        found = *exponents_ci(squares, rates * ages), *exponents_ci(squares, ages, rates)
        names = "staleness × rate", "staleness alone", "rate alone"
        return {name: 0.5 * each for name, each in zip(names, found, strict=True)}

    def rows(self, runs: Runs) -> tuple[Row, ...]:
        """The norm of the bias by 1,000 times staleness times rate, a curve for each rate."""
        return tuple(
            Row.from_interval(
                f"rate {rate:g}", 1e3 * rate * age, None,
                root_ci(self.squares(runs, rate, age)), _hashes(runs, self.name(rate)),
            )
            for rate, age in product(self.rates, self.ages)
        )  # fmt: skip


@dataclass(frozen=True)
class CollapseGrid:
    """Allowances and rates with which trainings are followed to their collapse.

    Args:
        etas: allowances, ascending, all of them used in full.
        rates: ascending.
        fast: the rates at which the updates until the collapse are compared.
        optimizer: the trainer's optimizer.
        batch: groups of a step, and rollouts of a group.
        every: updates from one probe to the next.
    """

    etas: tuple[int, ...]
    rates: tuple[float, ...]
    fast: tuple[float, ...]
    optimizer: LocalOptimizer
    batch: tuple[int, int]
    every: int

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all its settings."""
        return tuple(self.name(*each) for each in product(self.etas, self.rates))

    @property
    def fast_names(self) -> tuple[str, ...]:
        """Names of the settings of which the collapses are compared."""
        return tuple(self.name(*each) for each in product(self.etas, self.fast))

    def name(self, eta: int, rate: float) -> str:
        """Name of a setting."""
        return f"collapse, η = {eta}, rate {rate:g}"

    def configs(self, made: Made, updates: int) -> Iterator[tuple[str, StabilityConfig]]:
        """Settings by name, each of at most so many updates."""
        batch, group = self.batch
        for eta, rate in product(self.etas, self.rates):
            base = made(eta, rate)
            slots = max(1, batch * group // base.workers)
            held = replace(base.protocol, group=group, batch=batch, slots=slots, room=eta + 2)
            base = replace(base, protocol=held, optimizer=self.optimizer, updates=updates)
            yield self.name(eta, rate), StabilityConfig(base, every=self.every)

    def read(self, runs: Runs, eta: int, rate: float, key: str) -> Array:
        """A figure of a setting's runs, [S]; NaN where a run has none."""
        return np.array([_number(run, key) for run in runs[self.name(eta, rate)]], np.float64)

    def exponents(self, runs: Runs) -> dict[str, Interval]:
        """Exponent of the updates until the collapse over the fast rates, by allowance.

        It has no interval where a training of a seed has not collapsed.
        """
        found = dict[str, Interval]()
        for eta in self.etas:
            updates = [self.read(runs, eta, rate, "collapse") for rate in self.fast]
            found[f"η = {eta}"] = exponents_ci(np.stack(updates, axis=1), np.array(self.fast))[0]
        return found

    def limits(self, runs: Runs) -> Array:
        """The largest stable rate by allowance, [S, allowances]."""
        columns = list[list[float]]()
        for eta in self.etas:
            stable = [self.read(runs, eta, rate, "stable") for rate in self.rates]
            columns.append(largest_stable(self.rates, np.stack(stable, axis=1)))
        return np.array(columns).T

    def limit(self, runs: Runs) -> dict[str, Interval]:
        """Exponent of the largest stable rate over the allowance, by name."""
        found = exponents_ci(self.limits(runs), np.array(self.etas, np.float64))[0]
        return {"largest stable rate": found}

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
                _hashes(runs, self.name(eta, rate)),
            )
            for eta, rate in product(self.etas, self.fast)
        )  # fmt: skip

    def limit_rows(self, runs: Runs) -> tuple[Row, ...]:
        """The largest stable rate times 1,000, by allowance."""
        names = {eta: [self.name(eta, rate) for rate in self.rates] for eta in self.etas}
        return tuple(
            Row.from_interval(
                "largest stable rate", eta, None, mean_ci(1e3 * column),
                _hashes(runs, *names[eta]),
            )
            for eta, column in zip(self.etas, self.limits(runs).T, strict=True)
        )  # fmt: skip


def _hashes(runs: Runs, *names: str) -> tuple[str, ...]:
    return tuple(run.hash for name in names for run in runs[name])

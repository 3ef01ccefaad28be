"""Algorithms beside each other: each with every number of workers, at a rate of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.base.errors import UserError
from harness.runs.config import TrainingConfig
from harness.runs.methods import Method
from harness.search.search import TUNING_SEED, Swept, final_error, linearly_scaled, swept
from harness.store import Cell, Run

Configure = Callable[[Method, int, float, int], TrainingConfig[Any]]
"""The configuration of a method with so many workers, at a rate, with a seed."""

Obtain = Callable[[TrainingConfig[Any], str], Run]
"""The finished run of a configuration, which people call something."""

Rates = float | Mapping[str, float] | None
"""One for all, one for each algorithm by what was asked for, or None: to be found."""


@dataclass(frozen=True)
class Grid:
    """What is compared.

    Args:
        configure: makes each run's configuration.
        methods, workers, seeds: what is varied.
        guess: the first rate that is tried with the fewest workers.
        rates: see `Rates`.

    Raises:
        UserError: two methods have one label, under which a table would show either.
    """

    configure: Configure
    methods: Sequence[Method]
    workers: Sequence[int]
    seeds: Sequence[int]
    guess: float
    rates: Rates = None
    _found: dict[tuple[str, int], Swept] = field(default_factory=dict[tuple[str, int], Swept])

    def __post_init__(self) -> None:
        labels = [method.label for method in self.methods]
        for label in labels:
            if labels.count(label) > 1:
                told = "allowed: each once, or lagbench.Method(label, algorithm, protocol)"
                raise UserError(f"algorithms: {label!r} more than once; {told}")

    def run(self, obtain: Obtain) -> list[Cell]:
        """Every cell, methods in their order and workers from the fewest up."""
        return [
            self.cell(method, workers, obtain)
            for method in self.methods
            for workers in sorted(set(self.workers))
        ]

    def known(self) -> dict[str, TrainingConfig[Any]]:
        """Every configuration, by what people call it, where no rate is to be found."""
        found: dict[str, TrainingConfig[Any]] = {}
        for method in self.methods:
            for workers in self.workers:
                rate = self._given(method)
                for seed in self.seeds if rate is not None else ():
                    called = f"{method.label}, {_workers(workers)}, seed {seed}"
                    found[called] = self.configure(method, workers, rate or 0.0, seed)
        return found

    def cell(self, method: Method, workers: int, obtain: Obtain) -> Cell:
        """One method with one number of workers: its rate, then a run for each seed."""
        rate, edge = self._rate(method, workers, obtain)
        configs = [self.configure(method, workers, rate, seed) for seed in self.seeds]
        called = f"{method.label}, {_workers(workers)}, rate {rate:.3g}"
        runs = [obtain(config, f"{called}, seed {config.seed}") for config in configs]
        return Cell(method.label, workers, rate, tuple(runs), configs[0].judged, edge)

    def _rate(self, method: Method, workers: int, obtain: Obtain) -> tuple[float, bool]:
        """The rate, and whether it is at the edge of what was tried."""
        if (given := self._given(method)) is not None:
            return given, False

        def error_at(rate: float) -> float:
            config = self.configure(method, workers, rate, TUNING_SEED)
            called = f"{method.label}, {_workers(workers)}, trying rate {rate:.3g}"
            return final_error(obtain(config, called), config.judged)

        found = swept(self._guess(method, workers), error_at)
        self._found[method.label, workers] = found
        return found.rate, not found.inside

    def _given(self, method: Method) -> float | None:
        """The rate that was given for a method; None if it is to be found."""
        return self.rates[method.label] if isinstance(self.rates, Mapping) else self.rates

    def _guess(self, method: Method, workers: int) -> float:
        """Linearly scaled from what was found with the nearest fewer workers."""
        known = [w for label, w in self._found if label == method.label and w < workers]
        if not known:
            return linearly_scaled(self.guess, method.algorithm, 1, workers)
        nearest = max(known)
        rate = self._found[method.label, nearest].rate
        return linearly_scaled(rate, method.algorithm, nearest, workers)


def _workers(count: int) -> str:
    return f"{count} worker{'' if count == 1 else 's'}"

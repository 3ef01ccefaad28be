"""Comparison of algorithms: each with every number of workers, at its own learning rate."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.base.errors import UserError
from harness.grid.display import run_named
from harness.grid.grid import Runner
from harness.runs.config import TrainingConfig
from harness.runs.methods import Method
from harness.search.search import (
    TUNING_SEED,
    RateSweep,
    Steps,
    final_error,
    follow,
    linearly_scaled,
    sweep,
    translate,
)
from harness.store import Cell, Run

Configure = Callable[[Method, int, float, int], TrainingConfig[Any]]
"""Makes a configuration from a method, a number of workers, a learning rate and a seed."""

Try = tuple[str, TrainingConfig[Any]]
"""A run to execute: its name for the user, and its configuration."""

Rates = float | Mapping[str, float] | None
"""Learning rates: one for all, one for each method by its label, or None to search them."""


@dataclass(frozen=True)
class Grid:
    """The runs of a comparison: every method, number of workers and seed.

    Args:
        configure: makes each run's configuration.
        methods, workers, seeds: the values that are varied.
        guess: first learning rate that is tried, with the fewest workers.
        rates: learning rates, see `Rates`.

    Raises:
        UserError: two methods have the same label, so that a table could not tell them apart.
    """

    configure: Configure
    methods: Sequence[Method]
    workers: Sequence[int]
    seeds: Sequence[int]
    guess: float
    rates: Rates = None
    _found: dict[tuple[str, int], RateSweep] = field(
        default_factory=dict[tuple[str, int], RateSweep]
    )

    def __post_init__(self) -> None:
        labels = [method.label for method in self.methods]
        for label in labels:
            if labels.count(label) > 1:
                told = "allowed: each once, or lagbench.Method(label, algorithm, protocol)"
                raise UserError(f"algorithms: {label!r} more than once; {told}")

    def run(self, runner: Runner) -> list[Cell]:
        """Run every cell; methods in their order, numbers of workers ascending.

        The next runs of all searches, and the runs at known rates, are executed together. A search
        starts at the rate found with the next smaller number of workers.

        Args:
            runner: executes runs that its store lacks.
        """
        searches: dict[Any, Steps[Try, Run, Any]] = {}
        for method in self.methods:
            searches[method.label] = self._find_rates(method, searches)

        def run_all(wanted: list[tuple[Any, Try]]) -> list[Run]:
            runs = run_named(runner, dict(each for _, each in wanted), str)
            return [runs[called] for _, (called, _) in wanted]

        cells = follow(searches, run_all)
        counts = sorted(set(self.workers))
        return [cells[method.label, count] for method in self.methods for count in counts]

    def _find_rates(
        self, method: Method, searches: dict[Any, Steps[Try, Run, Any]]
    ) -> Steps[Try, Run, None]:
        """Find the rates of a method, workers ascending; adds each cell's search as it is known."""
        for workers in sorted(set(self.workers)):
            rate, at_edge, tried = self._preset_rate(method), False, {}
            if rate is None:
                found = yield from self._sweep(method, workers)
                self._found[method.label, workers] = found
                rate, at_edge = found.rate, not found.inside
                tried = {each: [error] for each, error in found.tried.items()}
            # `follow` starts a search that is added while it runs, so this cell's seeds run beside
            # the search with more workers.
            searches[method.label, workers] = self._fill(method, workers, rate, at_edge, tried)

    def _sweep(self, method: Method, workers: int) -> Steps[Try, Run, RateSweep]:
        """Search the rate of a cell, with runs of the tuning seed."""
        called = f"{method.label}, {_workers(workers)}, trying rate"
        guess = self._guess(method, workers)
        judged = self.configure(method, workers, guess, TUNING_SEED).judged

        def ask(rate: float) -> Try:
            return f"{called} {rate:.3g}", self.configure(method, workers, rate, TUNING_SEED)

        return translate(sweep(guess), ask, lambda run: final_error(run, judged))

    def _fill(
        self,
        method: Method,
        workers: int,
        rate: float,
        at_edge: bool,
        tried: Mapping[float, Sequence[float]],
    ) -> Steps[Try, Run, Cell]:
        """One cell: a run for each seed."""
        configs = [self.configure(method, workers, rate, seed) for seed in self.seeds]
        called = f"{method.label}, {_workers(workers)}, rate {rate:.3g}, seed"
        runs = yield [(f"{called} {config.seed}", config) for config in configs]
        first = configs[0]
        judged = first.judged, at_edge, first.example_weight, tried
        return Cell(method.label, workers, rate, tuple(runs), *judged)

    def _preset_rate(self, method: Method) -> float | None:
        """The user's rate for a method; None if it is searched."""
        return self.rates[method.label] if isinstance(self.rates, Mapping) else self.rates

    def _guess(self, method: Method, workers: int) -> float:
        """First guess: the rate found with the next fewer workers, by the linear scaling rule."""
        known = [w for label, w in self._found if label == method.label and w < workers]
        if not known:
            return linearly_scaled(self.guess, method.algorithm, 1, workers)
        nearest = max(known)
        rate = self._found[method.label, nearest].rate
        return linearly_scaled(rate, method.algorithm, nearest, workers)


def _workers(count: int) -> str:
    return f"{count} worker{'' if count == 1 else 's'}"

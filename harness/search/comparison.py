"""Algorithms beside each other: each with every number of workers, at a rate of its own."""

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
"""The configuration of a method with so many workers, at a rate, with a seed."""

Try = tuple[str, TrainingConfig[Any]]
"""A run that is wanted: what people call it, and its configuration."""

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
        """Every cell, methods in their order and workers from the fewest up.

        What the searches for rates want next, and the runs of rates that are known, go side by
        side; with more workers a search begins where that with the next fewer has ended.

        Args:
            runner: executes what its store lacks.
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
        """The rates of a method, from the fewest workers up; each cell begins with its rate."""
        for workers in sorted(set(self.workers)):
            rate, at_edge = self._preset_rate(method), False
            if rate is None:
                found = yield from self._sweep(method, workers)
                self._found[method.label, workers] = found
                rate, at_edge = found.rate, not found.inside
            searches[method.label, workers] = self._fill(method, workers, rate, at_edge)

    def _sweep(self, method: Method, workers: int) -> Steps[Try, Run, RateSweep]:
        """The search for the rate of a cell, as runs."""
        called = f"{method.label}, {_workers(workers)}, trying rate"
        guess = self._guess(method, workers)
        judged = self.configure(method, workers, guess, TUNING_SEED).judged

        def ask(rate: float) -> Try:
            return f"{called} {rate:.3g}", self.configure(method, workers, rate, TUNING_SEED)

        return translate(sweep(guess), ask, lambda run: final_error(run, judged))

    def _fill(
        self, method: Method, workers: int, rate: float, at_edge: bool
    ) -> Steps[Try, Run, Cell]:
        """One cell: a run for each seed."""
        configs = [self.configure(method, workers, rate, seed) for seed in self.seeds]
        called = f"{method.label}, {_workers(workers)}, rate {rate:.3g}, seed"
        runs = yield [(f"{called} {config.seed}", config) for config in configs]
        return Cell(method.label, workers, rate, tuple(runs), configs[0].judged, at_edge)

    def _preset_rate(self, method: Method) -> float | None:
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

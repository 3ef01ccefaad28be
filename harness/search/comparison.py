"""Comparison of algorithms: each with every number of workers, at its own learning rate."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, TypeVar, cast

from harness.algorithms.averaging import GradientAveraging
from harness.algorithms.catalogue import Algorithm
from harness.base.errors import UserError
from harness.base.log import LOG
from harness.base.settings import format_count
from harness.experiment.display import Tally
from harness.experiment.experiment import AnyExperiment
from harness.experiment.methods import Method
from harness.experiment.run import Runner
from harness.judge.comparison import Impossible, describe_impossible
from harness.judge.direction import final_error
from harness.search.rates import MOST_TRAININGS, TUNING_SEEDS, RateChoice, search_among, search_rate
from harness.search.search import Outcome, Result, Steps, Value, translate
from harness.store import Cell, Run

Configure = Callable[[Method, int, float, int], AnyExperiment]
"""Makes a configuration from a method, a number of workers, a learning rate and a seed."""

Try = tuple[str, AnyExperiment]
"""A run to execute: its name for the user, and its configuration."""

Rates = float | Sequence[float] | Mapping[str, float | Sequence[float]] | str | None
"""Learning rates: one, or several to choose among, for all methods or for each by its label; None
or ``"sweep"`` to search them."""

SEARCHES = MOST_TRAININGS, 8
"""Number of trainings of a search for a rate with both tuning seeds: the largest, a usual one."""

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Grid:
    """The runs of a comparison: every method, number of workers and seed.

    Args:
        configure: makes each run's configuration.
        methods, workers, seeds: the values that are varied.
        guess: first learning rate that is tried, with the fewest workers.
        rates: learning rates, see `Rates`.
        impossible: cells that cannot be trained, which are left out.

    Raises:
        UserError: two methods have the same label, so that a table could not tell them apart; or a
            tuning seed is among the reported ones.
    """

    configure: Configure
    methods: Sequence[Method]
    workers: Sequence[int]
    seeds: Sequence[int]
    guess: float
    rates: Rates = None
    impossible: Sequence[Impossible] = ()
    _found: dict[tuple[str, int], RateChoice] = field(
        default_factory=dict[tuple[str, int], RateChoice], init=False
    )

    def __post_init__(self) -> None:
        labels = [method.label for method in self.methods]
        for label in labels:
            if labels.count(label) > 1:
                mistake = "allowed: each once, or lagbench.Method(label, algorithm, protocol)"
                raise UserError(f"algorithms: {label!r} more than once; {mistake}")
        if overlap := [seed for seed in TUNING_SEEDS if seed in self.seeds and self.searches]:
            mistake = f"{overlap[0]} is what rates are chosen with; allowed: others"
            raise UserError(f"seeds: {mistake}")

    @property
    def pairs(self) -> list[tuple[Method, int]]:
        """Methods in their order, each with its numbers of workers ascending; none impossible."""
        return [(method, count) for method in self.methods for count in self._counts(method)]

    def _counts(self, method: Method) -> list[int]:
        without = {cell.workers for cell in self.impossible if cell.method == method.label}
        return [count for count in sorted(set(self.workers)) if count not in without]

    def drop_impossible(self, check: Callable[[Method, int], object]) -> Grid:
        """The grid without the cells that cannot be trained, which a line names.

        Args:
            check: rejects a method with a number of workers by a `UserError`.

        Raises:
            UserError: the first cell's, if no cell is left.
        """
        errors: list[UserError] = []
        impossible: list[Impossible] = []
        for method, count in self.pairs:
            try:
                check(method, count)
            except UserError as error:
                errors.append(error)
                impossible.append(Impossible(method.label, count, str(error)))
        if errors and len(errors) == len(self.pairs):
            raise errors[0]
        if impossible:
            LOG.info(describe_impossible(impossible))
        return replace(self, impossible=impossible)

    @property
    def searches(self) -> bool:
        """Whether learning rates are searched."""
        return any(len(self._rates(method)) != 1 for method in self.methods)

    def count_trainings(self, search: int = MOST_TRAININGS) -> int:
        """The number of trainings, if every search for a rate that has not ended takes so many."""
        return sum(self._count_tried(*pair, search) + len(self.seeds) for pair in self.pairs)

    def _count_tried(self, method: Method, workers: int, search: int) -> int:
        """The number of trainings of a search for a rate, see `count_trainings`."""
        if choice := self._found.get((method.label, workers)):
            return sum(map(len, choice.tried.values()))
        rates = self._rates(method)
        return len(TUNING_SEEDS) * len(rates) * (len(rates) > 1) if rates else search

    def run(self, runner: Runner, tally: Tally | None = None) -> list[Cell]:
        """Run every cell; methods in their order, numbers of workers ascending.

        The next runs of all searches, and the runs at known rates, are executed together. A search
        starts at the rate found with the next smaller number of workers. A line says how many
        trainings there can be, if that is not known beforehand.

        Args:
            runner: executes runs that its store lacks.
            tally: counts the trainings of a search of which these are a part.
        """
        whole = Tally() if tally is None and self.searches else None
        if whole:
            LOG.info(self._describe_cost())
        searches: dict[Any, Steps[Try, Run, Any]] = {}
        for method in self.methods:
            searches[method.label] = self._find_rates(method, searches)
        search, outcomes = follow(searches), cast("list[Run]", None)  # of a search that begins
        try:
            while True:
                tries = search.send(outcomes)
                if whole:
                    whole.most, whole.usual = map(self.count_trainings, SEARCHES)
                configs = dict(attempt for _, attempt in tries)
                runs = runner.run(configs, tally=whole or tally)
                outcomes = [runs[name] for _, (name, _) in tries]
        except StopIteration as end:
            return [end.value[method.label, count] for method, count in self.pairs]

    def _describe_cost(self) -> str:
        """The number of trainings, before the first one."""
        searches = f"{format_count(len(self.pairs), 'search')} for a learning rate"
        seeds = format_count(len(self.seeds), "seed")
        most = max(self._count_tried(*pair, MOST_TRAININGS) for pair in self.pairs)
        plan = f"{searches}, at most {most} trainings each, then {seeds} each"
        note = "those in the store are not trained again"
        total, usual = map(self.count_trainings, SEARCHES)
        return f"{plan}: at most {total} trainings, mostly about {usual}; {note}"

    def _find_rates(
        self, method: Method, searches: dict[Any, Steps[Try, Run, Any]]
    ) -> Steps[Try, Run, None]:
        """Find the rates of a method, workers ascending; adds each cell's search as it is known."""
        for workers in self._counts(method):
            rates, search = self._rates(method), None
            rate = next(iter(rates), self.guess)
            if len(rates) != 1:
                search = yield from self._search(method, workers)
                self._found[method.label, workers], rate = search, search.rate
            # `follow` starts a search that is added while it runs, so this cell's seeds run beside
            # the search with more workers.
            searches[method.label, workers] = self._fill(method, workers, rate, search)

    def _search(self, method: Method, workers: int) -> Steps[Try, Run, RateChoice]:
        """Search the rate of a cell, with runs of the tuning seeds."""
        called = f"{method.label}, {format_count(workers, 'worker')}, trying rate"
        guess = self._guess(method, workers)
        judged = self.configure(method, workers, guess, TUNING_SEEDS[0]).judged

        def ask(pair: tuple[float, int]) -> Try:
            rate, seed = pair
            return f"{called} {rate:.3g}, seed {seed}", self.configure(method, workers, *pair)

        rates = self._rates(method)
        search = search_among(rates) if rates else search_rate(guess)
        return translate(search, ask, lambda run: final_error(run, judged))

    def _fill(
        self, method: Method, workers: int, rate: float, search: RateChoice | None
    ) -> Steps[Try, Run, Cell]:
        """One cell: a run for each seed."""
        configs = [self.configure(method, workers, rate, seed) for seed in self.seeds]
        called = f"{method.label}, {format_count(workers, 'worker')}, rate {rate:.3g}, seed"
        runs = yield [(f"{called} {config.seed}", config) for config in configs]
        one = configs[0]
        judged = one.judged, False, one.example_weight, one.is_share
        cell = Cell(method.label, workers, rate, tuple(runs), *judged)
        return cell if search is None else replace(cell, edge=not search.inside, tried=search.tried)

    def _rates(self, method: Method) -> list[float]:
        """The user's rates for a method; empty to search one on a ladder."""
        rates = self.rates[method.label] if isinstance(self.rates, Mapping) else self.rates
        if rates is None or isinstance(rates, str):
            return []
        return sorted({*rates}) if isinstance(rates, Sequence) else [rates]

    def _guess(self, method: Method, workers: int) -> float:
        """First guess: the rate found with the next fewer workers, by the linear scaling rule."""
        counts = [w for label, w in self._found if label == method.label and w < workers]
        if not counts:
            return scale_linearly(self.guess, method.algorithm, 1, workers)
        nearest = max(counts)
        rate = self._found[method.label, nearest].rate
        return scale_linearly(rate, method.algorithm, nearest, workers)


def follow(
    searches: dict[Key, Steps[Value, Outcome, Result]],
) -> Steps[tuple[Key, Value], Outcome, dict[Key, Result]]:
    """Advance several searches together, to the end of the last: a search of their values by name.

    Args:
        searches: searches by name; one of them may add others, which begin at once.
    """
    results: dict[Key, Result] = {}
    answers: dict[Key, Any] = {}  # None for a search that begins
    while True:
        values: dict[Key, list[Value]] = {}
        while ready := [key for key in searches if key not in results and key not in values]:
            for key in ready:
                try:
                    values[key] = searches[key].send(answers.get(key))  # pyright: ignore[reportArgumentType]
                except StopIteration as end:
                    results[key] = end.value
        if not values:
            return results
        outcomes = iter((yield [(key, value) for key, tried in values.items() for value in tried]))
        answers = {key: [*islice(outcomes, len(tried))] for key, tried in values.items()}


def scale_linearly(rate: float, algorithm: Algorithm, workers: int, then: int) -> float:
    """First guess of a learning rate for another number of workers, by the linear scaling rule.

    ``rate * then / workers`` for gradient averaging, else ``rate``. Goyal et al., arXiv 1706.02677,
    section 2.1: a rate grows with the examples of one step. The mean of W workers' gradients is a
    step with W times the examples; a gradient folded alone, or a worker's own step, has the
    examples of one minibatch for any W.

    Args:
        rate: the rate found with ``workers``.
        algorithm: its algorithm.
        workers: number of workers of ``rate``.
        then: the other number of workers.
    """
    return rate * then / workers if isinstance(algorithm, GradientAveraging) else rate

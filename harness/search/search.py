"""Searches as generators: climbing a ladder of values, bisection, and searches that are runs.

A search is a generator (`Steps`): it yields the values to try next, receives their outcomes, and
returns its result. It is independent of runs.

Two searches are runs themselves, which execute other runs: the learning rate with the lowest final
loss and the largest stable one (`BestRateConfig`), and the largest rate at which a sequence
training does not diverge (`LargestRateConfig`).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

from harness.algorithms.schedules import Constant
from harness.base.seeds import identity
from harness.base.settings import setting
from harness.experiment.contract import Configuration, Watch
from harness.experiment.experiment import AnyExperiment
from harness.experiment.run import run
from harness.store import Run, RunWriter, Store

Value = TypeVar("Value")
Outcome = TypeVar("Outcome")
Result = TypeVar("Result")
Asked = TypeVar("Asked")
Answer = TypeVar("Answer")

Steps = Generator[list[Value], list[Outcome], Result]
"""A search: yields values to try, receives the outcomes in their order, returns its result."""

FACTOR = 2.0
"""Ratio of neighbouring rungs of a ladder."""

MOST_TRIES = 14


def drive(
    search: Steps[Value, Outcome, Result], answer: Callable[[list[Value]], list[Outcome]]
) -> Result:
    """Run a search to its end.

    Args:
        search: the search.
        answer: tries values, and returns their outcomes in the order of the values.
    """
    outcomes = cast("list[Outcome]", None)  # of a search that begins
    while True:
        try:
            values = search.send(outcomes)
        except StopIteration as end:
            return end.value
        outcomes = answer(values)


def solve(search: Steps[Value, Outcome, Result], ask: Callable[[Value], Outcome]) -> Result:
    """Run one search to its end.

    Args:
        search: the search.
        ask: tries one value and returns its outcome.
    """
    return drive(search, lambda values: [ask(value) for value in values])


def translate(
    search: Steps[Value, Outcome, Result],
    ask: Callable[[Value], Asked],
    judge: Callable[[Answer], Outcome] = lambda answer: cast(Any, answer),
) -> Steps[Asked, Answer, Result]:
    """A search with its values and outcomes mapped.

    Args:
        search: the inner search.
        ask: from a value of the inner search to the value to try.
        judge: from the outcome of that to the outcome for the inner search.
    """
    values = next(search)
    while True:
        answers = yield [ask(value) for value in values]
        try:
            values = search.send([judge(answer) for answer in answers])
        except StopIteration as end:
            return end.value


def climb(tries: float = MOST_TRIES) -> Steps[int, float, dict[int, float]]:
    """Climb a ladder of rungs, from 0 on, until both neighbours of the best are worse.

    Of equal errors the lowest rung is the best; so while all errors are infinite, the search moves
    down.

    Args:
        tries: number of tried rungs after which the search stops.

    Returns:
        Error by tried rung.

    Example:
        >>> solve(climb(), lambda rung: abs(rung - 1.0))
        {0: 1.0, -1: 2.0, 1: 0.0, 2: 1.0}
    """
    errors: dict[int, float] = {}
    rungs = [0]
    while rungs and len(errors) < tries:
        errors |= zip(rungs, (yield rungs), strict=True)
        best = lowest(errors)
        rungs = [rung for rung in (best - 1, best + 1) if rung not in errors][:1]
    return errors


def lowest(errors: dict[int, float]) -> int:
    """The rung with the lowest error; of equal errors the lowest rung."""
    return min(errors, key=lambda rung: (errors[rung], rung))


def bisect(
    low: float, high: float, halvings: int, middle: Callable[[float, float], float | None]
) -> Steps[float, bool, tuple[float, float]]:
    """Halve the distance between a value that holds and one that breaks.

    The outcome of a value is whether it breaks; all larger values are then assumed to break.

    Args:
        low: a value assumed to hold.
        high: a value assumed to break.
        halvings: largest number of values to try.
        middle: the value to try between two others; None if there is none.

    Returns:
        The largest value that holds and the smallest that breaks.
    """
    for _ in range(halvings):
        if (value := middle(low, high)) is None:
            break
        (is_broken,) = yield [value]
        low, high = (low, value) if is_broken else (value, high)
    return low, high


def geometric_mean(low: float, high: float) -> float:
    """The middle on a logarithmic scale."""
    return math.sqrt(low * high)


LOSS = "dev_loss/iterate"

TRIED = "loss_at_the_end"
"""Metric that is logged once for each rate: the final loss, with the rate."""

REPEATED = ("outer_staleness_mean", "kept_frames")
"""Values of the run at the largest stable rate that the search's summary repeats."""


class RateSearchConfig(Configuration):
    """Base of searches for a learning rate that are runs; every rate that is tried is another."""

    @abstractmethod
    def with_rate(self, rate: float) -> Configuration:
        """The training at a rate."""

    @abstractmethod
    def find(self, run_at: Callable[[float], Run], writer: RunWriter) -> dict[str, Any]:
        """Search by the runs of trainings; returns the summary."""

    def execute(self, store: Store, watch: Watch) -> Run:
        """See `Configuration`."""
        name = identity(self.to_dict())

        def run_at(rate: float) -> Run:
            return run(self.with_rate(rate), store, lambda news: watch(replace(news, run=name)))

        return store.obtain(
            self.to_dict(), lambda writer: writer.finish("done", self.find(run_at, writer))
        )


@dataclass(frozen=True)
class BestRateConfig(RateSearchConfig):
    """Configuration of a search for the best and the largest stable learning rate of a training.

    A rate is *stable* if training ends with a smaller loss on the development set than it began
    with; all rates above an unstable one are assumed unstable. The summary has ``first_loss`` and
    ``tried``; if a stable rate was found, also ``rate``, ``loss`` and ``stable``; and ``diverged``
    if an unstable one was found above.

    Args:
        training: the training, at any rate.
        guess: the first rate.
        most: number of rungs above the best rate that are tried for the largest stable one.
    """

    training: AnyExperiment
    guess: float = setting(above=0.0)
    most: int = setting(12, at_least=0, at_most=100)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values: what the run's identity hashes."""
        training = self.with_rate(self.guess).to_dict()
        search = {"guess": self.guess, "most": self.most, "factor": FACTOR}
        return {"is": "BestRateConfig", "training": training, **search}

    def with_rate(self, rate: float) -> AnyExperiment:
        """See `RateSearchConfig`."""
        return self.training.vary(schedule=Constant(rate))

    def find(self, run_at: Callable[[float], Run], writer: RunWriter) -> dict[str, Any]:
        """See `RateSearchConfig`."""
        initial = list[float]()

        def final_loss(rate: float) -> float:
            trained = run_at(rate)
            losses = trained.curve(LOSS)[1]
            initial.append(float(losses[0]))
            return float(losses[-1]) if trained.status == "done" else math.inf

        search = solve(climb_to_edge(self, lambda: initial[0]), final_loss)
        for rate, loss in sorted(search.tried.items()):
            writer.log(TRIED, loss, fold=0, time_s=0.0, epoch=0.0, rate=rate)
        summary = {"first_loss": initial[0], "tried": len(search.tried)}
        if search.stable:
            summary |= {"rate": search.rate, "loss": search.tried[search.rate]}
            ends = {"stable": search.stable, "diverged": search.diverged}
            summary |= {name: rate for name, rate in ends.items() if rate < math.inf}
        return summary


@dataclass(frozen=True)
class RateSearchResult:
    """Result of `climb_to_edge`.

    Attributes:
        rate: the rate with the smallest final loss.
        stable: the largest stable rate below the first unstable one; 0 if ``rate`` is unstable.
        diverged: the smallest unstable rate above ``rate``; infinite if none was found.
        tried: final loss by rate; infinite if training diverged.
    """

    rate: float
    stable: float
    diverged: float
    tried: dict[float, float]


def climb_to_edge(
    config: BestRateConfig, began: Callable[[], float]
) -> Steps[float, float, RateSearchResult]:
    """Climb to the best rate, and from there up to the first unstable one.

    The outcome of a rate is the final loss.

    Args:
        config: first rate and number of rungs.
        began: returns the initial loss; called after the first rates were tried.
    """
    errors = yield from translate(climb(), lambda rung: config.guess * FACTOR**rung)
    tried = {config.guess * FACTOR**rung: error for rung, error in errors.items()}
    best = rate = config.guess * FACTOR ** lowest(errors)
    initial = began()
    stable = best if tried[best] < initial else 0.0
    for _ in range(config.most if stable else 0):
        rate *= FACTOR
        if rate not in tried:
            (tried[rate],) = yield [rate]
        if not tried[rate] < initial:
            return RateSearchResult(best, stable, rate, tried)
        stable = rate
    return RateSearchResult(best, stable, math.inf, tried)


@dataclass(frozen=True)
class LargestRateConfig(RateSearchConfig):
    """Configuration of a search for the largest learning rate that does not diverge.

    A training that diverges at a rate is assumed to diverge at all larger ones. The summary has
    ``stable``, the largest stable rate, and ``diverged``, the smallest rate that diverged; a key is
    missing if no such rate was found.

    Args:
        training: the training, at any rate.
        lowest, highest: ends of the search; an end is tried only if the search converges to it.
        halvings: number of halvings of the distance between their logarithms.
    """

    training: AnyExperiment
    lowest: float = setting(above=0.0)
    highest: float = setting(above=0.0)
    halvings: int = setting(at_least=1)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values: what the run's identity hashes."""
        ends = {"lowest": self.lowest, "highest": self.highest, "halvings": self.halvings}
        training = self.with_rate(self.lowest).to_dict()
        return {"is": "LargestRateConfig", "training": training, **ends}

    def with_rate(self, rate: float) -> Configuration:
        """See `RateSearchConfig`."""
        return self.training.with_rate(rate)

    def find(self, run_at: Callable[[float], Run], writer: RunWriter) -> dict[str, Any]:
        """See `RateSearchConfig`."""
        stable, diverged = solve(find_largest(self), lambda rate: run_at(rate).status != "done")
        ends = {"stable": stable, "diverged": diverged}
        figures = run_at(stable).summary if stable else {}
        return {name: rate for name, rate in ends.items() if 0.0 < rate < math.inf} | {
            name: figures[name] for name in REPEATED if name in figures
        }


def find_largest(config: LargestRateConfig) -> Steps[float, bool, tuple[float, float]]:
    """Find the largest stable rate and the smallest unstable one; 0 or inf beyond the ends.

    The outcome of a rate is whether training diverges.

    Args:
        config: ends of the search and number of halvings.
    """
    ends = config.lowest, config.highest
    low, high = yield from bisect(*ends, config.halvings, geometric_mean)
    # `bisect` assumes both ends, so an end that it returns has not been tried yet.
    if low == config.lowest and (yield [low])[0]:
        return 0.0, low
    if high == config.highest and not (yield [high])[0]:
        return high, math.inf
    return low, high

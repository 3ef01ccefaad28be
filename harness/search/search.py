"""Searches step by step: a ladder that is climbed, a bisection, and the runs that they ask for.

A search is a generator (`Steps`): it yields the values to try next, is sent what came of them, and
returns what it has found. It knows no run. So several are followed side by side, and what all of
them want next is tried together (`follow`).

Two searches are runs themselves, which ask for others: the rate that a training ends best with
and the largest that it stands (`BestRateConfig`), and the largest at which a sequence training
does not diverge (`LargestRateConfig`). `tolerance` finds the point at which something breaks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Hashable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Protocol, TypeVar, cast

from harness.algorithms.catalogue import Algorithm
from harness.algorithms.schedules import Constant
from harness.base.errors import UserError
from harness.base.seeds import identity
from harness.base.settings import setting
from harness.judge.comparison import Point, Tolerance, errors_of, point
from harness.runs.config import TrainingConfig
from harness.store import Cell, Run, RunWriter, Store
from harness.tasks.contract import Configuration, Progress, Watch

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")
Outcome = TypeVar("Outcome")
Result = TypeVar("Result")
Asked = TypeVar("Asked")
Answer = TypeVar("Answer")

Steps = Generator[list[Value], list[Outcome], Result]
"""A search: yields values to try, is sent what came of each in their order, returns its result."""

FACTOR = 2.0
"""From one rung of a ladder to the next."""

MOST_TRIES = 14

TUNING_SEED = 100
"""Rates are chosen with another seed than those that are reported."""


def follow(
    searches: dict[Key, Steps[Value, Outcome, Result]],
    try_all: Callable[[list[tuple[Key, Value]]], Sequence[Outcome]],
) -> dict[Key, Result]:
    """Follow several searches side by side, to the end of the last.

    Args:
        searches: by name; one that is followed may add others, which begin at once.
        try_all: tries what all of them want next; what came of each, in their order.
    """
    results: dict[Key, Result] = {}
    answers: dict[Key, Any] = {}  # None for a search that begins
    while True:
        wanted: dict[Key, list[Value]] = {}
        while ready := [key for key in searches if key not in results and key not in wanted]:
            for key in ready:
                try:
                    wanted[key] = searches[key].send(answers.get(key))  # pyright: ignore[reportArgumentType]
                except StopIteration as end:
                    results[key] = end.value
        if not wanted:
            return results
        found = iter(try_all([(key, each) for key, values in wanted.items() for each in values]))
        answers = {key: [*islice(found, len(values))] for key, values in wanted.items()}


def solve(search: Steps[Value, Outcome, Result], ask: Callable[[Value], Outcome]) -> Result:
    """Follow one search to its end.

    Args:
        search: of values.
        ask: tries one.

    Example:
        >>> from math import log2
        >>> solve(sweep(1.0), lambda rate: abs(log2(rate) - 2)).rate
        4.0
    """
    return follow({"": search}, lambda wanted: [ask(value) for _, value in wanted])[""]


def translate(
    search: Steps[Value, Outcome, Result],
    ask: Callable[[Value], Asked],
    judge: Callable[[Answer], Outcome],
) -> Steps[Asked, Answer, Result]:
    """The same search among other values.

    Args:
        search: is followed.
        ask: what to try for one of its values.
        judge: what that says of the value.
    """
    values = next(search)
    while True:
        answers = yield [ask(value) for value in values]
        try:
            values = search.send([judge(answer) for answer in answers])
        except StopIteration as end:
            return end.value


def climb(
    first: Sequence[int] = (0,),
    together: bool = False,
    reach: float = math.inf,
    tries: float = MOST_TRIES,
) -> Steps[int, float, dict[int, float]]:
    """Climb a ladder of rungs until both neighbours of the best are worse.

    Of equals the lowest rung is the best. Where nothing has ended the search goes downwards.

    Args:
        first: the rungs to begin with.
        together: whether both neighbours are tried at once; else the lower one first.
        reach: how far from rung 0.
        tries: at most so many rungs, up to those that are tried at once.

    Returns:
        The error of each rung that was tried.

    Example:
        >>> solve(climb((-1, 0, 1)), lambda rung: abs(rung - 1.0))
        {-1: 2.0, 0: 1.0, 1: 0.0, 2: 1.0}
    """
    errors: dict[int, float] = {}
    wanted = [*first]
    while wanted and len(errors) < tries:
        errors |= zip(wanted, (yield wanted), strict=True)
        best = lowest(errors)
        sides = [rung for rung in (best - 1, best + 1) if rung not in errors and abs(rung) <= reach]
        wanted = sides if together else sides[:1]
    return errors


def lowest(errors: dict[int, float]) -> int:
    """The rung with the lowest error, of equals the lowest."""
    return min(errors, key=lambda rung: (errors[rung], rung))


@dataclass(frozen=True)
class RateSweep:
    """A rate, and what was tried to find it.

    Attributes:
        rate: the one with the lowest final error.
        tried: error by rate, infinite where training diverged.
        inside: whether a lower and a higher rate were both worse.
    """

    rate: float
    tried: dict[float, float]
    inside: bool


def sweep(guess: float) -> Steps[float, float, RateSweep]:
    """Climb a ladder of rates; what comes of one is its final error, infinite if it diverged.

    Args:
        guess: where to begin.
    """

    def judge(error: float) -> float:
        return error

    errors = yield from translate(climb(), lambda rung: guess * FACTOR**rung, judge)
    best = lowest(errors)
    tried = {guess * FACTOR**rung: error for rung, error in errors.items()}
    return RateSweep(guess * FACTOR**best, tried, {best - 1, best + 1} <= errors.keys())


def bisect(
    low: float, high: float, halvings: int, middle: Callable[[float, float], float | None]
) -> Steps[float, bool, tuple[float, float]]:
    """Halve the distance between what holds and what breaks.

    What comes of a value is whether it breaks; then all larger ones are taken to break as well.

    Args:
        low: is taken to hold.
        high: is taken to break.
        halvings: at most.
        middle: the value to try between two; None if there is none.

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


def linearly_scaled(rate: float, algorithm: Algorithm, workers: int, then: int) -> float:
    """The first guess for other workers: a rate grows with the examples behind one step.

    Goyal et al., arXiv 1706.02677, section 2.1, the linear scaling rule. The mean of W workers'
    gradients is a step with W times the examples; a gradient that is folded alone, and a worker's
    own step, has as many as before.

    Args:
        rate: found with ``workers``.
        algorithm: what it is a rate of.
        workers: how many there were.
        then: how many there are to be.
    """
    return rate * then / workers if algorithm.averages_gradients else rate


def final_error(run: Run, judged: str) -> float:
    """The last error of the candidate that would be deployed; infinite without one.

    Args:
        run: finished.
        judged: the metric's name without the candidate's.
    """
    if run.status != "done":
        return math.inf
    return float(run.summary[run.deployed(judged)])


BEST_RATE_FORMAT = 1
"""Grows when the same configuration would no longer give the same bytes."""

LOSS = "dev_loss/iterate"

TRIED = "loss_at_the_end"
"""The metric that is logged once a rate: the loss there, with the rate."""


@dataclass(frozen=True)
class BestRateConfig(Configuration):
    """A training, and where the search for its rates begins.

    Every rate that is tried is a run of its own. A training *stands* a rate if it ends with a
    smaller loss on the development set than it began with; what it does not stand it is taken
    not to stand at larger rates either.

    Args:
        training: at any rate.
        guess: the first rate.
        most: rungs above the best rate that are tried, to find the largest that training stands.
    """

    training: TrainingConfig[Any]
    guess: float = setting(above=0.0)
    most: int = setting(12, at_least=0, at_most=100)
    format: int = BEST_RATE_FORMAT

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values: what the run's identity hashes."""
        training = _with_rate(self.training, self.guess).to_dict()
        search = {"guess": self.guess, "most": self.most, "factor": FACTOR}
        return {"is": "BestRateConfig", "training": training, **search, "format": self.format}

    def execute(self, store: Store, watch: Watch) -> Run:
        """See `Configuration`."""
        return best_rate(self, store, watch)


@dataclass(frozen=True)
class RateSearchResult:
    """What a search says.

    Attributes:
        rate: with the smallest loss at the end.
        stable: the largest that training stood below the first that it did not.
        diverged: the smallest above ``rate`` that it did not stand; infinite if none was met.
        tried: loss at the end by rate; infinite where training diverged.
    """

    rate: float
    stable: float
    diverged: float
    tried: dict[float, float]


def best_rate(config: BestRateConfig, store: Store, watch: Watch) -> Run:
    """The finished search of a configuration, and before it the runs that it asks for.

    Its summary has ``first_loss``, and where training stands any rate at all ``rate``, ``loss``,
    ``stable`` and, unless the search ended before, ``diverged``.
    """
    name = identity(config.to_dict())

    def tell(progress: Progress) -> None:
        watch(replace(progress, run=name))

    def execute(writer: RunWriter) -> None:
        losses: dict[float, tuple[float, float]] = {}

        def run_to_end(rate: float) -> float:
            losses[rate] = _losses(_with_rate(config.training, rate).execute(store, tell))
            return losses[rate][1]

        def first_loss() -> float:
            return next(iter(losses.values()))[0]

        found = solve(climb_to_edge(config, first_loss), run_to_end)
        for rate, loss in sorted(found.tried.items()):
            writer.log(TRIED, loss, fold=0, time_s=0.0, epoch=0.0, rate=rate)
        summary = {"first_loss": first_loss(), "tried": len(found.tried)}
        if found.stable:
            best = {"rate": found.rate, "loss": found.tried[found.rate], "stable": found.stable}
            summary |= best | ({"diverged": found.diverged} if found.diverged < math.inf else {})
        writer.finish("done", summary)

    return store.obtain(config.to_dict(), execute)


def climb_to_edge(
    config: BestRateConfig, began: Callable[[], float]
) -> Steps[float, float, RateSearchResult]:
    """Climb to the best rate and from there upwards to the first that training does not stand.

    What comes of a rate is the loss at the end.

    Args:
        config: where to begin, and how far to go.
        began: the loss at the beginning, asked after the first rates.
    """
    best = yield from sweep(config.guess)
    tried, first = dict(best.tried), began()
    stable, rate = (best.rate if tried[best.rate] < first else 0.0), best.rate
    for _ in range(config.most if stable else 0):
        rate *= FACTOR
        if rate not in tried:
            (tried[rate],) = yield [rate]
        if not tried[rate] < first:
            return RateSearchResult(best.rate, stable, rate, tried)
        stable = rate
    return RateSearchResult(best.rate, stable, math.inf, tried)


def _with_rate(training: TrainingConfig[Any], rate: float) -> TrainingConfig[Any]:
    return replace(training, schedule=Constant(rate))


def _losses(run: Run) -> tuple[float, float]:
    """Development loss before the first fold and after the last; infinite if training diverged."""
    losses = run.curve(LOSS)[1]
    return float(losses[0]), float(losses[-1]) if run.status == "done" else math.inf


LARGEST_RATE_FORMAT = 1
"""Grows when the same configuration would no longer give the same bytes."""

TOLD = ("outer_staleness_mean", "kept_frames")
"""What the summary has of the run at the largest stable rate."""


class HasRate(Protocol):
    """A configuration that has a rate of its own, as a dataclass."""

    @property
    def rate(self) -> float:
        """Of its training."""
        ...

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values: what the run's identity hashes."""
        ...

    def execute(self, store: Store, watch: Watch) -> Run:
        """See `Configuration`."""
        ...


@dataclass(frozen=True)
class LargestRateConfig(Configuration):
    """A training, and between which rates its largest stable one is looked for.

    Every rate that is tried is a run of its own. What diverges at a rate is taken to diverge at
    all larger ones.

    Args:
        training: at any rate.
        lowest, highest: an end is tried only if the search comes to lie next to it.
        halvings: of the distance between their logarithms.
    """

    training: HasRate
    lowest: float = setting(above=0.0)
    highest: float = setting(above=0.0)
    halvings: int = setting(at_least=1)
    format: int = LARGEST_RATE_FORMAT

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values: what the run's identity hashes."""
        ends = {"lowest": self.lowest, "highest": self.highest, "halvings": self.halvings}
        training = self.with_rate(self.lowest).to_dict()
        return {"is": "LargestRateConfig", "training": training, **ends, "format": self.format}

    def execute(self, store: Store, watch: Watch) -> Run:
        """See `Configuration`."""
        return largest_rate(self, store, watch)

    def with_rate(self, rate: float) -> HasRate:
        """The training at a rate."""
        return replace(cast(Any, self.training), rate=rate)


def largest_rate(config: LargestRateConfig, store: Store, watch: Watch) -> Run:
    """The finished search of a configuration, and before it the runs that it asks for.

    Its summary has ``stable``, the largest rate that was, and ``diverged``, the smallest that did;
    a key is missing where no such rate was found.
    """
    name = identity(config.to_dict())

    def tell(progress: Progress) -> None:
        watch(replace(progress, run=name))

    def run_at(rate: float) -> Run:
        return config.with_rate(rate).execute(store, tell)

    def execute(writer: RunWriter) -> None:
        search = find_largest(config)
        stable, diverged = solve(search, lambda rate: run_at(rate).status != "done")
        found = {"stable": stable, "diverged": diverged}
        summary = {name: rate for name, rate in found.items() if 0.0 < rate < math.inf}
        if stable:
            told = run_at(stable).summary
            summary |= {name: told[name] for name in TOLD if name in told}
        writer.finish("done", summary)

    return store.obtain(config.to_dict(), execute)


def find_largest(config: LargestRateConfig) -> Steps[float, bool, tuple[float, float]]:
    """The largest rate that is stable and the smallest that is not; 0 or inf beyond the ends.

    What comes of a rate is whether training diverges.

    Args:
        config: the ends and how often to halve.
    """
    ends = config.lowest, config.highest
    low, high = yield from bisect(*ends, config.halvings, geometric_mean)
    if low == config.lowest and (yield [low])[0]:
        return 0.0, low
    if high == config.highest and not (yield [high])[0]:
        return high, math.inf
    return low, high


@dataclass(frozen=True)
class Search:
    """What is turned up, and how far.

    Args:
        what: e.g. ``"workers"``.
        axis: the same with its unit.
        whole: whether its values are whole numbers.
        between: the value that quality is compared with, and the largest that is tried.
        margin: relative; a mean error above the first one by more counts as broken.
        halvings: of the distance between the logarithms, at most.

    Raises:
        UserError: no search can go on between these, or a margin that is none.
    """

    what: str
    axis: str
    whole: bool
    between: tuple[float, float]
    margin: float = 0.01
    halvings: int = 6

    def __post_init__(self) -> None:
        low, high = self.between
        if not 0.0 <= low < high < math.inf:
            told = f"from {low:g} to {high:g}; allowed: from less to more, from 0"
            raise UserError(f"tolerate: {told}")
        if self.whole and not (float(low).is_integer() and float(high).is_integer()):
            told = f"from {low:g} to {high:g} {self.what}; allowed: whole numbers"
            raise UserError(f"tolerate: {told}")
        if not 0.0 <= self.margin < math.inf:
            raise UserError(f"margin: {self.margin}; allowed: a number from 0, relative")
        if self.whole:
            object.__setattr__(self, "between", (int(low), int(high)))

    def middle(self, low: float, high: float) -> float | None:
        """The value to try next, in the middle on a logarithmic scale; None if there is none."""
        found = geometric_mean(low, high) if low > 0.0 else high / 2.0
        if not self.whole:
            return found
        inside = round(found)
        return inside if low < inside < high else None


def bracket(search: Search) -> Steps[float, bool, tuple[float, float]]:
    """The largest value that was tolerated and the smallest that was not.

    The last value is tried first; the first is tolerated by definition.

    Args:
        search: between which values.

    Returns:
        The two; infinity for the second if even the last value is tolerated.

    Example:
        >>> search = Search("workers", "workers", True, (1, 64), halvings=10)
        >>> solve(bracket(search), lambda value: value > 11)
        (11, 12)
    """
    low, high = search.between
    if not (yield [high])[0]:
        return high, math.inf
    return (yield from bisect(low, high, search.halvings, search.middle))


def tolerance(
    search: Search,
    cell: Callable[[float], Cell],
    watch: Callable[[Point], object] = lambda point: None,
) -> Tolerance:
    """Turn something up until the error at the end breaks.

    Args:
        search: what, and how far.
        cell: the finished runs at a value.
        watch: told of every point as it is known.

    Raises:
        UserError: training diverged where the search begins.
    """
    low, what = search.between[0], search.what
    first = cell(low)
    reference = errors_of(first)
    if not all(math.isfinite(error) for error in reference):
        raise UserError(f"tolerate: training diverged at {what} {low:g}; nothing to compare")
    points: dict[float, Point] = {}

    def breaks(value: float) -> bool:
        there = first if value == low else cell(value)
        points[value] = point(value, there, reference, search.margin)
        watch(points[value])
        return points[value].broken

    breaks(low)
    ends = solve(bracket(search), breaks)
    tried = [points[value] for value in sorted(points)]
    return Tolerance(what, search.axis, search.margin, tried, *ends)

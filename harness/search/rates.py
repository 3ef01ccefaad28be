"""Choice of a learning rate on several tuning seeds, with ties to the smaller rate."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from harness.base.seeds import TUNING_SEEDS
from harness.search.search import FACTOR, MOST_TRIES, Steps, climb, lowest, translate

MOST_TRAININGS = MOST_TRIES * len(TUNING_SEEDS)
"""Largest number of trainings of one search: all rungs with all seeds."""

Errors = Mapping[int, Sequence[float]]
"""Final errors by rung of the ladder, one for each seed so far; infinite if training diverged."""


@dataclass(frozen=True)
class RateChoice:
    """Result of a search for a learning rate.

    Attributes:
        rate: the chosen rate, at most ``best``.
        best: the rate with the lowest mean error.
        tried: final errors by rate, ascending, one for each tuning seed that was used; infinite if
            training diverged.
        inside: whether ``best`` has a worse rate above it and ``rate`` one below it, so that
            neither is at an end of the ladder.
    """

    rate: float
    best: float
    tried: dict[float, tuple[float, ...]]
    inside: bool


def search_rate(guess: float) -> Steps[tuple[float, int], float, RateChoice]:
    """Search a learning rate; the outcome of a rate with a seed is its final error.

    A ladder of rates is climbed with the first seed. The rates that compete, and their neighbours,
    are then trained with the other seeds too, until `choose_rung` has all that it compares.

    Args:
        guess: the first rate.

    Example:
        >>> from harness.search.search import solve
        >>> solve(search_rate(1.0), lambda asked: abs(asked[0] - 4) + asked[1] / 1000).rate
        4.0
    """

    def ask(rung: int) -> tuple[float, int]:
        return guess * FACTOR**rung, TUNING_SEEDS[0]

    climbed = yield from translate(climb(), ask)
    errors: dict[int, list[float]] = {rung: [error] for rung, error in climbed.items()}
    while rungs := _find_wanted(errors):
        outcomes = yield [
            (guess * FACTOR**rung, TUNING_SEEDS[len(errors.get(rung, ()))]) for rung in rungs
        ]
        for rung, error in zip(rungs, outcomes, strict=True):
            errors.setdefault(rung, []).append(error)
    best, chosen = choose_rung(_complete(errors) or errors)
    tried = {guess * FACTOR**rung: tuple(errors[rung]) for rung in sorted(errors)}
    rates = guess * FACTOR**chosen, guess * FACTOR**best
    return RateChoice(*rates, tried, {best + 1, chosen - 1} <= errors.keys())


def search_among(rates: Sequence[float]) -> Steps[tuple[float, int], float, RateChoice]:
    """Search a learning rate among several, ascending, each tried with all tuning seeds."""
    outcomes = iter((yield [(rate, seed) for rate in rates for seed in TUNING_SEEDS]))
    errors = {rung: [next(outcomes) for _ in TUNING_SEEDS] for rung in range(len(rates))}
    best, chosen = choose_rung(errors)
    tried = {rates[rung]: tuple(row) for rung, row in errors.items()}
    return RateChoice(rates[chosen], rates[best], tried, chosen > 0 and best < len(rates) - 1)


def choose_rung(errors: Errors) -> tuple[int, int]:
    """The rung with the lowest mean error, and the one to choose.

    Going down from the best, a smaller rate is as good unless the best is better with every seed:
    the seeds are pairs, and with both signs among few differences their mean is within one standard
    error of 0 (of two seeds exactly then). So this is the one-standard-error rule of Breiman et al.
    (1984), section 3.4.3, with the smaller rate as the simpler model.

    Args:
        errors: errors by rung, the same number of seeds for all that did not diverge.

    Example:
        >>> choose_rung({-1: [0.32, 0.30], 0: [0.30, 0.30], 1: [0.28, 0.31]})
        (1, -1)
        >>> choose_rung({-1: [0.31, 0.30], 0: [0.30, 0.31], 1: [0.29, 0.30]})
        (1, 1)
    """
    best = chosen = lowest({rung: fmean(row) for rung, row in errors.items()})
    while chosen - 1 in errors and is_tied(errors[chosen - 1], errors[best]):
        chosen -= 1
    return best, chosen


def is_tied(errors: Sequence[float], best: Sequence[float]) -> bool:
    """Whether errors are as good as the best ones with at least one seed; never if any diverged."""
    pairs = zip(errors, best, strict=False)
    return all(map(math.isfinite, errors)) and any(error <= least for error, least in pairs)


def _find_wanted(errors: Errors) -> list[int]:
    """Rungs that need a further seed before the choice is made; empty when it can be made.

    These are the best one, both its neighbours, the one below the chosen one, and all that are as
    good as the best one with the first seed. A rung that has not been tried is wanted while the
    ladder has fewer than `MOST_TRIES`.
    """
    complete = _complete(errors)
    if not any(math.isfinite(fmean(row)) for row in errors.values()):
        return []
    # The seeds that both have: the first one, of rungs that lack the others.
    top = lowest({rung: row[0] for rung, row in errors.items()})
    if top not in complete:
        return [top]
    best, chosen = choose_rung(complete)
    around = {best - 1, best + 1, chosen - 1}
    around |= {rung for rung, row in errors.items() if row[0] <= errors[best][0]}
    room = MOST_TRIES - len(errors)
    missing = [rung for rung in sorted(around) if rung not in complete]
    new = [rung for rung in missing if rung not in errors][:room]
    return [rung for rung in missing if rung in errors or rung in new]


def _complete(errors: Errors) -> dict[int, Sequence[float]]:
    """Rungs with all seeds; one that diverged with any seed needs no further one."""
    return {
        rung: row
        for rung, row in errors.items()
        if len(row) == len(TUNING_SEEDS) or not all(map(math.isfinite, row))
    }

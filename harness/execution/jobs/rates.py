"""A rate for each setting, found on development data: from a first guess up and down a ladder."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from harness.algorithms.catalogue import Algorithm, GradientAveraging
from harness.store import Run

FACTOR = 2.0
"""From one rung of the ladder to the next."""
MOST_TRIES = 14
TUNING_SEED = 100
"""Rates are chosen with another seed than those that are reported."""


@dataclass(frozen=True)
class Swept:
    """A rate, and what was tried to find it.

    Attributes:
        rate: the one with the lowest final error.
        tried: error by rate, infinite where training diverged.
        inside: whether a lower and a higher rate were both worse.
    """

    rate: float
    tried: dict[float, float]
    inside: bool


def swept(guess: float, error_at: Callable[[float], float]) -> Swept:
    """Climb a ladder of rates from ``guess`` until both neighbours of the best are worse.

    Args:
        guess: where to begin.
        error_at: the final error at a rate; infinite if training diverged.

    Example:
        >>> from math import log2
        >>> swept(1.0, lambda rate: abs(log2(rate) - 2)).rate
        4.0
    """
    tried = {guess: error_at(guess)}
    while len(tried) < MOST_TRIES:
        best = min(tried, key=lambda rate: (tried[rate], rate))
        # A diverged guess says where to go; a finite one asks downwards first.
        sides = [best / FACTOR, best * FACTOR]
        missing = [rate for rate in sides if rate not in tried]
        if math.isinf(tried[best]):
            missing = [min(tried) / FACTOR]
        if not missing:
            return Swept(best, tried, inside=True)
        tried[missing[0]] = error_at(missing[0])
    best = min(tried, key=lambda rate: (tried[rate], rate))
    return Swept(best, tried, inside={best / FACTOR, best * FACTOR} <= tried.keys())


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
    return rate * then / workers if isinstance(algorithm, GradientAveraging) else rate


def final_error(run: Run, judged: str) -> float:
    """The last error of the candidate that would be deployed; infinite without one.

    Args:
        run: finished.
        judged: the metric's name without the candidate's.
    """
    if run.status != "done":
        return math.inf
    return float(run.summary[run.deployed(judged)])

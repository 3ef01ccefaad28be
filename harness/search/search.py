"""Searches for a learning rate: ladders that are climbed, and a bisection.

A rate for each setting, found on development data: from a first guess up and down a ladder. The
rate that a training ends best with, and the largest that it stands: a ladder, climbed. The largest
rate at which a sequence training does not diverge, by bisection.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from harness.algorithms.catalogue import Algorithm, GradientAveraging
from harness.algorithms.schedules import Constant
from harness.base.seeds import identity
from harness.base.settings import setting
from harness.runs.config import TrainingConfig
from harness.speech.sequence import SequenceConfig
from harness.store import Run, RunWriter, Store
from harness.tasks.contract import Progress, Watch

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


BEST_RATE_FORMAT = 1
"""Grows when the same configuration would no longer give the same bytes."""

LOSS = "dev_loss/iterate"

TRIED = "loss_at_the_end"
"""The metric that is logged once a rate: the loss there, with the rate."""


@dataclass(frozen=True)
class BestRateConfig:
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
        training = _at(self.training, self.guess).to_dict()
        search = {"guess": self.guess, "most": self.most, "factor": FACTOR}
        return {"is": "BestRateConfig", "training": training, **search, "format": self.format}

    def execute(self, store: Store, watch: Watch) -> Run:
        """See `Configuration`."""
        return best_rate(self, store, watch)


@dataclass(frozen=True)
class Found:
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

        def ended(rate: float) -> float:
            losses[rate] = _losses(_at(config.training, rate).execute(store, tell))
            return losses[rate][1]

        found = climbed(config, ended, lambda: next(iter(losses.values()))[0])
        for rate, loss in sorted(found.tried.items()):
            writer.log(TRIED, loss, fold=0, time_s=0.0, epoch=0.0, rate=rate)
        first = next(iter(losses.values()))[0]
        summary = {"first_loss": first, "tried": len(found.tried)}
        if found.stable:
            best = {"rate": found.rate, "loss": found.tried[found.rate], "stable": found.stable}
            summary |= best | ({"diverged": found.diverged} if found.diverged < math.inf else {})
        writer.finish("done", summary)

    return store.obtain(config.to_dict(), execute)


def climbed(config: BestRateConfig, ended: Any, began: Any) -> Found:
    """Climb to the best rate and from there upwards to the first that training does not stand.

    Args:
        config: where to begin, and how far to go.
        ended: the loss at the end by rate, asked once for each.
        began: the loss at the beginning, asked after the first.
    """
    best = swept(config.guess, ended)
    tried, first = dict(best.tried), began()
    stable, rate = (best.rate if tried[best.rate] < first else 0.0), best.rate
    for _ in range(config.most if stable else 0):
        rate *= FACTOR
        if rate not in tried:
            tried[rate] = ended(rate)
        if not tried[rate] < first:
            return Found(best.rate, stable, rate, tried)
        stable = rate
    return Found(best.rate, stable, math.inf, tried)


def _at(training: TrainingConfig[Any], rate: float) -> TrainingConfig[Any]:
    return replace(training, schedule=Constant(rate))


def _losses(run: Run) -> tuple[float, float]:
    """Development loss before the first fold and after the last; infinite if training diverged."""
    losses = run.curve(LOSS)[1]
    return float(losses[0]), float(losses[-1]) if run.status == "done" else math.inf


LARGEST_RATE_FORMAT = 1
"""Grows when the same configuration would no longer give the same bytes."""

TOLD = ("outer_staleness_mean", "kept_frames")
"""What the summary has of the run at the largest stable rate."""


@dataclass(frozen=True)
class LargestRateConfig:
    """A training, and between which rates its largest stable one is looked for.

    Every rate that is tried is a run of its own. What diverges at a rate is taken to diverge at
    all larger ones.

    Args:
        training: at any rate.
        lowest, highest: an end is tried only if the search comes to lie next to it.
        halvings: of the distance between their logarithms.
    """

    training: SequenceConfig
    lowest: float = setting(above=0.0)
    highest: float = setting(above=0.0)
    halvings: int = setting(at_least=1)
    format: int = LARGEST_RATE_FORMAT

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values: what the run's identity hashes."""
        ends = {"lowest": self.lowest, "highest": self.highest, "halvings": self.halvings}
        training = replace(self.training, rate=self.lowest).to_dict()
        return {"is": "LargestRateConfig", "training": training, **ends, "format": self.format}

    def execute(self, store: Store, watch: Watch) -> Run:
        """See `Configuration`."""
        return largest_rate(self, store, watch)


def largest_rate(config: LargestRateConfig, store: Store, watch: Watch) -> Run:
    """The finished search of a configuration, and before it the runs that it asks for.

    Its summary has ``stable``, the largest rate that was, and ``diverged``, the smallest that did;
    a key is missing where no such rate was found.
    """
    name = identity(config.to_dict())

    def tell(progress: Progress) -> None:
        watch(replace(progress, run=name))

    def tried(rate: float) -> Run:
        return replace(config.training, rate=rate).execute(store, tell)

    def execute(writer: RunWriter) -> None:
        stable, diverged = bisected(config, lambda rate: tried(rate).status == "done")
        found = {"stable": stable, "diverged": diverged}
        summary = {name: rate for name, rate in found.items() if 0.0 < rate < math.inf}
        if stable:
            told = tried(stable).summary
            summary |= {name: told[name] for name in TOLD if name in told}
        writer.finish("done", summary)

    return store.obtain(config.to_dict(), execute)


def bisected(config: LargestRateConfig, is_stable: Callable[[float], bool]) -> tuple[float, float]:
    """The largest rate that is stable and the smallest that is not; 0 or inf beyond the ends.

    Args:
        config: the ends and how often to halve.
        is_stable: asked once for each rate that is tried.
    """
    low, high = config.lowest, config.highest
    for _ in range(config.halvings):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if is_stable(middle) else (low, middle)
    if low == config.lowest and not is_stable(low):
        return 0.0, low
    if high == config.highest and is_stable(high):
        return high, math.inf
    return low, high

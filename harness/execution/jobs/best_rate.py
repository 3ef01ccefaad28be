"""The rate that a training ends best with, and the largest that it stands: a ladder, climbed."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from harness.algorithms.schedules import Constant
from harness.base.seeds import identity
from harness.base.settings import setting
from harness.execution.jobs.rates import FACTOR, swept
from harness.execution.runs.executed import Progress, Watch, executed
from harness.execution.runs.training import TrainingConfig
from harness.execution.training import modules as _modules  # noqa: F401  # pyright: ignore[reportUnusedImport]
from harness.execution.training import run as _frames  # noqa: F401  # pyright: ignore[reportUnusedImport]
from harness.store import Run, RunWriter, Store

FORMAT = 1
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
    format: int = FORMAT

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values: what the run's identity hashes."""
        training = _at(self.training, self.guess).to_dict()
        search = {"guess": self.guess, "most": self.most, "factor": FACTOR}
        return {"is": "BestRateConfig", "training": training, **search, "format": self.format}


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


@executed.register
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
            losses[rate] = _losses(executed(_at(config.training, rate), store, tell))
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

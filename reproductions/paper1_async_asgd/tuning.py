"""Tuning of every method's settings on development data, by the same search.

First the first rate is searched, in octaves, with the other setting at its default; then the other
setting, at the chosen rate. The lowest development frame error of the deployed model decides, where
the method is judged: after one pass, of many passes at their end. Of *hand* and *search* only
trials count whose rate ends the pass at no more than a quarter of its largest, as the paper's. The
corpus and the seed are those of development, which no verdict uses. The chosen settings are in
``experiments``, committed before the verdicts' seeds ran; the exhibit shows all trials.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from harness.experiment.experiment import Experiment
from harness.judge.builders import Runs, unless_missing
from harness.judge.results import Row
from harness.judge.statistics import mean_ci
from harness.speech.task import Frames
from harness.store import Run
from reports import SCALES
from reproductions.makers import Content, Exhibits
from reproductions.paper import DEVELOPMENT, Subject
from reproductions.paper1_async_asgd.exhibits import (
    DEV_AVERAGE,
    DEV_ITERATE,
    FALLING,
    LABELS,
    MOST_LEFT,
    rate_left,
)
from reproductions.paper1_async_asgd.experiments import (
    AS_PRINTED,
    METHODS,
    PRESETS,
    RATE,
    MethodSettings,
    methods,
)
from reproductions.run_metrics import hashes, value_at_epoch

RATES = tuple(RATE * 2.0**octave for octave in range(-1, 3))
OTHERS: Mapping[str, tuple[str, tuple[float, ...]]] = {
    "hand": ("gain that keeps the rate", (0.001, 0.003, 0.01)),
    "adapt": ("K", (1 / 8, 1.0, 8.0)),
    "search": ("margin", (0.001, 0.003, 0.01)),
    "multi_pass": ("gain that begins halving", (0.001, 0.002, 0.005)),
}
"""Method -> name of its other setting, and the values tried."""


class Trial(NamedTuple):
    """A method and settings to try."""

    method: str
    given: MethodSettings


def trials(chosen: Mapping[str, MethodSettings]) -> dict[str, Trial]:
    """All trials, by the name of their run.

    Args:
        chosen: each method's settings; the others are tried at its rate.
    """
    return {
        name: trial for method in METHODS for name, trial in _method_trials(method, chosen[method])
    }


def _method_trials(method: str, chosen: MethodSettings) -> Iterator[tuple[str, Trial]]:
    name, values = OTHERS[method]
    for rate in RATES:
        settings = AS_PRINTED[method]._replace(rate=rate)
        yield f"tuning {method}, rate {rate:g}", Trial(method, settings)
    for value in values:
        yield f"tuning {method}, {name} {value:.3g}", Trial(method, chosen._replace(other=value))


def tuning_configs(subject: Subject) -> dict[str, Experiment[Frames]]:
    """The runs of ``trials``, the same for every seed."""
    preset, development = PRESETS[subject.scale], subject.development

    def config(method: str, given: MethodSettings) -> Experiment[Frames]:
        chosen = {**preset.chosen, method: given}
        run = methods(development, DEVELOPMENT, replace(preset, chosen=chosen))[method]
        # Settings are chosen on development data alone, so these runs are never tested.
        return run.vary(tested="never", passes=run.passes if method == "multi_pass" else 1)

    return {name: config(*trial) for name, trial in trials(preset.chosen).items()}


TUNING = Exhibits()


@TUNING.table(
    "p1.tuning",
    "Development frame error (%) of the deployed model, by first rate and other setting",
    tuple(trials(AS_PRINTED)),
    note=f"After one pass; of many passes at their end. One run each, on corpus and seed "
    f"{DEVELOPMENT}, which no verdict uses. Rates are tried at the default of the other setting, "
    "and that at the rate used. Of hand and search those trials count whose rate ends the pass at "
    "no more than a quarter of its largest.",
    on_request=SCALES,
)  # fmt: skip
def tuning(subject: Subject, runs: Runs) -> Content:
    """Development frame error of the deployed model where its method is judged, for all trials."""
    left_out = list[str]()
    for name, (method, _) in trials(PRESETS[subject.scale].chosen).items():
        end, label = mean_ci([_end(method, run) for run in runs[name]]), name.partition(", ")[2]
        yield Row.from_interval(LABELS[method], label, None, end, hashes(runs[name]))
        left_out += [] if _counts(method, runs[name]) else [name]
    yield f"Those that do not: {', '.join(left_out) or 'none'}."


def _counts(method: str, runs: Sequence[Run]) -> bool:
    """Whether a trial counts: the rate of *hand* and *search* has to fall within the pass."""
    return method not in FALLING or all(rate_left(run) <= MOST_LEFT for run in runs)


@unless_missing(math.nan)
def _end(method: str, run: Run) -> float:
    """Development frame error (%) of a method's deployed model where it is judged."""
    if method == "multi_pass":
        return 100.0 * float(run.curve(DEV_ITERATE)[1][-1])
    return 100.0 * value_at_epoch(run, DEV_AVERAGE, 1.0)

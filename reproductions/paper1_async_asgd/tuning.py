"""Tuning of every method's settings on development data, by the same search.

First the first rate is searched, in octaves, with the other setting at its default; then the other
setting, at the chosen rate. The lowest development frame error at the end of training decides, on
the corpus and the seed of development, which no verdict uses. The chosen settings are in
``experiments``, committed before the verdicts' seeds ran; the exhibit shows all trials.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from harness.experiment.experiment import Experiment
from harness.judge.builders import Maker, Runs, unless_missing
from harness.judge.interval import Interval
from harness.judge.results import Exhibit, Row
from harness.judge.statistics import mean_ci
from harness.speech.task import Frames
from harness.store import Run
from reproductions.paper import DEVELOPMENT, Subject
from reproductions.paper1_async_asgd.exhibits import DEV_AVERAGE, DEV_ITERATE, LABELS
from reproductions.paper1_async_asgd.experiments import (
    AS_PRINTED,
    METHODS,
    PRESETS,
    RATE,
    MethodSettings,
    methods,
)
from reproductions.run_metrics import hashes

RATES = tuple(RATE * 2.0**octave for octave in range(-2, 4))
OTHERS: Mapping[str, tuple[str, tuple[float, ...]]] = {
    "hand": ("gain that keeps the rate", (0.0003, 0.001, 0.003, 0.01)),
    "adapt": ("K", (1 / 64, 1 / 8, 1.0, 8.0)),
    "search": ("margin", (0.003, 0.01, 0.03, 0.1)),
    "multi_pass": ("gain that begins halving", (0.001, 0.002, 0.005, 0.01)),
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
    # Settings are chosen on development data alone, so these runs are never tested.
    development, chosen = subject.development, PRESETS[subject.scale].chosen
    return {
        name: methods(development, DEVELOPMENT, {**chosen, method: settings})[method].vary(
            tested="never"
        )
        for name, (method, settings) in trials(chosen).items()
    }


def tuning(subject: Subject, runs: Runs) -> Exhibit:
    """Development frame error at the end of training, for all trials."""
    chosen = PRESETS[subject.scale].chosen
    ends = {
        name: mean_ci([_end(trial.method, run) for run in runs[name]])
        for name, trial in trials(chosen).items()
    }
    rows = [
        Row.from_interval(
            LABELS[trial.method], name.partition(", ")[2], None, ends[name], hashes(runs[name])
        )
        for name, trial in trials(chosen).items()
    ]
    told = [_describe_method(method, chosen, ends) for method in METHODS]
    return Exhibit(
        "p1.tuning",
        "table",
        "Development frame error (%) at the end of training, by first rate and other setting",
        tuple(rows),
        paper_label="Beyond the paper",
        note=f"One run each, on corpus and seed {DEVELOPMENT}, which no verdict uses. Rates are "
        f"tried at the default of the other setting, and that at the rate used. {' '.join(told)}",
    )


def _describe_method(
    method: str, chosen: Mapping[str, MethodSettings], ends: Mapping[str, Interval]
) -> str:
    """Sentence on a method's settings, and on the trial with the lowest error."""
    every = trials(chosen).items()
    errors = {trial.given: ends[name].estimate for name, trial in every if trial.method == method}
    best, used = min(errors, key=lambda settings: errors[settings]), chosen[method]
    lowest = "the lowest" if best == used else f"lowest: {best.rate:g} with {best.other:.3g}"
    setting = OTHERS[method][0]
    sentence = f"{LABELS[method]} begins at {used.rate:g}, {setting} {used.other:.3g} ({lowest}"
    open_ = " and ".join(_settings_at_end(method, used))
    return f"{sentence}; {open_} at an end of what was tried)." if open_ else f"{sentence})."


def _settings_at_end(method: str, used: MethodSettings) -> list[str]:
    """Names of a method's settings that lie at an end of the tried values."""
    setting, values = OTHERS[method]
    tried = {"rate": (used.rate, RATES), setting: (used.other, values)}
    return [name for name, (value, grid) in tried.items() if value in (min(grid), max(grid))]


@unless_missing(math.nan)
def _end(method: str, run: Run) -> float:
    """The last development frame error (%) of a method's deployed model."""
    name = DEV_ITERATE if method == "multi_pass" else DEV_AVERAGE
    return 100.0 * float(run.curve(name)[1][-1])


TUNING = (Maker("p1.tuning", tuple(trials(AS_PRINTED)), tuning, smoke=False, searches=True),)

"""What claims and exhibits of paper 3 read from its runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from harness.execution.line import LineConfig, along_line
from harness.judge.statistics import Interval
from harness.store import Run, Store
from reproductions.paper import Subject
from reproductions.paper3_async_mmi.experiments import fetch_name, map_name, sequence
from reproductions.paper3_async_mmi.presets import INTERVALS, PRESETS
from reproductions.readings import errors_of_utterances, lengths_of_utterances

CRITERION = "held_out_criterion"
FRAME_ERROR, WORD_ERROR = "dev_frame_error/iterate", "dev_word_error/iterate"
COSTS_NOTHING = 0.05
"""The share of the criterion's gain that a fetch interval may cost and still cost nothing."""
REACHED = 0.9
"""The share of the final gain whose time is compared."""


def first_test(subject: Subject) -> str:
    """The test set that claims are judged on."""
    return subject.corpus.tests[0]


def test_errors(subject: Subject, runs: Sequence[Run]) -> tuple[np.ndarray, np.ndarray]:
    """Word errors [S, U] of last models on the test set, and words said [U]."""
    test = first_test(subject)
    errors = errors_of_utterances(runs, lambda r: f"{test}/iterate/{r.config['passes']}")
    return errors, lengths_of_utterances(runs[0], test)


def last(runs: Sequence[Run], name: str) -> np.ndarray:
    """A metric's last reading of each seed, [S]."""
    return np.array([float(run.curve(name)[1][-1]) for run in runs])


def gain(run: Run, until: float = math.inf) -> float:
    """What the held-out criterion has gained by an epoch; NaN for a run that diverged."""
    epochs, values, _ = run.curve(CRITERION)
    if run.status != "done":
        return math.nan
    reached = np.flatnonzero(epochs <= until + 1e-9)[-1]
    return float(values[reached] - values[0])


def time_to_gain(run: Run, wanted: float) -> float:
    """Simulated seconds until the held-out criterion has gained ``wanted``; inf if never."""
    _, values, time_s = run.curve(CRITERION)
    gained = values - values[0]
    above = np.flatnonzero(gained >= wanted)
    if not len(above) or above[0] == 0:
        return math.inf
    i = int(above[0])
    share = (wanted - gained[i - 1]) / (gained[i] - gained[i - 1])
    return float(time_s[i - 1] + share * (time_s[i] - time_s[i - 1]))


def largest_stable(subject: Subject, runs: dict[str, Run], replicas: int) -> float:
    """The largest rate of the map at which one seed's run did not diverge; NaN if none."""
    rates = PRESETS[subject.scale].rates
    done = [runs[map_name(replicas, i)].status == "done" for i in range(len(rates))]
    return max((rate for rate, stable in zip(rates, done, strict=True) if stable), default=math.nan)


def fetch_losses(runs: dict[str, Run], sweep: str) -> list[float]:
    """Of one seed: the share of the gain of always fetching that each interval costs.

    All of it where a run diverged.
    """
    base = gain(runs[fetch_name(sweep, 0)])
    gains = [gain(runs[fetch_name(sweep, i)]) for i in range(1, INTERVALS + 1)]
    return [1.0 if math.isnan(each) else 1.0 - each / base for each in gains]


def tolerated(subject: Subject, runs: dict[str, Run], sweep: str) -> float:
    """T* of one seed in passes: where the loss, linear in log T, crosses what counts as nothing.

    NaN where no interval of the sweep costs anything, or the shortest already does.
    """
    intervals, losses = PRESETS[subject.scale].fetch, fetch_losses(runs, sweep)
    for i in range(1, len(losses)):
        before, after = losses[i - 1], losses[i]
        if before <= COSTS_NOTHING < after:
            share = (COSTS_NOTHING - before) / (after - before)
            return float(math.exp(np.interp(share, [0, 1], np.log(intervals[i - 1 : i + 1]))))
    return math.nan


def updates_per_pass(runs: Sequence[Run]) -> float:
    """Mean updates in a pass over the corpus."""
    return float(np.mean([run.summary["folds"] / run.summary["epochs"] for run in runs]))


def line(subject: Subject, trained: Run) -> Run:
    """The criterion and its auxiliary function along the way that a run has gone."""
    seed = trained.config["seed"]
    replicas = trained.config["replicas"]
    config = LineConfig(sequence(subject, seed, replicas))
    store = Store(Path(trained.dir).parent)
    return along_line(config, subject.corpus, store, lambda progress: None)


def percent(interval: Interval) -> Interval:
    """The interval in percent."""
    return Interval(*(100.0 * x for x in (interval.estimate, interval.low, interval.high)))

"""What claims and exhibits of paper 3 read from its runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from harness.judge.makers import Runs
from harness.judge.missing import UNKNOWN, unless_missing
from harness.judge.statistics import Interval, ratio_ci
from harness.store import Run
from reproductions.paper import Subject
from reproductions.paper3_async_mmi.experiments import fetch_name, map_name
from reproductions.paper3_async_mmi.presets import PRESETS
from reproductions.readings import errors_of_utterances, lengths_of_utterances

CRITERION = "held_out_criterion"
FRAME_ERROR, WORD_ERROR = "dev_frame_error/iterate", "dev_word_error/iterate"
Bounds = tuple[float, float]
"""Lowest and highest value that something may have."""
COSTS_NOTHING = 0.05
"""The share of the criterion's gain that a fetch interval may cost and still cost nothing."""
REACHED = 0.9
"""The share of the final gain whose time is compared."""


def first_test(subject: Subject) -> str:
    """The test set that claims are judged on."""
    return subject.corpus.tests[0]


def test_errors(subject: Subject, runs: Sequence[Run]) -> tuple[np.ndarray, np.ndarray]:
    """Word errors [S, U] of last models on the test set, and words said [U] or [S, U]."""
    test = first_test(subject)
    errors = errors_of_utterances(runs, lambda r: f"{test}/iterate/{r.config['passes']}")
    return errors, lengths_of_utterances(runs, test)


def last(runs: Sequence[Run], name: str) -> np.ndarray:
    """A metric's last reading of each seed, [S]; NaN for a run that did not end."""
    return np.array([_last(run, name) for run in runs])


@unless_missing(math.nan)
def _last(run: Run, name: str) -> float:
    return float(run.curve(name)[1][-1])


def gain(run: Run) -> float:
    """What the held-out criterion has gained; NaN for a run that diverged."""
    if run.status != "done":
        return math.nan
    _, values, _ = run.curve(CRITERION)
    return float(values[-1] - values[0])


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


def largest_stable(subject: Subject, runs: dict[str, Run], replicas: int) -> Bounds:
    """Between what the largest rate lies at which one seed's run does not diverge.

    From the last rate of the map before the first that diverged, up to that one.
    """
    rates = PRESETS[subject.scale].rates
    done = [runs[map_name(replicas, i)].status == "done" for i in range(len(rates))]
    edges = (0.0, *rates, math.inf)
    first = [*done, False].index(False)
    return edges[first], edges[first + 1]


def fetch_losses(subject: Subject, runs: Runs, sweep: str) -> list[Interval]:
    """The share of the gain of always fetching that each interval costs."""
    return [fetch_loss(runs, sweep, i + 1) for i in range(len(PRESETS[subject.scale].fetch))]


def fetch_loss(runs: Runs, sweep: str, interval: int) -> Interval:
    """The share of the gain of always fetching that an interval costs, mean over mean.

    All of it where a run diverged or ended below its start.

    Args:
        runs: of the sweep.
        sweep: its name.
        interval: its number, from 1.
    """
    base = _kept_gains(runs[fetch_name(sweep, 0)])
    left = ratio_ci(_kept_gains(runs[fetch_name(sweep, interval)]), base)
    return 1 - left


known_loss = unless_missing(UNKNOWN)(fetch_loss)
"""The same; the whole line where a run did not end."""


def _kept_gains(runs: Sequence[Run]) -> list[float]:
    return [g if (g := gain(run)) > 0 else 0.0 for run in runs]


def tolerated(subject: Subject, runs: Runs, sweep: str) -> Interval:
    """T* in passes: above the longest interval that costs nothing, below the shortest that costs.

    Both by the 95% interval of that loss alone, so the bracket is not one of 95%. Its estimate is
    where the loss, linear in log T, first crosses what counts as nothing.
    """
    intervals, losses = PRESETS[subject.scale].fetch, fetch_losses(subject, runs, sweep)
    free = [t for t, loss in zip(intervals, losses, strict=True) if loss.high <= COSTS_NOTHING]
    dear = [t for t, loss in zip(intervals, losses, strict=True) if loss.low > COSTS_NOTHING]
    low, high = max(free, default=0.0), min(dear, default=math.inf)
    if low > high:  # a loss that wanders
        return Interval(math.nan, 0.0, math.inf)
    crossed = math.nan
    for (t, loss), (later, more) in pairwise(zip(intervals, losses, strict=True)):
        if loss.estimate > COSTS_NOTHING:
            break
        if more.estimate > COSTS_NOTHING:
            share = (COSTS_NOTHING - loss.estimate) / (more.estimate - loss.estimate)
            crossed = min(max(t * (later / t) ** share, low), high)
            break
    return Interval(crossed, low, high)


def in_updates(star: Interval, runs: Sequence[Run], per_pass_s: float) -> Interval:
    """An interval in passes of ``per_pass_s`` simulated seconds, in updates at the runs' pace."""
    pace = np.mean([run.summary["folds"] / run.summary["virtual_s"] for run in runs])
    return float(pace) * per_pass_s * star

"""What claims and exhibits of paper 3 read from its runs."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from harness.judge.interval import Interval
from harness.judge.makers import UNKNOWN, Runs, unless_missing
from harness.judge.statistics import ratio_ci
from harness.judge.utterances import rate_ratio_ci
from harness.store import Run
from reproductions.paper import Subject
from reproductions.paper3_async_mmi.experiments import PRESETS, fetch_name, fetch_s
from reproductions.paper3_async_mmi.tolerance import Sweep
from reproductions.readings import errors_of_utterances, lengths_of_utterances

CRITERION = "held_out_criterion"
FRAME_ERROR, WORD_ERROR = "dev_frame_error/iterate", "dev_word_error/iterate"
Bounds = tuple[float, float]
"""Lowest and highest value that something may have."""
REACHED = 0.9
"""The share of its own final gain whose time is compared."""
LATE = 0.25
"""The share of a run's readings, its last ones, in which one on a plateau gains next to nothing."""


def first_test(subject: Subject) -> str:
    """The test set that claims are judged on."""
    return subject.corpus.tests[0]


def test_errors(subject: Subject, runs: Sequence[Run]) -> tuple[np.ndarray, np.ndarray]:
    """Word errors of last models on the test sets, and words said, [S, U] each."""
    test = first_test(subject)
    errors = errors_of_utterances(runs, lambda r: f"{test}/iterate/{r.config['passes']}")
    return errors, lengths_of_utterances(runs, test)


@unless_missing(UNKNOWN)
def error_ratio(subject: Subject, a: Sequence[Run], b: Sequence[Run]) -> Interval:
    """Test word error of some runs over that of others, paired by seed and utterance."""
    (errors, lengths), (others, _) = test_errors(subject, a), test_errors(subject, b)
    return rate_ratio_ci(errors, others, lengths)


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


@unless_missing(math.nan)
def readings(run: Run) -> float:
    """How often the held-out criterion was read after the start."""
    return len(run.curve(CRITERION)[1]) - 1


@unless_missing(math.nan)
def late_gain(run: Run) -> float:
    """What the last quarter of a run's readings added, as a share of its whole gain."""
    values = run.curve(CRITERION)[1]
    since = len(values) - 1 - max(1, round(LATE * (len(values) - 1)))
    return float((values[-1] - values[since]) / (values[-1] - values[0]))


@unless_missing(math.nan)
def time_to_own_gain(run: Run, share: float = REACHED) -> float:
    """Simulated seconds until a run first has that share of its own final gain; inf without one."""
    _, values, time_s = run.curve(CRITERION)
    gained = values - values[0]
    wanted = share * gained[-1]
    if not wanted > 0:
        return math.inf
    i = int(np.flatnonzero(gained >= wanted)[0])
    way = (wanted - gained[i - 1]) / (gained[i] - gained[i - 1])
    return float(time_s[i - 1] + way * (time_s[i] - time_s[i - 1]))


@unless_missing(math.nan)
def in_slots(run: Run) -> float:
    """The share of the training utterances that are in the replicas' slots at once."""
    config = run.config
    held = config["replicas"] * config["slots"]
    return held * config["passes"] / run.summary["utterances"]


def on_forced_alignments(run: Run) -> bool:
    """Whether what a run starts from was trained on them, not on the corpus's own targets."""
    return bool(run.config["start"].get("targets"))


@unless_missing((0.0, math.inf))
def largest_stable(run: Run) -> Bounds:
    """Between which rates a search found the largest stable one; 0 or inf where it found no end."""
    return run.summary.get("stable", 0.0), run.summary.get("diverged", math.inf)


def sweep_of(subject: Subject, runs: Runs, sweep: str) -> Sweep:
    """The gains of a fetch sweep; 0 where a run diverged or ended below its start."""
    intervals = PRESETS[subject.scale].fetch[sweep]
    groups = (runs[fetch_name(sweep, i)] for i in range(1 + len(intervals)))
    gains = [[kept_gain(run) for run in group] for group in groups]
    return Sweep(np.array([0.0, *intervals]), np.array(gains).T)


def left(sweep: Sweep, interval: int) -> Interval:
    """The share of the gain of always fetching that an interval leaves, mean over mean.

    Args:
        sweep: whose.
        interval: its number, from 1.
    """
    return ratio_ci(sweep.gains[:, interval], sweep.gains[:, 0])


@unless_missing(math.nan)
def kept_gain(run: Run) -> float:
    """What the held-out criterion has gained; 0 for a run that diverged or lost."""
    return max(gain(run), 0.0) if run.status == "done" else 0.0


@unless_missing(UNKNOWN)
def in_updates(subject: Subject, passes: Interval, runs: Sequence[Run]) -> Interval:
    """A fetch interval in passes, which are simulated seconds, in updates of runs."""
    speeds = [run.summary["folds"] / run.summary["virtual_s"] for run in runs]
    return fetch_s(subject, 1.0) * float(np.mean(speeds)) * passes

"""Quantities that claims and exhibits of paper 3 read from its runs, and T* from all of them.

T* is the fetch interval up to which nothing is lost, from all intervals, seeds and sweeps at once.
A run with decoders that fetch every T passes has the gain

    gain(T) = G exp(-c (T / T*)^p),    c = -log(1 - COSTS_NOTHING),

so that the loss at T* is the share `COSTS_NOTHING`. Every run has a G of its seed and sweep, every
sweep a T*, and all sweeps the same p, since losses are assumed to set in alike. A sweep in which
every interval costs the same (or nothing) has no T*.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.judge.builders import UNKNOWN, Runs, unless_missing
from harness.judge.interval import Interval
from harness.judge.statistics import Array, mean_ci, paired_difference_ci, ratio_ci
from harness.judge.utterances import rate_ratio_ci
from harness.store import Run
from reproductions.paper import Subject
from reproductions.paper3_async_mmi.experiments import PRESETS, fetch_name, fetch_s
from reproductions.run_metrics import errors_of_utterances, lengths_of_utterances

COSTS_NOTHING = 0.05
"""The share of the criterion's gain that a fetch interval may cost and still cost nothing."""

POWERS = np.geomspace(0.4, 6.0, 93)

STEPS, BEYOND = 161, 4.0
"""Grid of T*: number of steps, and factor beyond a sweep's ends."""


@dataclass(frozen=True)
class Sweep:
    """The gains of one sweep.

    Args:
        intervals: in passes, ascending; the first is 0, at every utterance: [K].
        gains: of each seed at each, in any unit; 0 for a run that gained nothing: [S, K].
    """

    intervals: Array
    gains: Array

    def drop_seed(self, seed: int) -> Sweep:
        """The same but for one seed."""
        return Sweep(self.intervals, np.delete(self.gains, seed, axis=0))

    @property
    def searched(self) -> Array:
        """The values of T* that are tried, ascending."""
        ends = float(self.intervals[1]) / BEYOND, float(self.intervals[-1]) * BEYOND
        values: Array = np.geomspace(*ends, STEPS)
        return values

    @property
    def misfit(self) -> Array:
        """Squared distance from the best curve by p and T*, in mean gains of the first: [P, T]."""
        unit = float(self.gains[:, 0].mean())
        if not unit > 0:  # nothing to lose, or a run that failed
            return np.full((len(POWERS), STEPS), np.nan)
        late = self.intervals / self.searched[:, None]
        curve: Array = np.exp(math.log(1 - COSTS_NOTHING) * late ** POWERS[:, None, None])
        along: Array = np.einsum("ptk,sk->pts", curve, self.gains) ** 2
        along /= (curve**2).sum(axis=2)[:, :, None]
        residue: Array = float((self.gains**2).sum()) - along.sum(axis=2)
        return residue / unit**2


def log_tolerances(sweeps: Sequence[Sweep]) -> Array:
    """log2 of each sweep's T*; NaN where none is inside of what is searched."""
    misfits = [sweep.misfit for sweep in sweeps]
    power = _power(misfits)
    return np.array([_inside(s.searched, m[power]) for s, m in zip(sweeps, misfits, strict=True)])


def shape(sweeps: Sequence[Sweep]) -> float:
    """p, the steepness with which losses set in; NaN if no sweep has a gain to lose."""
    misfits = [sweep.misfit for sweep in sweeps]
    alive = any(np.isfinite(misfit).any() for misfit in misfits)
    return float(POWERS[_power(misfits)]) if alive else math.nan


def shape_told(sweeps: Sequence[Sweep]) -> str:
    """The power p in words: at the end of what is tried a loss may be a cliff."""
    power = shape(sweeps)
    if math.isnan(power):
        return "none"
    return f"{power:.2g} or more" if power == POWERS[-1] else f"{power:.2g}"


def _power(misfits: Sequence[Array]) -> int:
    """Index of the p with the least misfit over all sweeps that have a gain to lose."""
    return int(np.argmin(np.nansum([misfit.min(axis=1) for misfit in misfits], axis=0)))


def tolerances(sweeps: Sequence[Sweep]) -> list[Interval]:
    """log2 of T* in passes of each sweep, with its jackknife interval over seeds."""
    return [mean_ci(logs) for logs in _pseudo_values(sweeps).T]


def tolerance_ratio(
    sweep: Sweep, other: Sweep, beside: Sequence[Sweep] = (), shared: bool = True
) -> Interval:
    """log2 of a sweep's T* over that of another of the same seeds, with its jackknife interval.

    Args:
        sweep: above.
        other: below.
        beside: further sweeps that share their p.
        shared: whether p is shared; with a p for each sweep, T* is known far less well.
    """
    if shared:
        over, second, *_ = _pseudo_values((sweep, other, *beside)).T
    else:
        over, second = (_pseudo_values([single])[:, 0] for single in (sweep, other))
    return paired_difference_ci(over, second)


def _pseudo_values(sweeps: Sequence[Sweep]) -> Array:
    """Pseudo-values (jackknife; Tukey, 1958) of the logarithms, [S, sweeps]."""
    seeds = len(sweeps[0].gains)
    if seeds < 2:
        return log_tolerances(sweeps)[None]
    without = [log_tolerances([s.drop_seed(seed) for s in sweeps]) for seed in range(seeds)]
    return seeds * log_tolerances(sweeps) - (seeds - 1) * np.array(without)


def _inside(values: Array, misfit: Array) -> float:
    """The logarithm at which the parabola through the least and its neighbours is least."""
    best = int(np.argmin(misfit))
    if not 0 < best < len(values) - 1:
        return math.nan
    before, least, after = misfit[best - 1 : best + 2]
    aside = 0.5 * (before - after) / (before - 2 * least + after)
    return math.log2(values[best]) + float(aside) * math.log2(values[1] / values[0])


CRITERION = "held_out_criterion"

FRAME_ERROR, WORD_ERROR = "dev_frame_error/iterate", "dev_word_error/iterate"

Bounds = tuple[float, float]
"""Lowest and highest value that something may have."""

REACHED = 0.9
"""Share of a run's own final gain; the times until runs reach it are compared."""

LATE = 0.25
"""The share of a run's readings, its last ones, in which one on a plateau gains next to nothing."""


def test_errors(subject: Subject, runs: Sequence[Run]) -> tuple[np.ndarray, np.ndarray]:
    """Word errors of last models on the test sets, and words said, [S, U] each."""
    test = subject.corpus.tests[0]
    errors = errors_of_utterances(runs, lambda r: f"{test}/iterate/{r.config['passes']}")
    return errors, lengths_of_utterances(runs, test)


@unless_missing(UNKNOWN)
def error_ratio(subject: Subject, a: Sequence[Run], b: Sequence[Run]) -> Interval:
    """Test word error of some runs over that of others, paired by seed and utterance."""
    (errors, lengths), (below, _) = test_errors(subject, a), test_errors(subject, b)
    return rate_ratio_ci(errors, below, lengths)


def last(runs: Sequence[Run], name: str) -> np.ndarray:
    """A metric's last reading of each seed, [S]; NaN for a run that did not end."""
    return np.array([_last(run, name) for run in runs])


@unless_missing(math.nan)
def _last(run: Run, name: str) -> float:
    return float(run.curve(name)[1][-1])


def gain(run: Run) -> float:
    """Gain of the held-out criterion over the run; NaN for a run that diverged."""
    if run.status != "done":
        return math.nan
    _, values, _ = run.curve(CRITERION)
    return float(values[-1] - values[0])


@unless_missing(math.nan)
def readings(run: Run) -> float:
    """Number of readings of the held-out criterion after the start."""
    return len(run.curve(CRITERION)[1]) - 1


@unless_missing(math.nan)
def late_gain(run: Run) -> float:
    """Gain in the last quarter of a run's readings, as a share of its whole gain."""
    values = run.curve(CRITERION)[1]
    since = len(values) - 1 - max(1, round(LATE * (len(values) - 1)))
    return float((values[-1] - values[since]) / (values[-1] - values[0]))


@unless_missing(math.nan)
def time_to_own_gain(run: Run, share: float = REACHED) -> float:
    """Simulated seconds until a run first has ``share`` of its final gain; inf without a gain."""
    _, values, time_s = run.curve(CRITERION)
    gained = values - values[0]
    goal = share * gained[-1]
    if not goal > 0:
        return math.inf
    i = int(np.flatnonzero(gained >= goal)[0])
    way = (goal - gained[i - 1]) / (gained[i] - gained[i - 1])
    return float(time_s[i - 1] + way * (time_s[i] - time_s[i - 1]))


@unless_missing(math.nan)
def share_in_slots(run: Run) -> float:
    """The share of the training utterances that are in the replicas' slots at once."""
    config = run.config
    utterances = config["workers"] * config["protocol"]["slots"]
    return utterances * config["passes"] / run.summary["utterances"]


def has_forced_start(run: Run) -> bool:
    """Whether a run's start was trained on forced alignments, not on the corpus's own targets."""
    return bool(run.config["start"].get("targets"))


def has_transferred_start(run: Run) -> bool:
    """Whether a run's start began from a network that was trained on another corpus."""
    start: dict[str, Any] = {"corpus": None, **run.config["start"]}
    return (start.get("initial") or start).get("corpus", start["corpus"]) != start["corpus"]


@unless_missing(math.nan)
def noise(run: Run) -> float:
    """Scatter of the held-out criterion's readings about a smooth course; inf if the run diverged.

    The root mean square of third differences over √20: independent noise of standard deviation s
    has third differences of variance 20 s², and a parabola has none.
    """
    if run.status != "done":
        return math.inf
    thirds = np.diff(run.curve(CRITERION)[1], 3)
    return float(np.sqrt(np.mean(thirds**2) / 20.0)) if len(thirds) else math.nan


@unless_missing((0.0, math.inf))
def largest_stable(run: Run) -> Bounds:
    """Bracket of the largest stable rate that a search found; 0 or inf for a missing end."""
    return run.summary.get("stable", 0.0), run.summary.get("diverged", math.inf)


def sweep_of(subject: Subject, runs: Runs, sweep: str) -> Sweep:
    """The gains of a fetch sweep; 0 where a run diverged or ended below its start."""
    intervals = PRESETS[subject.scale].fetch[sweep]
    groups = (runs[fetch_name(sweep, i)] for i in range(1 + len(intervals)))
    gains = [[gain_or_zero(run) for run in group] for group in groups]
    return Sweep(np.array([0.0, *intervals]), np.array(gains).T)


def gain_left(sweep: Sweep, interval: int) -> Interval:
    """The share of the gain of always fetching that an interval leaves, mean over mean.

    Args:
        sweep: with the gains.
        interval: its number, from 1.
    """
    return ratio_ci(sweep.gains[:, interval], sweep.gains[:, 0])


@unless_missing(math.nan)
def gain_or_zero(run: Run) -> float:
    """Gain of the held-out criterion over the run; 0 for a run that diverged or lost."""
    return max(gain(run), 0.0) if run.status == "done" else 0.0


@unless_missing(UNKNOWN)
def passes_to_updates(subject: Subject, passes: Interval, runs: Sequence[Run]) -> Interval:
    """A fetch interval in passes, which are simulated seconds, in updates of runs."""
    speeds = [run.summary["folds"] / run.summary["virtual_s"] for run in runs]
    return fetch_s(subject, 1.0) * float(np.mean(speeds)) * passes

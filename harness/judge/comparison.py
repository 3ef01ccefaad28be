"""From the runs of a comparison to its rows: errors and seconds to a target, with intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from harness.judge.interval import Interval
from harness.judge.statistics import mean_ci
from harness.simulator.timeline_file import load_timeline
from harness.store import Cell, Run
from harness.store.schema import TIMELINE

MARGIN = 0.05
"""Above the error of the reference, relative: the target where none is given."""


@dataclass(frozen=True)
class Row:
    """What is reported of a cell; intervals are over seeds, 95%.

    Attributes:
        cell: whose.
        error: at the end, on development data; of runs that did not diverge, None if all did.
        test: the same on the test set; None without one.
        seconds: simulated, of the whole training.
        target_s: simulated seconds to the target; None unless every seed reached it.
        reached: how many seeds did.
        diverged: how many seeds did.
        staleness: mean over contributions, of the first seed's run.
        trained: mean share of the passes' examples that entered folds; above 1 where the last
            minibatches are of one more pass.
    """

    cell: Cell
    error: Interval | None
    test: Interval | None
    seconds: Interval | None
    target_s: Interval | None
    reached: int
    diverged: int
    staleness: float
    trained: float = 1.0


@dataclass(frozen=True)
class Table:
    """A comparison.

    Attributes:
        rows: one a cell.
        judged: what errors are of, e.g. ``"dev_error"``.
        target: the error that is to be reached.
        reason: where the target comes from, in words.
    """

    rows: Sequence[Row]
    judged: str
    target: float
    reason: str


def tabulated(cells: Sequence[Cell], target: float | None = None) -> Table:
    """The rows of a comparison.

    Args:
        cells: as they were run, all judged by one metric.
        target: the error that is to be reached. None for 5% above the lowest mean error that the
            fewest workers end with.
    """
    judged, reason = cells[0].judged, "given"
    if target is None:
        target, reason = _reference(cells)
    return Table([_row(cell, target) for cell in cells], judged, target, reason)


def time_to(run: Run, metric: str, target: float) -> float:
    """Simulated seconds until a metric is first at most ``target``; infinite if it never is."""
    _, values, times = run.curve(metric)
    below = np.flatnonzero(values <= target)
    return float(times[below[0]]) if len(below) else math.inf


def last(run: Run, judged: str) -> float:
    """The last value of a metric of the deployed candidate."""
    return float(run.summary[run.deployed(judged)])


def _reference(cells: Sequence[Cell]) -> tuple[float, str]:
    fewest = min(cell.workers for cell in cells)
    ends = {
        cell.method: float(np.mean([last(run, cell.judged) for run in _done(cell)]))
        for cell in cells
        if cell.workers == fewest and _done(cell)
    }
    if not ends:
        return math.nan, f"every run with {fewest} workers diverged"
    best = min(ends, key=lambda method: ends[method])
    told = f"{MARGIN:.0%} above {best} with {fewest} worker{'' if fewest == 1 else 's'}"
    return ends[best] * (1.0 + MARGIN), told


def _row(cell: Cell, target: float) -> Row:
    done = _done(cell)
    times = [time_to(run, run.deployed(cell.judged), target) for run in done]
    reached = [each for each in times if math.isfinite(each)]
    test = cell.judged.replace("dev_", "test_", 1)
    tested = done and all(run.deployed(test) in run.summary for run in done)
    return Row(
        cell,
        error=mean_ci([last(run, cell.judged) for run in done]) if done else None,
        test=mean_ci([last(run, test) for run in done]) if tested else None,
        seconds=mean_ci([float(run.summary["virtual_s"]) for run in done]) if done else None,
        target_s=mean_ci(reached) if reached and len(reached) == len(cell.runs) else None,
        reached=len(reached),
        diverged=len(cell.runs) - len(done),
        staleness=_staleness(cell.runs[0]),
        trained=_trained_share(done),
    )


def _done(cell: Cell) -> list[Run]:
    return [run for run in cell.runs if run.status == "done"]


def _trained_share(runs: Sequence[Run]) -> float:
    """The mean share of the passes' data that runs trained on; NaN where one does not say it.

    Runs of modules always say it, but those of earlier versions; others where it is not everything.
    """
    shares = [
        run.summary.get("trained_share", math.nan if "problem" in run.config else 1.0)
        for run in runs
    ]
    return float(np.mean(shares)) if shares else math.nan


def _staleness(run: Run) -> float:
    if run.without([TIMELINE]):
        return math.nan
    found = load_timeline(run.path(TIMELINE)).staleness()
    return float(found.mean()) if len(found) else math.nan

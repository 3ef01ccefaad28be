"""Comparisons and tolerances in rows, and where their results come from.

From the runs of a comparison to its rows: errors and seconds to a target, with intervals. Whether
quality has broken: errors at one value beside those where a search began. Where results come from:
the program, the command, and the runs behind them.
"""

from __future__ import annotations

import math
import platform
import subprocess
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from harness.base.files import version_of
from harness.judge.interval import Interval
from harness.judge.makers import Runs
from harness.judge.statistics import mean_ci, ratio_ci
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


def build_table(cells: Sequence[Cell], target: float | None = None) -> Table:
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
        cell.method: float(np.mean([last(run, cell.judged) for run in _select_done(cell)]))
        for cell in cells
        if cell.workers == fewest and _select_done(cell)
    }
    if not ends:
        return math.nan, f"every run with {fewest} workers diverged"
    best = min(ends, key=lambda method: ends[method])
    told = f"{MARGIN:.0%} above {best} with {fewest} worker{'' if fewest == 1 else 's'}"
    return ends[best] * (1.0 + MARGIN), told


def _row(cell: Cell, target: float) -> Row:
    done = _select_done(cell)
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


def _select_done(cell: Cell) -> list[Run]:
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


@dataclass(frozen=True)
class Point:
    """One value that was tried.

    Attributes:
        value: of what is turned up.
        cell: its runs.
        errors: at the end, one a seed; infinite where training diverged.
        ratio: of the mean error to that of the reference, 95% over seeds; None where a seed
            diverged.
        broken: whether the ratio exceeds 1 by more than the margin.
        decided: whether its whole interval lies on that side.
    """

    value: float
    cell: Cell
    errors: Sequence[float]
    ratio: Interval | None
    broken: bool
    decided: bool


@dataclass(frozen=True)
class Tolerance:
    """What a search found.

    Attributes:
        what: was turned up, e.g. ``"workers"``.
        axis: the same with its unit.
        margin: relative, above which quality counts as broken.
        points: every value tried, in order; the first is the reference.
        tolerated, broken: the largest value that was and the smallest that was not; the second is
            infinite if none was found.
    """

    what: str
    axis: str
    margin: float
    points: Sequence[Point]
    tolerated: float
    broken: float

    @property
    def target(self) -> float:
        """The error beyond which quality counts as broken."""
        errors = self.points[0].errors
        return (1.0 + self.margin) * sum(errors) / len(errors)

    def seconds(self, point: Point) -> list[float]:
        """Simulated seconds to ``target``, one a seed; infinite if it is not reached."""
        metric = point.cell.judged
        return [
            time_to(run, run.deployed(metric), self.target) if run.status == "done" else math.inf
            for run in point.cell.runs
        ]


def point(value: float, cell: Cell, reference: Sequence[float], margin: float) -> Point:
    """One value's errors beside the reference's.

    Args:
        value: of what is turned up.
        cell: its runs.
        reference: errors where the search began, one a seed.
        margin: relative.
    """
    errors = errors_of(cell)
    if not all(math.isfinite(each) for each in errors):
        return Point(value, cell, errors, None, broken=True, decided=True)
    ratio = ratio_ci(errors, reference)
    edge = 1.0 + margin
    broken = ratio.estimate > edge
    return Point(
        value, cell, errors, ratio, broken, ratio.low > edge if broken else ratio.high <= edge
    )


def errors_of(cell: Cell) -> list[float]:
    """The errors at the end, one a seed; infinite where training diverged."""
    return [last(run, cell.judged) if run.status == "done" else math.inf for run in cell.runs]


PACKAGES = ("lagbench", "torch", "numpy", "numba", "scipy", "matplotlib", "typst")


def describe_program(command: str) -> dict[str, Any]:
    """Commit, versions, and what was asked for.

    Args:
        command: as it is called, e.g. ``"python -m reproductions"``; its arguments are added.
    """
    return {
        "git": _commit(),
        "versions": {"python": platform.python_version(), **{p: version_of(p) for p in PACKAGES}},
        "command": " ".join([command, *sys.argv[1:]]),
    }


def describe_runs(runs: Runs, before: Collection[str]) -> dict[str, Any]:
    """Which runs each setting has, how long they took together, and how many were reused.

    Processor time is left out if a run's is not known: earlier versions did not keep it.

    Args:
        runs: by setting.
        before: hashes of the runs that were finished before.
    """
    distinct = {run.hash: run for group in runs.values() for run in group}
    moments = [run.provenance for run in distinct.values()]
    found = {
        "settings": {name: [run.hash for run in group] for name, group in runs.items()},
        "runs_s": round(sum(each.get("wall_s", 0.0) for each in moments), 1),
        "reused": len(distinct.keys() & set(before)),
    }
    if moments and all("processor_s" in each for each in moments):
        found["runs_processor_s"] = round(sum(each["processor_s"] for each in moments), 1)
    return found


def _commit() -> str:
    """The commit of the source tree, or "unknown" where there is none."""
    try:
        git = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
        return subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"

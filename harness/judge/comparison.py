"""Tables of comparisons and tolerance searches, and the provenance of their results.

A comparison table has a row per cell: errors and seconds to a target error, with intervals. A
tolerance search compares the errors at one value with those at the reference value. Provenance is
the program's version, its command line and the runs behind the results.
"""

from __future__ import annotations

import math
import platform
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from harness.base.files import version_of
from harness.judge.builders import Runs
from harness.judge.interval import Interval
from harness.judge.statistics import mean_ci, ratio_ci
from harness.simulator.timeline_file import load_timeline
from harness.store import Cell, Run
from harness.store.schema import TIMELINE

MARGIN = 0.05
"""Relative margin of the default target above the error of the reference."""

SKEW = ("label_skew", "smallest_share", "largest_share")
"""Figures in the summary of a run whose workers have different data."""


@dataclass(frozen=True)
class Row:
    """One row of a comparison table; intervals are 95% over seeds.

    Attributes:
        cell: the cell that the row reports.
        error: final error on development data, over runs that did not diverge; None if all did.
        test: the same on the test set; None without one.
        seconds: simulated seconds of the whole training, over runs that did not diverge.
        target_s: simulated seconds to the target; None unless every seed reached it.
        reached: number of seeds that reached the target.
        diverged: number of seeds that did not end as ``done``.
        staleness: mean over the contributions of the first seed's run, in folds.
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

    @property
    def skew(self) -> Mapping[str, float]:
        """How much the workers' data differ in the first seed's run; empty where they do not.

        ``smallest_share`` and ``largest_share`` are examples of a worker, ``label_skew`` the mean
        total variation distance between a worker's class frequencies and those of all data.
        """
        summary = self.cell.runs[0].summary
        return {name: float(summary[name]) for name in SKEW if name in summary}


@dataclass(frozen=True)
class Table:
    """Table of a comparison.

    Attributes:
        rows: one per cell.
        judged: metric of the errors, e.g. ``"dev_error"``.
        target: error to be reached, in the metric's unit.
        reason: origin of the target, in words.
    """

    rows: Sequence[Row]
    judged: str
    target: float
    reason: str


def build_table(cells: Sequence[Cell], target: float | None = None) -> Table:
    """Build the table of a comparison.

    Args:
        cells: cells with their runs, all judged by one metric.
        target: error to be reached. None for 5% above the lowest mean final error among the
            methods at the smallest number of workers.
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
    """Final value of a metric, of the candidate that the run deploys."""
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
    """Mean share of the passes' data that runs trained on; NaN where a run does not record it.

    Runs of modules (``problem``) always record it; other runs only where it is not 1.
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
    """One value that a tolerance search tried.

    Attributes:
        value: value of the axis, e.g. the number of workers.
        cell: the runs at this value.
        errors: final errors, one per seed; infinite where training diverged.
        ratio: mean error over that of the reference, 95% over seeds; None where a seed
            diverged.
        broken: whether the ratio's estimate exceeds 1 by more than the margin.
        decided: whether the whole interval lies on the same side of that limit.
    """

    value: float
    cell: Cell
    errors: Sequence[float]
    ratio: Interval | None
    broken: bool
    decided: bool


@dataclass(frozen=True)
class Tolerance:
    """Result of a tolerance search.

    Attributes:
        what: name of the axis, e.g. ``"workers"``.
        axis: the same with its unit.
        margin: relative increase of the error above which quality counts as broken.
        points: every value tried, in order; the first is the reference.
        tolerated, broken: the largest value with intact quality and the smallest with broken
            quality; ``broken`` is infinite if none was found.
    """

    what: str
    axis: str
    margin: float
    points: Sequence[Point]
    tolerated: float
    broken: float

    @property
    def target(self) -> float:
        """Error above which quality counts as broken."""
        errors = self.points[0].errors
        return (1.0 + self.margin) * sum(errors) / len(errors)

    def seconds(self, point: Point) -> list[float]:
        """Simulated seconds to ``target``, one per seed; infinite if it is not reached."""
        metric = point.cell.judged
        return [
            time_to(run, run.deployed(metric), self.target) if run.status == "done" else math.inf
            for run in point.cell.runs
        ]


def point(value: float, cell: Cell, reference: Sequence[float], margin: float) -> Point:
    """Compare the errors at one value with those of the reference.

    Args:
        value: value of the axis.
        cell: the runs at this value.
        reference: errors at the reference value, one per seed.
        margin: relative increase of the error above which quality counts as broken.
    """
    errors = errors_of(cell)
    # a diverged seed has no finite ratio: quality is broken beyond doubt
    if not all(math.isfinite(each) for each in errors):
        return Point(value, cell, errors, None, broken=True, decided=True)
    ratio = ratio_ci(errors, reference)
    edge = 1.0 + margin
    broken = ratio.estimate > edge
    return Point(
        value, cell, errors, ratio, broken, ratio.low > edge if broken else ratio.high <= edge
    )


def errors_of(cell: Cell) -> list[float]:
    """Final errors, one per seed; infinite where training diverged."""
    return [last(run, cell.judged) if run.status == "done" else math.inf for run in cell.runs]


PACKAGES = ("lagbench", "torch", "numpy", "numba", "scipy", "matplotlib", "typst")


def describe_program(command: str) -> dict[str, Any]:
    """Provenance of the program: commit, package versions and command line.

    Args:
        command: command without arguments, e.g. ``"python -m reproductions"``; those of this
            process are added.
    """
    return {
        "git": _commit(),
        "versions": {"python": platform.python_version(), **{p: version_of(p) for p in PACKAGES}},
        "command": " ".join([command, *sys.argv[1:]]),
    }


def describe_runs(runs: Runs, before: Collection[str]) -> dict[str, Any]:
    """Provenance of runs: hashes by setting, their total wall time, the number reused.

    Total processor time is included only if every run recorded its own.

    Args:
        runs: runs by setting.
        before: hashes of the runs that were finished before this command.
    """
    # settings share runs: each run's time counts once
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

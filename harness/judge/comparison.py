"""Tables of comparisons, and the provenance of results.

A comparison table has a row per cell: errors and seconds to a target, with intervals. Provenance
is the program's version, its command line and the runs behind the results.
"""

from __future__ import annotations

import math
import platform
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from harness.base.registry import version_of
from harness.base.settings import build, format_count
from harness.judge.bounds import geometric_ci, metric_ci, paired_ratio_ci, positive_ci
from harness.judge.builders import Runs
from harness.judge.direction import as_error, final_error
from harness.judge.interval import Interval
from harness.simulator.cluster import Fault
from harness.simulator.costs import count_faults, faults_of
from harness.simulator.timeline_file import load_timeline
from harness.store import Cell, Run
from harness.store.schema import TIMELINE

IMPROVEMENT = 0.95
"""Share of the improvement by training that the default target asks for; 5% of a change is the
band of the settling time in control."""


@dataclass(frozen=True)
class Reach:
    """The first evaluation at which a run's metric is as good as a target.

    Attributes:
        passes: passes over the data until then; infinite if the target is not reached, 0 if it is
            met before training.
        seconds: simulated seconds until then.
        passes_before, seconds_before: those of the evaluation before; 0 if there is none. The
            target is crossed between the two.
    """

    passes: float = math.inf
    seconds: float = math.inf
    passes_before: float = 0.0
    seconds_before: float = 0.0

    @property
    def is_earned(self) -> bool:
        """Whether the target is reached, and by training."""
        return 0.0 < self.seconds < math.inf and self.passes > 0.0


@dataclass(frozen=True)
class Speedup:
    """One row against another until both reach the target: geometric means, paired by seed.

    By seed ``time = steps / passes``, and so for the estimates, which are of the first evaluations
    at the target. The intervals contain that it is crossed before them (`bounds`).

    Attributes:
        time: the other row's seconds to the target over this row's; above 1 if this is faster.
        steps: this row's steps a second over the other row's, until the target.
        passes: this row's passes to the target over the other row's.
    """

    time: Interval
    steps: Interval
    passes: Interval


SKEW = ("label_skew", "smallest_share", "largest_share")
"""Figures in the summary of a run whose workers have different data."""


@dataclass(frozen=True)
class Row:
    """One row of a comparison table; intervals are 95% over seeds, inside a quantity's range.

    Attributes:
        cell: the cell that the row reports.
        error: final value of the metric on development data, over runs where it is finite; None
            without one.
        test: the same on the test set; None without one.
        seconds: simulated seconds of the whole training, over the same runs.
        target_s: geometric mean of the simulated seconds to the target, over the seeds that reached
            it by training; None if none did, or there is no target.
        reached: number of seeds that reached the target.
        diverged: number of seeds that did not end as ``done``.
        staleness: mean over the contributions of the first seed's run, in folds.
        trained: mean share of the passes' examples that entered folds; above 1 where the last
            minibatches are of one more pass.
        start: mean of the metric before training; None if it was not measured.
        reaches: when each seed reached the target.
        speedup: against the table's reference; None unless every seed of both reached the target.
            That of the fastest row, which is chosen for it, is corrected for the number of rows.
        ahead: whether the row, whose passes end short of the target, is then with every seed better
            than the table's reference after the same time.
        faults: mean number of faults of a run; None if its cluster describes none.
        infinite: number of seeds that ended as ``done`` with a metric that is not finite.
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
    start: float | None = None
    reaches: Sequence[Reach] = field(default=(), repr=False)
    speedup: Speedup | None = None
    ahead: bool = False
    faults: float | None = None
    infinite: int = 0

    @property
    def algorithm(self) -> str:
        """Label of the algorithm."""
        return self.cell.method

    @property
    def workers(self) -> int:
        """Number of workers."""
        return self.cell.workers

    @property
    def rate(self) -> float:
        """Learning rate."""
        return self.cell.rate

    @property
    def has_learned(self) -> bool:
        """Whether the metric is better at the end than before training."""
        if self.error is None or self.start is None:
            return self.error is not None
        run = self.cell.runs[0]
        return as_error(run, self.error.estimate) < as_error(run, self.start)

    @property
    def is_earned(self) -> bool:
        """Whether every seed reached the target by training."""
        return bool(self.reaches) and all(reach.is_earned for reach in self.reaches)

    @property
    def is_whole(self) -> bool:
        """Whether every seed has an error at its end."""
        return not (self.diverged or self.infinite)

    @property
    def end(self) -> tuple[bool, float]:
        """Place of the row by its error at the end; after all others if a seed has none."""
        run = self.cell.runs[0]
        error = math.inf if self.error is None else as_error(run, self.error.estimate)
        return not self.is_whole, error

    @property
    def skew(self) -> Mapping[str, float]:
        """Difference of the workers' data in the first seed's run; empty if there is none.

        ``smallest_share`` and ``largest_share`` are examples of a worker, ``label_skew`` the mean
        total variation distance between a worker's class frequencies and those of all data.
        """
        summary = self.cell.runs[0].summary
        return {name: float(summary[name]) for name in SKEW if name in summary}


@dataclass(frozen=True)
class Impossible:
    """A cell that cannot be trained.

    Attributes:
        method: label of the method.
        workers: number of workers.
        reason: the key, its value and what is allowed; empty if the head says it.
        head: why, in a few words.
    """

    method: str
    workers: int
    reason: str
    head: str = "not possible"


def describe_impossible(cells: Sequence[Impossible]) -> str:
    """At least one cell that is not trained, by heads, and why the first cannot be, in a line."""
    texts: list[str] = []
    for head in dict.fromkeys(cell.head for cell in cells):
        group = [cell for cell in cells if cell.head == head]
        names = ", ".join(f"{c.method} with {format_count(c.workers, 'worker')}" for c in group)
        why = f" ({'the first: ' if len(group) > 1 else ''}{group[0].reason})"
        texts.append(f"{head}: {names}{why if group[0].reason else ''}")
    return "; ".join(texts)


@dataclass(frozen=True)
class Table:
    """Table of a comparison.

    Attributes:
        rows: one per cell.
        judged: metric of the errors, e.g. ``"dev_error"``.
        target: value of the metric to be reached; None without one.
        reason: origin of the target, or why there is none.
        reference: the row that speed-ups are relative to: the fastest to the target of those with
            the fewest workers whose every seed reached it; None if there is none.
        impossible: cells that cannot be trained.
    """

    rows: Sequence[Row]
    judged: str
    target: float | None
    reason: str
    reference: Row | None = None
    impossible: Sequence[Impossible] = ()

    @property
    def metric(self) -> str:
        """The metric in words."""
        return self.judged.removeprefix("dev_").replace("_", " ")

    @property
    def counts(self) -> list[int]:
        """The numbers of workers, ascending."""
        return sorted({row.cell.workers for row in self.rows})

    @property
    def methods(self) -> dict[str, list[Row]]:
        """Rows by method, in order of appearance."""
        methods: dict[str, list[Row]] = {}
        for row in self.rows:
            methods.setdefault(row.cell.method, []).append(row)
        return methods


def build_table(
    cells: Sequence[Cell], target: float | None = None, impossible: Sequence[Impossible] = ()
) -> Table:
    """Build the table of a comparison.

    Args:
        cells: cells with their runs, all judged by one metric.
        target: value of the metric to be reached. None for 95% of the way from its value before
            training to the best mean end among the methods with the fewest workers; a single cell
            has no target then, since it would set its own.
        impossible: cells that cannot be trained.
    """
    judged, reason = cells[0].judged, "given"
    if target is None:
        target, reason = _default_target(cells) if len(cells) > 1 else (None, "none given")
    rows = [_row(cell, target) for cell in cells]
    reference = _reference(rows)
    if reference is not None:
        fastest_s = min(_target_seconds(row) for row in rows if row.is_earned)
        pairs = len(rows) - 1  # of which the fastest row and the reference are chosen
        rows = [
            replace(
                row,
                speedup=speedup(row, reference, 1 if _target_seconds(row) > fastest_s else pairs),
                ahead=_is_ahead(row, reference),
            )
            for row in rows
        ]
        reference = next(row for row in rows if row.cell is reference.cell)
    return Table(rows, judged, target, reason, reference, impossible)


def speedup(row: Row, other: Row, comparisons: int = 1) -> Speedup | None:
    """Speed-up to the target of one row over another; None unless every seed reached it.

    Args:
        row: a row of a table.
        other: another row of it, with the same seeds.
        comparisons: number of pairs of rows of which this one was chosen for its speed-up.
    """
    if not (row.is_earned and other.is_earned and len(row.reaches) == len(other.reaches)):
        return None
    if row.cell is other.cell:
        return Speedup(*[Interval.exact(1.0)] * 3)
    rates = [[hit.passes / hit.seconds for hit in of.reaches] for of in (row, other)]
    return Speedup(
        time=paired_ratio_ci(*pair_times(other, row), comparisons),
        steps=paired_ratio_ci(rates[0], rates[1], comparisons=comparisons),
        passes=paired_ratio_ci(*pair_times(row, other, "passes"), comparisons),
    )


def pair_times(row: Row, other: Row, unit: str = "seconds") -> tuple[Any, Any, tuple[Any, Any]]:
    """Times of two rows to the target by seed, and of the evaluations before, see `bounds`."""
    names = unit, f"{unit}_before"
    (ours, before), (theirs, their_before) = (
        [[getattr(hit, name) for hit in of.reaches] for name in names] for of in (row, other)
    )
    return ours, theirs, (before, their_before)


def reach(run: Run, judged: str, target: float) -> Reach:
    """Time at which a run's metric is first as good as a target.

    Args:
        run: a run; one without an error at its end (`final_error`) reaches nothing.
        judged: name of the metric, without a candidate's.
        target: value of the metric.
    """
    if math.isinf(final_error(run, judged)):
        return Reach()
    passes, values, times = run.curve(run.deployed(judged))
    is_as_good = as_error(run, 1.0) * values <= as_error(run, target)
    reached = np.flatnonzero(is_as_good & np.isfinite(values))
    if not len(reached):
        return Reach()
    k = reached[0]
    before = (passes[k - 1], times[k - 1]) if k else (0.0, 0.0)
    return Reach(float(passes[k]), float(times[k]), float(before[0]), float(before[1]))


def last(run: Run, judged: str) -> float:
    """Final value of a metric, of the candidate that the run deploys."""
    return float(run.summary[run.deployed(judged)])


def value_before_training(run: Run, judged: str) -> float | None:
    """Value of a metric before the first fold; None if it was not measured, or is not finite."""
    passes, values, _ = run.curve(run.deployed(judged))
    return float(values[0]) if passes[0] == 0.0 and math.isfinite(values[0]) else None


def _default_target(cells: Sequence[Cell]) -> tuple[float | None, str]:
    fewest = min(cell.workers for cell in cells)
    workers = format_count(fewest, "worker")
    ends: dict[tuple[str, str], tuple[float, float]] = {}  # end and start as errors
    for cell in cells:
        pairs = [
            (as_error(run, last(run, cell.judged)), as_error(run, start))
            for run in _select_ended(cell)
            if (start := value_before_training(run, cell.judged)) is not None
        ]
        if cell.workers == fewest and pairs:
            end, start = np.mean(pairs, axis=0)
            ends[cell.method, cell.name] = float(end), float(start)
    if not ends:
        return None, f"no run with {workers} has an end"
    best = min(ends, key=lambda name: ends[name])
    end, start = ends[best]
    if not end < start:
        return None, f"with {workers} nothing was learned"
    any_run = cells[0].runs[0]
    errors = start + IMPROVEMENT * (end - start), start, end
    value, was, went = (as_error(any_run, error) for error in errors)
    way = f"{IMPROVEMENT:.0%} of the way from {was:.4g} before training to {went:.4g}"
    return value, f"{way}, the end of {best[1]}"


def _reference(rows: Sequence[Row]) -> Row | None:
    fewest = min(row.cell.workers for row in rows)
    candidates = [row for row in rows if row.cell.workers == fewest and row.is_earned]
    return min(candidates, key=_target_seconds, default=None)


def _target_seconds(row: Row) -> float:
    return row.target_s.estimate if row.target_s else math.inf


def _row(cell: Cell, target: float | None) -> Row:
    runs, judged = _select_ended(cell), cell.judged
    diverged = sum(run.status != "done" for run in cell.runs)
    reaches = () if target is None else tuple(reach(run, judged, target) for run in cell.runs)
    earned = [hit for hit in reaches if hit.is_earned]
    seconds, before = ([hit.seconds for hit in earned], [hit.seconds_before for hit in earned])
    test = judged.replace("dev_", "test_", 1)
    tested = [float(run.summary.get(run.deployed(test), math.nan)) for run in runs]
    ends = [last(run, judged) for run in runs]
    starts = [s for run in runs if (s := value_before_training(run, judged)) is not None]
    return Row(
        cell,
        error=metric_ci(cell.is_share, ends, cell.example_weight) if runs else None,
        test=metric_ci(cell.is_share, tested) if runs and np.isfinite(tested).all() else None,
        seconds=positive_ci([float(run.summary["virtual_s"]) for run in runs]) if runs else None,
        target_s=geometric_ci(seconds, before) if earned else None,
        reached=sum(math.isfinite(hit.seconds) for hit in reaches),
        diverged=diverged,
        staleness=_staleness(cell.runs[0]),
        trained=_trained_share(runs),
        start=float(np.mean(starts)) if starts else None,
        reaches=reaches,
        faults=_count_faults(cell),
        infinite=len(cell.runs) - len(runs) - diverged,
    )


def _count_faults(cell: Cell) -> float | None:
    """Mean number of faults of a run; None if the cluster describes none but lost messages."""
    tables = cell.runs[0].config.get("cluster", {}).get("faults", ())
    faults = [build(Fault, table, "faults") for table in tables if table["kind"] != "message"]
    counts = [
        count_faults(faults_of(faults, cell.workers, run.config["seed"]), run.summary["virtual_s"])
        for run in (_select_ended(cell) if faults else ())
    ]
    return float(np.mean(counts)) if counts else None


def _is_ahead(row: Row, reference: Row) -> bool:
    """See `Row.ahead`."""
    pairs = [*zip(row.cell.runs, reference.cell.runs, strict=False)]
    if row.reached == len(pairs) or not (row.is_whole and reference.is_whole):
        return False
    for run, other in pairs:
        _, values, times = run.curve(run.deployed(row.cell.judged))
        _, theirs, their_times = other.curve(other.deployed(row.cell.judged))
        is_finite = np.isfinite(theirs)
        then: Any = np.interp(times[-1:], their_times[is_finite], theirs[is_finite])
        if as_error(run, float(values[-1])) >= as_error(run, float(then[0])):
            return False
    return True


def _select_ended(cell: Cell) -> list[Run]:
    return [run for run in cell.runs if math.isfinite(final_error(run, cell.judged))]


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
    staleness = load_timeline(run.path(TIMELINE)).staleness()
    return float(staleness.mean()) if len(staleness) else math.nan


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
    facts = {
        "settings": {name: [run.hash for run in group] for name, group in runs.items()},
        "runs_s": round(sum(entry.get("wall_s", 0.0) for entry in moments), 1),
        "reused": len(distinct.keys() & set(before)),
    }
    if moments and all("processor_s" in entry for entry in moments):
        facts["runs_processor_s"] = round(sum(entry["processor_s"] for entry in moments), 1)
    return facts


def _commit() -> str:
    """The commit of the source tree, or "unknown" where there is none."""
    try:
        git = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
        return subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"

"""From finished runs to the table: time to the target and error at the end, with intervals."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.judge.interval import Interval
from harness.judge.statistics import mean_ci, paired_difference_ci
from harness.store import Run
from reproductions.algorithms.experiments import BASELINE, TARGET, WIDER

ERROR = "dev_frame_error/iterate"
COLUMNS = (
    *("method", "cluster", "rate", "reached", "reached_wider", "seconds", "seconds_half_width"),
    *("error", "error_half_width", "more_error", "more_error_half_width", "runs"),
)
Cell = tuple[str, str]
"""A method and a cluster."""


@dataclass(frozen=True)
class CellResult:
    """One cell of the table.

    Attributes:
        rate: that was found.
        runs: one a seed, finished.
        baseline: the runs of `BASELINE` on the same cluster.
    """

    rate: float
    runs: Sequence[Run]
    baseline: Sequence[Run]

    def row(self, cell: Cell) -> list[str]:
        """Cells of `COLUMNS`; seconds are to the wider target, empty if a seed missed it."""
        errors, theirs = ([error_of(run) for run in runs] for runs in (self.runs, self.baseline))
        seconds = [seconds_to(run, WIDER) for run in self.runs]
        # A mean over the seeds that reached the target would favour methods that often miss it.
        whole = all(map(math.isfinite, seconds))
        return [
            *(*cell, f"{self.rate:g}", self._count_reached(TARGET), self._count_reached(WIDER)),
            *(_format_interval(mean_ci(seconds), 1) if whole else ["", ""]),
            *_format_interval(100 * mean_ci(errors), 2),
            *_format_interval(100 * paired_difference_ci(errors, theirs), 2),
            " ".join(run.hash[:12] for run in self.runs),
        ]

    def _count_reached(self, target: float) -> str:
        """Number of seeds that reached a target, as ``2 of 3``."""
        reached = sum(math.isfinite(seconds_to(run, target)) for run in self.runs)
        return f"{reached} of {len(self.runs)}"


def error_of(run: Run) -> float:
    """The last frame error on development speech; infinite of a run that did not end."""
    return float(run.summary[ERROR]) if run.status == "done" else math.inf


def seconds_to(run: Run, target: float) -> float:
    """Simulated seconds to the first reading at or below a target; infinite if there is none."""
    _, error, time_s = run.curve(ERROR)
    below = [float(t) for t, e in zip(time_s, error, strict=True) if e <= target]
    return below[0] if below else math.inf


def write(table: Mapping[Cell, CellResult], path: Path) -> None:
    """The table as CSV."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(measured.row(cell) for cell, measured in table.items())


def markdown(path: Path, cluster: str) -> str:
    """A cluster's table for the page, from the CSV: a row a method."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["cluster"] == cluster]
    heads = ["algorithm", f"reached {TARGET:.0%}", f"seconds to {WIDER:.0%}", "error, %"]
    lines = [[*heads, f"more than {BASELINE}"], ["---"] * (1 + len(heads))]
    for row in rows:
        means = [_cell(row, name) for name in ("seconds", "error", "more_error")]
        means[0] = means[0] or row["reached_wider"]
        lines.append([row["method"], row["reached"], *means])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _cell(row: Mapping[str, str], name: str) -> str:
    """A mean with half its interval; empty where there is none."""
    return f"{row[name]} ± {row[f'{name}_half_width']}" if row[name] else ""


def _format_interval(found: Interval, places: int) -> list[str]:
    """A mean and half its interval's width."""
    half = (found.high - found.low) / 2
    return [f"{found.estimate:.{places}f}", f"{half:.{places}f}"]

"""From finished runs to the table: time to the target and error at the end, with intervals."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.judge.interval import Interval
from harness.judge.statistics import mean_ci
from harness.store import Run
from reproductions.algorithms.experiments import METHODS, TARGET, TIMED_MINIBATCHES

ERROR = "dev_frame_error/iterate"
COLUMNS = (
    *("method", "cluster", "rate", "reached", "seconds", "seconds_half_width"),
    *("error", "error_half_width", "runs"),
)
Cell = tuple[str, str]
"""A method and a cluster."""


@dataclass(frozen=True)
class Measured:
    """One cell of the table.

    Attributes:
        rate: that was found.
        runs: one a seed, finished.
    """

    rate: float
    runs: Sequence[Run]

    @property
    def reached_s(self) -> list[float]:
        """When each run that reached the target first read an error that low."""
        return [s for run in self.runs if math.isfinite(s := seconds_to(run, TARGET))]

    def row(self, cell: Cell) -> list[str]:
        """Of `COLUMNS`; a mean over fewer than all seeds is not given."""
        reached = self.reached_s
        whole = len(reached) == len(self.runs)
        seconds = _told(mean_ci(reached), 4) if whole else ["", ""]
        error = _told(mean_ci([error_of(run) for run in self.runs]), 4)
        names = " ".join(run.hash[:12] for run in self.runs)
        told = f"{len(reached)} of {len(self.runs)}"
        return [*cell, f"{self.rate:g}", told, *seconds, *error, names]


def error_of(run: Run) -> float:
    """The last frame error on development speech; infinite of a run that did not end."""
    return float(run.summary[ERROR]) if run.status == "done" else math.inf


def seconds_to(run: Run, target: float) -> float:
    """Simulated seconds to the first reading at or below a target; infinite if there is none."""
    _, error, time_s = run.curve(ERROR)
    below = [float(t) for t, e in zip(time_s, error, strict=True) if e <= target]
    return below[0] if below else math.inf


def write(table: Mapping[Cell, Measured], path: Path) -> None:
    """The table as CSV."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(measured.row(cell) for cell, measured in table.items())


def markdown(path: Path) -> str:
    """The page's table from the CSV: a row a method, two columns a cluster."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = {(row["method"], row["cluster"]): row for row in csv.DictReader(file)}
    heads = [f"{name}: {what}" for name in TIMED_MINIBATCHES for what in ("seconds", "error")]
    lines = [["algorithm", *heads], ["---"] * (1 + len(heads))]
    for method in METHODS:
        cells = (rows[method, cluster] for cluster in TIMED_MINIBATCHES)
        lines.append([method, *(text for row in cells for text in _cells(row))])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _cells(row: Mapping[str, str]) -> tuple[str, str]:
    seconds = (
        f"{row['seconds']} ± {row['seconds_half_width']}" if row["seconds"] else row["reached"]
    )
    percent = (100 * float(row[name]) for name in ("error", "error_half_width"))
    return seconds, "{:.1f} ± {:.1f}%".format(*percent)


def _told(found: Interval, digits: int) -> list[str]:
    """A mean and half its interval's width."""
    half = (found.high - found.low) / 2
    return [f"{found.estimate:.{digits}g}", f"{half:.{digits - 2}g}"]

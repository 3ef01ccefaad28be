"""Results of `lagbench.compare`, `train` and `tolerate`, with their reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.judge import comparison as provenance
from harness.judge.break_point import Tolerance
from harness.judge.comparison import Row, Table
from harness.search.rates import TUNING_SEEDS
from harness.store import Cell, Run
from reports import comparison, tolerance


@dataclass(frozen=True)
class Result:
    """Result of `train` or `compare`: rows with intervals, and their runs; prints as a table.

    Attributes:
        table: a row for each algorithm and number of workers, and the target.
    """

    table: Table

    @property
    def rows(self) -> Sequence[Row]:
        """Rows of the table, one for each algorithm and number of workers."""
        return self.table.rows

    @property
    def runs(self) -> list[Run]:
        """All runs, row by row and seed by seed."""
        return [run for row in self.rows for run in row.cell.runs]

    def rates(self) -> list[dict[str, Any]]:
        """Learning rates that were tried: a record for each row, rate and tuning seed.

        Returns:
            Records with ``algorithm``, ``workers``, ``rate``, ``seed``, ``error`` (final error on
            development data; infinite if training diverged) and ``chosen``; none for rows whose
            rate was given.
        """
        return [
            {
                **{"algorithm": row.cell.method, "workers": row.cell.workers, "rate": rate},
                **{"seed": seed, "error": error, "chosen": rate == row.cell.rate},
            }
            for row in self.rows
            for rate, errors in row.cell.tried.items()
            for seed, error in zip(TUNING_SEEDS, errors, strict=False)
        ]

    def report(self, out: str | Path) -> list[Path]:
        """Write a page, its table as CSV, a plot, and all values as JSON.

        Args:
            out: the folder.

        Returns:
            Paths of the files.
        """
        # Names of the cells, so that the report lists the hashes of each cell's runs.
        named = {f"{row.cell.method}, {row.cell.workers}": row.cell for row in self.rows}
        return comparison.write(self.table, Path(out), _provenance(named))

    def __str__(self) -> str:
        return "\n".join(comparison.lines(self.table))


@dataclass(frozen=True)
class Tolerated:
    """Result of `tolerate`: the value at which training breaks, and the runs; prints as a table.

    Attributes:
        found: all points tried, the largest tolerated value and the smallest broken one.
    """

    found: Tolerance

    @property
    def tolerated(self) -> float:
        """The largest tolerated value."""
        return self.found.tolerated

    @property
    def broken(self) -> float:
        """The smallest value at which training broke; infinite if none was found."""
        return self.found.broken

    @property
    def interval(self) -> tuple[float, float]:
        """Values between which training breaks as far as the data decide; see `Tolerance`."""
        return self.found.interval

    def report(self, out: str | Path) -> list[Path]:
        """Write a page, its table as CSV, the tolerance curve, and all values as JSON.

        Args:
            out: the folder.

        Returns:
            Paths of the files.
        """
        named = {f"{self.found.what} {each.value:g}": each.cell for each in self.found.points}
        return tolerance.write_tolerance(self.found, Path(out), _provenance(named))

    def __str__(self) -> str:
        return "\n".join(tolerance.lines_of_tolerance(self.found))


def _provenance(cells: Mapping[str, Cell]) -> dict[str, Any]:
    runs = {name: [run.hash for run in cell.runs] for name, cell in cells.items()}
    return {**provenance.describe_program("lagbench"), "runs": runs}

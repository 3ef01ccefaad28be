"""What a comparison found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.judge import comparison as provenance
from harness.judge.comparison import Row, Table, Tolerance
from harness.store import Cell, Run
from reports import comparison


@dataclass(frozen=True)
class Result:
    """Rows with intervals, and the runs behind them; printed, it is a table.

    Attributes:
        table: the rows, one for each algorithm and number of workers, and the target.
    """

    table: Table

    @property
    def rows(self) -> Sequence[Row]:
        """One for each algorithm and number of workers."""
        return self.table.rows

    @property
    def runs(self) -> list[Run]:
        """Every run, cell by cell and seed by seed."""
        return [run for row in self.rows for run in row.cell.runs]

    def report(self, out: str | Path) -> list[Path]:
        """Write a page, its table as CSV, the picture of it, and everything for programs.

        Args:
            out: a folder.

        Returns:
            The files.
        """
        named = {f"{row.cell.method}, {row.cell.workers}": row.cell for row in self.rows}
        return comparison.write(self.table, Path(out), _provenance(named))

    def __str__(self) -> str:
        return "\n".join(comparison.lines(self.table))


@dataclass(frozen=True)
class Tolerated:
    """Where training breaks, and the runs behind it; printed, it is a line and a table.

    Attributes:
        found: every point tried, the largest value tolerated and the smallest broken.
    """

    found: Tolerance

    @property
    def tolerated(self) -> float:
        """The largest value that was tolerated."""
        return self.found.tolerated

    @property
    def broken(self) -> float:
        """The smallest value that was not; infinite if none was found."""
        return self.found.broken

    def report(self, out: str | Path) -> list[Path]:
        """Write a page, its table as CSV, the tolerance curve, and everything for programs.

        Args:
            out: a folder.

        Returns:
            The files.
        """
        named = {f"{self.found.what} {each.value:g}": each.cell for each in self.found.points}
        return comparison.write_tolerance(self.found, Path(out), _provenance(named))

    def __str__(self) -> str:
        return "\n".join(comparison.lines_of_tolerance(self.found))


def _provenance(cells: Mapping[str, Cell]) -> dict[str, Any]:
    runs = {name: [run.hash for run in cell.runs] for name, cell in cells.items()}
    return {**provenance.describe_program("lagbench"), "runs": runs}

"""What a comparison found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.execution.jobs.comparison import Compared
from harness.judge import provenance
from harness.judge.comparison import Cell, Row, Table, tabulated
from harness.store import Run
from reports import comparison


@dataclass(frozen=True)
class Result:
    """Rows with intervals, and the runs behind them; printed, it is a table.

    Attributes:
        table: the rows, one for each algorithm and number of workers, and the target.
    """

    table: Table

    @classmethod
    def of(cls, compared: Sequence[Compared], target: float | None = None) -> Result:
        """From finished runs.

        Args:
            compared: the cells.
            target: the error whose time is reported; None for 5% above the best one's.
        """
        cells = [
            Cell(
                *(each.method, each.workers, each.rate, each.runs, each.judged),
                edge=each.sweep is not None and not each.sweep.inside,
            )
            for each in compared
        ]
        return cls(tabulated(cells, target))

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
        return comparison.write(self.table, Path(out), self._provenance())

    def _provenance(self) -> dict[str, Any]:
        runs = {f"{row.cell.method}, {row.cell.workers}": row.cell.runs for row in self.rows}
        told = {name: [run.hash for run in group] for name, group in runs.items()}
        return {**provenance.of_program("lagbench"), "runs": told}

    def __str__(self) -> str:
        return "\n".join(comparison.lines(self.table))

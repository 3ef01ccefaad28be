"""Results of `lagbench.compare`, `train` and `tolerate`, with their reports."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torch import nn

from harness.base.errors import UserError
from harness.judge.break_point import Tolerance
from harness.judge.comparison import Row, Table
from harness.modules.trained import load_into
from harness.store import Cell, Run
from lagbench.answered import Answered
from reports import comparison, tolerance
from reports.answers import Answer


@dataclass(frozen=True)
class Result(Answered):
    """Result of `train` or `compare`: rows with intervals, and their runs; prints as a table.

    Attributes:
        table: a row for each algorithm and number of workers, and the target.
        untrained: makes the module of a seed's runs, before training.
        describe: what a seed's runs train, in words.
    """

    table: Table
    untrained: Callable[[int], nn.Module] = field(repr=False, compare=False)
    describe: Callable[[int], str] = field(repr=False, compare=False)

    @property
    def rows(self) -> Sequence[Row]:
        """Rows of the table, one for each algorithm and number of workers."""
        return self.table.rows

    @property
    def runs(self) -> list[Run]:
        """All runs, row by row and seed by seed."""
        return [run for row in self.rows for run in row.cell.runs]

    def model(self, row: int | None = None, seed: int | None = None, worker: int = 0) -> nn.Module:
        """A trained module with its buffers, in evaluation mode.

        Args:
            row: index in `rows`; None for the one with the best metric on development data.
            seed: a seed of the comparison; None for the first one that did not diverge.
            worker: whose buffers, if each worker has its own (``buffers="local"``).

        Raises:
            UserError: there is no such row or seed, or every run of it diverged.
        """
        runs = self._cell(row).runs
        finished = [run for run in runs if run.status == "done"]
        chosen = [run for run in finished if seed is None or run.config["seed"] == seed]
        if not chosen:
            seeds = ", ".join(str(run.config["seed"]) for run in finished)
            raise UserError(f"seed: {seed}; allowed: {seeds or 'none, as all diverged'}")
        return load_into(self.untrained(chosen[0].config["seed"]), chosen[0], worker).eval()

    def _cell(self, row: int | None) -> Cell:
        if row is None:
            best = min(self.rows, key=lambda row: row.end)
            if best.error is None:
                raise UserError("row: no run ends with an error; allowed: runs that do")
            return best.cell
        if not 0 <= row < len(self.rows):
            raise UserError(f"row: {row}; allowed: from 0 to {len(self.rows) - 1}")
        return self.rows[row].cell

    def report(self, out: str | Path) -> list[Path]:
        """See `Answered`; the page also says what was trained."""
        model = self.describe(self.runs[0].config["seed"])
        return comparison.answer_of(self.table, model).write(Path(out))

    def _answer(self) -> Answer:
        return comparison.answer_of(self.table)


@dataclass(frozen=True)
class Tolerated(Answered):
    """Result of `tolerate`: the value at which training breaks, and the runs; prints as a table.

    Attributes:
        found: all points tried, the largest tolerated value and the smallest broken one.
    """

    found: Tolerance

    @property
    def runs(self) -> list[Run]:
        """All runs, point by point and seed by seed."""
        return [run for point in self.found.points for run in point.cell.runs]

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

    def _answer(self) -> Answer:
        return tolerance.answer_of(self.found)

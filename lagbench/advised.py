"""Result of `lagbench.advise`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.commands import advice_text
from harness.judge.comparison import Row
from harness.search.advice import AdviceOutcome
from harness.store import Run
from reports.sentences import rank_rows


@dataclass(frozen=True)
class Advice:
    """Result of `advise`: what to run, how sure that is, and all candidates; prints as sentences.

    Attributes:
        found: the plan, the candidates and the runs.
        call: the call that made it, as text.
    """

    found: AdviceOutcome
    call: str = field(default="", repr=False, compare=False)

    @property
    def rows(self) -> Sequence[Row]:
        """One worker and the candidates that were trained in full, from the fastest."""
        return rank_rows(advice_text.build_advice_table(self.found))

    @property
    def algorithm(self) -> str:
        """The advised algorithm, with its interval between rounds after a colon."""
        return self.rows[0].cell.method

    @property
    def workers(self) -> int:
        """The advised number of workers."""
        return self.rows[0].cell.workers

    @property
    def rate(self) -> float:
        """The learning rate that was found for it."""
        return self.rows[0].cell.rate

    @property
    def runs(self) -> list[Run]:
        """Runs of the rows, seed by seed."""
        return [run for row in self.rows for run in row.cell.runs]

    def to_dict(self) -> dict[str, Any]:
        """JSON values: advice, candidates, and the plan with its digest."""
        return advice_text.answer_of(self.found).to_dict()

    def report(self, out: str | Path) -> list[Path]:
        """Write ``index.html``, its table as CSV, learning curves, and all values as JSON.

        Args:
            out: the folder, made if it is missing.

        Returns:
            Paths of the files.
        """
        return advice_text.answer_of(self.found).write(Path(out), self.call)

    def __str__(self) -> str:
        return str(advice_text.answer_of(self.found))

    def _repr_html_(self) -> str:
        return advice_text.answer_of(self.found).to_html()

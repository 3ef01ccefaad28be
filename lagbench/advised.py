"""Result of `lagbench.advise`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.commands import advice_text
from harness.judge.comparison import Row
from harness.search.advice import AdviceOutcome
from harness.store import Run
from lagbench.answered import Answered
from reports.answers import Answer
from reports.sentences import rank_rows


@dataclass(frozen=True)
class Advice(Answered):
    """Result of `advise`: what to run, how sure that is, and all candidates; prints as sentences.

    Attributes:
        found: the plan, the candidates and the runs.
    """

    found: AdviceOutcome

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

    def _answer(self) -> Answer:
        return advice_text.answer_of(self.found)

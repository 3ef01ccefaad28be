"""What all results of searches and comparisons have: an answer as text, page and data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reports.answers import Answer


@dataclass(frozen=True)
class Answered(ABC):
    """A result that prints as sentences and a table, in a notebook too."""

    @abstractmethod
    def _answer(self) -> Answer:
        """Its sentences, table, data and figures."""

    def report(self, out: str | Path) -> list[Path]:
        """Write ``index.html``, its table as CSV, figures, and all values as JSON.

        Args:
            out: the folder, made if it is missing.

        Returns:
            Paths of the files.
        """
        return self._answer().write(Path(out))

    def to_dict(self) -> dict[str, Any]:
        """All values as JSON values, None for what does not exist.

        A data frame of the rows of a `Result` is ``pandas.DataFrame(result.to_dict()["rows"])``, of
        the points of a `Tolerated` that of ``["points"]``; `Advice` has ``["candidates"]``.
        """
        return self._answer().to_dict()

    def __str__(self) -> str:
        return str(self._answer())

    def _repr_html_(self) -> str:
        """The answer in a notebook."""
        return self._answer().to_html()

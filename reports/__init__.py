"""From the store to figures, tables and a PDF; nothing here trains or computes a statistic."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.judge.results import Results


PUBLISHED = Path(__file__).parent / "published"
"""Published results: all of them in a clone, those of laptop scale in an installed package."""
SCALES = ("smoke", "laptop", "overnight", "gpu", "paper")
"""Scales of reproductions, the smallest first."""


def build(out: Path, results: Results | None = None) -> None:
    """Make the report of a reproduction in ``out``.

    Writes ``figures/``, ``tables/``, then ``results.json`` with their names, then ``runs.csv``,
    ``report.html`` and ``report.pdf``. The same input gives the same bytes.

    Args:
        out: folder with ``runs/`` and ``timelines/``.
        results: claims and exhibits; timelines that they draw are copied from their runs. If not
            given, those of ``results.json``, which is then written only if it names other files.

    Raises:
        UserError: ``out`` holds no results, or damaged ones.
    """
    from reports.assemble import assemble  # drawing libraries load only when needed

    assemble(out, results)

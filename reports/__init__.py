"""From the store to figures, tables and a PDF; nothing here trains or computes a statistic."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.judge.results import Results


def build(out: Path, results: Results | None = None) -> None:
    """Make the report of a reproduction in ``out``.

    Writes ``figures/``, ``tables/``, then ``results.json`` with their names, then ``runs.csv``,
    ``report.html`` and ``report.pdf``. The same input gives the same bytes.

    Args:
        out: where ``runs/`` and ``timelines/`` are.
        results: what was found: timelines that it draws are copied from its runs, and what
            ``lagbench bench`` measured of this machine is added. If not given, what
            ``results.json`` has, which is then written only if it names other files.

    Raises:
        UserError: ``out`` holds no results, or damaged ones.
    """
    from reports.assemble import assemble  # drawing libraries load only when needed

    assemble(out, results)

"""From the store to figures, tables and a PDF; nothing here trains or computes a statistic."""

from __future__ import annotations

from pathlib import Path


def build(out: Path) -> None:
    """Make the report of the reproduction in ``out``.

    Reads ``results.json``, ``runs/`` and ``timelines/``; writes ``figures/``,
    ``tables/`` and ``report.pdf``, and enters their names in ``results.json``.
    The same input gives the same bytes.

    Raises:
        UserError: ``out`` holds no results, or damaged ones.
    """
    from reports.assemble import assemble  # drawing libraries load only when needed

    assemble(out)

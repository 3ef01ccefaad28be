"""A comparison as lines: benchmark, quantity, now, baseline, change, verdict."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from harness.bench.comparison import Count, Row

HEAD = ("benchmark", "quantity", "now", "baseline", "worse by", "allowed", "verdict")
WIDEST = 18
"""Of a value: hashes are cut."""


def table(rows: Iterable[Row]) -> list[str]:
    """One line for every row under a head, in columns."""
    cells = [HEAD, *(_cells(row) for row in rows)]
    widths = [max(len(line[k]) for line in cells) for k in range(len(HEAD))]
    return [_line(line, widths) for line in cells]


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    words, figures, last = cells[:2], cells[2:-1], cells[-1]
    left = [cell.ljust(width) for cell, width in zip(words, widths[:2], strict=True)]
    right = [cell.rjust(width) for cell, width in zip(figures, widths[2:-1], strict=True)]
    return "  ".join([*left, *right, last])


def _cells(row: Row) -> tuple[str, ...]:
    change, allowed = _percent(row.loss), _percent(row.tolerance)
    return (
        short(row.benchmark),
        row.quantity,
        _value(row.now),
        _value(row.baseline),
        change,
        allowed.lstrip("+"),
        row.verdict,
    )


def short(benchmark: str) -> str:
    """A pytest name without its folder and the words all have."""
    file, _, test = benchmark.rpartition("/")[2].partition("::")
    return f"{file.removeprefix('test_').removesuffix('.py')}: {test.removeprefix('test_')}"


def _value(value: Count | None) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else "" if value is None else str(value)
    return text if len(text) <= WIDEST else f"{text[: WIDEST - 1]}…"


def _percent(part: float | None) -> str:
    return "" if part is None else f"{100 * part:+.0f}%"

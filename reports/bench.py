"""The page that compares this machine's speed with the published baseline, if it was measured.

``bench.json`` in a report's folder is one of the records that ``lagbench bench`` keeps.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.base.errors import UserError
from harness.bench.baseline import KEPT, latest
from harness.bench.comparison import Row, is_ratio, short
from harness.store.files import write_bytes
from reports import numbers

NAME = "bench.json"
Data = dict[str, Any]


def keep(out: Path) -> None:
    """Give the report in ``out`` this machine's figures, if ``lagbench bench`` has measured any."""
    found = latest(KEPT)
    if found is not None:
        write_bytes(out / NAME, found.read_bytes())


def page(out: Path) -> Data | None:
    """Data of the page, or None without figures in ``out``.

    Raises:
        UserError: the file cannot be read as a record of ``lagbench bench``.
    """
    path = out / NAME
    if not path.is_file():
        return None
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
        rows = [Row(**row) for row in held["rows"]]
        return {
            "time": str(held["time"]),
            "here": machine(held["machine"]),
            "published": machine(held["baseline"]),
            "rows": [_cells(row) for row in rows if _is_ratio(row)],
            "counts": _counts(rows),
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        # Damaged JSON, or a record of another version with other keys or types.
        told = " ".join(str(error).split())
        raise UserError(f"{path}: cannot be read as a record of lagbench bench ({told})") from None


def machine(facts: Mapping[str, Any]) -> str:
    """A machine in one line: processor, cores, load average, PyTorch's version."""
    cores, load = facts["cores"], facts["load_1_min"]
    busy = "" if load is None else f", load {load}"
    return f"{facts['processor']}, {cores} cores{busy}, torch {facts['versions'].get('torch', '–')}"


def _is_ratio(row: Row) -> bool:
    return is_ratio(row.quantity) and isinstance(row.now, float)


def _cells(row: Row) -> list[str]:
    change = "" if row.loss is None else f"{100.0 * row.loss:+.0f}%".replace("-", numbers.MINUS)
    return [
        short(row.benchmark).replace("_", " "),
        row.quantity,
        _format_value(row.now),
        _format_value(row.baseline),
        change,
    ]


def _format_value(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else numbers.MISSING


def _counts(rows: list[Row]) -> str:
    """One sentence about the exact counts, which are equal on all machines."""
    exact = [row for row in rows if row.quantity and not is_ratio(row.quantity)]
    known = [row for row in exact if row.now is not None and row.baseline is not None]
    wrong = [f"{short(row.benchmark)} ({row.quantity})" for row in known if row.fails]
    if wrong:
        return f"Of {len(known)} exact counts {len(wrong)} differ: {'; '.join(wrong)}."
    return f"All of {len(known)} exact counts are equal."

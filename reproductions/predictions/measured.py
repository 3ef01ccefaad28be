"""The predictions of outer loops beside what was measured: a Markdown table and a summary of each.

    python -m reproductions.predictions.measured

Predictions are the published tables of `lagbench predict`; nothing is simulated here. A cell's
measurement is the median over its runs. The error of a prediction is predicted / measured − 1; in
the table, one of a measurement outside its interval is in brackets.
"""

from __future__ import annotations

import csv
import tomllib
from pathlib import Path
from statistics import median
from typing import Any

MEASURED = Path(__file__).with_name("wan-measured.toml")
PUBLISHED = Path(__file__).parents[2] / "reports/published/predictions"
PREDICTIONS = {"predicted": "wan.csv", "mended": "wan-mended.csv"}
MEGA = 1e6

Cell = tuple[str, int, float]
"""Algorithm, steps between two synchronisations, and bits a second of the limit."""


def read_measured() -> dict[Cell, tuple[float, float]]:
    """Milliseconds per step of each cell, and the share of them in which a worker computes."""
    cells = tomllib.loads(MEASURED.read_text(encoding="utf-8"))["measured"]["cells"]
    measured: dict[Cell, tuple[float, float]] = {}
    for cell in cells:
        runs = list(zip(cell["ms_per_step"], cell["computing_ms"], strict=True))
        measured[_cell(cell)] = median(ms for ms, _ in runs), median(part / ms for ms, part in runs)
    return measured


def read_prediction(name: str) -> dict[Cell, tuple[float, ...]]:
    """Milliseconds per step of each cell, their low and high end, and the share of computing."""
    with (PUBLISHED / PREDICTIONS[name]).open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    columns = ("ms_per_step", "ms_low", "ms_high", "computing_share")
    return {_cell(row): tuple(float(row[column]) for column in columns) for row in rows}


def _cell(row: dict[str, Any]) -> Cell:
    return str(row["algorithm"]), int(row["H"]), float(row["bandwidth_bits_per_s"])


def summarise(name: str) -> str:
    """One line: errors of times and shares, and how many intervals hold their measurement."""
    measured, predicted = read_measured(), read_prediction(name)
    errors = [abs(predicted[cell][0] / ms - 1.0) for cell, (ms, _) in measured.items()]
    shares = [abs(predicted[cell][3] / share - 1.0) for cell, (_, share) in measured.items()]
    inside = sum(
        predicted[cell][1] <= ms <= predicted[cell][2] for cell, (ms, _) in measured.items()
    )
    worst = f"median error {median(errors):.1%}, largest {max(errors):.1%}"
    computing = f"share of computing, median error {median(shares):.1%}"
    return f"{len(measured)} cells: {worst}; {inside} intervals hold their measurement; {computing}"


def format_table() -> str:
    """The table of all cells, with each prediction's figures under its name."""
    heads = ["algorithm", "H", "limit, Mbit/s", "measured, ms"]
    heads += [f"{name}{unit}" for name in PREDICTIONS for unit in (", ms", ": error")]
    lines = [heads, ["---"] * len(heads)]
    predictions = [read_prediction(name) for name in PREDICTIONS]
    for cell, (measured, _) in read_measured().items():
        algorithm, every, limit = cell
        line = [algorithm, str(every), f"{limit / MEGA:,.0f}", _format_ms(measured)]
        for ms, low, high, _ in (prediction[cell] for prediction in predictions):
            error = f"{100 * (ms / measured - 1.0):+.0f}%".replace("-", "−")
            line += [_format_ms(ms), error if low <= measured <= high else f"({error})"]
        lines.append(line)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _format_ms(ms: float) -> str:
    return f"{ms:,.0f}" if ms >= 1000 else f"{ms:.1f}"


if __name__ == "__main__":
    print(format_table())
    for prediction in PREDICTIONS:
        print(f"\n{prediction}: {summarise(prediction)}")

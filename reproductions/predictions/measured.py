"""A prediction of outer loops beside what was measured: a table and a summary.

    python -m reproductions.predictions.measured wan

Predictions are the published tables of `lagbench predict`; nothing is simulated here. A cell's
measurement is the median over its runs. The error of a prediction is predicted / measured − 1.
"""

from __future__ import annotations

import argparse
import csv
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from harness.base.errors import EXIT_DONE, UserError
from harness.cli import Parser, exit_code

PLANS = Path(__file__).parent
PUBLISHED = Path(__file__).parents[2] / "reports/published/predictions"
MEGA = 1e6


@dataclass(frozen=True)
class CellComparison:
    """A cell of a prediction, and its measurement.

    Attributes:
        algorithm, every, bandwidth_bits_per_s: the cell.
        ms: predicted milliseconds per step.
        low_ms, high_ms: ends of the prediction's interval.
        measured_ms: median over the cell's runs.
        share: predicted share of a step in which a worker computes.
        measured_share: median over the runs.
    """

    algorithm: str
    every: int
    bandwidth_bits_per_s: float
    ms: float
    low_ms: float
    high_ms: float
    share: float
    measured_ms: float
    measured_share: float

    @property
    def error(self) -> float:
        """Relative error of the prediction."""
        return self.ms / self.measured_ms - 1.0

    @property
    def is_inside(self) -> bool:
        """Whether the measurement lies in the prediction's interval."""
        return self.low_ms <= self.measured_ms <= self.high_ms


def compare(prediction: Path, measured: Path) -> list[CellComparison]:
    """The cells of a prediction that were measured, in the prediction's order.

    Args:
        prediction: a table that `lagbench predict` wrote.
        measured: a file like ``wan-measured.toml``.

    Raises:
        UserError: a measured cell was not predicted.
    """
    measurements = tomllib.loads(measured.read_text(encoding="utf-8"))["measured"]["cells"]
    runs = {_cell_of(cell): (cell["ms_per_step"], cell["computing_ms"]) for cell in measurements}
    with prediction.open(encoding="utf-8") as file:
        rows = {_cell_of(row): row for row in csv.DictReader(file)}
    if unknown := [cell for cell in runs if cell not in rows]:
        raise UserError(f"{measured}: {unknown[0]} is not a cell of {prediction}")
    return [
        CellComparison(
            *cell,
            *(float(row[name]) for name in ("ms_per_step", "ms_low", "ms_high", "computing_share")),
            measured_ms=median(runs[cell][0]),
            measured_share=median(part / ms for ms, part in zip(*runs[cell], strict=True)),
        )
        for cell, row in rows.items()
        if cell in runs
    ]


def _cell_of(row: dict[str, Any]) -> tuple[str, int, float]:
    return str(row["algorithm"]), int(row["H"]), float(row["bandwidth_bits_per_s"])


def summarise(cells: Sequence[CellComparison]) -> str:
    """One line: errors of times and shares, and how many intervals hold their measurement."""
    errors = [abs(cell.error) for cell in cells]
    shares = [abs(cell.share / cell.measured_share - 1.0) for cell in cells]
    inside = sum(cell.is_inside for cell in cells)
    worst = f"median error {median(errors):.1%}, largest {max(errors):.1%}"
    computing = f"share of computing, median error {median(shares):.1%}"
    return f"{len(cells)} cells: {worst}; {inside} intervals hold their measurement; {computing}"


def format_table(tables: Mapping[str, Sequence[CellComparison]]) -> str:
    """A Markdown table of cells, with each prediction's figures under its name.

    Args:
        tables: the same cells of one prediction or more, by name; an error in brackets is one of
            a measurement outside its interval.
    """
    heads = ["algorithm", "H", "limit, Mbit/s", "measured, ms"]
    heads += [f"{name}{unit}" for name in tables for unit in (", ms", ": error")]
    lines = [" | ".join(heads), " | ".join("---" for _ in heads)]
    for cells in zip(*tables.values(), strict=True):
        head = cells[0]
        columns = [head.algorithm, str(head.every), f"{head.bandwidth_bits_per_s / MEGA:,.0f}"]
        columns.append(_format_ms(head.measured_ms))
        for cell in cells:
            error = f"{100 * cell.error:+.0f}%".replace("-", "−")
            columns += [_format_ms(cell.ms), error if cell.is_inside else f"({error})"]
        lines.append(" | ".join(columns))
    return "\n".join(f"| {line} |" for line in lines)


def _format_ms(ms: float) -> str:
    return f"{ms:,.0f}" if ms >= 1000 else f"{ms:.1f}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the comparison of a published prediction; see the module."""
    parser = Parser(prog="python -m reproductions.predictions.measured", description=__doc__)
    parser.add_argument("name", help="e.g. wan: NAME-measured.toml and its tables")
    return exit_code(lambda: _run(parser.parse_args(arguments)))


def _run(arguments: argparse.Namespace) -> int:
    measured = PLANS / f"{arguments.name}-measured.toml"
    if not measured.is_file():
        raise UserError(f"{measured}: there is no such file; allowed: a measured prediction")
    names = {"predicted": arguments.name, "mended": f"{arguments.name}-mended"}
    files = {name: PUBLISHED / f"{file}.csv" for name, file in names.items()}
    tables = {name: compare(file, measured) for name, file in files.items() if file.is_file()}
    print(format_table(tables))
    for name, cells in tables.items():
        print(f"\n{name}: {summarise(cells)}")
    return EXIT_DONE


if __name__ == "__main__":
    sys.exit(main())

# matplotlib's keyword arguments have no types:
# pyright: reportUnknownMemberType=false
"""A prediction of outer loops beside what was measured: a table, a summary and a picture.

    python -m reproductions.measured wan [--picture wan.png]

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
from typing import TYPE_CHECKING, Any

from harness.base.errors import EXIT_DONE, UserError
from harness.cli import Parser, exit_code

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["CellComparison", "compare", "format_table", "main", "summarise"]

PLANS = Path(__file__).parent / "predictions"
PUBLISHED = Path(__file__).parents[1] / "reports/published/predictions"
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
        measured: a file like ``predictions/wan-measured.toml``.

    Raises:
        UserError: a measured cell was not predicted.
    """
    told = tomllib.loads(measured.read_text(encoding="utf-8"))["measured"]["cells"]
    runs = {_cell_of(cell): (cell["ms_per_step"], cell["computing_ms"]) for cell in told}
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
        one = cells[0]
        shown = [one.algorithm, str(one.every), f"{one.bandwidth_bits_per_s / MEGA:,.0f}"]
        shown.append(_format_ms(one.measured_ms))
        for cell in cells:
            error = f"{100 * cell.error:+.0f}%".replace("-", "−")
            shown += [_format_ms(cell.ms), error if cell.is_inside else f"({error})"]
        lines.append(" | ".join(shown))
    return "\n".join(f"| {line} |" for line in lines)


def _format_ms(ms: float) -> str:
    return f"{ms:,.0f}" if ms >= 1000 else f"{ms:.1f}"


def draw(tables: Mapping[str, Sequence[CellComparison]]) -> bytes:
    """A PNG: the first prediction against its measurements, and the errors of each prediction."""
    from reports import style

    with style.use_style():
        figure = style.empty_figure(3.3 + 2.2 * len(tables))
        axes = figure.subplots(1 + len(tables), 1, height_ratios=[1.5] + [1.0] * len(tables))
        name, cells = next(iter(tables.items()))
        _draw_against(axes[0], name, cells)
        for below, (name, cells) in zip(axes[1:], tables.items(), strict=True):
            below.sharey(axes[1])
            _draw_errors(below, name, cells)
        return style.render_figure(figure, "png")


def _draw_against(axes: Axes, name: str, cells: Sequence[CellComparison]) -> None:
    """Predicted against measured milliseconds, by bandwidth (colour) and algorithm (marker)."""
    from reports import style

    bandwidths = sorted({cell.bandwidth_bits_per_s for cell in cells})
    algorithms = list(dict.fromkeys(cell.algorithm for cell in cells))
    ends = [min(c.measured_ms for c in cells) / 1.4, max(c.measured_ms for c in cells) * 1.4]
    axes.plot(ends, ends, color=style.MUTED, linewidth=0.8, label="predicted = measured")
    for cell in cells:
        axes.errorbar(
            cell.measured_ms,
            cell.ms,
            yerr=[[cell.ms - cell.low_ms], [cell.high_ms - cell.ms]],
            color=style.cycle(style.COLOURS, bandwidths.index(cell.bandwidth_bits_per_s)),
            marker=style.cycle(style.MARKERS, algorithms.index(cell.algorithm)),
            markerfacecolor="none",
            linestyle="none",
        )
    for place, algorithm in enumerate(algorithms):
        marker = style.cycle(style.MARKERS, place)
        axes.plot([], [], color=style.INK, marker=marker, mfc="none", ls="none", label=algorithm)
    for place, bandwidth in enumerate(bandwidths):
        colour, shown = style.cycle(style.COLOURS, place), f"{bandwidth / MEGA:,.0f} Mbit/s"
        axes.plot([], [], color=colour, marker="s", linestyle="none", label=shown)
    for axis in (axes.xaxis, axes.yaxis):
        style.set_log_scale(axis)
    axes.set(xlim=ends, ylim=ends)
    axes.set(xlabel="measured, ms per step", ylabel=f"{name}, ms per step, 90% interval")
    axes.legend(loc="upper left", ncols=2)


def _draw_errors(axes: Axes, name: str, cells: Sequence[CellComparison]) -> None:
    """Predicted over measured, with intervals; limits ascend from left to right within an H."""
    from reports import style

    bandwidths = sorted({cell.bandwidth_bits_per_s for cell in cells})
    algorithms = list(dict.fromkeys(cell.algorithm for cell in cells))
    loops = list(dict.fromkeys((cell.algorithm, cell.every) for cell in cells))
    axes.axhline(0.0, color=style.MUTED, linewidth=0.8)
    for cell in cells:
        place = bandwidths.index(cell.bandwidth_bits_per_s)
        apart = 0.8 * ((place + 0.5) / len(bandwidths) - 0.5)
        low, high = (100 * (ms / cell.measured_ms - 1.0) for ms in (cell.low_ms, cell.high_ms))
        error = 100 * cell.error
        axes.errorbar(
            loops.index((cell.algorithm, cell.every)) + apart,
            error,
            yerr=[[error - low], [high - error]],
            color=style.cycle(style.COLOURS, place),
            marker=style.cycle(style.MARKERS, algorithms.index(cell.algorithm)),
            markerfacecolor="none",
        )
    named = [f"{name}\nH = {every}" for name, every in loops]
    axes.set_xticks(range(len(loops)), named, fontsize=8)
    axes.set_ylabel(f"{name}:\nerror, % of measured")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the comparison of a published prediction; see the module."""
    parser = Parser(prog="python -m reproductions.measured", description=__doc__)
    parser.add_argument("name", help="e.g. wan: predictions/NAME-measured.toml and its tables")
    parser.add_argument("--picture", type=Path, metavar="PNG", help="draw the comparison")
    return exit_code(lambda: _run(parser.parse_args(arguments)))


def _run(arguments: argparse.Namespace) -> int:
    measured = PLANS / f"{arguments.name}-measured.toml"
    if not measured.is_file():
        raise UserError(f"{measured}: there is no such file; allowed: a measured prediction")
    asked = {"predicted": arguments.name, "mended": f"{arguments.name}-mended"}
    files = {name: PUBLISHED / f"{file}.csv" for name, file in asked.items()}
    tables = {name: compare(file, measured) for name, file in files.items() if file.is_file()}
    print(format_table(tables))
    for name, cells in tables.items():
        print(f"\n{name}: {summarise(cells)}")
    if arguments.picture is not None:
        arguments.picture.write_bytes(draw(tables))
    return EXIT_DONE


if __name__ == "__main__":
    sys.exit(main())

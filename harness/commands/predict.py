"""`lagbench predict`: predict the time of a run on a cluster, without training it."""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from harness.base.files import cluster_file, describe_choices, run_file

if TYPE_CHECKING:
    from harness.rollouts.allowances import Allowance
    from harness.simulator.outer_loops import Cell

__all__ = ["ALLOWANCE_COLUMNS", "COLUMNS", "configure", "format_allowance", "format_row", "run"]

COLUMNS = (
    *("algorithm", "H", "bandwidth_bits_per_s"),
    *("ms_per_step", "ms_low", "ms_high", "computing_share"),
)

Say = Callable[[str], None]

ALLOWANCE_COLUMNS = ("allowance", "seconds", "low", "high")


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "file",
        type=run_file,
        help=f"run file, or a plan of outer loops or allowances: {describe_choices('run')}",
    )
    parser.add_argument("--out", type=Path, metavar="CSV", help="rows of a plan as a file")
    parser.add_argument(
        "--cluster", type=cluster_file, help="cluster that replaces the run file's, by name or file"
    )
    parser.add_argument(
        "--workers", type=int, help="number of workers that replaces the run file's"
    )
    parser.add_argument(
        "--target",
        type=Path,
        help="a finished run of the same settings, to predict the time of its evaluations",
    )
    parser.add_argument(
        "--kept",
        type=float,
        help="share of frames that decoders keep, in sequence training;"
        " that of the target, else 0.15, if not given",
    )


def run(arguments: argparse.Namespace) -> int:
    """Simulate, and print throughput, speed-up, staleness and time; or a table of outer loops."""
    from harness.base.settings import KIND, load_toml

    # A plan is no run: it has a format and a prediction of its own.
    plans = {"OuterLoops": _outer_loops, "Allowances": _allowances}
    make_rows = plans.get(str(load_toml(arguments.file).get(KIND)))
    return _run(arguments) if make_rows is None else _plan(arguments, make_rows)


Rows = tuple[Sequence[str], list[list[str]]]
"""Header and rows of a table."""


def _plan(arguments: argparse.Namespace, make_rows: Callable[[Path, Say], Rows]) -> int:
    """Print the rows of a plan, and write them to ``--out`` if given."""
    from harness.base.errors import EXIT_DONE, UserError

    for option in ("cluster", "workers", "target", "kept"):
        if getattr(arguments, option) is not None:
            raise UserError(f"--{option}: for a run; {arguments.file} is a plan")

    table = make_rows(arguments.file, lambda line: print(line, file=sys.stderr))
    _write_rows(sys.stdout, table)
    if arguments.out is not None:
        from harness.simulator.timeline_file import atomic_output

        with atomic_output(arguments.out, "the prediction") as draft, draft.open("w") as file:
            _write_rows(file, table)
    return EXIT_DONE


def _outer_loops(path: Path, say: Say) -> Rows:
    from harness.base.settings import load_spec
    from harness.simulator.outer_loops import OuterLoops, predict_steps

    found = predict_steps(load_spec(OuterLoops, path), path, say)
    return COLUMNS, [format_row(cell) for cell in found]


def _allowances(path: Path, say: Say) -> Rows:
    from harness.base.settings import load_spec
    from harness.rollouts.allowances import Allowances, predict_allowances

    found = predict_allowances(load_spec(Allowances, path), path, say)
    return ALLOWANCE_COLUMNS, [format_allowance(row) for row in found]


def _write_rows(file: TextIO, table: Rows) -> None:
    rows = csv.writer(file, lineterminator="\n")
    rows.writerow(table[0])
    rows.writerows(table[1])


def format_allowance(row: Allowance) -> list[str]:
    """A predicted allowance as a row of the table, in whole seconds."""
    return [str(row.allowance), *(f"{each:.0f}" for each in (row.seconds, row.low, row.high))]


def format_row(cell: Cell) -> list[str]:
    """A cell as a row of the table, times with six digits and the share with four."""
    figures = (cell.ms_per_step, cell.ms_low, cell.ms_high)
    asked = [cell.algorithm, str(cell.every), f"{cell.bandwidth_bits_per_s:.0f}"]
    return [*asked, *(f"{figure:.6g}" for figure in figures), f"{cell.computing_share:.4g}"]


def _run(arguments: argparse.Namespace) -> int:
    """Print the prediction of a run."""
    from harness.base.errors import EXIT_DONE, UserError
    from harness.fidelity.predict import prediction
    from harness.runs.file import load_run
    from harness.runs.idle import idle_lines
    from harness.simulator import load_cluster

    if arguments.out is not None:
        raise UserError(f"--out {arguments.out}: for a plan; {arguments.file} is a run")
    if arguments.workers is not None and not 1 <= arguments.workers <= 1_000_000:
        raise UserError(f"--workers {arguments.workers}: allowed: 1 to 1000000")
    if arguments.kept is not None and not 0.0 < arguments.kept <= 1.0:
        raise UserError(f"--kept {arguments.kept}: allowed: above 0, to 1")
    cluster = load_cluster(arguments.cluster) if arguments.cluster else None
    asked = load_run(arguments.file)
    config = asked.config.with_cluster(cluster, arguments.workers)
    for line in idle_lines([config], used=config.application.timed_by):
        print(line, file=sys.stderr)
    options = cluster, arguments.workers, arguments.target, arguments.kept
    pieces = config.application.pieces(config, asked.data)
    for line in prediction(asked.config, pieces, *options):
        print(line)
    return EXIT_DONE

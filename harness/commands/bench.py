"""`lagbench bench`: run the benchmarks, and compare them with the baseline."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from harness.base.errors import EXIT_DONE, UserError

if TYPE_CHECKING:
    from harness.bench.comparison import Row
    from harness.bench.regressions import Measure

__all__ = ["EXIT_SLOWER", "configure", "run"]

EXIT_SLOWER = 1
"""Exit code if a ratio is worse than its tolerance, a count differs, or a benchmark failed."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "--check", action="store_true", help="exit with 1 if a benchmark is outside its tolerance"
    )
    parser.add_argument(
        "--only", metavar="EXPR", help="run only benchmarks whose name matches, as pytest -k"
    )
    parser.add_argument("--large", action="store_true", help="include the long benchmarks")
    parser.add_argument(
        "--renew", metavar="REASON", help="rewrite the baseline, and record the reason"
    )
    parser.add_argument(
        "--runs",
        type=int,
        default=3,
        help="number of runs that a renewed baseline is computed from (3)",
    )
    parser.add_argument(
        "--baseline", type=Path, metavar="FILE", help="baseline file (default: the committed one)"
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("reports/out/bench"),
        help="folder for the figures of every run",
    )
    parser.add_argument(
        "--report", type=Path, metavar="DIR", help="add the figures to the report in this folder"
    )


def run(arguments: argparse.Namespace) -> int:
    """Measure, then compare with the baseline or renew it."""
    from harness.bench.steps import BENCHMARKS, BenchmarkError, measure

    root = Path(__file__).parents[2]
    _refuse(arguments, root / BENCHMARKS)
    path = arguments.baseline or root / BENCHMARKS / "baseline.json"
    extra = [] if arguments.large else ["-m", "not large"]
    extra += ["-k", arguments.only] if arguments.only else []

    work = partial(measure, root, extra=extra)
    try:
        if arguments.renew is not None:
            return _renew(arguments, path, work)
        return _compare(arguments, path, work)
    except BenchmarkError as error:
        _say(f"bench: {error}")
        return EXIT_SLOWER


def _refuse(arguments: argparse.Namespace, benchmarks: Path) -> None:
    """Reject options that cannot be carried out, before anything is measured."""
    from importlib.util import find_spec

    if not benchmarks.is_dir():
        raise UserError(f"bench: {benchmarks} is no folder; allowed: a checkout of the source")
    if find_spec("pytest_benchmark") is None:
        raise UserError("bench: needs pytest-benchmark (the dependency group test)")
    if arguments.renew is not None and not arguments.renew.strip():
        raise UserError("--renew '': allowed: the reason for another baseline")
    if arguments.renew is not None and arguments.large:
        raise UserError("--large with --renew: allowed: one of them; the baseline has no long ones")
    if arguments.report is not None and not (arguments.report / "results.json").is_file():
        raise UserError(f"--report {arguments.report}: holds no results.json; allowed: a report")
    if not 1 <= arguments.runs <= 100:
        raise UserError(f"--runs {arguments.runs}: allowed: 1 to 100")


def _compare(arguments: argparse.Namespace, path: Path, measure: Measure) -> int:
    """Print the table, and write a record; with ``--check`` a failure sets the exit code."""
    from harness.bench.baseline import load, record
    from harness.bench.comparison import table
    from harness.bench.regressions import check

    baseline, about = load(path)
    partly = bool(arguments.only)
    now, rows = check(measure, baseline, about, partly=partly, say=_say)
    for line in table(rows):
        print(line)
    kept = record(arguments.out, now, rows, about, whole=not partly)
    _say(f"kept: {kept}")
    if arguments.report is not None:
        _enter(kept, arguments.report)
    failing = [row for row in rows if row.fails]
    print(_summary(rows, failing))
    return EXIT_SLOWER if failing and arguments.check else EXIT_DONE


def _enter(kept: Path, folder: Path) -> None:
    """Add a record to the report in a folder, and rebuild it."""
    import reports
    from harness.store.files import write_bytes
    from reports.bench import NAME

    write_bytes(folder / NAME, kept.read_bytes())
    reports.build(folder)
    print(folder / "report.pdf")


def _summary(rows: list[Row], failing: list[Row]) -> str:
    """One line: the number of quantities if all hold, else the failing ones."""
    from harness.bench.comparison import short

    if not failing:
        return f"{len(rows)} quantities: none is worse than the baseline allows"
    named = (f"{short(row.benchmark)} ({row.quantity} {row.verdict})" for row in failing)
    return f"{len(failing)} of {len(rows)} quantities fail: " + "; ".join(named)


def _renew(arguments: argparse.Namespace, path: Path, measure: Measure) -> int:
    """Write the baseline; with ``--only`` its other benchmarks stay."""
    from harness.bench.baseline import load, same_processor, save
    from harness.bench.regressions import measure_baseline

    before, about = load(path) if arguments.only else ({}, {})
    try:
        found = measure_baseline(measure, arguments.runs, _say)
    except ValueError as error:
        _say(f"bench: {error}")
        return EXIT_SLOWER
    # Counts are equal on all machines; ratios of two processors must not share one baseline.
    counted = not any(each.ratios for each in found.values())
    if arguments.only and not counted and not same_processor(about):
        raise UserError(
            f"--only {arguments.only}: --baseline {path} is of another processor;"
            " allowed with --renew: the whole, or counts alone"
        )
    every, renewals = {**before, **found}, about.get("renewals", [])
    save(path, every, arguments.renew, arguments.runs, renewals, counted)
    print(f"{path}: {len(found)} benchmarks renewed")
    return EXIT_DONE


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)

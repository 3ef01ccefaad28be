"""`lagbench compare-algorithms`: one run file with several algorithms and numbers of workers."""

from __future__ import annotations

import argparse
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import UserError

if TYPE_CHECKING:
    from harness.execution.jobs.comparison import Grid

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("file", type=Path, help="the run, as a TOML file")
    parser.add_argument(
        "--algorithms", default="", help="async,averaging:10,… or classes; without it the file's"
    )
    parser.add_argument("--workers", default="", help="1,4,16,…; without it the file's")
    parser.add_argument("--seeds", type=int, default=3, help="how many, from the file's (3)")
    parser.add_argument(
        "--set",
        dest="changes",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="in place of the file's, e.g. schedule.rate=0.01; may be repeated",
    )
    parser.add_argument(
        "--rates", default="sweep", help="sweep (default): one for each; file: the file's for all"
    )
    parser.add_argument("--jobs", type=int, default=1, help="processes, where rates are the file's")
    parser.add_argument(
        "--out", type=Path, default=Path("reports/out/comparison"), help="table, CSV, plot and runs"
    )


def run(arguments: argparse.Namespace) -> int:
    """Run what the store does not have, print the table, and write it with its picture."""
    from harness.errors import EXIT_DONE
    from harness.execution.jobs.named import execute_named
    from harness.execution.runs.training import TrainingConfig
    from harness.judge import provenance
    from harness.judge.comparison import Cell, tabulated
    from harness.store import Run
    from harness.store.atomic import writable_folder
    from reports import comparison

    if arguments.seeds < 1 or arguments.rates not in ("sweep", "file"):
        raise UserError("--seeds: allowed: from 1; --rates: allowed: sweep, file")
    grid = _grid(arguments)
    store = writable_folder(arguments.out, "--out") / "runs"

    def obtain(config: TrainingConfig[object], called: str) -> Run:
        return execute_named({called: config}, str, store, jobs=1)[called]

    if arguments.rates == "file":  # all of them are known, and may run beside each other
        execute_named(grid.known(), str, store, jobs=max(1, arguments.jobs))
    cells = [
        Cell(
            *(c.method, c.workers, c.rate, c.runs, c.judged),
            c.sweep is not None and not c.sweep.inside,
        )
        for c in grid.run(obtain)
    ]
    table = tabulated(cells)
    runs = {f"{c.method}, {c.workers}": [run.hash for run in c.runs] for c in cells}
    told = {**provenance.of_program("lagbench"), "runs": runs}
    comparison.write(table, arguments.out, told)
    for line in comparison.lines(table):
        print(line)
    print(f"{arguments.out / 'report.md'}")
    return EXIT_DONE


def _grid(arguments: argparse.Namespace) -> Grid:
    """What is compared."""
    from dataclasses import replace
    from typing import Any, cast

    from harness.execution.jobs.comparison import Grid
    from harness.execution.runs.config import RunConfig
    from harness.execution.runs.file import load_run
    from harness.execution.runs.methods import Method, method_of

    changes = [_change(text) for text in arguments.changes]
    base = load_run(arguments.file, RunConfig, changes=changes).config

    def configured(method: Method, workers: int, rate: float, seed: int) -> RunConfig:
        schedule = replace(cast(Any, base.schedule), rate=rate)
        parts = {"algorithm": method.algorithm, "protocol": method.protocol}
        return replace(base, **parts, workers=workers, schedule=schedule, seed=seed)

    own = Method(type(base.algorithm).__name__, base.algorithm, base.timed)
    named = [word.strip() for word in arguments.algorithms.split(",") if word.strip()]
    methods: Sequence[Method] = [method_of(word) for word in named] or [own]
    workers = _numbers(arguments.workers) or [base.workers]
    seeds = range(base.seed, base.seed + arguments.seeds)
    rates = None if arguments.rates == "sweep" else base.schedule.rate
    return Grid(configured, methods, workers, seeds, base.schedule.rate, rates)


def _numbers(text: str) -> list[int]:
    """Numbers of workers.

    Raises:
        UserError: something else.
    """
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not all(word.isdecimal() and int(word) > 0 for word in words):
        raise UserError(f"--workers: {text!r}; allowed: whole numbers from 1, as 1,4,16")
    return [int(word) for word in words]


def _change(text: str) -> tuple[tuple[str, ...], object]:
    """A dotted key and its value, as TOML would have it; a word needs no quotes.

    Raises:
        UserError: it is none.
    """
    key, equals, value = text.partition("=")
    steps = tuple(step.strip() for step in key.split("."))
    if not equals or not all(re.fullmatch(r"[\w-]+", step) for step in steps):
        raise UserError(
            f"--set: {text!r} is not allowed; allowed: key=value, as schedule.rate=0.01"
        )
    try:
        return steps, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return steps, value.strip()

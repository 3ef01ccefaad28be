"""`lagbench compare-algorithms`: one run file with several algorithms and numbers of workers."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from harness import argument_types
from harness.base.files import describe_choices, run_file
from harness.commands import overrides

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("file", type=run_file, help=f"the run: {describe_choices('run')}")
    parser.add_argument(
        "--algorithms",
        default="",
        help="short names or classes, e.g. async,averaging:10 (default: the run file's)",
    )
    overrides.add_workers(parser)
    overrides.add_changes(parser, seeds=3)
    overrides.add_rates(parser)
    overrides.add_execution(parser, "reports/out/comparison", "folder for table, plot and runs")


def run(arguments: argparse.Namespace) -> int:
    """Run all configurations that the store lacks, print the table, and write it with a plot."""
    from harness.base.errors import EXIT_DONE
    from harness.experiment.grid import Runner, idle_lines, repeat_lines
    from harness.judge.comparison import build_table
    from harness.store import Store
    from harness.store.files import writable_folder
    from reports import comparison

    base, own = overrides.base_of(arguments)
    named = [word.strip() for word in arguments.algorithms.split(",") if word.strip()]
    methods = overrides.named_methods(named, base) or [own]
    grid = overrides.grid_of(arguments, base, methods, overrides.numbers(arguments.workers))
    store = Store(writable_folder(arguments.out, "--out") / "runs")
    seed, rate = base.seed, base.schedule.rate
    # At the file's rate; a mistake in one is reported before any run.
    grid = grid.drop_impossible(lambda method, count: grid.configure(method, count, rate, seed))
    asked = [grid.configure(method, count, rate, seed) for method, count in grid.pairs]
    submit = argument_types.submission_of(arguments)
    for line in repeat_lines(asked):
        print(line, file=sys.stderr, flush=True)
    with Runner(store, arguments.jobs, submit) as runner:
        cells = grid.run(runner)
    for line in idle_lines(run for cell in cells for run in cell.runs):
        print(line, file=sys.stderr, flush=True)
    table = build_table(cells, impossible=grid.impossible)
    answer = comparison.answer_of(table, _describe_model(base))
    answer.write(arguments.out)
    print(answer)
    print(f"{arguments.out / 'index.html'}")
    return EXIT_DONE


def _describe_model(config: Any) -> str:
    """The module of a run file in words; empty for a model of speech."""
    if not hasattr(config, "problem"):
        return ""
    from harness.modules.trained import describe_module

    return describe_module(config.problem.module(config.seed))

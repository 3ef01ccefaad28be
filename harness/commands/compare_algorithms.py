"""`lagbench compare-algorithms`: one run file with several algorithms and numbers of workers."""

from __future__ import annotations

import argparse
from typing import Any

from harness import argument_types
from harness.base.registry import describe_choices, run_file
from harness.commands import overrides


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("file", type=run_file, help=f"the run: {describe_choices('run')}")
    parser.add_argument(
        "--algorithms",
        default="",
        help="short names or classes, e.g. async,averaging:10 (default: the run file's)",
    )
    argument_types.add_workers(parser)
    argument_types.add_changes(parser, seeds=3)
    argument_types.add_rates(parser)
    argument_types.add_execution(
        parser, "reports/out/comparison", "folder for table, plot and runs"
    )


def run(arguments: argparse.Namespace) -> int:
    """Run all configurations that the store lacks, print the table, and write it with a plot."""
    from harness.judge.comparison import build_table
    from reports import comparison

    base, file_method = overrides.base_of(arguments)
    names = [word.strip() for word in arguments.algorithms.split(",") if word.strip()]
    methods = overrides.find_methods(arguments, names, base) or [file_method]
    grid = overrides.grid_of(arguments, base, methods, arguments.workers)
    seed, rate = base.seed, base.schedule.rate
    # At the file's rate; a mistake in one is reported before any run.
    grid = grid.drop_impossible(lambda method, count: grid.configure(method, count, rate, seed))
    configs = [grid.configure(method, count, rate, seed) for method, count in grid.pairs]
    with overrides.open_runner(arguments, configs) as runner:
        cells = grid.run(runner)
    table = build_table(cells, impossible=grid.impossible)
    answer = comparison.answer_of(table, _describe_model(base))
    return overrides.finish(arguments, answer, [run for cell in cells for run in cell.runs])


def _describe_model(config: Any) -> str:
    """The module of a run file in words; empty for a model of speech."""
    if not hasattr(config, "problem"):
        return ""
    from harness.modules.trained import describe_module

    return describe_module(config.problem.module(config.seed))

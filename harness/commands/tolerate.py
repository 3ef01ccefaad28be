"""`lagbench tolerate`: find the workers, staleness, delay or loss at which a run file breaks."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from harness import argument_types
from harness.base.registry import describe_choices, run_file
from harness.commands import overrides

if TYPE_CHECKING:
    from harness.experiment.experiment import AnyExperiment
    from harness.search.comparison import Grid


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("file", type=run_file, help=f"the run: {describe_choices('run')}")
    parser.add_argument(
        "--what",
        default="workers",
        help="quantity to increase: workers (default); staleness, in folds; delay, extra latency of"
        " every message in seconds; loss, share of messages lost",
    )
    parser.add_argument(
        "--from", dest="low", type=float, help="baseline value (1 worker; otherwise 0)"
    )
    parser.add_argument(
        "--to",
        dest="high",
        type=float,
        help="largest value, tried first (64 workers or folds; a delay of 1 s; a loss of 0.5)",
    )
    parser.add_argument(
        "--margin",
        type=float,
        default=0.01,
        help="tolerated relative increase of the error; beyond it training counts as broken",
    )
    parser.add_argument(
        "--halvings",
        type=int,
        default=6,
        help="number of halvings of the interval, on a logarithmic scale (6)",
    )
    parser.add_argument(
        "--algorithm",
        default="",
        help="short name or class of the algorithm, e.g. async or averaging:10",
    )
    argument_types.add_changes(parser, seeds=3)
    argument_types.add_rates(parser)
    argument_types.add_execution(parser, "reports/out/tolerance", "folder for table, plot and runs")


def run(arguments: argparse.Namespace) -> int:
    """Try values between both ends, print the breaking value, and write it with its curve."""
    from dataclasses import replace

    from harness.search.break_search import Search, ToleranceSearch
    from harness.search.knobs import knob_of
    from reports.tolerance import answer_of

    knob = knob_of(arguments.what)
    ends = zip((arguments.low, arguments.high), knob.usual, strict=True)
    low, high = (usual if end is None else end for end, usual in ends)
    limits = (low, high), arguments.margin, arguments.halvings
    search = Search(knob.name, knob.axis, knob.whole, *limits)
    base, method = overrides.base_of(arguments)
    if arguments.algorithm:
        (method,) = overrides.find_methods(arguments, [arguments.algorithm], base)
    knob.check(method.algorithm)

    def turn(value: float) -> AnyExperiment:
        machine, workers = knob.apply(base.cluster, base.workers, value)
        return replace(base, cluster=machine, workers=workers)

    # Both ends are built before any run, so that a mistake is reported before training.
    ends = [
        turn(value).vary(algorithm=method.algorithm, protocol=method.protocol)
        for value in search.between
    ]
    knob.check_reach(*ends)
    with overrides.open_runner(arguments, ends) as runner:

        def grid_at(value: float) -> Grid:
            return overrides.grid_of(arguments, turn(value), [method])

        tolerance = ToleranceSearch(search, grid_at, runner).find()
    runs = [run for point in tolerance.points for run in point.cell.runs]
    return overrides.finish(arguments, answer_of(tolerance), runs, knob.idle)

"""`lagbench advise`: the algorithm and number of workers that reach a target error first."""

from __future__ import annotations

import argparse

from harness import argument_types
from harness.base.registry import cluster_file, describe_choices, run_file
from harness.commands import overrides


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("file", type=run_file, help=f"the run: {describe_choices('run')}")
    parser.add_argument(
        "--cluster",
        metavar="CLUSTER",
        type=cluster_file,
        help="cluster to advise on: a TOML file, or a bundled one (default: the run file's)",
    )
    parser.add_argument(
        "--target",
        type=float,
        help="value of the metric to be reached (default: 95%% of the improvement of one worker)",
    )
    parser.add_argument(
        "--algorithms",
        default="async,sync,averaging",
        help="short names or classes; averaging, block-momentum and diloco are tried with all"
        " --intervals (async,sync,averaging)",
    )
    parser.add_argument(
        "--workers",
        type=argument_types.wholes(),
        default=(),
        help="numbers of workers beside 1, e.g. 4,16 (default: powers of 2 up to the cluster's)",
    )
    parser.add_argument(
        "--intervals",
        type=argument_types.wholes(),
        default="4,16,64",
        help="minibatches of a worker between two rounds (4,16,64)",
    )
    parser.add_argument(
        "--trainings",
        type=float,
        help="number of trainings of full length that the search may cost, about",
    )
    argument_types.add_changes(parser, seeds=3)
    argument_types.add_execution(parser, "reports/out/advice", "folder for report and runs")


def run(arguments: argparse.Namespace) -> int:
    """Search, print the advice with all candidates, and write it."""
    from dataclasses import replace

    from harness.commands import advice_text
    from harness.search.advice import AdviceSearch, expand, make_plan, worker_counts
    from harness.simulator.cluster import load_cluster

    base, _ = overrides.base_of(arguments)
    if arguments.cluster is not None:
        base = replace(base, cluster=load_cluster(arguments.cluster))
    names = [word.strip() for word in arguments.algorithms.split(",") if word.strip()]
    methods = overrides.find_methods(arguments, [*expand(names, arguments.intervals)], base)
    counts = worker_counts(base.cluster.size, arguments.workers)
    arguments.rates = "sweep"  # the search ranks candidates each at its best rate
    grid = overrides.grid_of(arguments, base, methods, counts)
    seed, rate = base.seed, base.schedule.rate
    grid = grid.drop_impossible(lambda method, count: grid.configure(method, count, rate, seed))
    plan = make_plan(grid, arguments.target, arguments.trainings)
    configs = [grid.configure(*pair, rate, seed) for pair in grid.pairs]
    with overrides.open_runner(arguments, configs) as runner:
        outcome = AdviceSearch(plan, grid, runner).run()
    runs = [run for cell in outcome.cells for run in cell.runs]
    return overrides.finish(arguments, advice_text.answer_of(outcome), runs)

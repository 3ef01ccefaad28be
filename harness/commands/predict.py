"""`lagbench predict`: predict the time of a run on a cluster, without training it."""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from harness import argument_types
from harness.base.errors import EXIT_DONE, UserError
from harness.base.log import say
from harness.base.registry import cluster_file, describe_choices, run_file


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
        "--workers",
        type=argument_types.whole(1, 1_000_000),
        help="number of workers that replaces the run file's",
    )
    argument_types.add_settings(parser)


def run(arguments: argparse.Namespace) -> int:
    """Simulate, and print throughput, speed-up, staleness and time; or the table of a plan."""
    from harness.base.registry import entries
    from harness.base.settings import KIND, load_toml

    # A plan is no run: it has a format and a prediction of its own.
    plan = entries("plans").get(str(load_toml(arguments.file).get(KIND)))
    return _run(arguments) if plan is None else _print_plan(arguments, plan.load())


BuildTable = Callable[[Path, Callable[[str], None]], Iterable[Sequence[str]]]
"""From a plan's file, and a receiver of progress, to a table with its header."""


def _print_plan(arguments: argparse.Namespace, build_table: BuildTable) -> int:
    """Print the rows of a plan, and write them to ``--out`` if given."""
    for option, name in (("cluster", "cluster"), ("workers", "workers"), ("set", "changes")):
        if getattr(arguments, name):
            raise UserError(f"--{option}: for a run; {arguments.file} is a plan")
    rows = list(build_table(arguments.file, say))
    csv.writer(sys.stdout, lineterminator="\n").writerows(rows)
    if arguments.out is not None:
        from harness.commands.outputs import atomic_output

        with atomic_output(arguments.out, "the prediction") as draft, draft.open("w") as file:
            csv.writer(file, lineterminator="\n").writerows(rows)
    return EXIT_DONE


def _run(arguments: argparse.Namespace) -> int:
    """Print the prediction of a run."""
    from harness.base.reads import Reads, describe_idle, watch
    from harness.experiment.run import cluster_remarks
    from harness.experiment.run_file import load_folds
    from harness.fidelity.predict import prediction
    from harness.simulator.cluster import load_bundled, load_cluster

    if arguments.out is not None:
        raise UserError(f"--out {arguments.out}: for a plan; {arguments.file} is a run")
    cluster = load_cluster(arguments.cluster) if arguments.cluster else None
    config = load_folds(arguments.file, changes=arguments.changes)
    workers = arguments.workers or config.workers
    config = config.vary(cluster=cluster or config.cluster, workers=workers)
    for line in cluster_remarks([config]):
        say(line)
    pieces = config.task.open(config).pieces
    with watch(Reads(config.cluster, load_bundled(config.cluster.name))) as reads:
        lines = [*prediction(config, pieces)]
    print("\n".join(lines))
    for line in describe_idle([reads.unread()]):
        say(line)
    return EXIT_DONE

"""`lagbench compare`: a real run's measurements beside the simulator's prediction."""

from __future__ import annotations

import argparse
import sys

from harness import argument_types
from harness.base.files import cluster_file

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "folder",
        type=argument_types.run_folder,
        help="folder of the run, as printed by lagbench runs",
    )
    argument_types.add_run_file(parser)
    parser.add_argument(
        "--cluster",
        type=cluster_file,
        help="cluster to predict with, by name or file (default: the run's own)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Simulate the run's cluster, and print measurement and prediction."""
    from harness.base.errors import EXIT_DONE
    from harness.fidelity.compare import compare_to_prediction, format_comparison
    from harness.simulator import load_cluster

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    cluster = load_cluster(arguments.cluster) if arguments.cluster else None
    for line in format_comparison(
        compare_to_prediction(arguments.folder, cluster, say, arguments.file)
    ):
        print(line)
    return EXIT_DONE

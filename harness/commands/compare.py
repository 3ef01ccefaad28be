"""`lagbench compare`: a real run's measurements beside the simulator's prediction."""

from __future__ import annotations

import argparse

from harness import argument_types
from harness.base.errors import EXIT_DONE
from harness.base.log import say
from harness.base.registry import cluster_file


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    argument_types.add_stored_run(parser)
    parser.add_argument(
        "--cluster",
        type=cluster_file,
        help="cluster to predict with, by name or file (default: the run's own)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Simulate the run's cluster, and print measurement and prediction."""
    from harness.fidelity.compare import compare_to_prediction, format_comparison
    from harness.simulator.cluster import load_cluster

    cluster = load_cluster(arguments.cluster) if arguments.cluster else None
    comparison = compare_to_prediction(arguments.folder, cluster, say, arguments.file)
    print(*format_comparison(comparison), sep="\n")
    return EXIT_DONE

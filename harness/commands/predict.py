"""`lagbench predict`: how long a run would take on a cluster, without training it."""

from __future__ import annotations

import argparse
from pathlib import Path

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("file", type=Path, help="the run, as a TOML file")
    parser.add_argument("--cluster", type=Path, help="in place of the run file's")
    parser.add_argument("--workers", type=int, help="in place of the run file's")
    parser.add_argument(
        "--target", type=Path, help="a finished run of the same settings: when its folds are done"
    )


def run(arguments: argparse.Namespace) -> int:
    """Simulate, and print throughput, speed-up, staleness and time."""
    from harness.errors import EXIT_DONE, UserError
    from harness.execution.foreseeing import foreseen
    from harness.execution.run_file import load_run
    from harness.simulator import load_cluster

    if arguments.workers is not None and not 1 <= arguments.workers <= 1_000_000:
        raise UserError(f"--workers {arguments.workers}: allowed: 1 to 1000000")
    asked = load_run(arguments.file)
    cluster = load_cluster(arguments.cluster) if arguments.cluster else None
    for line in foreseen(asked, cluster, arguments.workers, arguments.target):
        print(line)
    return EXIT_DONE

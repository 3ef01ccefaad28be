"""`lagbench compare`: what a real run did, beside what the simulator predicts."""

from __future__ import annotations

import argparse
from pathlib import Path

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("folder", type=Path, help="the run's folder, as lagbench runs names it")
    parser.add_argument(
        "--cluster", type=Path, help="the cluster that predicts; the run's own if not given"
    )


def run(arguments: argparse.Namespace) -> int:
    """Simulate the run's cluster, and print both."""
    from harness.errors import EXIT_DONE
    from harness.execution.comparing import compare, shown
    from harness.execution.replaying import config_of, stored_run
    from harness.execution.run import TIMELINE
    from harness.simulator import Timeline, load_cluster

    found = stored_run(arguments.folder)
    cluster = load_cluster(arguments.cluster) if arguments.cluster else None
    timeline = Timeline.load(found.dir / TIMELINE)
    for line in shown(compare(config_of(found), timeline, cluster)):
        print(line)
    return EXIT_DONE

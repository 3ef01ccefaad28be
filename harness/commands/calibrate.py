"""`lagbench calibrate`: measure this machine, and write a cluster file."""

from __future__ import annotations

import argparse
from pathlib import Path

from harness import argument_types
from harness.base.errors import EXIT_DONE, UserError
from harness.base.log import say


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--out", type=Path, required=True, help="the cluster file to write")
    parser.add_argument(
        "--workers",
        type=argument_types.whole(1, 1_000_000),
        default=4,
        help="number of workers in the cluster file (4)",
    )
    parser.add_argument("--name", default="this machine", help="the cluster's name")


def run(arguments: argparse.Namespace) -> int:
    """Measure, fit and write."""
    from harness.store.files import replacing

    if arguments.out.exists():
        raise UserError(f"--out {arguments.out}: exists already; allowed: a new file")
    if not arguments.out.parent.is_dir():
        raise UserError(f"--out {arguments.out}: {arguments.out.parent} is no folder")
    if not arguments.name.isprintable() or set(arguments.name) & set('"\\'):
        raise UserError(f"--name {arguments.name!r}: allowed: letters without quotes")
    from harness.fidelity.calibrate import calibrate, cluster_text

    costs = calibrate(lambda line: say(f"measuring {line}"))
    text = cluster_text(costs, arguments.workers, arguments.name)
    with replacing(arguments.out) as path:
        path.write_text(text, encoding="utf-8")
    print(text, end="")
    return EXIT_DONE

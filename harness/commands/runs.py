"""`lagbench runs`: what a store holds."""

from __future__ import annotations

import argparse
from pathlib import Path

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    default = Path("reports/out")
    parser.add_argument(
        "folder", nargs="?", type=Path, default=default, help="a store, or a folder that holds some"
    )


def run(arguments: argparse.Namespace) -> int:
    """List the runs."""
    from reports.command import runs_command

    return runs_command(arguments.folder)

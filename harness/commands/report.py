"""`lagbench report`: a report once more, from what is on disk."""

from __future__ import annotations

import argparse
from pathlib import Path

from harness.errors import EXIT_DONE

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("folder", type=Path, help="the --out folder of a reproduction")


def run(arguments: argparse.Namespace) -> int:
    """Rebuild the report.

    Raises:
        UserError: the folder holds no results.
    """
    from reports import build

    build(arguments.folder)
    print(arguments.folder / "report.pdf")
    return EXIT_DONE

"""`lagbench report`: rebuild a report from stored results."""

from __future__ import annotations

import argparse
from pathlib import Path

from harness.base.errors import EXIT_DONE


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
    for form in ("pdf", "html"):
        print(arguments.folder / f"report.{form}")
    return EXIT_DONE

"""`lagbench report`: rebuild a report from stored results; or a site over several reports."""

from __future__ import annotations

import argparse
from pathlib import Path

from harness.base.errors import EXIT_DONE, UserError

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "folder", nargs="?", type=Path,
        help="the --out folder of a reproduction; with --site one of several (those published)",
    )  # fmt: skip
    parser.add_argument(
        "--site",
        type=Path,
        metavar="DIR",
        help="write a front page for all reports of a folder into DIR",
    )


def run(arguments: argparse.Namespace) -> int:
    """Rebuild the report, or make the site.

    Raises:
        UserError: the folder holds no results, or none is named.
    """
    if arguments.site is not None:
        from reports.site import FROM, site

        print(site(arguments.folder or FROM, arguments.site))
        return EXIT_DONE
    if arguments.folder is None:
        raise UserError("report: needs the --out folder of a reproduction, or --site DIR")
    from reports import build

    build(arguments.folder)
    made = (arguments.folder / name for name in ("report.pdf", "report.html"))
    for path in filter(Path.exists, made):
        print(path)
    return EXIT_DONE

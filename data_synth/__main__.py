"""``python -m data_synth fetch NAME``: downloads a public corpus into the cache."""

from __future__ import annotations

import argparse
import sys

from data_synth import FETCHES, fetch_corpus
from harness.errors import EXIT_BAD_INPUT, EXIT_DONE, UserError


def main(arguments: list[str] | None = None) -> int:
    """Parses the command line and does what it asks; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m data_synth", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    fetch = commands.add_parser("fetch", help="download the recordings of a public corpus")
    fetch.add_argument("name", help=f"which corpus: {', '.join(FETCHES)}")
    name = parser.parse_args(arguments).name
    try:
        fetch_corpus(name, progress=print)
    except UserError as error:
        print(error, file=sys.stderr)
        return EXIT_BAD_INPUT
    return EXIT_DONE


if __name__ == "__main__":
    sys.exit(main())

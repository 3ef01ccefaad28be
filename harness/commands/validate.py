"""`lagbench validate`: real processes of known speed beside the simulator's prediction."""

from __future__ import annotations

import argparse
import sys

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare no options: regimes are declared in `harness.fidelity.validate`."""
    del parser


def run(arguments: argparse.Namespace) -> int:
    """Run every regime on this machine, and print a table in Markdown."""
    del arguments
    from harness import train
    from harness.base.errors import EXIT_DONE
    from harness.fidelity.validate import markdown, validate_regimes

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    for line in markdown(dict(validate_regimes(say, train.__name__))):
        print(line)
    return EXIT_DONE

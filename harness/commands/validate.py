"""`lagbench validate`: real processes of known speed beside the simulator's prediction."""

from __future__ import annotations

import argparse

from harness.base.errors import EXIT_DONE
from harness.base.log import say


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare no options: regimes are declared in `harness.fidelity.validate`."""
    del parser


def run(arguments: argparse.Namespace) -> int:
    """Run every regime on this machine, and print a table in Markdown."""
    del arguments
    from harness import train
    from harness.fidelity.validate import markdown, validate_regimes

    print(*markdown(dict(validate_regimes(say, train.__name__))), sep="\n")
    return EXIT_DONE

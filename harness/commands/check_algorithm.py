"""`lagbench check-algorithm`: check an algorithm against the promises of every algorithm."""

from __future__ import annotations

import argparse
from pathlib import Path

WORDS = {True: "kept", False: "BROKEN", None: "skipped"}
"""Words for a promise that is kept, broken, or not applicable to the algorithm."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("name", help="class of the algorithm, or a short name such as async")
    parser.add_argument(
        "--import",
        dest="modules",
        action="append",
        default=[],
        metavar="MODULE",
        help="a module that defines the algorithm, e.g. of a file in this folder; may be repeated",
    )


def run(arguments: argparse.Namespace) -> int:
    """Check every promise and print the results; exit code 3 if one is broken."""
    from harness.base.errors import EXIT_DONE, EXIT_RUN_FAILED
    from harness.base.registry import import_modules
    from harness.experiment.methods import method_of
    from harness.fidelity.promises import UNASKED, check_contract

    import_modules(arguments.modules, "--import", Path.cwd())
    algorithm = method_of(arguments.name, needs_steps=False).algorithm
    print(f"{type(algorithm).__name__}: {algorithm}")
    answers = list(check_contract(algorithm))
    for answer in answers:
        print(f"{WORDS[answer.kept]:7} {answer.promise}")
        if answer.told:
            print(f"        {answer.told}")
    print(UNASKED)
    return EXIT_RUN_FAILED if any(answer.kept is False for answer in answers) else EXIT_DONE

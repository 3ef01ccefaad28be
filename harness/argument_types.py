"""Types of command-line arguments, and options that several commands share.

A type checks its argument before torch is imported, which takes seconds, so that a mistake is
reported at once.
"""

from __future__ import annotations

import re
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from harness.base.errors import UserError
from harness.base.registry import describe_choices, run_file
from harness.base.settings import read_value
from harness.store import DEFAULT_STORE, folder_of_run

if TYPE_CHECKING:
    from harness.experiment.pools import Submission


MOST = 10**18


def whole(least: int = 1, most: int = MOST) -> Callable[[str], int]:
    """The type of a whole number from ``least`` to ``most``."""
    limit = "" if most == MOST else f" to {most}"

    def parse(text: str) -> int:
        if not (text.isdecimal() and len(text) <= 19 and least <= int(text) <= most):
            allowed = f"a whole number from {least}{limit}"
            raise ArgumentTypeError(f"{text[:60]!r} is not allowed; allowed: {allowed}")
        return int(text)

    return parse


def wholes(most: int = MOST) -> Callable[[str], list[int]]:
    """The type of whole numbers from 1 to ``most`` with commas, as ``1,4,16``."""
    limit = "" if most == MOST else f" to {most}"

    def parse(text: str) -> list[int]:
        try:
            return [whole(1, most)(part.strip()) for part in text.split(",")]
        except ArgumentTypeError as error:
            allowed = f"whole numbers from 1{limit}, as 1,4,16"
            raise ArgumentTypeError(f"{text[:60]!r} is not allowed; allowed: {allowed}") from error

    return parse


seed = whole(0)

count = whole(1, 1000)


def rates(text: str) -> str | list[float]:
    """Parse numbers with commas; or ``sweep`` or ``file``."""
    try:
        return text if text in ("sweep", "file") else [float(part) for part in text.split(",")]
    except ValueError as error:
        allowed = "allowed: sweep, file, or numbers, as 0.05,0.1"
        raise ArgumentTypeError(f"{text!r} is not allowed; {allowed}") from error


def change(text: str) -> tuple[tuple[str, ...], object]:
    """Parse ``key=value``: a dotted key, and a value in TOML; a word needs no quotes.

    Raises:
        UserError: there is no ``=``, or an invalid key.
    """
    key, equals, value = text.partition("=")
    steps = tuple(step.strip() for step in key.split("."))
    if not equals or not all(re.fullmatch(r"[\w-]+", step) for step in steps):
        allowed = "allowed: key=value, as schedule.rate=0.01"
        raise UserError(f"--set: {text!r} is not allowed; {allowed}")
    return steps, read_value(value.strip())


def add_run(parser: ArgumentParser) -> None:
    """Declare a run: its file, seed and store, and the real processes that train it."""
    parser.add_argument("file", type=run_file, help=f"the run: {describe_choices('run')}")
    parser.add_argument("--seed", type=seed, help="replaces the run file's seed")
    parser.add_argument("--out", type=Path, default=Path(DEFAULT_STORE), help="store for the run")
    parser.add_argument(
        "--processes",
        type=whole(2, 1000),
        help="train with N real processes on this machine: one server, the others workers",
    )
    parser.add_argument(
        "--paced",
        action="store_true",
        help="real processes: delay each step to the time that the run's cluster file gives",
    )


def add_stored_run(parser: ArgumentParser) -> None:
    """Declare the folder of a stored run, and its run file: the run is data, and names no code."""
    parser.add_argument(
        "folder",
        type=lambda text: folder_of_run(Path(text)),
        help="folder of the run, as printed by lagbench runs",
    )
    parser.add_argument(
        "file",
        nargs="?",
        type=run_file,
        help="the run file that it was trained from, for a run with code of your own",
    )


def add_carriers(parser: ArgumentParser) -> None:
    """Declare the job backend of a grid: ``--submit``, ``--runs-per-job``."""
    parser.add_argument("--submit", help="job backend: slurm, local, dask, ray, or MODULE:FUNCTION")
    parser.add_argument(
        "--runs-per-job", type=count, default=1, help="with --submit: number of runs in a job (1)"
    )


def add_workers(parser: ArgumentParser) -> None:
    """Declare the option for numbers of workers."""
    parser.add_argument(
        "--workers",
        type=wholes(),
        default=(),
        help="numbers of workers, e.g. 1,4,16 (default: the run file's)",
    )


def add_changes(parser: ArgumentParser, seeds: int) -> None:
    """Declare the options for seeds and for any key.

    Args:
        parser: parser of the command.
        seeds: default number of seeds.
    """
    add_settings(parser)
    parser.add_argument(
        "--seeds",
        type=count,
        default=seeds,
        help=f"number of seeds, counted from the run file's ({seeds})",
    )


def add_settings(parser: ArgumentParser) -> None:
    """Declare the option for any key of a run file."""
    parser.add_argument(
        "--set",
        dest="changes",
        type=change,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="replaces a setting of the run file, e.g. schedule.rate=0.01, or rate=0.01 where only"
        " one table has a rate; may be repeated",
    )


def add_rates(parser: ArgumentParser) -> None:
    """Declare ``--rates``, the source of learning rates."""
    parser.add_argument(
        "--rates",
        type=rates,
        default="sweep",
        help="learning rates: sweep (default) searches one for each method and number of workers;"
        " numbers, e.g. 0.05,0.1, are what it chooses among; file uses the run file's",
    )


def add_execution(parser: ArgumentParser, out: str, meaning: str) -> None:
    """Declare where runs are executed, and the folder of the outputs.

    Args:
        parser: parser of the command.
        out: default of the folder.
        meaning: the folder in words.
    """
    parser.add_argument(
        "--jobs",
        type=count,
        default=1,
        help="number of runs trained at once, one process each",
    )
    parser.add_argument("--out", type=Path, default=Path(out), help=meaning)
    add_carriers(parser)


def submission_of(arguments: Namespace) -> Submission | None:
    """The job backend of the options; None for processes on this machine.

    Raises:
        UserError: an unknown backend, or a missing package.
    """
    if arguments.submit is None:
        return None
    from harness.experiment.pools import Submission, check

    check(arguments.submit)
    return Submission(arguments.submit, arguments.runs_per_job)

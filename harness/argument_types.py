"""Types of command-line arguments, and options that several commands share.

A type checks its argument before torch is imported, which takes seconds, so that a mistake is
reported at once.
"""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from harness.base.errors import UserError
from harness.base.files import run_file
from harness.experiment.device import known_device
from harness.store import folder_of_run

if TYPE_CHECKING:
    from harness.experiment.pools import Submission

__all__ = ["add_carriers", "add_run_file", "count", "device", "run_folder", "seed", "submission_of"]


def seed(text: str) -> int:
    """A seed from ``--seed``.

    Raises:
        UserError: it is no whole number from 0, or has more than 18 digits.
    """
    if not text.isdecimal() or len(text) > 18:
        raise UserError(f"--seed {text[:60]}: allowed: a whole number from 0")
    return int(text)


def count(text: str) -> int:
    """A number of jobs or seeds.

    Raises:
        ArgumentTypeError: it is no whole number from 1 to 1000.
    """
    if not (text.isdecimal() and len(text) <= 18 and 1 <= int(text) <= 1000):
        told = f"{text[:60]!r} is not allowed; allowed: a whole number from 1 to 1000"
        raise ArgumentTypeError(told)
    return int(text)


def device(text: str) -> str:
    """A device from ``--device``.

    Raises:
        UserError: an unknown device.
    """
    return known_device(text)


def run_folder(text: str) -> Path:
    """The folder of a stored run.

    Raises:
        UserError: the folder holds no run.
    """
    return folder_of_run(Path(text))


def add_run_file(parser: ArgumentParser) -> None:
    """Declare the run file of a stored run: the run itself is data, and names no code."""
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
        "--runs-per-job", type=int, default=1, help="with --submit: number of runs in a job (1)"
    )


def submission_of(arguments: Namespace) -> Submission | None:
    """The job backend of the options; None for processes on this machine.

    Raises:
        UserError: an unknown backend, a missing package, or an invalid ``--runs-per-job``.
    """
    if not 1 <= arguments.runs_per_job <= 1000:
        told = "allowed: a whole number from 1 to 1000"
        raise UserError(f"--runs-per-job {arguments.runs_per_job}: {told}")
    if arguments.submit is None:
        return None
    from harness.experiment.pools import Submission, check

    check(arguments.submit)
    return Submission(arguments.submit, arguments.runs_per_job)

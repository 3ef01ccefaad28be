"""What words of a command line stand for, checked before anything heavy is imported.

Each is a ``type`` of an option: a mistake is answered at once, though training needs torch, whose
import takes seconds.
"""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from harness.base.errors import UserError
from harness.runs.device import known_device
from harness.store import Bucket, BucketStore, Store, folder_of_run

if TYPE_CHECKING:
    from harness.grid.carriers import Submission

__all__ = [
    "add_carriers",
    "add_gather",
    "count",
    "device",
    "open_store",
    "run_folder",
    "seed",
    "submission_of",
]


def seed(text: str) -> int:
    """A seed in place of a file's.

    Raises:
        UserError: it is no whole number from 0.
    """
    if not text.isdecimal() or len(text) > 18:
        raise UserError(f"--seed {text[:60]}: allowed: a whole number from 0")
    return int(text)


def count(text: str) -> int:
    """A number of jobs, seeds, ….

    Raises:
        ArgumentTypeError: it is no whole number from 1 to 1000.
    """
    if not (text.isdecimal() and len(text) <= 18 and 1 <= int(text) <= 1000):
        told = f"{text[:60]!r} is not allowed; allowed: a whole number from 1 to 1000"
        raise ArgumentTypeError(told)
    return int(text)


def device(text: str) -> str:
    """A device by the word for it.

    Raises:
        UserError: another word.
    """
    return known_device(text)


def run_folder(text: str) -> Path:
    """The folder of a stored run.

    Raises:
        UserError: it holds none.
    """
    return folder_of_run(Path(text))


def add_carriers(parser: ArgumentParser) -> None:
    """Declare who carries the runs of a grid: ``--submit``, ``--runs-per-job``, ``--gather``."""
    parser.add_argument(
        "--submit", help="who carries the runs: slurm, local, dask, ray, or MODULE:FUNCTION"
    )
    parser.add_argument(
        "--runs-per-job", type=int, default=1, help="with --submit: runs of one job (1)"
    )
    add_gather(parser)


def submission_of(arguments: Namespace) -> Submission | None:
    """The carrier that is asked for; None for processes of this machine.

    Raises:
        UserError: it is unknown, its package is not installed, or a job has no runs.
    """
    if not 1 <= arguments.runs_per_job <= 1000:
        told = "allowed: a whole number from 1 to 1000"
        raise UserError(f"--runs-per-job {arguments.runs_per_job}: {told}")
    if arguments.submit is None:
        return None
    from harness.grid.carriers import Submission, check

    check(arguments.submit)
    return Submission(arguments.submit, arguments.runs_per_job)


def add_gather(parser: ArgumentParser) -> None:
    """Declare ``--gather``, of whatever executes a grid of runs."""
    told = "s3://BUCKET/PREFIX, … that machines on this grid share: claims and finished runs"
    parser.add_argument("--gather", type=Bucket, metavar="URL", help=told)


def open_store(path: Path, gather: Bucket | None) -> Store:
    """The store of a folder, gathered elsewhere if that is asked for."""
    return Store(path) if gather is None else BucketStore(path, gather)

"""What words of a command line stand for, checked before anything heavy is imported.

Each is a ``type`` of an option: a mistake is answered at once, though training needs torch, whose
import takes seconds.
"""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path

from harness.base.errors import UserError
from harness.runs.device import known_device
from harness.store import Bucket, Gathered, Store, folder_of_run

__all__ = ["add_gather", "device", "run_folder", "seed", "stored"]


def seed(text: str) -> int:
    """A seed in place of a file's.

    Raises:
        UserError: it is no whole number from 0.
    """
    if not text.isdecimal() or len(text) > 18:
        raise UserError(f"--seed {text[:60]}: allowed: a whole number from 0")
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


def add_gather(parser: ArgumentParser) -> None:
    """Declare ``--gather``, of whatever executes a grid of runs."""
    told = "s3://BUCKET/PREFIX, … that machines on this grid share: claims and finished runs"
    parser.add_argument("--gather", type=Bucket, metavar="URL", help=told)


def stored(path: Path, gather: Bucket | None) -> Store:
    """The store of a folder, gathered elsewhere if that is asked for."""
    return Store(path) if gather is None else Gathered(path, gather)

"""Files that appear whole or not at all, or standard output."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from harness.base.errors import UserError

__all__ = ["STANDARD", "refuse_to_replace", "written_whole"]

STANDARD = Path("-")
"""Standard output, wherever a file may be named."""


@contextmanager
def written_whole(path: Path, what: str) -> Generator[Path]:
    """A temporary path beside ``path`` that takes its place when the block has succeeded.

    Where ``path`` is `STANDARD`, what was written is then copied to standard output. A link is
    kept, and the file that it leads to replaced.

    Raises:
        UserError: the file cannot be written, or there is something else in its place; ``what``
            names it, e.g. ``"the trace"``.
    """
    try:
        if path == STANDARD:
            with TemporaryDirectory() as folder:
                yield Path(folder) / "draft"
                _copied_to_stdout(Path(folder) / "draft")
            return
        refuse_to_replace(path, what)
        target = path.resolve()
        draft = target.with_name(f".unfinished-{os.getpid()}-{target.name}")
        with _removed(draft):
            yield draft
            draft.replace(target)
    except BrokenPipeError:  # whoever reads standard output has seen enough
        raise
    except OSError as error:
        reason = str(error.strerror or error).splitlines()[0]
        raise UserError(f"{path}: cannot write {what} ({reason})") from error


def refuse_to_replace(path: Path, what: str) -> None:
    """Only a regular file is ever replaced, and no device, pipe or folder.

    Raises:
        UserError: there is such a thing.
    """
    if path != STANDARD and path.exists() and not path.is_file():
        raise UserError(
            f"{path}: cannot write {what} (not a regular file); allowed: a file, or - for"
            " standard output"
        )


def _copied_to_stdout(draft: Path) -> None:
    sys.stdout.flush()
    with draft.open("rb") as file:
        shutil.copyfileobj(file, sys.stdout.buffer)
    sys.stdout.buffer.flush()


@contextmanager
def _removed(draft: Path) -> Generator[None]:
    """However the block ends, the draft is not left behind."""
    try:
        yield
    finally:
        if draft.exists():
            draft.unlink()

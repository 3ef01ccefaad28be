"""Files that appear whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from harness.errors import UserError

__all__ = ["written_whole"]


@contextmanager
def written_whole(path: Path, what: str) -> Generator[Path]:
    """A temporary path beside ``path`` that takes its place when the block has succeeded.

    Raises:
        UserError: the file cannot be written; ``what`` names it, e.g. ``"the trace"``.
    """
    draft = path.with_name(f".unfinished-{os.getpid()}-{path.name}")
    try:
        with _removed(draft):
            yield draft
            draft.replace(path)
    except OSError as error:
        reason = str(error.strerror or error).splitlines()[0]
        raise UserError(f"{path}: cannot write {what} ({reason})") from error


@contextmanager
def _removed(draft: Path) -> Generator[None]:
    """However the block ends, the draft is not left behind."""
    try:
        yield
    finally:
        if draft.exists():
            draft.unlink()

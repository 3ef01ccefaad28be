"""Writing a file so that a reader sees the old one or the new one, never a part.

Nothing counts before it is on the disk: a file goes there before it takes its name, and its
folder after it, so the promise holds for a machine that loses power too.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import cast

from harness.base.errors import UserError, refused_by_machine

PREFIX = ".unfinished-"  # of temporary files; what a kill leaves behind carries it


@contextmanager
def replacing(path: Path) -> Generator[Path]:
    """A temporary path beside ``path`` that takes its place if the block succeeds.

    Raises:
        UserError: the machine refuses it, e.g. because the disk is full.
    """
    try:
        with _replacing(path) as temporary:
            yield temporary
    except OSError as error:
        named = None if error.filename is None else Path(os.fsdecode(error.filename))
        is_ours = named is None or named.name.startswith(PREFIX)
        raise refused_by_machine(error, path if is_ours else None) from error


@contextmanager
def _replacing(path: Path) -> Generator[Path]:
    handle, name = tempfile.mkstemp(prefix=PREFIX, dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o644)  # mkstemp makes files private; results are to be read
        sync(temporary)
        os.replace(temporary, path)  # noqa: PTH105 (the name says what matters here)
        sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write_bytes(path: Path, data: bytes) -> None:
    """Write ``data`` to ``path`` atomically."""
    with replacing(path) as temporary:
        temporary.write_bytes(data)


def write_json(path: Path, value: object, levels: int | None = None) -> None:
    """Write ``value`` as readable JSON; NaN and infinities are refused (ValueError).

    Args:
        path: of the file.
        value: plain values.
        levels: how deep a list or an object still has its items on lines of their own; what
            lies deeper is one line. All of them if not given.
    """
    write_bytes(path, (_laid_out(value, levels) + "\n").encode())


def _laid_out(value: object, levels: int | None, margin: str = "\n") -> str:
    if levels is None or levels == 0 or not value or not isinstance(value, dict | list | tuple):
        indent = 2 if levels is None else None
        return json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False)
    inner = margin + "  "
    if isinstance(value, dict):
        found = cast("dict[str, object]", value).items()
        names = [f"{json.dumps(name, ensure_ascii=False)}: " for name, _ in found]
        items, ends = [each for _, each in found], "{}"
    else:
        items, ends = list(cast("Sequence[object]", value)), "[]"
        names = [""] * len(items)
    lines = (
        inner + name + _laid_out(each, levels - 1, inner)
        for name, each in zip(names, items, strict=True)
    )
    return ends[0] + ",".join(lines) + margin + ends[1]


def sync(path: Path) -> None:
    """Wait until a file's content, or the names in a folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sweep(folder: Path) -> None:
    """Remove temporary files that an interrupted process left in ``folder``."""
    for leftover in folder.glob(PREFIX + "*"):
        leftover.unlink(missing_ok=True)


def make_folder(path: Path) -> None:
    """Make a folder and those above it; wait until the names of new ones are on the disk."""
    if not path.is_dir():
        make_folder(above := path.parent)
        path.mkdir(exist_ok=True)
        sync(above)


def writable_folder(path: Path, what: str) -> Path:
    """Make the folder if needed and prove that a file can be written in it.

    Raises:
        UserError: naming ``what`` (an option or a role) and the path.
    """
    try:
        make_folder(path)
        with tempfile.TemporaryFile(prefix=PREFIX, dir=path):
            return path
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError(f"{what}: cannot write in {str(path)!r} ({reason})") from None

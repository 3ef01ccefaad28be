"""Files that hold a kernel each: a SHA-256 of name and content, then the content.

A file that is not what was written is noticed before any of it is used. Whoever writes one drops
those that have not been read for long, and the oldest where all are too large. Nobody waits for
anybody: what is dropped while another process would read it is compiled there once more.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

__all__ = ["MOST_BYTES", "SUFFIX", "UNUSED_S", "folder", "read", "write"]

SUFFIX = ".kernel"
UNUSED_S = 30 * 24 * 3600.0
"""How long a file is kept that nobody reads."""
MOST_BYTES = 256 * 2**20
"""What all may hold together; one version's kernels, for one processor, take 8 MB."""


def folder() -> Path | None:
    """Where kernels are kept; nowhere for a user without a home."""
    if named := os.environ.get("NUMBA_CACHE_DIR"):
        return Path(named)
    try:
        home = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    except RuntimeError:
        return None
    return home / "lagbench" / "kernels"


def write(path: Path, content: bytes) -> None:
    """Write a file that `read` takes, in one step for whoever reads it; where that fails, none."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, aside = tempfile.mkstemp(SUFFIX, dir=path.parent)  # for this user alone
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(_digest(path, content) + content)
            Path(aside).replace(path)
        finally:
            Path(aside).unlink(missing_ok=True)
        _drop(path.parent)


def read(path: Path) -> bytes | None:
    """The content that was written to a file; None where there is none of this user's.

    A digest tells damage and no forgery, and what is loaded is executed: so a file that somebody
    else owns, or may write, is not read.

    Raises:
        ValueError: the file is not as it was written.
    """
    try:
        if hasattr(os, "getuid") and not _is_own(path.stat()):
            return None
        stored = path.read_bytes()
    except OSError:
        return None
    length = hashlib.sha256().digest_size
    if stored[:length] != _digest(path, stored[length:]):
        raise ValueError("not as it was written")
    with contextlib.suppress(OSError):
        os.utime(path)  # when it was read last
    return stored[length:]


def _drop(where: Path) -> None:
    """Drop what nobody has read for long, and the oldest of what is too much."""
    left, oldest_s = MOST_BYTES, time.time() - UNUSED_S
    for used_s, size, path in sorted(_used(where), reverse=True):
        left -= size
        if used_s < oldest_s or left < 0:
            path.unlink(missing_ok=True)


def _used(where: Path) -> Iterator[tuple[float, int, Path]]:
    """When each file was read last, and its bytes."""
    for path in where.glob(f"*{SUFFIX}"):
        with contextlib.suppress(FileNotFoundError):  # another process dropped it
            status = path.stat()
            yield status.st_mtime, status.st_size, path


def _is_own(status: os.stat_result) -> bool:
    return status.st_uid == os.getuid() and not status.st_mode & 0o022


def _digest(path: Path, content: bytes) -> bytes:
    return hashlib.sha256(path.name.encode() + b"\n" + content).digest()

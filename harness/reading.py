"""What a user names: text in regular files of a sane size, and what gzip has packed."""

from __future__ import annotations

import gzip
import io
import stat
import zlib
from pathlib import Path
from typing import IO, Any

from harness.errors import UserError

__all__ = ["MOST_BYTES", "inflated", "text_of"]

MOST_BYTES = 16 * 2**20
MOST_TIMES, AT_LEAST = 200, 64 * 2**20
"""What gzip has packed is at most so many times as large, or has so many bytes: text and audio are
ten times as large, and what is made to fill a disk a thousand times."""


def text_of(path: str | Path, where: str = "") -> str:
    """The content of a file, without a byte order mark.

    Args:
        path: the file.
        where: what refers to it, for messages; by default nothing but the user.

    Raises:
        UserError: it cannot be read, is no regular file, is larger than `MOST_BYTES`, or is not
            text in UTF-8.
    """
    shown = str(path) if len(str(path)) <= 200 else f"{str(path)[:197]}..."
    name = f"{where}: {shown!r}" if where else shown
    try:
        found = Path(path).stat()  # before it is opened: a pipe nobody writes to would never end
        if not stat.S_ISREG(found.st_mode):
            raise UserError(f"{name}: cannot read the file (not a regular file)")
        if found.st_size > MOST_BYTES:
            size = f"{found.st_size / 2**20:.0f} MiB; allowed: at most {MOST_BYTES >> 20} MiB"
            raise UserError(f"{name}: cannot read the file (it has {size})")
        return Path(path).read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise UserError(f"{name}: cannot read the file ({error.strerror or error})") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{name}: not a text file in UTF-8") from error
    except ValueError as error:  # a null byte in the name
        raise UserError(f"{name!r}: cannot read the file ({error})") from error


def inflated(packed: IO[bytes], size: int) -> io.BufferedReader:
    """What gzip has packed, read as it is needed.

    Args:
        packed: the packed bytes, from their beginning.
        size: how many there are.

    Returns:
        A stream whose reading raises an `OSError` or an `EOFError` where the bytes are damaged, or
        more of them come than any text or audio has.
    """
    return io.BufferedReader(_Inflated(packed, size), 1 << 16)


class _Inflated(io.RawIOBase):
    def __init__(self, packed: IO[bytes], size: int) -> None:
        self._file = gzip.GzipFile(fileobj=packed, mode="rb")
        self._most = self._left = max(AT_LEAST, MOST_TIMES * size)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        try:
            count = self._file.readinto(buffer)
        except zlib.error as error:
            raise OSError(str(error)) from error
        self._left -= count
        if self._left < 0:
            raise OSError(f"it unpacks to more than {self._most >> 20} MiB")
        return count

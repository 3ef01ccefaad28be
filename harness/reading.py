"""Text that a user names: regular files of a sane size, in UTF-8."""

from __future__ import annotations

import stat
from pathlib import Path

from harness.errors import UserError

__all__ = ["MOST_BYTES", "text_of"]

MOST_BYTES = 16 * 2**20


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

"""One writer per run, across processes.

The lock is the kernel's (``flock``), so it dies with its owner: a killed
process never leaves a run that nobody may continue, and no age or process
number has to be guessed at.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


class Lock:
    """An exclusive lock on one file, held from construction until ``release``.

    Args:
        path: the lock file; made if missing and never removed, because removing
            it would let two processes lock two different files of one name.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX)
        except BaseException:  # an interrupt while waiting must not leak the file
            os.close(self._file)
            raise
        os.ftruncate(self._file, 0)
        os.write(self._file, f"{os.getpid()}\n".encode())  # for a person who looks

    def release(self) -> None:
        """Let the next one in; a second call does nothing."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

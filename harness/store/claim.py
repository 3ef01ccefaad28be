"""Claims: the file by which a process says that it executes a run.

- *Claim.* ``.claim`` is made in the run's folder with O_EXCL, which succeeds for one process only.
- *Renewal.* A thread renews the file's time every `RENEW_S` while the run is executed. The file is
  removed at the end.
- *Takeover.* A waiting process replaces the claim, by a rename, at once if the process that made it
  was on this host and has ended, else if its time has not changed for `STALE_S` of the waiter's own
  clock. No clock of another host is read.

Two processes may execute one run, for example if one was suspended for longer than `STALE_S`. That
is safe: both write the same bytes, and each file is replaced as a whole. The one that has lost its
claim ends when it finds out (`Claim.is_held`).
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread

from harness.base.log import LOG
from harness.base.seeds import SHORT
from harness.store import files

NAME = ".claim"

RENEW_S = 5.0
"""Seconds between two renewals."""

STALE_S = 60.0
"""Seconds without a renewal after which a claim is taken over: a busy machine or a slow file server
may delay a few."""

LOOK_S, TELL_S = 0.1, 5.0
"""Seconds between two looks of a waiting process, and before it names the other."""


def process_id() -> str:
    """Host and number of this process, as part of a file name."""
    return f"{socket.gethostname()}-{os.getpid()}"


def has_ended(process: str) -> bool:
    """Whether a process of this host has ended; False if it is on another host.

    Args:
        process: result of `process_id` there.
    """
    host, _, number = process.rpartition("-")
    if host != socket.gethostname() or not number.isdecimal():
        return False
    try:
        os.kill(int(number), 0)
    except (ProcessLookupError, OverflowError):
        return True
    except PermissionError:  # another user's
        pass
    return False


class Claim:
    """The claim of this process on a run.

    Args:
        folder: the run's existing folder.
    """

    def __init__(self, folder: Path) -> None:
        self._path, self._ended = folder / NAME, Event()
        self._text = f"{process_id()} {secrets.token_hex(8)}"

    def acquire(self) -> None:
        """Wait until no other process executes the run, and claim it.

        Raises:
            OSError, UserError: the folder cannot be read or written.
        """
        begun_s = since_s = looked_s = time.monotonic()
        mark, is_told = _look(self._path), False
        while not self._is_made(mark is not None and looked_s - since_s > STALE_S):
            if looked_s - begun_s > TELL_S and not is_told:
                is_told = True
                process = _read(self._path).partition(" ")[0]
                LOG.info(f"run {self._path.parent.name[:SHORT]}: waiting for process {process}")
            time.sleep(LOOK_S)
            # Taken before the look: were this process suspended in between, the time would not
            # count as the other's silence.
            looked_s = time.monotonic()
            if (latest := _look(self._path)) != mark:
                mark, since_s = latest, time.monotonic()
        Thread(target=self._renew, daemon=True).start()

    def is_held(self) -> bool:
        """Whether no other process has taken the run over, as far as is known."""
        try:
            return self._path.read_text(errors="replace") == self._text
        except FileNotFoundError:
            return False
        except OSError:  # a file server may be unreachable for a moment
            return True

    def release(self) -> None:
        """Remove the claim, if it is held."""
        self._ended.set()
        with suppress(OSError):
            if self.is_held():
                self._path.unlink()

    def _renew(self) -> None:
        """Set the claim's time to now again and again, while it is held."""
        while not self._ended.wait(RENEW_S):
            with suppress(OSError):
                if self.is_held():
                    os.utime(self._path)

    def _is_made(self, is_stale: bool) -> bool:
        """Make the claim, in place of a stale one or one of a process that has ended."""
        try:
            with self._path.open("x") as file:
                file.write(self._text)
        except FileExistsError:
            if not is_stale and is_claimed(self._path.parent):
                return False
            files.write_bytes(self._path, self._text.encode())
        return self.is_held()


def is_claimed(folder: Path) -> bool:
    """Whether a process executes the run in a folder now, as far as is known."""
    path = folder / NAME
    return files.exists(path) and not has_ended(_read(path).partition(" ")[0])


def _look(path: Path) -> tuple[str, int] | None:
    """Text and time of a claim; None if there is none."""
    try:
        return _read(path), path.stat().st_mtime_ns
    except FileNotFoundError:
        return None


def _read(path: Path) -> str:
    """The text of a claim; empty if it is gone, or about to be written."""
    try:
        return path.read_text(errors="replace")
    except FileNotFoundError:
        return ""

"""Leases: the right of one process to execute a run, on any storage that hosts share.

A lease is a numbered file (or object).

- Acquire: a process creates file N + 1, which fails if the file exists: the only atomic operation
  needed, and one that every file system and object store has. The highest number holds the lease.
- Release: the holder writes `FREE` into its file. The highest file stays, so no number is used
  twice.
- Heartbeat: the holder writes a counter into its file every `BEAT_S`.
- Takeover: a waiting process acquires N + 1 if the holder was on this host and has exited, or if
  the counter has not changed for `PATIENCE_S` of the waiter's own monotonic clock. No clock of
  another host or of a file server is read.

A suspended holder may lose its lease and then continue. `Lease.is_held`
then returns False. Until it is called, two processes execute one run, which is safe: both write
the same bytes, and each file is replaced as a whole.

Example:
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     lease = Lease(Path(folder), Host(beats=False))
    ...     lease.acquire()
    ...     held = lease.is_held()
    ...     lease.release()
    ...     held, lease.is_held(), Folder(Path(folder)).read(1)
    (True, False, 'free')
"""

from __future__ import annotations

import math
import os
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Protocol

from harness.base.log import LOG


def process_id() -> str:
    """Word that identifies this process: place, process id, start time and host name.

    The start time tells it from another process with the same id; the host name is for messages.
    """
    return f"{_place()}:{os.getpid()}:{_began(os.getpid())}:{_host()}"


def is_running(word: str) -> bool | None:
    """Whether a process runs; None if it is on another host, or this host cannot tell."""
    place, pid, began, _ = _parts(word)
    if place != _place() or not began or not pid.isdecimal():
        return None
    return _began(int(pid)) == began


def is_suspended(word: str) -> bool:
    """Whether a process of this host is suspended."""
    return _stat(int(number_of(word)))[:1] in (["T"], ["t"])


def number_of(word: str) -> str:
    """Process id in the word of a process."""
    return _parts(word)[1]


def host_of(word: str) -> str:
    """Host name in the word of a process."""
    return _parts(word)[3] or "another host"


def _parts(word: str) -> list[str]:
    """Split a word into place, process id, start time and host; missing parts are empty."""
    return [*word.split(":"), "", "", "", ""][:4]


def _host() -> str:
    return socket.gethostname().replace(":", "-").replace(" ", "-")


def _place() -> str:
    """Scope of process ids: one boot of a kernel, and one namespace of its processes."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}-{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:  # not Linux: `is_running` cannot tell, and only the counter decides
        return f"{_host()}-unknown"


def _began(pid: int) -> str:
    """Start time of a process, in clock ticks since boot; empty if it has ended or is a zombie."""
    state, *fields = _stat(pid) or "Z"  # fields[18] is starttime, field 22 of /proc/PID/stat
    return "" if state in "ZX" else fields[18]


def _stat(pid: int) -> list[str]:
    """Fields of ``/proc/PID/stat`` from the state on; empty if there is no such process."""
    try:
        told = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return told.rpartition(")")[2].split()  # the name before it may have blanks and parentheses


FREE = "free"
"""Text of a lease that has been released."""

BEAT_S = 5.0
"""Seconds between two heartbeats."""

PATIENCE_S = 60.0
"""Seconds without a heartbeat after which a holder elsewhere is taken over: a busy machine or a
slow file server may delay a few."""

Waits = Callable[[str, float, float], None]
"""Function of the holder's word, the seconds waited, and the seconds since the counter changed."""


def _say_nothing(holder: str, waited_s: float, still_s: float) -> None:
    del holder, waited_s, still_s


@dataclass(frozen=True)
class Host:
    """Functions of the machine that a lease uses; tests substitute them.

    Args:
        me: returns the word of this process.
        lives: whether the process of a word runs; None if this host cannot tell.
        now_s: monotonic clock, in seconds.
        sleep: waits for some seconds.
        beats: whether a thread sends the heartbeats; otherwise the owner calls `Lease.beat`.
    """

    me: Callable[[], str] = process_id
    lives: Callable[[str], bool | None] = is_running
    now_s: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    beats: bool = True


@dataclass
class Lease:
    """The right to execute a run, once it is acquired.

    Args:
        where: an existing folder, or another place for leases.
        host: functions of this machine.
    """

    where: Path | Place
    host: Host = field(default_factory=Host)
    _number: int = 0

    def __post_init__(self) -> None:
        self._place = Folder(self.where) if isinstance(self.where, Path) else self.where
        self._ended = Event()
        self._counted = count(1)
        self._writing = Lock()
        self._away_until_s = -math.inf

    def acquire(self, waiting: Waits = _say_nothing) -> None:
        """Wait until no other process holds the lease, and acquire it.

        Args:
            waiting: called after every look that finds it held.

        Raises:
            OSError: the storage cannot be read or written.
        """
        begun_s = self.host.now_s()
        seen, since_s = self._highest(), begun_s
        # `looked_s` is taken before a read and `since_s` after it: were the waiter suspended in
        # between, the time would not count as the holder's silence.
        looked_s = since_s
        while not (self._is_vacant(seen[1], looked_s - since_s) and self._try_create(seen[0] + 1)):
            waiting(seen[1].partition(" ")[0], looked_s - begun_s, looked_s - since_s)
            self.host.sleep(self._place.poll_s)
            looked_s = self.host.now_s()
            if (now := self._highest()) != seen:
                seen, since_s = now, self.host.now_s()

    def is_held_by_other(self) -> bool:
        """Whether another process holds it that runs, or may run on another host."""
        _, text = self._highest()
        return text != FREE and self.host.lives(text.partition(" ")[0]) is not False

    def is_held(self) -> bool:
        """Whether this process still holds it, as far as is known.

        If the storage is not reachable the answer is True, with one warning, and the storage is
        read again after `PATIENCE_S`.
        """
        if self._number and self.host.now_s() < self._away_until_s:
            return True
        try:
            return self._number > 0 and self._highest()[0] == self._number
        except OSError as error:
            if self._away_until_s == -math.inf:
                LOG.warning(f"{error}; leases held there stay valid")
            self._away_until_s = self.host.now_s() + PATIENCE_S
            return True

    def beat(self) -> None:
        """Write the next heartbeat; no effect unless this process holds the lease."""
        with self._writing:  # not during `release`, which it would undo
            if self._number:
                self._place.write(self._number, f"{self._me} {next(self._counted)}")

    def release(self) -> None:
        """Release it, if it was held; if the storage is not reachable, as soon as it is again."""
        self._ended.set()
        try:
            self._give_back()
        except OSError:
            if self.host.beats:
                Thread(target=self._give_back_later, daemon=True).start()

    def _give_back(self) -> None:
        with self._writing:
            if self._number:
                self._place.write(self._number, FREE)
            self._number = 0

    def _give_back_later(self) -> None:
        # Without a release, other leases of this process would wait for one that it no longer uses.
        while self._number:
            self.host.sleep(BEAT_S)
            with suppress(OSError):
                self._give_back()

    def _try_create(self, number: int) -> bool:
        """Create the lease of this number; False if another process has created it."""
        self._me = self.host.me()
        if not self._place.make(number, f"{self._me} 0"):
            return False
        self._number = number  # at once: if the storage fails from here on, it is released
        leases = self._place.numbers()
        if max(leases) > number:  # higher ones have been created, and lower ones removed, since
            self._number = 0
            self._place.remove(number)
            return False
        for each in leases:
            if each < number:
                self._place.remove(each)
        if self.host.beats:
            Thread(target=self._beats, daemon=True).start()
        return True

    def _beats(self) -> None:
        while not self._ended.wait(BEAT_S):
            with suppress(OSError):  # a file server may be unreachable for a moment
                self.beat()

    def _is_vacant(self, text: str, still_s: float) -> bool:
        if text == FREE:
            return True
        lives = self.host.lives(text.partition(" ")[0])
        return still_s > PATIENCE_S if lives is None else not lives

    def _highest(self) -> tuple[int, str]:
        """Highest number and its text; 0 and `FREE` if there is no lease yet."""
        while number := max(self._place.numbers(), default=0):
            with suppress(FileNotFoundError):  # taken over and removed between the two calls
                return number, self._place.read(number)
        return 0, FREE


@dataclass(frozen=True)
class Leases:
    """Several leases as one. All processes acquire them in the same order: there is no deadlock."""

    leases: Sequence[Lease]

    def acquire(self, waiting: Waits = _say_nothing) -> None:
        """Acquire all of them; none is held after an error.

        Raises:
            OSError: a storage cannot be read or written.
        """
        try:
            for each in self.leases:
                each.acquire(waiting)
        except BaseException:
            self.release()
            raise

    def is_held(self) -> bool:
        """Whether this process still holds all of them, as far as is known."""
        return all(each.is_held() for each in self.leases)

    def release(self) -> None:
        """Release all that are held, the last first; also after an error of one."""
        with ExitStack() as stack:
            for each in self.leases:
                stack.callback(each.release)


FIRST_S, TIMES = 5.0, 4.0
"""Seconds of waiting before the first line, and the factor from each line to the next."""

SILENT_S = 15.0
"""Seconds without a heartbeat after which a running holder is reported as stuck."""


def _log_line(line: str) -> None:
    LOG.info(line)


@dataclass
class Waiting:
    """Tells the user at growing intervals which process a command waits for, and what can be done.

    Args:
        what: title of the run that is waited for.
        say: prints a line.
    """

    what: str
    say: Callable[[str], None] = _log_line

    def __post_init__(self) -> None:
        self._next_s = FIRST_S

    def __call__(self, holder: str, waited_s: float, still_s: float) -> None:
        """Print a line if it is due; a `Waits`.

        Args:
            holder: word of the process that holds the lease.
            waited_s: seconds waited so far.
            still_s: seconds since the holder's counter changed.
        """
        if waited_s >= self._next_s:
            self._next_s *= TIMES
            self.say(
                f"{self.what}: waiting for {waited_s:.0f} s for {_describe_holder(holder, still_s)}"
            )


def _describe_holder(holder: str, still_s: float) -> str:
    number, host = number_of(holder), host_of(holder)
    if not is_running(holder):
        return f"process {number} of {host}, which is taken over if it shows no life for a minute"
    if is_suspended(holder):
        hand_over = f"kill -KILL {number} hands the run over"
        return f"process {number}, which is suspended; kill -CONT {number} resumes it, {hand_over}"
    if still_s >= SILENT_S:
        silent = f"shows no life for {still_s:.0f} s"
        return f"process {number}, which lives and {silent}; kill -KILL {number} hands the run over"
    return f"process {number}, which is executing it; its result is read when finished"


NAME = ".lease-"

DIGITS = 18
"""Most digits of a number."""


class Place(Protocol):
    """Storage for the numbered texts of a lease; only `make` has to be atomic.

    Attributes:
        poll_s: seconds between two looks of a waiting process.
    """

    @property
    def poll_s(self) -> float:
        """Seconds between two looks of a waiting process."""
        ...

    def numbers(self) -> list[int]:
        """Numbers of the texts that exist."""
        ...

    def read(self, number: int) -> str:
        """Read a text; FileNotFoundError if it does not exist."""
        ...

    def make(self, number: int, text: str) -> bool:
        """Create a text, atomically; False if one of this number exists."""
        ...

    def write(self, number: int, text: str) -> None:
        """Replace an existing text."""
        ...

    def remove(self, number: int) -> None:
        """Remove a text, if it exists."""
        ...


@dataclass(frozen=True)
class Folder:
    """Leases as files ``.lease-N`` in an existing folder."""

    path: Path
    poll_s: float = 0.05

    def numbers(self) -> list[int]:
        """See `Place`."""
        names = os.listdir(self.path)  # noqa: PTH208 (asked often, and far quicker)
        return parse_numbers(names, NAME)

    def read(self, number: int) -> str:
        """See `Place`."""
        return self._file_path(number).read_text(errors="replace")

    def make(self, number: int, text: str) -> bool:
        """See `Place`."""
        try:
            with self._file_path(number).open("x") as file:
                file.write(text)
        except FileExistsError:
            return False
        return True

    def write(self, number: int, text: str) -> None:
        """See `Place`; a missing file is not created: the lease has been taken over."""
        with suppress(FileNotFoundError), self._file_path(number).open("r+") as file:
            file.write(text)
            file.truncate()  # after the write: the file is never empty, not even on a full disk

    def remove(self, number: int) -> None:
        """See `Place`."""
        self._file_path(number).unlink(missing_ok=True)

    def _file_path(self, number: int) -> Path:
        return self.path / f"{NAME}{number}"


def parse_numbers(names: list[str], prefix: str) -> list[int]:
    """Numbers at the ends of names that begin with a prefix.

    Implausibly long ones are ignored, so that a stray file cannot become the highest number.

    Example:
        >>> parse_numbers([".lease-7", ".lease-x", ".lease-" + "9" * 19], ".lease-")
        [7]
    """
    ends = (name.removeprefix(prefix) for name in names if name.startswith(prefix))
    return [int(end) for end in ends if end.isdecimal() and len(end) <= DIGITS]

"""Leases: the right of one process to make a run, on any storage that hosts share.

Who holds a run, on any file system or object store that hosts share. A lease is a text of a
number, N, that its holder made where there was none: the one atomic step that every file system
and every object store has (`place`). The highest N holds, and stays when it is given back, so that
nobody makes a number twice. The holder writes a count into it every `BEAT_S`. Whoever waits takes
over, as N + 1, from a process of this host that is gone, and from one elsewhere whose count has
stood still for `PATIENCE_S` of his own monotonic clock: no clock of another host, nor of a file
server, is asked.

A holder that stood still itself may be taken over and go on. It is told when it asks (`held`), and
until then two make one run: to the same bytes, each file replaced as a whole.

A process in one word, and whether the process of such a word lives. What is said to a user whose
command waits for a run that another process holds. Where leases lie: numbered texts, each of which
is made once.
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
    """This process: where it is, its number, and when it began, for numbers are given again.

    The name of its host is for people.
    """
    return f"{_place()}:{os.getpid()}:{_began(os.getpid())}:{_host()}"


def is_running(word: str) -> bool | None:
    """Whether a process lives; None if it is elsewhere, or nothing is known of it here."""
    place, pid, began, _ = _parts(word)
    if place != _place() or not began or not pid.isdecimal():
        return None
    return _began(int(pid)) == began


def is_suspended(word: str) -> bool:
    """Whether a process of this host is suspended."""
    return _stat(int(number_of(word)))[:1] in (["T"], ["t"])


def number_of(word: str) -> str:
    """By which its host knows a process."""
    return _parts(word)[1]


def host_of(word: str) -> str:
    """The name of a process's host."""
    return _parts(word)[3] or "another host"


def _parts(word: str) -> list[str]:
    """Place, number, beginning and host; what a word does not say is empty."""
    return [*word.split(":"), "", "", "", ""][:4]


def _host() -> str:
    return socket.gethostname().replace(":", "-").replace(" ", "-")


def _place() -> str:
    """What numbers of processes are of: one start of one kernel, one space of its numbers."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}-{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:  # no Linux: nothing says who lives
        return f"{_host()}-unknown"


def _began(pid: int) -> str:
    """When a process began, in ticks of its machine; empty if it is not there, or dead."""
    state, *fields = _stat(pid) or "Z"
    return "" if state in "ZX" else fields[18]


def _stat(pid: int) -> list[str]:
    """What a Linux machine says of a process from its state on; nothing if it is not there."""
    try:
        told = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return told.rpartition(")")[2].split()  # the name before it may hold anything


FREE = "free"

BEAT_S = 5.0

PATIENCE_S = 60.0
"""So long a count may stand still; a busy machine, or a slow file server, may delay a few beats."""

Waits = Callable[[str, float, float], None]
"""Told whose it is, how long that is waited for, and how long its count has stood still."""


def _say_nothing(holder: str, waited_s: float, still_s: float) -> None:
    del holder, waited_s, still_s


@dataclass(frozen=True)
class Host:
    """What a lease needs of the machine it is on.

    Args:
        me: says who this process is, in one word.
        lives: whether the process of such a word lives; None if that cannot be known from here.
        now_s: a clock that is never set.
        sleep: waits.
        beats: whether a thread gives the signs of life; else whoever calls `Lease.beat`.
    """

    me: Callable[[], str] = process_id
    lives: Callable[[str], bool | None] = is_running
    now_s: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    beats: bool = True


@dataclass
class Lease:
    """The right to make a run, once it is acquired.

    Args:
        where: a folder, which exists, or another place for leases.
        host: where this process is.
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
        """Wait until nobody else holds it, and hold it.

        Args:
            waiting: told at every look.

        Raises:
            OSError: the machine refuses it.
        """
        begun_s = self.host.now_s()
        seen, since_s = self._highest(), begun_s
        looked_s = since_s  # before it was read: whoever waits may have stood still since
        while not (self._is_vacant(seen[1], looked_s - since_s) and self._try_create(seen[0] + 1)):
            waiting(seen[1].partition(" ")[0], looked_s - begun_s, looked_s - since_s)
            self.host.sleep(self._place.poll_s)
            looked_s = self.host.now_s()
            if (now := self._highest()) != seen:
                seen, since_s = now, self.host.now_s()

    def is_held_by_other(self) -> bool:
        """Whether somebody holds it who lives, or of whom nothing is known here."""
        _, text = self._highest()
        return text != FREE and self.host.lives(text.partition(" ")[0]) is not False

    def is_held(self) -> bool:
        """Whether nobody is known to have taken it over.

        A place that is away knows nothing: that is said once, and it is asked again later.
        """
        if self._number and self.host.now_s() < self._away_until_s:
            return True
        try:
            return self._number > 0 and self._highest()[0] == self._number
        except OSError as error:
            if self._away_until_s == -math.inf:
                LOG.warning(f"{error}; what is held there goes on")
            self._away_until_s = self.host.now_s() + PATIENCE_S
            return True

    def beat(self) -> None:
        """Give a sign of life; nothing if the lease is somebody else's by now."""
        with self._writing:  # not amid `release`, which it would undo
            if self._number:
                self._place.write(self._number, f"{self._me} {next(self._counted)}")

    def release(self) -> None:
        """Give it back, if it was held; where the place is away, as soon as it is there again."""
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
        while self._number:  # else this process, which lives, would wait for itself
            self.host.sleep(BEAT_S)
            with suppress(OSError):
                self._give_back()

    def _try_create(self, number: int) -> bool:
        """Make the lease of this number; False if somebody else was quicker."""
        self._me = self.host.me()
        if not self._place.make(number, f"{self._me} 0"):
            return False
        self._number = number  # at once: should the place be away now, it is given back
        leases = self._place.numbers()
        if max(leases) > number:  # what was seen is long over
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
            with suppress(OSError):  # a file server that is away for a moment is no end
                self.beat()

    def _is_vacant(self, text: str, still_s: float) -> bool:
        if text == FREE:
            return True
        lives = self.host.lives(text.partition(" ")[0])
        return still_s > PATIENCE_S if lives is None else not lives

    def _highest(self) -> tuple[int, str]:
        """The lease that holds and what it says; free where there was none yet."""
        while number := max(self._place.numbers(), default=0):
            with suppress(FileNotFoundError):  # taken over this moment
                return number, self._place.read(number)
        return 0, FREE


@dataclass(frozen=True)
class Leases:
    """Several as one; everybody acquires them in the same order, so nobody waits for ever."""

    leases: Sequence[Lease]

    def acquire(self, waiting: Waits = _say_nothing) -> None:
        """All of them, or none.

        Raises:
            OSError: the machine refuses it.
        """
        try:
            for each in self.leases:
                each.acquire(waiting)
        except BaseException:
            self.release()
            raise

    def is_held(self) -> bool:
        """Whether nobody is known to have taken one over."""
        return all(each.is_held() for each in self.leases)

    def release(self) -> None:
        """Give back what was held, the last first; an error of one keeps no other."""
        with ExitStack() as stack:
            for each in self.leases:
                stack.callback(each.release)


FIRST_S, TIMES = 5.0, 4.0
"""After how long a line is said first, and so many times as long again each further one."""

SILENT_S = 15.0
"""A holder that lives and has not counted for so long is stuck, or stopped."""


def _log_line(line: str) -> None:
    LOG.info(line)


@dataclass
class Waiting:
    """Says now and then whom somebody waits for, how long, and what can be done.

    Args:
        what: is waited for.
        say: takes a line.
    """

    what: str
    say: Callable[[str], None] = _log_line

    def __post_init__(self) -> None:
        self._next_s = FIRST_S

    def __call__(self, holder: str, waited_s: float, still_s: float) -> None:
        """Be told of it.

        Args:
            holder: the word of a process (`owner`).
            waited_s: how long so far.
            still_s: since when the holder gave no sign of life.
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
        return (
            f"process {number}, which is suspended; kill -CONT {number} lets it go on, {hand_over}"
        )
    if still_s >= SILENT_S:
        silent = f"shows no life for {still_s:.0f} s"
        return f"process {number}, which lives and {silent}; kill -KILL {number} hands the run over"
    return f"process {number}, which is at work on it; its result is taken when it is there"


NAME = ".lease-"

DIGITS = 18


class Place(Protocol):
    """What a lease needs; `make` is the one step that has to be atomic.

    Attributes:
        poll_s: how often whoever waits looks again.
    """

    @property
    def poll_s(self) -> float:
        """See above."""
        ...

    def numbers(self) -> list[int]:
        """Of the texts that are there."""
        ...

    def read(self, number: int) -> str:
        """A text; FileNotFoundError if it is not there."""
        ...

    def make(self, number: int, text: str) -> bool:
        """Put a text where there is none; False if there is one."""
        ...

    def write(self, number: int, text: str) -> None:
        """Put a text in place of the one that is there."""
        ...

    def remove(self, number: int) -> None:
        """Nothing is there from now on."""
        ...


@dataclass(frozen=True)
class Folder:
    """Files ``.lease-N`` of a folder, which exists."""

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
        """Nothing if it is not there: a lease that was taken over is not made again."""
        with suppress(FileNotFoundError), self._file_path(number).open("r+") as file:
            file.write(text)
            file.truncate()  # after it: at no moment, and on no full disk, is nothing there

    def remove(self, number: int) -> None:
        """See `Place`."""
        self._file_path(number).unlink(missing_ok=True)

    def _file_path(self, number: int) -> Path:
        return self.path / f"{NAME}{number}"


def parse_numbers(names: list[str], prefix: str) -> list[int]:
    """The numbers at the ends of names that begin with a prefix; what nobody counts to is none."""
    ends = (name.removeprefix(prefix) for name in names if name.startswith(prefix))
    return [int(end) for end in ends if end.isdecimal() and len(end) <= DIGITS]

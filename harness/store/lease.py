"""Who holds a folder, on any file system that hosts share.

A lease is a file, ``.lease-N``, that its holder made where there was none: the one atomic step that
every file system has. The highest N holds, and stays when it is given back, so that nobody makes a
number twice. The holder writes a count into it every `BEAT_S`. Whoever waits takes over, as N + 1,
from a process of this host that is gone, and from one elsewhere whose count has stood still for
`PATIENCE_S` of his own monotonic clock: no clock of another host, nor of a file server, is asked.

A holder that stood still itself may be taken over and go on. It is told when it asks (`held`), and
until then two make one run: to the same bytes, each file replaced as a whole.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from threading import Event, Lock, Thread

from harness.store import owner

NAME = ".lease-"
FREE = "free"
POLL_S = 0.05
BEAT_S = 5.0
PATIENCE_S = 60.0
"""So long a count may stand still; a busy machine, or a slow file server, may delay a few beats."""


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

    me: Callable[[], str] = owner.me
    lives: Callable[[str], bool | None] = owner.lives
    now_s: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    beats: bool = True


@dataclass
class Lease:
    """The right to write in a folder, once it is acquired.

    Args:
        folder: which exists.
        host: where this process is.
    """

    folder: Path
    host: Host = field(default_factory=Host)
    _number: int = 0

    def __post_init__(self) -> None:
        self._ended = Event()
        self._counted = count(1)
        self._writing = Lock()

    def acquire(self, waiting: Callable[[str, float, float], None] = _say_nothing) -> None:
        """Wait until nobody else holds the folder, and hold it.

        Args:
            waiting: told at every look whose it is, how long that is waited for, and how long its
                count has stood still, in seconds.

        Raises:
            OSError: the machine refuses it.
        """
        begun_s = self.host.now_s()
        seen, since_s = self._highest(), begun_s
        looked_s = since_s  # before it was read: whoever waits may have stood still since
        while not (self._is_vacant(seen[1], looked_s - since_s) and self._made(seen[0] + 1)):
            waiting(seen[1].partition(" ")[0], looked_s - begun_s, looked_s - since_s)
            self.host.sleep(POLL_S)
            looked_s = self.host.now_s()
            if (now := self._highest()) != seen:
                seen, since_s = now, self.host.now_s()

    def held(self) -> bool:
        """Whether nobody has taken the folder over."""
        return self._number > 0 and self._highest()[0] == self._number

    def beat(self) -> None:
        """Give a sign of life; nothing if the lease is somebody else's by now."""
        with self._writing:  # not amid `release`, which it would undo
            if self._number:
                self._write(f"{self._me} {next(self._counted)}")

    def release(self) -> None:
        """Give the folder back, if it was held."""
        self._ended.set()
        with self._writing:
            if self._number:
                self._write(FREE)
            self._number = 0

    def _made(self, number: int) -> bool:
        """Make the lease of this number; False if somebody else was quicker."""
        self._me = self.host.me()
        try:
            with self._path(number).open("x") as file:
                file.write(f"{self._me} 0")
        except FileExistsError:
            return False
        leases = self._numbers()
        if max(leases) > number:  # what was seen is long over
            self._path(number).unlink(missing_ok=True)
            return False
        self._number = number
        for each in leases:
            if each < number:
                self._path(each).unlink(missing_ok=True)
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
        while number := max(self._numbers(), default=0):
            with suppress(FileNotFoundError):  # taken over this moment
                return number, self._path(number).read_text(errors="replace")
        return 0, FREE

    def _numbers(self) -> list[int]:
        names = os.listdir(self.folder)  # noqa: PTH208 (asked often, and far quicker)
        ends = (name.removeprefix(NAME) for name in names if name.startswith(NAME))
        return [int(end) for end in ends if end.isdecimal()]

    def _path(self, number: int) -> Path:
        return self.folder / f"{NAME}{number}"

    def _write(self, text: str) -> None:
        """Where the lease still is; one that was taken over is not made again."""
        with suppress(FileNotFoundError), self._path(self._number).open("r+") as file:
            file.write(text)
            file.truncate()  # after it: at no moment, and on no full disk, is nothing there

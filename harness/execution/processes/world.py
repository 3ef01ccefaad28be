"""What a process of a run has of its machine: time, threads, and lines to the other processes.

This module and `sockets` are the only ones that know the real ones. In the tests there is a world
of virtual time in which an adversary holds every connection; the code between is the same.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from harness.execution.processes.lines import BEAT_EVERY_S, Line


class Changes(AbstractContextManager[object], Protocol):
    """A condition variable: held to change what threads share, waited for by those who read it."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until somebody changes something; False if it takes longer than so many seconds."""
        ...

    def notify_all(self) -> None:
        """Something has changed."""
        ...


class World(Protocol):
    """What one process has.

    Attributes:
        lines: to the other processes, by rank.
        late: those who come back, with their ranks; to be read as `changes` say.
    """

    lines: dict[int, Line]
    late: deque[tuple[int, Line]]

    def now_s(self) -> float:
        """Seconds on a clock that never goes back."""
        ...

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        ...

    def start(self, target: Callable[[], None], name: str) -> None:
        """Do something on a thread that ends with the process."""
        ...

    def changes(self) -> Changes:
        """A condition variable of this process."""
        ...

    def came_late(self) -> Changes:
        """The one that tells of ``late``."""
        ...


class Machine:
    """The real one."""

    def __init__(self) -> None:
        self.lines: dict[int, Line] = {}
        self.late = deque[tuple[int, Line]]()
        self._came_late = threading.Condition()

    def now_s(self) -> float:
        """See `World`."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """See `World`."""
        time.sleep(seconds)

    def start(self, target: Callable[[], None], name: str) -> None:
        """See `World`."""
        threading.Thread(target=target, daemon=True, name=name).start()

    def changes(self) -> Changes:
        """See `World`."""
        return threading.Condition()

    def came_late(self) -> Changes:
        """See `World`."""
        return self._came_late


_world: World = Machine()


def world() -> World:
    """Where this process is."""
    return _world


@contextmanager
def living_in(other: World) -> Generator[None]:
    """Be in another world for a while."""
    global _world
    before, _world = _world, other
    try:
        yield
    finally:
        _world = before


def now_s() -> float:
    """Seconds on this process's clock, which never goes back."""
    return _world.now_s()


def sleep_until(moment: float) -> None:
    """Wait until a moment of this process's clock, if it is still to come."""
    left = moment - now_s()
    if left > 0.0:
        _world.sleep(left)


def beat_on() -> None:
    """Beat on all lines of this process from now on, and on those that are added."""
    here = world()

    def beats() -> None:
        while True:
            for line in [*here.lines.values(), *(line for _, line in list(here.late))]:
                line.beat()
            here.sleep(BEAT_EVERY_S)

    here.start(beats, "beats")

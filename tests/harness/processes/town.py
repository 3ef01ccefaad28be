"""A world in one thread: processes that take turns, virtual time, and an adversary on every line.

Every process is a `Place`, the `Runtime` that the protocol's code lives in; its threads are
greenlets. Nothing runs at the same time, and what happens next is drawn from one seed: a schedule
can be told by its number.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import Any

import greenlet
import torch

from harness.processes.transport import SILENT_AFTER_S, PeerConnection

Meddler = Callable[["Pipe", bytes], list[bytes]]
"""What becomes of a message on its way; may also do something to its two ends."""


def _keep_grad_mode(event: str, between: tuple[Any, Any]) -> None:
    """Each greenlet has its own grad mode, as each thread has, and so has who runs the town.

    Told of every switch, also of one to a greenlet that nobody wants any more and that leaves its
    ``with torch.no_grad()`` as it is collected, wherever that is.
    """
    source, target = between
    source.grad = torch.is_grad_enabled()
    torch.set_grad_enabled(getattr(target, "grad", True))


greenlet.settrace(_keep_grad_mode)


class Town:
    """All processes of a run, and the time they share.

    Args:
        meddle: what the adversary makes of each message.
        latency: seconds that the next message takes.
    """

    def __init__(self, meddle: Meddler, latency: Callable[[], float]) -> None:
        self.meddle, self.latency = meddle, latency
        self.now = 0.0
        self.most_on_the_way, self.changed = 0, False
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = count()
        self.hub = greenlet.getcurrent()

    def at(self, moment: float, action: Callable[[], None]) -> None:
        """Let something happen at a moment."""
        heapq.heappush(self._events, (moment, next(self._number), action))

    def run(self, until: float, done: Callable[[], bool]) -> None:
        """Let time go on, until a moment or until all is done, which is asked when one ends."""
        while self._events:
            moment, _, action = heapq.heappop(self._events)
            if moment > until:
                return
            self.now = moment
            action()
            if self.changed:
                self.changed = False
                if done():
                    return


class Place:
    """One process; see `Runtime`.

    Args:
        town: where it is.
        name: for whoever looks at a schedule.
    """

    def __init__(self, town: Town, name: str) -> None:
        self.town, self.name = town, name
        self.lines: dict[int, PeerConnection] = {}
        self.late = deque[tuple[int, PeerConnection]]()
        self._came_late = Changed(self)
        self.connections: list[End] = []
        self.alive, self.asleep_until = True, 0.0
        self.threads = 0

    def now_s(self) -> float:
        return self.town.now

    def sleep(self, seconds: float) -> None:
        me = greenlet.getcurrent()
        self.town.at(self.town.now + seconds, lambda: self.resume(me))
        self.town.hub.switch()

    def start(self, target: Callable[[], None], name: str) -> None:
        self.threads += 1
        made = greenlet.greenlet(target, parent=self.town.hub)
        made.place = self
        self.town.at(self.town.now, lambda: self.resume(made))

    def changes(self) -> Changed:
        return Changed(self)

    def late_arrivals(self) -> Changed:
        return self._came_late

    def resume(self, thread: Any, *told: object) -> None:
        """Let one of its threads go on, once the process is awake."""
        if not self.alive or thread.dead:
            return
        if self.asleep_until > self.town.now:
            if self.asleep_until < math.inf:
                self.town.at(self.asleep_until, lambda: self.resume(thread, *told))
            return
        thread.switch(*told)

    def end_if_killed(self) -> None:
        """End here if this is the process that runs, and has been killed."""
        if not self.alive and getattr(greenlet.getcurrent(), "place", None) is self:
            raise greenlet.GreenletExit

    def end(self) -> None:
        """The process ends, or is killed: its connections close."""
        self.alive, self.town.changed = False, True
        for each in self.connections:
            each.close()


class Here:
    """The world of whoever asks."""

    def __getattr__(self, name: str) -> Any:
        return getattr(greenlet.getcurrent().place, name)


class Changed:
    """A condition variable: only one thread runs at a time, so it guards nothing."""

    def __init__(self, place: Place) -> None:
        self._place, self._waiting = place, list[Any]()

    def __enter__(self) -> bool:
        return True

    def __exit__(self, *told: object) -> None:
        return None

    def wait(self, timeout: float | None = None) -> bool:
        turn = [greenlet.getcurrent()]
        self._waiting.append(turn)
        if timeout is not None:
            self._place.town.at(self._place.town.now + timeout, lambda: self._wake(turn, False))
        return self._place.town.hub.switch()

    def notify_all(self) -> None:
        waiting, self._waiting = self._waiting, []
        for turn in waiting:
            self._place.town.at(self._place.town.now, lambda turn=turn: self._wake(turn, True))

    def _wake(self, turn: list[Any], notified: bool) -> None:
        if turn:
            if not notified and turn in self._waiting:
                self._waiting.remove(turn)
            self._place.resume(turn.pop(), notified)


class Pipe:
    """One direction of a connection.

    Args:
        source, target: the processes at its ends.
    """

    def __init__(self, source: Place, target: Place) -> None:
        self.source, self.target, self.town = source, target, source.town
        self.held: list[bytes] = []
        self._bytes, self._closed = bytearray(), False
        self._arrives, self._waits = 0.0, list[Any]()

    def send(self, parts: tuple[bytes | memoryview, ...]) -> None:
        if self._closed:
            raise ConnectionError
        message = b"".join(parts)
        for words in self.town.meddle(self, message):
            self._arrive(words)

    def stall(self, seconds: float) -> None:
        """Nothing arrives for so long."""
        self._arrives = self.town.now + seconds

    def _arrive(self, words: bytes) -> None:
        # A process that was stopped goes on to where it waits next; what it says is said later.
        said = max(self.town.now, self.source.asleep_until)
        self._arrives = max(self._arrives, said + self.town.latency())
        if self._arrives < math.inf:
            self.town.at(self._arrives, lambda: self._take(words))

    def _take(self, words: bytes) -> None:
        if not self._closed:
            self._bytes += words
            self.town.most_on_the_way = max(self.town.most_on_the_way, len(self._bytes))
            self._tell()

    def close(self) -> None:
        """What was sent before still arrives; then nothing."""
        self._arrives = max(self._arrives, self.town.now + self.town.latency())
        self.town.at(self._arrives, self._end)

    def _end(self) -> None:
        self._closed = True
        self._tell()

    def _tell(self) -> None:
        if self._waits:
            thread = self._waits.pop()
            self.target.resume(thread, True)

    def receive(self, into: memoryview) -> None:
        while len(self._bytes) < len(into):
            if self._closed:
                raise ConnectionError
            before = len(self._bytes)
            self._waits = waits = [greenlet.getcurrent()]
            self.town.at(self.town.now + SILENT_AFTER_S, lambda waits=waits: self._give_up(waits))
            if not self.town.hub.switch() and len(self._bytes) == before:
                raise TimeoutError
        into[:] = self._bytes[: len(into)]
        del self._bytes[: len(into)]

    def _give_up(self, waits: list[Any]) -> None:
        if waits:
            self.target.resume(waits.pop(), False)


class End:
    """One end of a connection: a `Connection`."""

    def __init__(self, sends: Pipe, receives: Pipe) -> None:
        self._sends, self._receives = sends, receives
        self._open = True

    def send(self, *parts: bytes | memoryview) -> None:
        if not self._open:
            raise ConnectionError
        self._sends.send(parts)

    def receive(self, into: memoryview) -> None:
        self._receives.receive(into)

    def has_room(self) -> bool:
        return True

    def close(self) -> None:
        if self._open:
            self._open = False
            self._sends.close()
            town = self._receives.town
            town.at(town.now, self._receives._end)  # not at once: another thread runs here


def connect(one: Place, other: Place) -> tuple[PeerConnection, PeerConnection]:
    """Both ends of a new connection."""
    there, back = Pipe(one, other), Pipe(other, one)
    ends = End(there, back), End(back, there)
    for place, end in zip((one, other), ends, strict=True):
        place.connections.append(end)
    return PeerConnection(ends[0]), PeerConnection(ends[1])


def in_process(place: Place, program: Callable[[], None]) -> None:
    """Run a program as the main thread of a process, which ends with it."""

    def main() -> None:
        with suppress(greenlet.GreenletExit):
            program()
        place.end()

    place.start(main, "main")

"""A world in one thread: processes that take turns, virtual time, and an adversary on every line.

Every process is a `Place`, and its main thread a greenlet. Nothing runs at the same time, and what
happens next is drawn from one seed: a schedule can be told by its number. `TownHub` and `TownLink`
are in place of the sockets.
"""

import heapq
import math
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import Any

import greenlet
from torch import Tensor

from harness.processes.transport import (
    CLOSED,
    SILENT_AFTER_S,
    Body,
    Connections,
    Header,
    ServerGone,
    frames_of,
    read_orders,
)

Frames = tuple[bytes, ...]

Meddler = Callable[["Wire", "Place", Frames], list[Frames]]
"""What becomes of a message on its way; may also do something to its two ends."""


class Town:
    """All processes of a run, and the time they share.

    Args:
        meddle: what the adversary makes of each message.
        latency: seconds that the next message takes.
    """

    def __init__(self, meddle: Meddler, latency: Callable[[], float]) -> None:
        self.meddle, self.latency = meddle, latency
        self.now, self.changed = 0.0, False
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
    """One process.

    Args:
        town: where it is.
        name: for whoever looks at a schedule.
    """

    def __init__(self, town: Town, name: str) -> None:
        self.town, self.name = town, name
        self.wires: list[Wire] = []
        self.arrived = deque[Any]()
        self.alive, self.asleep_until = True, 0.0
        self._thread: Any = None
        self._waits: object = None  # names the one event that may wake it
        self._listens = False

    def now_s(self) -> float:
        return self.town.now

    def sleep(self, seconds: float) -> None:
        self._pause(self.town.now + seconds)

    def begin(self, program: Callable[[], None]) -> None:
        """Run a program, with which the process ends."""

        def main() -> None:
            with suppress(greenlet.GreenletExit):
                program()
            self.end()

        self._thread = greenlet.greenlet(main, parent=self.town.hub)
        self._thread.place = self
        self.town.at(self.town.now, lambda: self._wake(None))

    def wait(self, until_s: float) -> bool:
        """Wait until something has arrived; False if nothing does in time."""
        while not self.arrived and self.town.now < until_s:
            self._listens = True
            self._pause(until_s)
            self._listens = False
        return bool(self.arrived)

    def take(self, arrival: Any) -> None:
        """Something arrives."""
        self.arrived.append(arrival)
        if self._listens:
            waits = self._waits
            self.town.at(self.town.now, lambda: self._wake(waits))

    def _pause(self, until_s: float) -> None:
        self._waits = waits = object()
        if until_s < math.inf:
            self.town.at(until_s, lambda: self._wake(waits))
        self.town.hub.switch()

    def _wake(self, waits: object) -> None:
        """Go on, once the process is awake."""
        if not self.alive or self._thread.dead or waits is not self._waits:
            return
        if self.asleep_until > self.town.now:
            if self.asleep_until < math.inf:
                self.town.at(self.asleep_until, lambda: self._wake(waits))
            return
        self._waits = object()
        self._thread.switch()

    def stop(self, seconds: float) -> None:
        """The process is stopped for so long; whoever hears nothing of it gives it up."""
        self.town.changed = True
        self.asleep_until = max(self.asleep_until, self.town.now + seconds)
        if seconds >= SILENT_AFTER_S:
            for wire in self.wires:
                wire.end_at(self.town.now + SILENT_AFTER_S)

    def end_if_killed(self) -> None:
        """End here if this is the process that runs, and has been killed."""
        if not self.alive and greenlet.getcurrent() is self._thread:
            raise greenlet.GreenletExit

    def end(self) -> None:
        """The process ends, or is killed: its connections close."""
        self.alive, self.town.changed = False, True
        for wire in self.wires:
            wire.end_at(self.town.now)


class Wire:
    """A connection: what is sent on it arrives in order, or it ends for both.

    Args:
        server, worker: the processes at its ends.
        index: index of the worker.
        number: what tells it from others.
    """

    def __init__(self, server: Place, worker: Place, index: int, number: int) -> None:
        self.server, self.worker, self.town = server, worker, server.town
        self.index, self.number, self.open = index, number, True
        self._arrives = {server: 0.0, worker: 0.0}
        for place in (server, worker):
            place.wires.append(self)

    def send(self, source: Place, frames: Frames) -> None:
        target = self.worker if source is self.server else self.server
        for each in self.town.meddle(self, source, frames):
            # A process that was stopped goes on to where it waits next; it says so later.
            said = max(self.town.now, source.asleep_until)
            self._arrives[target] = max(self._arrives[target], said + self.town.latency())
            if self._arrives[target] < math.inf:
                self.town.at(self._arrives[target], lambda each=each: self._deliver(target, each))

    def stall(self, target: Place, seconds: float) -> None:
        """Nothing arrives for so long; if that is too long, the connection ends."""
        self._arrives[target] = self.town.now + seconds
        if seconds >= SILENT_AFTER_S:
            self.end_at(self.town.now + SILENT_AFTER_S)

    def _deliver(self, target: Place, frames: Frames) -> None:
        if self.open:
            target.take((self, frames))

    def end_at(self, moment: float) -> None:
        """End the connection at a moment; what was sent before still arrives."""
        for place in (self.server, self.worker):
            last = max(moment, self._arrives[place] if self._arrives[place] < math.inf else 0.0)
            self.town.at(last, lambda place=place: place.take((self, None)))
        self.town.at(moment, self._shut)

    def _shut(self) -> None:
        last = [at for at in self._arrives.values() if at < math.inf]
        self.town.at(max([self.town.now, *last]), lambda: setattr(self, "open", False))


class TownHub(Connections):
    """The server's end of all connections.

    Args:
        place: the server.
        ranks: number of processes.
    """

    def __init__(self, place: Place, ranks: int) -> None:
        super().__init__(ranks)
        self.place, self._wires = place, dict[bytes, Wire]()

    def now_s(self) -> float:
        return self.place.now_s()

    def sleep(self, seconds: float) -> None:
        self.place.sleep(seconds)

    def accept(self, worker: Place, index: int) -> Wire:
        """A new connection of a worker."""
        wire = Wire(self.place, worker, index, number := len(self._wires))
        self._wires[b"%d" % number] = wire
        if not self.place.alive or self.place.asleep_until == math.inf:
            wire.end_at(self.place.now_s() + SILENT_AFTER_S)
        return wire

    def _carry(self, until_s: float) -> bool:
        if not self.place.wait(until_s):
            return False
        wire, frames = self.place.arrived.popleft()
        if frames is None:
            self._end(wire.number)
        else:
            self._take_in(wire.index, (b"%d" % wire.number, wire.number), frames)
        return True

    def _route(self, address: bytes, words: bytes, body: Body) -> None:
        self._wires[address].send(self.place, (words, bytes(body)))


class TownLink:
    """A worker's connection to the server.

    Args:
        place: the worker.
        hub: the server's end.
        index: index of the worker.
    """

    def __init__(self, place: Place, hub: TownHub, index: int) -> None:
        self._place, self._wire = place, hub.accept(place, index)

    def receive(self) -> tuple[Header, Body]:
        self._place.wait(math.inf)
        _, frames = self._place.arrived.popleft()
        if frames is None:
            raise ServerGone(CLOSED)
        return read_orders(frames)

    def send(self, header: Header, body: Tensor | None = None) -> None:
        words, content = frames_of(header, body)
        self._wire.send(self._place, (words, bytes(content)))

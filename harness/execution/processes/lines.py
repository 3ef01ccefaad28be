"""Lines between processes: numbered messages over a connection, and beats that say one lives.

A connection carries bytes. A line says where a message begins and ends, counts messages, and ends
when one is missing, comes twice or is cut short: whatever is between two processes, each message
arrives once and whole, or the line is at its end. Every process beats on all its lines every
`BEAT_EVERY_S`, also while it computes; so one that has stopped is told apart from one at work.
"""

from __future__ import annotations

import threading
from struct import Struct
from typing import Protocol

from harness.execution.processes.headers import GarbageReceived

BEAT_EVERY_S = 2.0
SILENT_AFTER_S = 20.0
"""A peer of whom nothing is heard for so long is taken for dead. A computation that lets no other
thread of its process run must be shorter."""
HEADER_BYTES = 256
"""Of every header; what its fields leave is zero."""
CLOSED = "is gone: its connection closed"
SILENT = f"is silent: not a beat for {SILENT_AFTER_S:.0f} s"
MARK = Struct("<8sQ")
"""Before every message and beat, after a header and after a body: what follows, and the number of
the message; of a beat, that of the last one."""
MESSAGE, BEAT = b"lagbench", b"lagbeats"


class PeerGone(RuntimeError):  # noqa: N818 (what happened)
    """Nothing more will be heard from a peer; says why."""


class Connection(Protocol):
    """A stream of bytes to one peer and back, which is in order for as long as it lasts."""

    def send(self, *parts: bytes | memoryview) -> None:
        """Send all of it.

        Raises:
            OSError: it is closed; `TimeoutError` if the peer takes nothing in for too long.
        """
        ...

    def receive(self, into: memoryview) -> None:
        """Wait for so many bytes.

        Raises:
            OSError: it is closed; `TimeoutError` if nothing comes for too long.
        """
        ...

    def has_room(self) -> bool:
        """Whether a few bytes can be sent without waiting for the peer."""
        ...

    def close(self) -> None:
        """End it; whoever waits for it hears so."""
        ...


class Line:
    """Messages to one peer and back.

    Args:
        connection: what carries them.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection, self._sending = connection, threading.Lock()
        self._sent = self._heard = 0

    def send(self, words: bytes, body: memoryview | None = None) -> None:
        """Send a header of `HEADER_BYTES`, and what follows it.

        Raises:
            PeerGone: so.
        """
        with self._sending:
            self._sent += 1
            mark = MARK.pack(MESSAGE, self._sent)
            try:
                self._connection.send(mark + words + mark, *(() if body is None else (body, mark)))
            except OSError as error:
                raise self._ended(error) from error

    def beat(self) -> None:
        """Say that this process lives, unless a message is on its way, which says so too."""
        if not self._sending.acquire(blocking=False):
            return
        try:
            if self._connection.has_room():
                self._connection.send(MARK.pack(BEAT, self._sent))
        except OSError:  # whoever reads will find out
            self.end()
        finally:
            self._sending.release()

    def header(self) -> bytearray:
        """Wait for the next message, and take in its first `HEADER_BYTES`.

        Raises:
            PeerGone: so.
            GarbageReceived: what came is no message, not the next one, or cut short.
        """
        kind, number = self._mark()
        while kind == BEAT and number == self._heard:
            kind, number = self._mark()
        if kind not in (MESSAGE, BEAT):
            raise GarbageReceived("not a message of lagbench")
        if kind == BEAT or number != self._heard + 1:
            raise GarbageReceived(f"message {number}, where {self._heard + 1} is due")
        self._heard = number
        words = bytearray(HEADER_BYTES)
        self._fill(memoryview(words))
        self._check_end()
        return words

    def body(self, into: memoryview) -> None:
        """Take in what follows a header.

        Raises:
            PeerGone: so.
            GarbageReceived: it was shorter or longer.
        """
        self._fill(into)
        self._check_end()

    def _check_end(self) -> None:
        if self._mark() != (MESSAGE, self._heard):
            raise GarbageReceived("a message that does not end where it should")

    def end(self) -> None:
        """Hear and say nothing more; the peer will notice."""
        self._connection.close()

    def _mark(self) -> tuple[bytes, int]:
        words = bytearray(MARK.size)
        self._fill(memoryview(words))
        return MARK.unpack(words)

    def _fill(self, into: memoryview) -> None:
        try:
            self._connection.receive(into)
        except OSError as error:
            raise self._ended(error) from error

    def _ended(self, error: OSError) -> PeerGone:
        self.end()
        return PeerGone(SILENT if isinstance(error, TimeoutError) else CLOSED)

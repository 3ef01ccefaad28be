"""Transport between processes: TCP connections, numbered messages, heartbeats, and a clock.

Handshake: both ends of a new TCP connection prove that they know the run's secret, by a digest
over two nonces, one of each end, so an earlier exchange cannot be replayed. If no secret is set,
the key is empty, and the handshake finds mistakes only.

Messages: a `Connection` carries bytes; a `PeerConnection` frames and numbers messages, and closes
when one is missing, repeated or truncated. Each message arrives once and complete, or the
connection ends. Every process sends a heartbeat on all its connections every `BEAT_EVERY_S`, also
while it computes, so that a stopped process can be distinguished from a busy one.

Runtime: time, threads and connections of a process. This module alone uses the real ones; tests
substitute virtual time and an adversary that controls every connection, and the code that runs on
them is the same.
"""

from __future__ import annotations

import fcntl
import hmac
import os
import secrets
import select
import socket
import sys
import termios
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, suppress
from struct import Struct
from typing import NamedTuple, Protocol

from harness.processes.console import SECRET

BEAT_EVERY_S = 2.0

SILENT_AFTER_S = 20.0
"""Seconds without a byte after which a peer counts as dead. A computation that lets no other
thread of its process run must be shorter."""

HEADER_BYTES = 256
"""Size of every header; bytes after its fields are zero."""

CLOSED = "is gone: its connection closed"

SILENT = f"is silent: no heartbeat for {SILENT_AFTER_S:.0f} s"

MARK = Struct("<8sQ")
"""Mark before every message and heartbeat, after a header and after a body: `MESSAGE` or `BEAT`,
and the number of the message; in a heartbeat, that of the last message sent."""

MESSAGE, BEAT = b"lagbench", b"lagbeats"


class PeerGone(RuntimeError):  # noqa: N818 (what happened)
    """The connection to a peer has ended; the message is the reason."""


class Connection(Protocol):
    """An ordered stream of bytes to one peer and back."""

    def send(self, *parts: bytes | memoryview) -> None:
        """Send all parts.

        Raises:
            OSError: it is closed; `TimeoutError` if the peer neither reads nor sends for too long.
        """
        ...

    def receive(self, into: memoryview) -> None:
        """Fill a buffer; waits for its bytes.

        Raises:
            OSError: it is closed; `TimeoutError` if no byte comes for too long.
        """
        ...

    def has_room(self) -> bool:
        """Whether a few bytes can be sent without waiting for the peer."""
        ...

    def close(self) -> None:
        """Close it; calls that wait on it raise OSError, here and at the peer."""
        ...


class PeerConnection:
    """Numbered messages to one peer and back, with heartbeats between them.

    A message is ``mark header mark``, or ``mark header mark body mark``; a heartbeat is one mark.

    Args:
        connection: carries the bytes.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection, self._sending = connection, threading.Lock()
        self._sent = self._heard = 0  # numbers of the last message in each direction

    def send(self, words: bytes, body: memoryview | None = None) -> None:
        """Send a header of `HEADER_BYTES`, and its body if there is one.

        Raises:
            PeerGone: the peer is gone.
        """
        with self._sending:
            self._sent += 1
            mark = MARK.pack(MESSAGE, self._sent)
            try:
                self._connection.send(mark + words + mark, *(() if body is None else (body, mark)))
            except OSError as error:
                raise self._end_as_gone(error) from error

    def send_heartbeat(self) -> None:
        """Send a heartbeat, unless a message is being sent, which serves as one."""
        if not self._sending.acquire(blocking=False):
            return
        try:
            # One thread beats on all connections: a peer that does not read must not block it.
            if self._connection.has_room():
                self._connection.send(MARK.pack(BEAT, self._sent))
        except OSError:  # the reading thread reports the end
            self.end()
        finally:
            self._sending.release()

    def header(self) -> bytearray:
        """Wait for the next message, and receive its header, `HEADER_BYTES` long.

        Raises:
            PeerGone: the peer is gone.
            MalformedMessage: the bytes are no message, not the next one, or truncated.
        """
        kind, number = self._mark()
        # A heartbeat with a higher number than the last message shows that a message was lost.
        while kind == BEAT and number == self._heard:
            kind, number = self._mark()
        if kind not in (MESSAGE, BEAT):
            raise MalformedMessage("not a message of lagbench")
        if kind == BEAT or number != self._heard + 1:
            raise MalformedMessage(f"message {number}, where {self._heard + 1} is due")
        self._heard = number
        words = bytearray(HEADER_BYTES)
        self._fill(memoryview(words))
        self._check_end()
        return words

    def body(self, into: memoryview) -> None:
        """Receive the body that follows a header.

        Raises:
            PeerGone: the peer is gone.
            MalformedMessage: the body was shorter or longer.
        """
        self._fill(into)
        self._check_end()

    def _check_end(self) -> None:
        if self._mark() != (MESSAGE, self._heard):
            raise MalformedMessage("a message that does not end where it should")

    def end(self) -> None:
        """Close the connection; the peer's next call on it fails."""
        self._connection.close()

    def _mark(self) -> tuple[bytes, int]:
        words = bytearray(MARK.size)
        self._fill(memoryview(words))
        return MARK.unpack(words)

    def _fill(self, into: memoryview) -> None:
        try:
            self._connection.receive(into)
        except OSError as error:
            raise self._end_as_gone(error) from error

    def _end_as_gone(self, error: OSError) -> PeerGone:
        self.end()
        return PeerGone(SILENT if isinstance(error, TimeoutError) else CLOSED)


INTRODUCED_WITHIN_S = 10.0
"""Seconds within which the handshake of a new connection has to be complete."""

AT_THE_DOOR = 64
"""Most handshakes at a time; further connections wait to be accepted."""

NONCE = PROOF = 32

WHO = Struct("<8sqqq")
"""Greeting of a connection: `WORD`, and the fields of `PeerInfo`."""

WORD = b"lagbench"


class HandshakeFailed(ConnectionError):  # noqa: N818 (what happened)
    """The peer does not know the run's secret, wants another rank, or is another program."""


class PeerInfo(NamedTuple):
    """Greeting of a new connection.

    Attributes:
        rank: rank of the process that connects.
        wants: rank that it wants to reach.
        late: whether it rejoins a run that has begun without it.
    """

    rank: int
    wants: int
    late: bool


class Socket:
    """A `Connection` over TCP.

    Args:
        connected: the socket.
        patience_s: seconds without a byte after which calls raise `TimeoutError`.

    Attributes:
        ended: whether this process has closed it.
    """

    def __init__(self, connected: socket.socket, patience_s: float = SILENT_AFTER_S) -> None:
        self._socket, self._read, self.ended = connected, 0, False
        self.be_patient(patience_s)
        # Headers are small and awaited: TCP must not hold them back to fill a packet.
        with suppress(OSError):  # a pair of sockets in one process has no such option
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._room = select.poll()
        self._room.register(connected, select.POLLOUT)

    def be_patient(self, seconds: float) -> None:
        """Set the seconds without a byte after which calls raise `TimeoutError`."""
        self._socket.settimeout(seconds)

    def send(self, *parts: bytes | memoryview) -> None:
        """See `Connection`."""
        for part in parts:
            left = memoryview(part)
            while left:
                left = left[self._send_some(left) :]

    def _send_some(self, words: memoryview) -> int:
        """Send some bytes; returns their number. Waits for a busy peer that still sends bytes."""
        while True:
            heard = self._count_received()
            try:
                return self._socket.send(words)
            except TimeoutError:
                if self._count_received() == heard:  # no heartbeat either: the peer is dead
                    raise

    def _count_received(self) -> int:
        """Number of bytes that have come from the peer, read or not."""
        return self._read + self._query_socket(termios.FIONREAD)

    def receive(self, into: memoryview) -> None:
        """See `Connection`."""
        while into:
            count = self._socket.recv_into(into)
            if not count:
                raise ConnectionError("closed")
            self._read += count
            into = into[count:]

    def has_room(self) -> bool:
        """See `Connection`."""
        return bool(self._room.poll(0))

    def close(self) -> None:
        """See `Connection`; the file descriptor stays open."""
        # Another thread may wait on the descriptor: closed, its number could be another file's.
        self.ended = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def unread(self) -> int:
        """Number of sent bytes that the peer's machine has yet to acknowledge; 0 after a reset."""
        with suppress(OSError):
            self._socket.getpeername()  # fails after a reset, while the kernel's counter stays
            return self._query_socket(termios.TIOCOUTQ)
        return 0

    def _query_socket(self, what: int) -> int:
        """Read a counter of the socket by ioctl; 0 if it is closed."""
        with suppress(OSError):
            return int.from_bytes(fcntl.ioctl(self._socket, what, bytes(4)), sys.byteorder)
        return 0


def connect(where: tuple[str, int], who: PeerInfo) -> Socket:
    """Connect to another process of the run.

    Args:
        where: host and port.
        who: greeting of this process.

    Raises:
        OSError: no answer; `HandshakeFailed` if the process there is not of this run.
    """
    connected = socket.create_connection(where, INTRODUCED_WITHIN_S)
    try:
        made = Socket(connected, INTRODUCED_WITHIN_S)
        _introduce(made, who, where)
    except OSError:
        connected.close()
        raise
    made.be_patient(SILENT_AFTER_S)
    return made


def _introduce(made: Socket, who: PeerInfo, where: tuple[str, int]) -> None:
    """Send the greeting with this end's proof, and check the proof of the other end."""
    end_s = current_runtime().now_s() + INTRODUCED_WITHIN_S
    theirs, ours, said = _read(made, NONCE, end_s), secrets.token_bytes(NONCE), _pack_greeting(who)
    made.send(ours + said + _proof(b"connects", theirs, ours, said))
    if not hmac.compare_digest(_read(made, PROOF, end_s), _proof(b"accepts", theirs, ours, said)):
        raise HandshakeFailed(f"the process at {where[0]}:{where[1]} has another {SECRET}")


def accept(connected: socket.socket, own: int) -> tuple[PeerInfo, Socket]:
    """Check the greeting of a new connection; returns it and the connection.

    Args:
        connected: the new socket.
        own: rank of this process.

    Raises:
        OSError: no greeting; `HandshakeFailed` if the peer is not of this run.
    """
    made = Socket(connected, INTRODUCED_WITHIN_S)
    ours = secrets.token_bytes(NONCE)
    made.send(ours)
    end_s = current_runtime().now_s() + INTRODUCED_WITHIN_S
    theirs, said, proof = (_read(made, size, end_s) for size in (NONCE, WHO.size, PROOF))
    word, rank, wants, late = WHO.unpack(said)
    expected = _proof(b"connects", ours, theirs, said)
    if word != WORD or wants != own or not hmac.compare_digest(proof, expected):
        raise HandshakeFailed(f"a peer that has another {SECRET}, or wants another rank")
    made.send(_proof(b"accepts", ours, theirs, said))
    made.be_patient(SILENT_AFTER_S)
    return PeerInfo(rank, wants, bool(late)), made


def listen(host: str, own: int, enter: Callable[[PeerInfo, Socket], None]) -> tuple[str, int]:
    """Accept connections from now on; returns host and port.

    Args:
        host: the only address to listen at.
        own: rank of this process.
        enter: called with each connection after its handshake, on a thread of its own. A
            connection with a failed handshake is closed without a call.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.create_server((host, 0), family=family, backlog=1024)

    room = threading.BoundedSemaphore(AT_THE_DOOR)

    def admit(connected: socket.socket) -> None:
        try:
            enter(*accept(connected, own))
        except OSError:
            connected.close()
        finally:
            room.release()

    def door() -> None:
        while True:
            room.acquire()
            try:
                connected, _ = listening.accept()
            except OSError:  # e.g. no file descriptor is free: pending connections wait
                room.release()
                current_runtime().sleep(0.1)
                continue
            current_runtime().start(lambda connected=connected: admit(connected), "handshake")

    current_runtime().start(door, "door")
    return host, listening.getsockname()[1]


def _read(made: Socket, count: int, end_s: float) -> bytes:
    """Receive ``count`` bytes by the time ``end_s`` of this process's clock."""
    words = bytearray(count)
    for place in range(count):  # byte by byte, or slow bytes would renew the time that is left
        made.be_patient(max(1e-3, end_s - current_runtime().now_s()))
        made.receive(memoryview(words)[place : place + 1])
    return bytes(words)


def _pack_greeting(who: PeerInfo) -> bytes:
    return WHO.pack(WORD, *who)


def _proof(does: bytes, acceptor: bytes, connector: bytes, said: bytes) -> bytes:
    """Digest that proves knowledge of the secret for this exchange.

    The role ``does`` is in it, so that an acceptor's proof cannot be sent back as a connector's.
    """
    key = os.environ.get(SECRET, "").encode()
    return hmac.digest(key, does + acceptor + connector + said, "sha256")


class Changes(AbstractContextManager[object], Protocol):
    """A condition variable, held by threads that change shared data and waited on by readers."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for `notify_all`; False if ``timeout`` seconds pass before."""
        ...

    def notify_all(self) -> None:
        """Wake all threads that wait."""
        ...


class Runtime(Protocol):
    """Clock, threads and connections of one process.

    Attributes:
        lines: connections to the other processes, by rank.
        late: rank and connection of each worker that rejoins; guarded by `late_arrivals`.
    """

    lines: dict[int, PeerConnection]
    late: deque[tuple[int, PeerConnection]]

    def now_s(self) -> float:
        """Seconds on a clock that never goes back."""
        ...

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        ...

    def start(self, target: Callable[[], None], name: str) -> None:
        """Call a function on a thread that ends with the process."""
        ...

    def changes(self) -> Changes:
        """Create a condition variable of this process."""
        ...

    def late_arrivals(self) -> Changes:
        """The condition variable that guards ``late``."""
        ...


class Machine:
    """The `Runtime` of a real process: monotonic clock, daemon threads, TCP connections."""

    def __init__(self) -> None:
        self.lines: dict[int, PeerConnection] = {}
        self.late = deque[tuple[int, PeerConnection]]()
        self._came_late = threading.Condition()

    def now_s(self) -> float:
        """See `Runtime`."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """See `Runtime`."""
        time.sleep(seconds)

    def start(self, target: Callable[[], None], name: str) -> None:
        """See `Runtime`."""
        threading.Thread(target=target, daemon=True, name=name).start()

    def changes(self) -> Changes:
        """See `Runtime`."""
        return threading.Condition()

    def late_arrivals(self) -> Changes:
        """See `Runtime`."""
        return self._came_late


_world: Runtime = Machine()


def current_runtime() -> Runtime:
    """The runtime of this process."""
    return _world


@contextmanager
def use_runtime(other: Runtime) -> Generator[None]:
    """Use another runtime within a ``with`` block; for tests."""
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
    """Wait until a time of this process's clock, if it is still to come."""
    left = moment - now_s()
    if left > 0.0:
        _world.sleep(left)


def start_heartbeats() -> None:
    """Send heartbeats on all connections of this process from now on, also on new ones."""
    here = current_runtime()

    def beats() -> None:
        while True:
            # Copies: other threads add connections meanwhile.
            for line in [*here.lines.values(), *(line for _, line in list(here.late))]:
                line.send_heartbeat()
            here.sleep(BEAT_EVERY_S)

    here.start(beats, "beats")


class MalformedMessage(Exception):  # noqa: N818 (what happened)
    """A peer sent bytes that are no valid message."""

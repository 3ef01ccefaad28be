"""Transport between processes: TCP connections, numbered messages, beats, and a clock.

Connections over TCP, and how two processes make sure of each other before the first message.
Whoever connects and whoever accepts each prove that they know the run's secret, by a digest of
numbers that both have just drawn; so no old conversation can be played again. Without a secret
everybody knows it, and only mistakes are found out.

Lines between processes: numbered messages over a connection, and beats that say one lives. A
connection carries bytes. A line says where a message begins and ends, counts messages, and ends
when one is missing, comes twice or is cut short: whatever is between two processes, each message
arrives once and whole, or the line is at its end. Every process beats on all its lines every
`BEAT_EVERY_S`, also while it computes; so one that has stopped is told apart from one at work.

What a process of a run has of its machine: time, threads, and lines to the other processes. This
module and `sockets` are the only ones that know the real ones. In the tests there is a world of
virtual time in which an adversary holds every connection; the code between is the same.
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


class PeerConnection:
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
                raise self._end_as_gone(error) from error

    def send_heartbeat(self) -> None:
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
            MalformedMessage: what came is no message, not the next one, or cut short.
        """
        kind, number = self._mark()
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
        """Take in what follows a header.

        Raises:
            PeerGone: so.
            MalformedMessage: it was shorter or longer.
        """
        self._fill(into)
        self._check_end()

    def _check_end(self) -> None:
        if self._mark() != (MESSAGE, self._heard):
            raise MalformedMessage("a message that does not end where it should")

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
            raise self._end_as_gone(error) from error

    def _end_as_gone(self, error: OSError) -> PeerGone:
        self.end()
        return PeerGone(SILENT if isinstance(error, TimeoutError) else CLOSED)


INTRODUCED_WITHIN_S = 10.0
"""How long a connection may take to say whose it is."""

AT_THE_DOOR = 64
"""So many connections are being introduced at a time; others wait until they are accepted."""

NONCE = PROOF = 32

WHO = Struct("<8sqqq")
"""A word, the rank that connects, the one it wants, and whether the run has begun without it."""

WORD = b"lagbench"


class HandshakeFailed(ConnectionError):  # noqa: N818 (what happened)
    """Who is at the other end does not know the secret, or is not of this program."""


class PeerInfo(NamedTuple):
    """Who connects: a rank, the rank it wants, and whether the run has begun without it."""

    rank: int
    wants: int
    late: bool


class Socket:
    """A `Connection` over TCP.

    Args:
        connected: the socket.
        patience_s: how long it may be silent.

    Attributes:
        ended: whether it has been closed here.
    """

    def __init__(self, connected: socket.socket, patience_s: float = SILENT_AFTER_S) -> None:
        self._socket, self._read, self.ended = connected, 0, False
        self.be_patient(patience_s)
        with suppress(OSError):  # a pair of sockets in one process has no such option
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._room = select.poll()
        self._room.register(connected, select.POLLOUT)

    def be_patient(self, seconds: float) -> None:
        """How long it may be silent from now on."""
        self._socket.settimeout(seconds)

    def send(self, *parts: bytes | memoryview) -> None:
        """See `Connection`."""
        for part in parts:
            left = memoryview(part)
            while left:
                left = left[self._send_some(left) :]

    def _send_some(self, words: memoryview) -> int:
        """How many bytes are on their way; a peer that reads nothing and beats is merely busy."""
        while True:
            heard = self._count_received()
            try:
                return self._socket.send(words)
            except TimeoutError:
                if self._count_received() == heard:
                    raise

    def _count_received(self) -> int:
        """How many bytes have come from the peer, read or not."""
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
        """See `Connection`; the socket keeps its number, which others may still wait for."""
        self.ended = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def unread(self) -> int:
        """How many of the bytes that were sent the peer's machine has not got yet."""
        return self._query_socket(termios.TIOCOUTQ)

    def _query_socket(self, what: int) -> int:
        """A number that the machine knows of the socket."""
        with suppress(OSError):
            return int.from_bytes(fcntl.ioctl(self._socket, what, bytes(4)), sys.byteorder)
        return 0


def connect(where: tuple[str, int], who: PeerInfo) -> Socket:
    """A connection to another process of the run.

    Args:
        where: host and port.
        who: this process, and the one it wants.

    Raises:
        OSError: nobody answers; `HandshakeFailed` if somebody else does.
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
    """Say who connects, and find out whether the other one is of this run."""
    end_s = current_runtime().now_s() + INTRODUCED_WITHIN_S
    theirs, ours, said = _read(made, NONCE, end_s), secrets.token_bytes(NONCE), _pack_greeting(who)
    made.send(ours + said + _proof(b"connects", theirs, ours, said))
    if not hmac.compare_digest(_read(made, PROOF, end_s), _proof(b"accepts", theirs, ours, said)):
        raise HandshakeFailed(f"who answers at {where[0]}:{where[1]} has another {SECRET}")


def accept(connected: socket.socket, own: int) -> tuple[PeerInfo, Socket]:
    """Find out who has connected.

    Args:
        connected: the new socket.
        own: this process's rank.

    Raises:
        OSError: it says nothing; `HandshakeFailed` if it is nobody of the run.
    """
    made = Socket(connected, INTRODUCED_WITHIN_S)
    ours = secrets.token_bytes(NONCE)
    made.send(ours)
    end_s = current_runtime().now_s() + INTRODUCED_WITHIN_S
    theirs, said, proof = (_read(made, size, end_s) for size in (NONCE, WHO.size, PROOF))
    word, rank, wants, late = WHO.unpack(said)
    expected = _proof(b"connects", ours, theirs, said)
    if word != WORD or wants != own or not hmac.compare_digest(proof, expected):
        raise HandshakeFailed(f"somebody who has another {SECRET}, or wants somebody else")
    made.send(_proof(b"accepts", ours, theirs, said))
    made.be_patient(SILENT_AFTER_S)
    return PeerInfo(rank, wants, bool(late)), made


def listen(host: str, own: int, enter: Callable[[PeerInfo, Socket], None]) -> tuple[str, int]:
    """Accept connections from now on; returns where.

    Args:
        host: the address to listen at, and no other.
        own: this process's rank.
        enter: told of each, on threads of their own, `AT_THE_DOOR` at most; of strangers nobody
            hears.
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
            except OSError:  # too many at once: those who wait are let in later
                room.release()
                current_runtime().sleep(0.1)
                continue
            current_runtime().start(lambda connected=connected: admit(connected), "who is it")

    current_runtime().start(door, "door")
    return host, listening.getsockname()[1]


def _read(made: Socket, count: int, end_s: float) -> bytes:
    """So many bytes before a moment, however slowly they drip."""
    words = bytearray(count)
    for place in range(count):
        made.be_patient(max(1e-3, end_s - current_runtime().now_s()))
        made.receive(memoryview(words)[place : place + 1])
    return bytes(words)


def _pack_greeting(who: PeerInfo) -> bytes:
    return WHO.pack(WORD, *who)


def _proof(does: bytes, acceptor: bytes, connector: bytes, said: bytes) -> bytes:
    """That whoever sends this knows the secret, now, and means this conversation."""
    key = os.environ.get(SECRET, "").encode()
    return hmac.digest(key, does + acceptor + connector + said, "sha256")


class Changes(AbstractContextManager[object], Protocol):
    """A condition variable: held to change what threads share, waited for by those who read it."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until somebody changes something; False if it takes longer than so many seconds."""
        ...

    def notify_all(self) -> None:
        """Something has changed."""
        ...


class Runtime(Protocol):
    """What one process has.

    Attributes:
        lines: to the other processes, by rank.
        late: those who come back, with their ranks; to be read as `changes` say.
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
        """Do something on a thread that ends with the process."""
        ...

    def changes(self) -> Changes:
        """A condition variable of this process."""
        ...

    def late_arrivals(self) -> Changes:
        """The one that tells of ``late``."""
        ...


class Machine:
    """The real one."""

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
    """Where this process is."""
    return _world


@contextmanager
def use_runtime(other: Runtime) -> Generator[None]:
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


def start_heartbeats() -> None:
    """Beat on all lines of this process from now on, and on those that are added."""
    here = current_runtime()

    def beats() -> None:
        while True:
            for line in [*here.lines.values(), *(line for _, line in list(here.late))]:
                line.send_heartbeat()
            here.sleep(BEAT_EVERY_S)

    here.start(beats, "beats")


class MalformedMessage(Exception):  # noqa: N818 (what happened)
    """A peer sent what is no message of ours."""

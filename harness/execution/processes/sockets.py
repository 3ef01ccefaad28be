"""Connections over TCP, and how two processes make sure of each other before the first message.

Whoever connects and whoever accepts each prove that they know the run's secret, by a digest of
numbers that both have just drawn; so no old conversation can be played again. Without a secret
everybody knows it, and only mistakes are found out.
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
from collections.abc import Callable
from contextlib import suppress
from struct import Struct
from typing import NamedTuple

from harness.execution.processes.lines import SILENT_AFTER_S
from harness.execution.processes.telling import SECRET
from harness.execution.processes.world import world

INTRODUCED_WITHIN_S = 10.0
"""How long a connection may take to say whose it is."""
AT_THE_DOOR = 64
"""So many connections are being introduced at a time; others wait until they are accepted."""
NONCE = PROOF = 32
WHO = Struct("<8sqqq")
"""A word, the rank that connects, the one it wants, and whether the run has begun without it."""
WORD = b"lagbench"


class Stranger(ConnectionError):  # noqa: N818 (what happened)
    """Who is at the other end does not know the secret, or is not of this program."""


class Introduced(NamedTuple):
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
                left = left[self._taken(left) :]

    def _taken(self, words: memoryview) -> int:
        """How many bytes are on their way; a peer that reads nothing and beats is merely busy."""
        while True:
            heard = self._heard()
            try:
                return self._socket.send(words)
            except TimeoutError:
                if self._heard() == heard:
                    raise

    def _heard(self) -> int:
        """How many bytes have come from the peer, read or not."""
        return self._read + self._asked(termios.FIONREAD)

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
        return self._asked(termios.TIOCOUTQ)

    def _asked(self, what: int) -> int:
        """A number that the machine knows of the socket."""
        with suppress(OSError):
            return int.from_bytes(fcntl.ioctl(self._socket, what, bytes(4)), sys.byteorder)
        return 0


def connect(where: tuple[str, int], who: Introduced) -> Socket:
    """A connection to another process of the run.

    Args:
        where: host and port.
        who: this process, and the one it wants.

    Raises:
        OSError: nobody answers; `Stranger` if somebody else does.
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


def _introduce(made: Socket, who: Introduced, where: tuple[str, int]) -> None:
    """Say who connects, and find out whether the other one is of this run."""
    end_s = world().now_s() + INTRODUCED_WITHIN_S
    theirs, ours, said = _read(made, NONCE, end_s), secrets.token_bytes(NONCE), _said(who)
    made.send(ours + said + _proof(b"connects", theirs, ours, said))
    if not hmac.compare_digest(_read(made, PROOF, end_s), _proof(b"accepts", theirs, ours, said)):
        raise Stranger(f"who answers at {where[0]}:{where[1]} has another {SECRET}")


def accept(connected: socket.socket, own: int) -> tuple[Introduced, Socket]:
    """Find out who has connected.

    Args:
        connected: the new socket.
        own: this process's rank.

    Raises:
        OSError: it says nothing; `Stranger` if it is nobody of the run.
    """
    made = Socket(connected, INTRODUCED_WITHIN_S)
    ours = secrets.token_bytes(NONCE)
    made.send(ours)
    end_s = world().now_s() + INTRODUCED_WITHIN_S
    theirs, said, proof = (_read(made, size, end_s) for size in (NONCE, WHO.size, PROOF))
    word, rank, wants, late = WHO.unpack(said)
    expected = _proof(b"connects", ours, theirs, said)
    if word != WORD or wants != own or not hmac.compare_digest(proof, expected):
        made.close()
        raise Stranger(f"somebody who has another {SECRET}, or wants somebody else")
    made.send(_proof(b"accepts", ours, theirs, said))
    made.be_patient(SILENT_AFTER_S)
    return Introduced(rank, wants, bool(late)), made


def listen(host: str, own: int, enter: Callable[[Introduced, Socket], None]) -> tuple[str, int]:
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
                world().sleep(0.1)
                continue
            world().start(lambda connected=connected: admit(connected), "who is it")

    world().start(door, "door")
    return host, listening.getsockname()[1]


def _read(made: Socket, count: int, end_s: float) -> bytes:
    """So many bytes before a moment, however slowly they drip."""
    words = bytearray(count)
    for place in range(count):
        made.be_patient(max(1e-3, end_s - world().now_s()))
        made.receive(memoryview(words)[place : place + 1])
    return bytes(words)


def _said(who: Introduced) -> bytes:
    return WHO.pack(WORD, *who)


def _proof(does: bytes, acceptor: bytes, connector: bytes, said: bytes) -> bytes:
    """That whoever sends this knows the secret, now, and means this conversation."""
    key = os.environ.get(SECRET, "").encode()
    return hmac.digest(key, does + acceptor + connector + said, "sha256")

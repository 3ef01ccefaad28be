"""Messages between the server and the workers of a run, over ZeroMQ.

The server has one socket (ROUTER) at the address of the run, each worker one (DEALER) that connects
to it. CURVE encrypts and authenticates every message: the key pair of each process follows from the
run's secret, its job and the rank; the server accepts the keys of its workers alone, a worker that
of the server, so a process that relays a connection sees ciphertext. ZeroMQ delivers messages
whole, once and in order, or the connection ends. Its heartbeats come from a thread that computing
does not hold up, so a process that is stopped can be told from one that is busy.

`Hub` is the server's end of all connections, `Link` a worker's. Tests put virtual time and an
adversary in place of both, below `Connections`.
"""

from __future__ import annotations

import hmac
import math
import secrets
import struct
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from enum import IntEnum
from typing import NamedTuple

import torch
import zmq
from torch import Tensor
from zmq.utils import z85

from harness.base.errors import UserError
from harness.processes.group import SECRET, SERVER_RANK, Group

HEARTBEAT_S = 2.0

SILENT_AFTER_S = 20.0
"""Seconds without a sign of life after which a process counts as dead. A message must have arrived
within them."""

CONNECTED_WITHIN_S = 60.0
"""Seconds that processes wait for each other at the start."""

DELIVERED_WITHIN_S = 10.0
"""Seconds that an ending process waits for the delivery of its last messages."""

QUEUED = 8
"""Most unread messages of one process; further ones wait at their sender."""

IO_THREADS = 4
"""Threads that encrypt, some 250 MB/s each; a connection has one of them."""

CLOSED = "is gone: its connection closed"


class Kind(IntEnum):
    """Kind of a message; the comments name sender, receiver and content."""

    HELLO = 1  # Worker to server: the number of processes that it knows of
    REFUSED = 2  # Server to worker: it takes no part; the body says why
    RUN = 3  # Server to worker: the run that begins, by its identity
    CLOCK = 4  # Worker to server and back: ``began_s`` on the server's clock
    READY = 5  # Worker to server: it can compute
    WORK = 6  # Server to worker: minibatches, and the model
    DONE = 7  # Worker to server: the contribution
    RECALL = 8  # Server to worker: request of its memory
    MEMORY = 9  # Worker to server: its memory. Server to worker: that of a checkpoint
    STOP = 10  # Server to worker: the run is over


class Header(NamedTuple):
    """Fields of every message.

    Attributes:
        kind: kind of the message.
        step, steps: number of the first minibatch, and number of minibatches.
        stage, before: stage of the run, and the steps of all stages before it.
        version: version of the model that is sent, or that a contribution was computed from.
        rate: learning rate of local steps, before the schedule's factor.
        loss: summed over the contribution's examples; not finite if the run diverges.
        began_s, ended_s: start and end of the computation, on the server's clock.
    """

    kind: Kind
    step: int = 0
    steps: int = 0
    stage: int = 0
    before: int = 0
    version: int = 0
    rate: float = 0.0
    loss: float = 0.0
    began_s: float = 0.0
    ended_s: float = 0.0


LAYOUT = struct.Struct("<6q4d")

KINDS = frozenset(Kind)

Body = bytes | memoryview


class Message(NamedTuple):
    """A message of a worker, or the end of its connection.

    Attributes:
        worker: index of the worker.
        header: None if its connection has ended.
        body: bytes of its tensor, or of a text.
        reason: why the connection has ended.
    """

    worker: int
    header: Header | None
    body: Body = b""
    reason: str = ""


class MalformedMessage(Exception):  # noqa: N818 (what happened)
    """A peer sent bytes that are no valid message."""


class ServerGone(Exception):  # noqa: N818 (what happened)
    """The connection to the server has ended, or it sent an invalid message; says which."""


# -- the form of messages ---------------------------------------------------------------------


def pack_header(header: Header) -> bytes:
    """Encode a header."""
    return LAYOUT.pack(*header)


def bytes_of(tensor: Tensor) -> memoryview:
    """Memory of a contiguous tensor in host memory, as bytes that can be read and written."""
    words = tensor.detach().reshape(-1).view(torch.uint8).numpy()
    return memoryview(words)  # pyright: ignore[reportArgumentType] (arrays are buffers)


def fill(tensor: Tensor, header: Header, body: Body) -> Tensor:
    """Copy the body of a message into a contiguous tensor in host memory; returns it.

    Raises:
        MalformedMessage: the body has another size.
    """
    if len(body) != tensor.nbytes:
        sizes = f"{len(body)} bytes, where {tensor.nbytes} are due"
        raise MalformedMessage(f"{header.kind.name} with {sizes}")
    bytes_of(tensor)[:] = body
    return tensor


def frames_of(header: Header, body: Tensor | None) -> tuple[bytes, Body]:
    """The two frames of a message."""
    return pack_header(header), b"" if body is None else bytes_of(body.cpu().contiguous())


def read_frames(frames: Sequence[Body]) -> tuple[Header, Body]:
    """Decode the frames of a message.

    Raises:
        MalformedMessage: they are none.
    """
    if len(frames) != 2 or len(frames[0]) != LAYOUT.size:
        raise MalformedMessage("not a message of lagbench")
    kind, *values = LAYOUT.unpack(frames[0])
    if kind not in KINDS:
        raise MalformedMessage("not a message of lagbench")
    header = Header(Kind(kind), *values)
    times = header.rate, header.began_s, header.ended_s
    if min(header[1:6]) < 0 or not all(map(math.isfinite, times)):
        raise MalformedMessage(f"{header.kind.name} with numbers that cannot be")
    return header, frames[1]


def read_orders(frames: Sequence[Body]) -> tuple[Header, Body]:
    """Decode the frames of a message of the server.

    Raises:
        ServerGone: they are no message.
        UserError: the server refuses this process.
    """
    try:
        header, body = read_frames(frames)
    except MalformedMessage as error:
        raise ServerGone(f"sent garbage: {error}") from error
    if header.kind is Kind.REFUSED:
        raise UserError(bytes(body).decode(errors="replace"))
    return header, body


# -- sockets ----------------------------------------------------------------------------------


def private_key(group: Group, rank: int) -> bytes:
    """Private key of a process (Z85): a keyed digest of job and rank."""
    name = f"lagbench {group.job} {rank}".encode()
    return z85.encode(hmac.digest(group.secret.encode(), name, "sha256"))


def public_key(group: Group, rank: int) -> bytes:
    """Public key of a process (Z85)."""
    return zmq.curve_public(private_key(group, rank))


class _Monitored:
    """A socket with the keys of a process, and what happens to its connections.

    Args:
        group: the group of processes.
        rank: rank of this one.
        kind: kind of the socket.
    """

    def __init__(self, group: Group, rank: int, kind: int) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(IO_THREADS)
        self._socket = self._context.socket(kind)
        options = {
            zmq.CURVE_SECRETKEY: private_key(group, rank),
            zmq.CURVE_PUBLICKEY: public_key(group, rank),
            zmq.HEARTBEAT_IVL: int(1000 * HEARTBEAT_S),
            zmq.HEARTBEAT_TIMEOUT: int(1000 * SILENT_AFTER_S),
            zmq.LINGER: int(1000 * DELIVERED_WITHIN_S),
            zmq.RCVHWM: QUEUED,
            zmq.IPV6: int(":" in group.host),
        }
        for option, value in options.items():
            self._socket.set(option, value)
        # No more events than these: libzmq takes a message that was tampered with for one that is
        # incomplete where it reports `EVENT_HANDSHAKE_FAILED_PROTOCOL`, and reads no further.
        events = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
        self._monitor = self._socket.get_monitor_socket(events)
        self._poller = zmq.Poller()
        for polled in (self._socket, self._monitor):
            self._poller.register(polled, zmq.POLLIN)

    def _wait(self, until_s: float) -> bool:
        """Wait for a message or an event; False if none comes in time."""
        remaining_s = until_s - time.monotonic()
        patience = None if remaining_s == math.inf else max(0, math.ceil(1000 * remaining_s))
        return bool(self._poller.poll(patience))

    def _events(self) -> Iterator[tuple[int, int]]:
        """Events of connections up to now, each with the file descriptor that it is about."""
        with suppress(zmq.Again):
            while True:
                words, _ = self._monitor.recv_multipart(zmq.NOBLOCK)
                yield struct.unpack("=Hi", words)

    def close(self) -> None:
        """Close all connections, once the last messages are delivered or time is over."""
        self._socket.disable_monitor()
        self._monitor.close()
        self._socket.close()
        self._context.term()


class Connections(ABC):
    """The connections of a server, whatever carries them: who is let in, and who is not.

    Args:
        ranks: number of processes; the workers have the ranks from 1.

    Attributes:
        announced: identity of the run, for workers that connect from now on.
        late: whether workers may connect from now on.
    """

    def __init__(self, ranks: int) -> None:
        self._ranks, self.announced, self.late = ranks, "", True
        # By worker: routing id of its connection, and what tells it from a later one.
        self._places = dict[int, tuple[bytes, int]]()
        self._dropped = set[tuple[bytes, int]]()
        self._ready = deque[Message]()

    def now_s(self) -> float:
        """Seconds on the server's clock, which never goes back."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        time.sleep(seconds)

    @abstractmethod
    def _carry(self, until_s: float) -> bool:
        """Wait for something to arrive and take it in; False if nothing does in time."""

    @abstractmethod
    def _route(self, address: bytes, words: bytes, body: Body) -> None:
        """Send a message to a routing id; nothing happens if it is gone."""

    def connected(self) -> set[int]:
        """The workers that have a connection."""
        return set(self._places)

    def receive(self, until_s: float = math.inf) -> Message | None:
        """Wait for the next message, or end of a connection; None if none comes in time."""
        # Not until nothing arrives: a worker may ask for the time again and again without end.
        while not self._ready and self._carry(until_s) and self.now_s() < until_s:
            pass
        return self._ready.popleft() if self._ready else None

    def hears(self, worker: int) -> bool:
        """Whether something of a worker has arrived that `receive` has not returned yet."""
        self._carry(self.now_s())
        return any(message.worker == worker for message in self._ready)

    def meet(self, within_s: float = CONNECTED_WITHIN_S) -> set[int]:
        """Wait until all workers have connected or time is over; returns those that have not."""
        end = self.now_s() + within_s
        missing = set(range(self._ranks - 1))
        while missing and (message := self.receive(end)) is not None:
            missing.discard(message.worker)
        return missing

    def announce(self, run: str) -> None:
        """Tell all workers, also those that connect later, which run begins."""
        self.announced = run
        for address, _ in self._places.values():
            self._tell(address, Kind.RUN, run)

    def send(self, worker: int, header: Header, body: Tensor | None = None) -> None:
        """Send a message; nothing happens if the worker is gone, which `receive` tells."""
        if worker in self._places:
            self._route(self._places[worker][0], *frames_of(header, body))

    def drop(self, worker: int, reason: str) -> None:
        """End a connection and tell the worker why; `receive` says no more of it."""
        if worker in self._places:
            self._dropped.add(place := self._places.pop(worker))
            self._tell(place[0], Kind.REFUSED, f"worker {worker} {reason}")

    def _end(self, number: int) -> bool:
        """Note that the connection with this number has ended; whether it is a worker's."""
        for worker, (_, descriptor) in self._places.items():
            if descriptor == number:
                del self._places[worker]
                self._ready.append(Message(worker, None, reason=CLOSED))
                return True
        return False

    def _take_in(self, worker: int, place: tuple[bytes, int], frames: Sequence[Body]) -> None:
        """Note a message of a place, or admit the worker that greets with it."""
        is_known = self._places.get(worker) == place
        try:
            header, body = read_frames(frames)
            if is_known and header.kind is Kind.HELLO:  # it would be waited for anew each time
                raise MalformedMessage("HELLO, not asked for")
        except MalformedMessage as error:
            if is_known:
                self.drop(worker, reason := f"sent garbage: {error}")
                self._ready.append(Message(worker, None, reason=reason))
            return
        if header.kind is Kind.HELLO and place not in self._dropped:
            self._greet(worker, place, header)
        elif header.kind is Kind.CLOCK and is_known:
            self.send(worker, header._replace(began_s=self.now_s()))
        elif is_known:  # else of a connection that was given up
            self._ready.append(Message(worker, header, body))

    def _greet(self, worker: int, place: tuple[bytes, int], header: Header) -> None:
        rank, refused = worker + 1, ""
        if header.step != self._ranks:
            refused = f"WORLD_SIZE={header.step}: allowed: {self._ranks}, as the server has it"
        elif worker in self._places:
            mistake = "in use by another process; allowed: that of a worker that is gone"
            refused = f"RANK={rank}: {mistake}"
        elif not self.late:
            mistake = "the run has already begun; only workers of an asynchronous run can join it"
            refused = f"RANK={rank}: {mistake}"
        if refused:
            self._tell(place[0], Kind.REFUSED, refused)
            return
        self._places[worker] = place
        self._ready.append(Message(worker, header))
        if self.announced:
            self._tell(place[0], Kind.RUN, self.announced)

    def _tell(self, address: bytes, kind: Kind, text: str) -> None:
        self._route(address, pack_header(Header(kind)), text.encode())


class Hub(_Monitored, Connections):
    """The server's end of all connections, over ZeroMQ: see `Connections`.

    Args:
        group: the group of processes.
        listening: file descriptor of a socket that listens at the group's address already.

    Attributes:
        port: where it listens.
        strangers: number of connections that ended and were no worker's.

    Raises:
        UserError: the address cannot be listened at.
    """

    def __init__(self, group: Group, listening: int | None = None) -> None:
        Connections.__init__(self, group.ranks)
        _Monitored.__init__(self, group, SERVER_RANK, zmq.ROUTER)
        self.strangers = 0
        self._admit({public_key(group, rank): rank for rank in range(1, group.ranks)})
        self._socket.set(zmq.CURVE_SERVER, 1)
        self._socket.set(zmq.ROUTER_MANDATORY, 1)  # else messages to absent ranks are lost unseen
        self._socket.set(zmq.HANDSHAKE_IVL, int(1000 * DELIVERED_WITHIN_S))
        if listening is not None:
            self._socket.set(zmq.USE_FD, listening)
        try:
            self._socket.bind(f"tcp://{group.url_host}:{group.port or '*'}")
        except zmq.ZMQError as error:
            where = f"MASTER_ADDR={group.host}, MASTER_PORT={group.port}"
            mistake = f"cannot be listened at by rank 0: {error.strerror}"
            raise UserError(f"environment: {where}: {mistake}") from error
        self.port = int(self._socket.get_string(zmq.LAST_ENDPOINT).rpartition(":")[2])

    def _admit(self, ranks: Mapping[bytes, int]) -> None:
        """Answer ZeroMQ's questions whether a key may connect (ZAP), on a thread."""
        questions = self._context.socket(zmq.REP)
        questions.bind("inproc://zeromq.zap.01")

        def answer() -> None:
            with questions, suppress(zmq.ContextTerminated):
                while True:
                    version, request, *_, key = questions.recv_multipart()
                    rank = ranks.get(z85.encode(key)) if len(key) == 32 else None
                    verdict = [b"400", b"", b""] if rank is None else [b"200", b"", b"%d" % rank]
                    questions.send_multipart([version, request, *verdict, b""])

        threading.Thread(target=answer, daemon=True, name="keys").start()

    def _carry(self, until_s: float) -> bool:
        """See `Connections`."""
        if not self._wait(until_s):
            return False
        with suppress(zmq.Again):
            for _ in range(QUEUED * self._ranks):  # however much a peer sends, ends are noted
                address, *frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
                # The key that the handshake has proved tells the rank, not what the message says.
                worker, number = int(address.get("User-Id")) - 1, int(address.get(zmq.SRCFD))
                if self._places.get(worker) != (place := (address.bytes, number)):
                    self._note_ends()  # before a new connection that has the number of one of them
                self._take_in(worker, place, [frame.buffer for frame in frames])
        self._note_ends()
        return True

    def _note_ends(self) -> None:
        for event, number in self._events():
            if event == zmq.EVENT_DISCONNECTED:
                self.strangers += not self._end(number)

    def _route(self, address: bytes, words: bytes, body: Body) -> None:
        """See `Connections`."""
        with suppress(zmq.ZMQError):  # it is gone, which the monitor says too
            self._socket.send_multipart([address, words, body], zmq.NOBLOCK)


class Link(_Monitored):
    """A worker's connection to the server.

    Args:
        group: the group of processes.

    Raises:
        UserError: no server answers in time, or it refuses this process.
    """

    def __init__(self, group: Group) -> None:
        super().__init__(group, group.rank, zmq.DEALER)
        self._socket.set(zmq.CURVE_SERVERKEY, public_key(group, SERVER_RANK))
        # Another one each time: the server may not have seen yet that a former one is gone.
        self._socket.set(zmq.ROUTING_ID, b"%d " % group.rank + secrets.token_bytes(8))
        self._socket.set(zmq.HANDSHAKE_IVL, 0)  # a server that still loads has time
        self._socket.connect(f"tcp://{group.url_host}:{group.port}")
        self._gone = False
        self._greet(group)

    def _greet(self, group: Group) -> None:
        address, end = f"{group.host}:{group.port}", time.monotonic() + CONNECTED_WITHIN_S
        place = f"environment: RANK={group.rank}"
        while self._wait(end):
            for event, _ in self._events():
                if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                    self.send(Header(Kind.HELLO, group.ranks))
                    return
                if event == zmq.EVENT_DISCONNECTED:  # amid the handshake
                    self._socket.set(zmq.LINGER, 0)
                    reason = f"has another {SECRET} (or none), or is of another job"
                    raise UserError(f"{place}: the server at {address} {reason}")
        self._socket.set(zmq.LINGER, 0)
        reason = f"within {CONNECTED_WITHIN_S:g} s"
        raise UserError(f"{place}: no server answers at {address} {reason}")

    def receive(self) -> tuple[Header, Body]:
        """Wait for the next message.

        Raises:
            ServerGone: the connection has ended, or the message is invalid.
            UserError: the server refuses this process.
        """
        while True:
            with suppress(zmq.Again):
                frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
                return read_orders([frame.buffer for frame in frames])
            if self._gone:  # all that it has sent before is read
                self._socket.set(zmq.LINGER, 0)
                raise ServerGone(CLOSED)
            self._wait(math.inf)
            self._gone = any(event == zmq.EVENT_DISCONNECTED for event, _ in self._events())

    def send(self, header: Header, body: Tensor | None = None) -> None:
        """Send a message."""
        self._socket.send_multipart(frames_of(header, body))

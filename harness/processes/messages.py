"""Messages between processes: headers, bodies, mailboxes, and states sent as messages.

A message is a header of a fixed size and, for some kinds, one tensor as its body, which travels in
host memory. A header is a frozen dataclass; its whole numbers are sent as int64 and the others as
float64, in the order of their declaration.

A peer is addressed by its rank; a worker that rejoins has a `PeerConnection` of its own. One
listening thread per peer puts its messages into a `Mailbox`: the reader takes them in the order of
arrival, and the death of a peer ends its own connection alone.

The state of a server is sent as one message per vector, followed by one with its numbers. The
memory of a worker is one message: to the server for a checkpoint, and back when the run resumes.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, fields, replace
from enum import IntEnum
from functools import cache
from operator import attrgetter
from struct import Struct
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save  # pyright: ignore[reportUnknownVariableType]
from torch import Tensor

from harness.algorithms.contract import Memory, Server
from harness.processes.transport import (
    CLOSED,
    HEADER_BYTES,
    MalformedMessage,
    PeerConnection,
    PeerGone,
    current_runtime,
    now_s,
)
from harness.replay.fold_replay import vectors_of


class Kind(IntEnum):
    """Kind of a message; the comments name sender, receiver and content."""

    CLOCK = 1  # Server to any: request of its clock. Answer: ``began_s`` on the sender's clock
    RUN = 2  # Server to all: the run that begins, by its identity
    STOP = 3  # Server to all, and decoder to trainer: the run is over

    WORK = 10  # Server to worker: a minibatch, and the model
    DONE = 11  # Worker to server: a contribution
    ROUNDS = 12  # Server to worker: order to train ``rounds`` rounds
    TIMES = 13  # Worker to server: times and loss of each of the rounds
    TASK = 14  # First shard to worker: a minibatch; the model is at the shards
    FETCH = 15  # Worker to shard: request of its slice
    SLICE = 16  # Shard to worker: the slice
    PIECE = 17  # Worker to shard: its piece of a contribution
    PUSHED = 18  # Worker to first shard: all pieces are sent
    FOLDED = 19  # Shard to first shard: a piece is folded
    GONE = 20  # First shard to shard: drop this worker. Shard to first shard: it is dropped
    GATHER = 21  # First shard to shard: request of its state
    STATE = 22  # One of a server's vectors
    NUMBERS = 23  # A server's numbers, after its vectors
    BACK = 24  # Shard to a worker that rejoins: it is admitted. Also put into the shard's mailbox
    HELD = 25  # Shard to first shard: it holds the state, or the numbers, that were sent
    RECALL = 26  # Server to worker: request of its memory
    MEMORY = 27  # Worker to server: its memory. Server to worker: that of a checkpoint

    START = 30  # Server to all: the model that sequence training starts from
    ASK = 31  # Decoder to server: request of the next utterance
    DECODE = 32  # Server to decoder: an utterance, and the model to decode it with
    AGAIN = 33  # Server to decoder: an utterance, to decode with the model of the last one
    PAUSE = 34  # Server to decoder to trainer: there is no utterance for now
    DECODED = 35  # Decoder to trainer: an utterance, and its kept frames
    ROOM = 36  # Trainer to decoder: one utterance fewer waits
    TAKEN = 37  # Trainer to server: an utterance enters a slot, or nothing of it was kept
    READ = 38  # Trainer to server: request of the model, for so many frames
    MODEL = 39  # Server to trainer: the model
    GRADIENT = 40  # Trainer to server: a contribution


WITH_BODY = frozenset(
    {
        Kind.RUN, Kind.WORK, Kind.DONE, Kind.TIMES, Kind.SLICE, Kind.PIECE, Kind.STATE,
        Kind.NUMBERS, Kind.START, Kind.DECODE, Kind.DECODED, Kind.MODEL, Kind.GRADIENT,
        Kind.MEMORY,
    }
)  # fmt: skip
"""Kinds with a body; `Kind.DECODED` has one only if frames enter minibatches."""


@dataclass(frozen=True)
class Header:
    """Fields of every header.

    Args:
        kind: kind of the message.
        version: version of the model that is sent, or that a contribution was computed from.
        began_s, ended_s: start and end of the reported work, on the sender's monotonic clock.
    """

    magic: ClassVar[int]
    """First word of a header, by which a message of another program is rejected."""
    any_value: ClassVar[str]
    """Name of the field that need not be finite."""
    kind: Kind
    _: KW_ONLY
    version: int = 0
    began_s: float = 0.0
    ended_s: float = 0.0

    @property
    def has_body(self) -> bool:
        """Whether a body follows."""
        return self.kind in WITH_BODY

    def check(self) -> None:
        """Check the limits of all numbers.

        Raises:
            MalformedMessage: one is negative or not finite.
        """
        for name, whole in _limits(type(self)):
            number = getattr(self, name)
            if (whole and number < 0) or (not whole and not math.isfinite(number)):
                raise MalformedMessage("not a message of lagbench")


@cache
def _limits(of: type[Header]) -> tuple[tuple[str, bool], ...]:
    """Fields that have limits, each with whether it is a whole number."""
    named = ((each.name, is_whole(each.type)) for each in fields(of))
    return tuple((name, whole) for name, whole in named if name != of.any_value)


def is_whole(declared: object) -> bool:
    """Whether a header's field of a declared type is a whole number."""
    return declared != "float"


@dataclass(frozen=True)
class FrameHeader(Header):
    """Header for training on frames: asynchronous, in shards, or in rounds.

    Args:
        step, steps: number of a contribution's first minibatch, and number of minibatches. For
            `Kind.STATE`, ``step`` is the place of the vector; for `Kind.MEMORY`, ``steps`` is the
            size in bytes.
        stage, before: stage of the run, and the steps of all stages before it.
        rounds: number of rounds that are ordered.
        worker, read_version: worker of the contribution that a shard reports, and version read.
        rate: learning rate of local steps, before the schedule's factor.
        loss: summed over the contribution's frames, in nats; not finite if the run diverges.
    """

    magic = 7_105_641
    any_value = "loss"
    step: int = 0
    steps: int = 0
    stage: int = 0
    before: int = 0
    rounds: int = 0
    worker: int = 0
    read_version: int = 0
    rate: float = 0.0
    loss: float = 0.0


SERVER_RANK = 0

KINDS = frozenset(Kind)

UNREAD = 64
"""Most unread messages of one peer in a mailbox; its listening thread then stops receiving."""

NOTHING = torch.empty(0)

H = TypeVar("H", bound=Header)

BodyOf = Callable[[H], Tensor]
"""Function from a header to the buffer for its body, of its size and type in host memory."""

Address = int | PeerConnection
"""Address of a peer: its rank, or the connection of a worker that rejoined."""


class ServerGone(Exception):  # noqa: N818 (what happened)
    """The server's connection closed, or it sent an invalid message; says which."""


@contextmanager
def talking() -> Generator[None]:
    """Raise every error of a worker's exchange with its server as `ServerGone`.

    Raises:
        ServerGone: the connection closed, or the server sent an invalid message.
    """
    try:
        yield
    except (RuntimeError, MalformedMessage) as error:
        raise ServerGone(disconnect_reason(error)) from error


def disconnect_reason(error: Exception) -> str:
    """Reason for the end of a peer's connection, in words."""
    if isinstance(error, MalformedMessage):
        return f"sent garbage: {error}"
    if isinstance(error, RuntimeError):
        return str(error) if isinstance(error, PeerGone) and error.args else CLOSED
    return f"cannot be received: {error!r}"


# -- wire format ----------------------------------------------------------------------------


@cache
def _layout(of: type[Header]) -> Struct:
    """Layout of a header: magic word, size of the body in bytes, and the fields."""
    return Struct("<qq" + "".join("q" if is_whole(each.type) else "d" for each in fields(of)))


@cache
def _names(of: type[Header]) -> tuple[str, ...]:
    return tuple(each.name for each in fields(of))


@cache
def _values(of: type[Header]) -> Callable[[Header], tuple[Any, ...]]:
    return attrgetter(*_names(of))


def pack_header(header: Header, body: Tensor | None = None) -> bytes:
    """Encode a header in `HEADER_BYTES`, with the size of its body."""
    words, size = bytearray(HEADER_BYTES), 0 if body is None else body.nbytes
    _layout(type(header)).pack_into(words, 0, header.magic, size, *_values(type(header))(header))
    return bytes(words)


def unpack_header(words: bytes | bytearray, of: type[H]) -> tuple[H, int]:
    """Decode the result of `pack_header`; returns the header and the size of its body in bytes.

    Raises:
        MalformedMessage: the bytes are no such header.
    """
    magic, size, kind, *values = _layout(of).unpack_from(words)
    if magic != of.magic or kind not in KINDS:
        raise MalformedMessage("not a message of lagbench")
    header = of(**dict(zip(_names(of), (Kind(kind), *values), strict=True)))
    header.check()
    return header, size


def reuse_buffer(body: Tensor) -> BodyOf[Header]:
    """Receive every body into one tensor; for a peer that waits until the last one was used."""
    return lambda header: body


def like(tensor: Tensor) -> Tensor:
    """An uninitialised tensor of the same size and type in host memory."""
    return torch.empty_like(tensor, device="cpu")


def bytes_of(tensor: Tensor) -> memoryview:
    """Memory of a contiguous tensor in host memory, as bytes that can be read and written."""
    words = tensor.detach().reshape(-1).view(torch.uint8).numpy()
    return memoryview(words)  # pyright: ignore[reportArgumentType] (arrays are buffers)


# -- to one peer ----------------------------------------------------------------------------


def send(header: Header, to: Address, body: Tensor | None = None) -> None:
    """Send a message; returns once it is handed to the operating system.

    Raises:
        PeerGone: the peer is gone.
    """
    follows = None if body is None else bytes_of(body.cpu().contiguous())
    line_to(to).send(pack_header(header, body), follows)


def receive(source: Address, of: type[H], body_of: BodyOf[H]) -> tuple[H, Tensor]:
    """Wait for a message; returns its header and body.

    Args:
        source: address of the sender.
        of: class of the header.
        body_of: gives the buffer for the body.

    Raises:
        PeerGone: the peer is gone.
        MalformedMessage: the message is invalid, or its body has another size than the buffer;
            the connection is then closed.
    """
    line = line_to(source)
    try:
        header, size = unpack_header(line.header(), of)
        body = body_of(header) if header.has_body else NOTHING
        if body.nbytes != size:
            said = f"{header.kind.name} with {size} bytes, where {body.nbytes} are due"
            raise MalformedMessage(said)
        if header.has_body:
            line.body(bytes_of(body))
    except MalformedMessage:  # where the next message begins is not known any more
        line.end()
        raise
    return header, body


def receive_order(server: Address, of: type[H], body_of: BodyOf[H]) -> tuple[H, Tensor]:
    """Wait for the server's next order; requests of the clock are answered meanwhile.

    Raises:
        ServerGone: see `talking`.
    """
    with talking():
        while True:
            header, body = receive(server, of, body_of)
            if header.kind is not Kind.CLOCK:
                return header, body
            send(replace(header, began_s=now_s()), server)


def line_to(peer: Address) -> PeerConnection:
    """The connection to a peer.

    Raises:
        PeerGone: there is none.
    """
    if isinstance(peer, PeerConnection):
        return peer
    try:
        return current_runtime().lines[peer]
    except KeyError as error:
        raise PeerGone(CLOSED) from error


# -- from many peers ------------------------------------------------------------------------


class Arrival(NamedTuple, Generic[H]):
    """A message of a peer with its body; or the end of its connection.

    Attributes:
        sender: number of the peer, as given to `Mailbox.listen`.
        header: None if the connection has ended.
        body: body of the message; `NOTHING` without one.
        trouble: reason for the end of the connection.
    """

    sender: int
    header: H | None
    body: Tensor
    trouble: str


class Mailbox(Generic[H]):
    """Messages of several peers in the order of their arrival; one listening thread per peer.

    Args:
        of: class of the headers.
    """

    def __init__(self, of: type[H]) -> None:
        self._of, self._changes = of, current_runtime().changes()
        self._arrivals = deque[Arrival[H]]()
        self._unread = Counter[int]()
        self._sources: dict[int, Address] = {}

    def listen(self, sender: int, source: Address, body_of: BodyOf[H]) -> None:
        """Receive the messages of another peer, or of one that rejoins at another address.

        Args:
            sender: number of the peer.
            source: its address.
            body_of: gives the buffers for bodies; called on the listening thread.
        """
        self._sources[sender] = source
        current_runtime().start(lambda: self._listen(sender, source, body_of), f"from {sender}")

    def get(self) -> Arrival[H]:
        """Wait for the next arrival."""
        arrival = self.get_before(float("inf"))
        assert arrival is not None
        return arrival

    def get_before(self, moment_s: float) -> Arrival[H] | None:
        """Wait for the next arrival until a time of this process's clock; None if none comes."""
        with self._changes:
            while not self._arrivals:
                left = moment_s - now_s()
                if left <= 0.0:
                    return None
                self._changes.wait(None if left == float("inf") else left)
            arrival = self._arrivals.popleft()
            self._unread[arrival.sender] -= 1
            self._changes.notify_all()  # a listening thread may wait for room
            return arrival

    def put(self, sender: int, header: H | None, trouble: str = "", body: Tensor = NOTHING) -> None:
        """Add an arrival that did not come from a listening thread of this mailbox."""
        with self._changes:
            self._arrivals.append(Arrival(sender, header, body, trouble))
            self._unread[sender] += 1
            self._changes.notify_all()

    def _listen(self, sender: int, source: Address, body_of: BodyOf[H]) -> None:
        try:
            line = line_to(source)  # once: a worker that rejoins replaces its rank's connection
            while True:
                header, body = receive(line, self._of, body_of)
                self.put(sender, header, "", body)
                self._wait_for_room(sender)
        except Exception as error:  # any: a thread that ended silently would leave readers waiting
            if self._sources[sender] is source:  # else the peer has rejoined meanwhile
                self.put(sender, None, disconnect_reason(error))

    def _wait_for_room(self, sender: int) -> None:
        with self._changes:
            while self._unread[sender] >= UNREAD:
                self._changes.wait()


def send_state(server: Server, to: Address) -> None:
    """Send all vectors of a server, and its numbers last.

    Raises:
        RuntimeError: the peer is gone.
    """
    for place, vector in enumerate(vectors_of(server).values()):
        send(FrameHeader(Kind.STATE, place, version=server.version), to, vector)
    send_numbers(server, to)


def send_numbers(server: Server, to: Address) -> None:
    """Send a server's numbers alone, in the order of their names."""
    send(FrameHeader(Kind.NUMBERS), to, _numbers(server))


def take_state(server: Server, header: FrameHeader, body: Tensor) -> None:
    """Copy one message of `send_state` into a server.

    Raises:
        MalformedMessage: the message is not of a state.
    """
    vectors = list(vectors_of(server).values())
    if header.kind is Kind.STATE and header.step < len(vectors):
        vectors[header.step].copy_(body)
        server.version = header.version
    elif header.kind is not Kind.NUMBERS:
        raise MalformedMessage(f"{header.kind.name} {header.step} in a state")
    else:
        server.numbers = dict(zip(sorted(server.numbers), map(float, body), strict=True))


def bodies(server: Server) -> BodyOf[FrameHeader]:
    """Buffers for the contributions of one worker, or the state of one shard.

    Messages of a state follow each other at once, so each has a tensor of its own. A worker sends
    no other contribution before the last one is folded, so all of its contributions share one.
    """
    numbers, contribution = _numbers(server), like(server.model)
    vectors = dict(enumerate(vectors_of(server).values()))

    def body(header: FrameHeader) -> Tensor:
        if header.kind is Kind.NUMBERS:
            return like(numbers)
        if header.kind is Kind.STATE:
            return like(vectors.get(header.step, contribution))
        return contribution

    return body


def _numbers(server: Server) -> Tensor:
    return torch.tensor([server.numbers[n] for n in sorted(server.numbers)], dtype=torch.float64)


LARGEST = 2**32
"""Most bytes of a worker's memory; a message that announces more is invalid."""


def memory_to_tensor(memory: Memory) -> Tensor:
    """Encode the tensors of a memory as bytes ``[n]``, in the format of safetensors."""
    named = {name: tensor.contiguous() for name, tensor in memory.tensors.items()}
    return torch.frombuffer(bytearray(save(named)), dtype=torch.uint8)


def memory_from_tensor(words: Tensor, device: torch.device) -> Memory:
    """Decode the result of `memory_to_tensor`; the memory is in the middle of a pass.

    Raises:
        MalformedMessage: the bytes are no memory.
    """
    try:
        named = load(words.numpy().tobytes())
    except SafetensorError as error:
        raise MalformedMessage("no memory of a worker") from error
    return Memory({name: tensor.to(device) for name, tensor in named.items()}, new_pass=False)


def body_of(header: FrameHeader) -> Tensor:
    """Buffer for a worker's memory, of the size that its header announces.

    Raises:
        MalformedMessage: the size exceeds `LARGEST`.
    """
    if header.steps > LARGEST:
        raise MalformedMessage(f"a memory of {header.steps} bytes")
    return torch.empty(header.steps, dtype=torch.uint8)

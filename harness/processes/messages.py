"""Messages between processes: headers, bodies, mailboxes, and states sent as messages.

Messages between processes, point to point: what is on the wire, and a mailbox for many peers. A
message is a header of a fixed size and, for some kinds, one tensor after it, which travels in host
memory. One listening thread per peer puts what arrives into a `Mailbox`: the reader takes messages
in the order of their arrival, and a peer's death breaks its own connection alone.

A peer is the number of a rank; a worker that came later has a `PeerConnection` of its own.

What messages between processes say: their kinds, and their headers of a fixed size. A header is a
frozen dataclass that declares its fields; `messages` sends whole numbers as int64 and others as
float64, in the order in which they are declared.

A server's state as messages: its vectors one by one, and its numbers after them. What a worker
remembers, as a message: for a checkpoint, and back to it afterwards.
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
from harness.replay.stale import vectors_of


class Kind(IntEnum):
    """What a message says, and who says it to whom."""

    CLOCK = 1  # Server: what time is it? Everybody: ``began_s`` on my clock
    RUN = 2  # Server to all: the run that begins, by its identity
    STOP = 3  # Server to all, and decoder to trainer: the run is over

    WORK = 10  # Server to worker: a minibatch, and the model
    DONE = 11  # Worker to server: a contribution
    ROUNDS = 12  # Server to worker: train so many rounds
    TIMES = 13  # Worker to server: when each of the rounds happened
    TASK = 14  # First shard to worker: a minibatch; the model is at the shards
    FETCH = 15  # Worker to shard: your slice, please
    SLICE = 16  # Shard to worker: the slice
    PIECE = 17  # Worker to shard: its piece of a contribution
    PUSHED = 18  # Worker to first shard: all pieces are sent
    FOLDED = 19  # Shard to first shard: a piece is folded
    GONE = 20  # First shard to shard: give this worker up. Shard to first shard: it is given up
    GATHER = 21  # First shard to shard: your state, please
    STATE = 22  # One of a server's vectors
    NUMBERS = 23  # A server's numbers, after its vectors
    BACK = 24  # First shard to a worker that comes back: come in. Also in its own mailbox then
    HELD = 25  # Shard to first shard: it holds the state, or the numbers, that were sent
    RECALL = 26  # Server to worker: what do you remember?
    MEMORY = 27  # Worker to server: that. Server to worker, when a run goes on: remember this

    START = 30  # Server to all: the model that sequence training starts from
    ASK = 31  # Decoder to server: the next utterance, please
    DECODE = 32  # Server to decoder: an utterance, and the model to decode it with
    AGAIN = 33  # Server to decoder: an utterance, to decode with the model of the last one
    PAUSE = 34  # Server to decoder to trainer: there is no utterance for now
    DECODED = 35  # Decoder to trainer: an utterance, and what was kept of it
    ROOM = 36  # Trainer to decoder: one utterance fewer waits
    TAKEN = 37  # Trainer to server: an utterance enters a slot, or nothing of it was kept
    READ = 38  # Trainer to server: the model, please, for so many frames
    MODEL = 39  # Server to trainer: the model
    GRADIENT = 40  # Trainer to server: a contribution


WITH_BODY = frozenset(
    {
        Kind.RUN, Kind.WORK, Kind.DONE, Kind.TIMES, Kind.SLICE, Kind.PIECE, Kind.STATE,
        Kind.NUMBERS, Kind.START, Kind.DECODE, Kind.DECODED, Kind.MODEL, Kind.GRADIENT,
        Kind.MEMORY,
    }
)  # fmt: skip
"""Kinds that a tensor follows; `Kind.DECODED` only if frames enter minibatches."""


@dataclass(frozen=True)
class Header:
    """What every header has.

    Args:
        kind: what the message says.
        version: of the model that is sent, or that a contribution was made from.
        began_s, ended_s: when the sender began and ended what it reports, on its own clock.
    """

    magic: ClassVar[int]
    """First word on the wire: a peer that speaks something else is found out at once."""
    any_value: ClassVar[str]
    """The field that need not be finite."""
    kind: Kind
    _: KW_ONLY
    version: int = 0
    began_s: float = 0.0
    ended_s: float = 0.0

    @property
    def has_body(self) -> bool:
        """Whether a tensor follows."""
        return self.kind in WITH_BODY

    def check(self) -> None:
        """Whether all numbers can be what they say.

        Raises:
            MalformedMessage: one is negative or not finite.
        """
        for name, whole in _limits(type(self)):
            number = getattr(self, name)
            if (whole and number < 0) or (not whole and not math.isfinite(number)):
                raise MalformedMessage("not a message of lagbench")


@cache
def _limits(of: type[Header]) -> tuple[tuple[str, bool], ...]:
    """The fields that have limits, and whether they are whole numbers."""
    named = ((each.name, is_whole(each.type)) for each in fields(of))
    return tuple((name, whole) for name, whole in named if name != of.any_value)


def is_whole(declared: object) -> bool:
    """Whether a header's field of a declared type is a whole number."""
    return declared != "float"


@dataclass(frozen=True)
class FrameHeader(Header):
    """Of training on frames: asynchronous, in shards, or in rounds.

    Args:
        step, steps: first minibatch of a contribution and how many; of a state, which vector; of
            what a worker remembers, how many bytes.
        stage, before: the run's stage, and the steps of all stages before it.
        rounds: how many are asked for, where workers train in rounds.
        worker, read_version: whose contribution a shard speaks of, and what it was made from.
        rate: for local steps.
        loss: summed over the contribution's frames, in nats; that of a run that diverges is
            not finite.
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
"""So many messages of one peer wait in a mailbox at most; the others wait where they come from."""

NOTHING = torch.empty(0)

H = TypeVar("H", bound=Header)

BodyOf = Callable[[H], Tensor]
"""Where the tensor after a header lands: of its size and type, in host memory."""

Address = int | PeerConnection
"""Whom a message goes to: a rank, or somebody who came back."""


class ServerGone(Exception):  # noqa: N818 (what happened)
    """The server's connection closed, or it sent no message of ours; says which."""


@contextmanager
def talking() -> Generator[None]:
    """While a worker talks to its server, whatever goes wrong means that the server is gone.

    Raises:
        ServerGone: the connection closed, or what came is no message.
    """
    try:
        yield
    except (RuntimeError, MalformedMessage) as error:
        raise ServerGone(disconnect_reason(error)) from error


def disconnect_reason(error: Exception) -> str:
    """Why nothing more is heard from a peer."""
    if isinstance(error, MalformedMessage):
        return f"sent garbage: {error}"
    if isinstance(error, RuntimeError):
        return str(error) if isinstance(error, PeerGone) and error.args else CLOSED
    return f"cannot be heard: {error!r}"


# -- what is on the wire --------------------------------------------------------------------


@cache
def _layout(of: type[Header]) -> Struct:
    """Magic word, size of the body in bytes, and a header's fields."""
    return Struct("<qq" + "".join("q" if is_whole(each.type) else "d" for each in fields(of)))


@cache
def _names(of: type[Header]) -> tuple[str, ...]:
    return tuple(each.name for each in fields(of))


@cache
def _values(of: type[Header]) -> Callable[[Header], tuple[Any, ...]]:
    return attrgetter(*_names(of))


def pack_header(header: Header, body: Tensor | None = None) -> bytes:
    """A header as `HEADER_BYTES`, with the size of what follows it."""
    words, size = bytearray(HEADER_BYTES), 0 if body is None else body.nbytes
    _layout(type(header)).pack_into(words, 0, header.magic, size, *_values(type(header))(header))
    return bytes(words)


def unpack_header(words: bytes | bytearray, of: type[H]) -> tuple[H, int]:
    """The header that `pack_header` made these words of, and the size in bytes of what follows.

    Raises:
        MalformedMessage: they are no such header.
    """
    magic, size, kind, *values = _layout(of).unpack_from(words)
    if magic != of.magic or kind not in KINDS:
        raise MalformedMessage("not a message of lagbench")
    header = of(**dict(zip(_names(of), (Kind(kind), *values), strict=True)))
    header.check()
    return header, size


def reuse_buffer(body: Tensor) -> BodyOf[Header]:
    """The same tensor every time, for a peer that sends none before the last one was used."""
    return lambda header: body


def like(tensor: Tensor) -> Tensor:
    """A tensor of the same size and type in host memory, with nothing in it yet."""
    return torch.empty_like(tensor, device="cpu")


def bytes_of(tensor: Tensor) -> memoryview:
    """What a contiguous tensor in host memory consists of; to be read or written."""
    words = tensor.detach().reshape(-1).view(torch.uint8).numpy()
    return memoryview(words)  # pyright: ignore[reportArgumentType] (arrays are buffers)


# -- to one peer ----------------------------------------------------------------------------


def send(header: Header, to: Address, body: Tensor | None = None) -> None:
    """Send a message; returns once it is on its way.

    Raises:
        PeerGone: so.
    """
    follows = None if body is None else bytes_of(body.cpu().contiguous())
    line_to(to).send(pack_header(header, body), follows)


def receive(source: Address, of: type[H], body_of: BodyOf[H]) -> tuple[H, Tensor]:
    """Wait for a message.

    Args:
        source: who sends it.
        of: what its header is.
        body_of: where its tensor lands.

    Raises:
        PeerGone: so.
        MalformedMessage: what came is no message, or its tensor is of another size; the line is
            at its end then.
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
    except MalformedMessage:
        line.end()
        raise
    return header, body


def receive_order(server: Address, of: type[H], body_of: BodyOf[H]) -> tuple[H, Tensor]:
    """The server's next order; its questions for the time are answered on the way.

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
    """The line to a peer.

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
    """What came from a peer: a message with its body, or why nothing more will."""

    sender: int
    header: H | None
    body: Tensor
    trouble: str


class Mailbox(Generic[H]):
    """Messages of several peers in the order of their arrival; one listening thread per peer.

    Args:
        of: what their headers are.
    """

    def __init__(self, of: type[H]) -> None:
        self._of, self._changes = of, current_runtime().changes()
        self._arrivals = deque[Arrival[H]]()
        self._unread = Counter[int]()
        self._sources: dict[int, Address] = {}

    def listen(self, sender: int, source: Address, body_of: BodyOf[H]) -> None:
        """Take in messages of one more peer, or of one that comes back elsewhere.

        Args:
            sender: its number.
            source: where it sends from.
            body_of: where tensors land; called in the listening thread.
        """
        self._sources[sender] = source
        current_runtime().start(lambda: self._listen(sender, source, body_of), f"from {sender}")

    def get(self) -> Arrival[H]:
        """The next arrival; waits for it."""
        arrival = self.get_before(float("inf"))
        assert arrival is not None
        return arrival

    def get_before(self, moment_s: float) -> Arrival[H] | None:
        """The next arrival before a moment of this process's clock; None if there is none."""
        with self._changes:
            while not self._arrivals:
                left = moment_s - now_s()
                if left <= 0.0:
                    return None
                self._changes.wait(None if left == float("inf") else left)
            arrival = self._arrivals.popleft()
            self._unread[arrival.sender] -= 1
            self._changes.notify_all()
            return arrival

    def put(self, sender: int, header: H | None, trouble: str = "", body: Tensor = NOTHING) -> None:
        """Let something in that came another way."""
        with self._changes:
            self._arrivals.append(Arrival(sender, header, body, trouble))
            self._unread[sender] += 1
            self._changes.notify_all()

    def _listen(self, sender: int, source: Address, body_of: BodyOf[H]) -> None:
        try:
            line = line_to(source)  # once: a rank's line is another when it has come back
            while True:
                header, body = receive(line, self._of, body_of)
                self.put(sender, header, "", body)
                self._wait_for_room(sender)
        except Exception as error:  # a thread that ends in silence leaves its peer waiting
            if self._sources[sender] is source:  # else it has come back meanwhile
                self.put(sender, None, disconnect_reason(error))

    def _wait_for_room(self, sender: int) -> None:
        with self._changes:
            while self._unread[sender] >= UNREAD:
                self._changes.wait()


def send_state(server: Server, to: Address) -> None:
    """Send all of a server's vectors and numbers.

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
    """Take over what one message of `send_state` says.

    Raises:
        MalformedMessage: it says nothing of a state.
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
    """Where what one peer sends to or for a server lands.

    Messages of a state follow each other at once, so each has a tensor of its own. A worker sends
    nothing more before its contribution is folded, so all contributions of one have the same.
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
"""Bytes that a worker may remember; more is no message of ours."""


def memory_to_tensor(memory: Memory) -> Tensor:
    """Its tensors as bytes ``[n]``."""
    named = {name: tensor.contiguous() for name, tensor in memory.tensors.items()}
    return torch.frombuffer(bytearray(save(named)), dtype=torch.uint8)


def memory_from_tensor(words: Tensor, device: torch.device) -> Memory:
    """Undo `memory_to_tensor`, amid a pass.

    Raises:
        MalformedMessage: they are no such bytes.
    """
    try:
        named = load(words.numpy().tobytes())
    except SafetensorError as error:
        raise MalformedMessage("no memory of a worker") from error
    return Memory({name: tensor.to(device) for name, tensor in named.items()}, new_pass=False)


def body_of(header: FrameHeader) -> Tensor:
    """Where the bytes land that a header announces.

    Raises:
        MalformedMessage: there are too many.
    """
    if header.steps > LARGEST:
        raise MalformedMessage(f"a memory of {header.steps} bytes")
    return torch.empty(header.steps, dtype=torch.uint8)

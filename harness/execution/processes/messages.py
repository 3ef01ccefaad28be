"""Messages between processes, point to point: what is on the wire, and a mailbox for many peers.

A message is a header of a fixed size and, for some kinds, one tensor after it, which travels in
host memory. One listening thread per peer puts what arrives into a `Mailbox`: the reader takes
messages in the order of their arrival, and a peer's death breaks its own connection alone.

A peer is the number of a rank; a worker that came later has a `Line` of its own.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import cache
from operator import attrgetter
from struct import Struct
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from harness.execution.processes.headers import GarbageReceived, Header, Kind, is_whole
from harness.execution.processes.lines import CLOSED, HEADER_BYTES, Line, PeerGone
from harness.execution.processes.world import now_s, world

SERVER_RANK = 0
KINDS = frozenset(Kind)
UNREAD = 64
"""So many messages of one peer wait in a mailbox at most; the others wait where they come from."""
NOTHING = torch.empty(0)

H = TypeVar("H", bound=Header)
BodyOf = Callable[[H], Tensor]
"""Where the tensor after a header lands: of its size and type, in host memory."""
Address = int | Line
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
    except (RuntimeError, GarbageReceived) as error:
        raise ServerGone(why_silent(error)) from error


def why_silent(error: Exception) -> str:
    """Why nothing more is heard from a peer."""
    if isinstance(error, GarbageReceived):
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


def packed(header: Header, body: Tensor | None = None) -> bytes:
    """A header as `HEADER_BYTES`, with the size of what follows it."""
    words, size = bytearray(HEADER_BYTES), 0 if body is None else body.nbytes
    _layout(type(header)).pack_into(words, 0, header.magic, size, *_values(type(header))(header))
    return bytes(words)


def unpacked(words: bytes | bytearray, of: type[H]) -> tuple[H, int]:
    """The header that `packed` made these words of, and the size in bytes of what follows.

    Raises:
        GarbageReceived: they are no such header.
    """
    magic, size, kind, *values = _layout(of).unpack_from(words)
    if magic != of.magic or kind not in KINDS:
        raise GarbageReceived("not a message of lagbench")
    header = of(**dict(zip(_names(of), (Kind(kind), *values), strict=True)))
    header.check()
    return header, size


def into(body: Tensor) -> BodyOf[Header]:
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
    line_to(to).send(packed(header, body), follows)


def receive(source: Address, of: type[H], body_of: BodyOf[H]) -> tuple[H, Tensor]:
    """Wait for a message.

    Args:
        source: who sends it.
        of: what its header is.
        body_of: where its tensor lands.

    Raises:
        PeerGone: so.
        GarbageReceived: what came is no message, or its tensor is of another size; the line is
            at its end then.
    """
    line = line_to(source)
    try:
        header, size = unpacked(line.header(), of)
        body = body_of(header) if header.has_body else NOTHING
        if body.nbytes != size:
            said = f"{header.kind.name} with {size} bytes, where {body.nbytes} are due"
            raise GarbageReceived(said)
        if header.has_body:
            line.body(bytes_of(body))
    except GarbageReceived:
        line.end()
        raise
    return header, body


def ordered(server: Address, of: type[H], body_of: BodyOf[H]) -> tuple[H, Tensor]:
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


def line_to(peer: Address) -> Line:
    """The line to a peer.

    Raises:
        PeerGone: there is none.
    """
    if isinstance(peer, Line):
        return peer
    try:
        return world().lines[peer]
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
        self._of, self._changes = of, world().changes()
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
        world().start(lambda: self._listen(sender, source, body_of), f"from {sender}")

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
                self.put(sender, None, why_silent(error))

    def _wait_for_room(self, sender: int) -> None:
        with self._changes:
            while self._unread[sender] >= UNREAD:
                self._changes.wait()

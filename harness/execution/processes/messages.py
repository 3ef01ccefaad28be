"""Messages between processes, point to point over torch.distributed (gloo).

A message is a header of a fixed size and, for some kinds, one tensor after it, which travels in
host memory. One listening thread per peer puts what arrives into a `Mailbox`: the reader takes
messages in the order of their arrival, and a peer's death breaks its own connection alone.

A peer is the number of a rank; a worker that came later, into a group of its own, is a `Peer`.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import astuple, fields, replace
from functools import cache
from struct import Struct
from typing import Any, Generic, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from harness.execution.processes.headers import GarbageReceived, Header, Kind, is_whole

SERVER_RANK = 0
HEADER_BYTES = 256
"""Of every header; what its fields leave is zero."""
CLOSED = "is gone: its connection closed"
HEAD, BODY = 0, 1
"""Message tags."""
DEAD_AFTER_S = 1800.0
"""A peer that a message waits for so long without a word is taken for dead: longer than a server
scores its test sets, while workers wait. A peer whose process ends is noticed at once: its
connection closes."""
NOTHING = torch.empty(0)

H = TypeVar("H", bound=Header)
BodyOf = Callable[[H], Tensor]
"""Where the tensor after a header lands: of its size and type, in host memory."""


class Peer(NamedTuple):
    """A rank of a group other than the one everybody entered at first."""

    group: Any  # torch has no one type for the first group and for those that are gloo's alone
    rank: int


Address = int | Peer
"""Whom a message goes to: a rank of the first group, or a peer in another."""


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
    return CLOSED if isinstance(error, RuntimeError) else f"cannot be heard: {error!r}"


@cache
def _layout(of: type[Header]) -> Struct:
    """Magic word, size of the body in bytes, and a header's fields."""
    return Struct("<qq" + "".join("q" if is_whole(each.type) else "d" for each in fields(of)))


def packed(header: Header, body: Tensor | None = None) -> Tensor:
    """A header as ``[HEADER_BYTES]`` uint8, with the size of what follows it."""
    words, size = bytearray(HEADER_BYTES), 0 if body is None else body.nbytes
    _layout(type(header)).pack_into(words, 0, header.magic, size, *astuple(header))
    return torch.frombuffer(words, dtype=torch.uint8)


def unpacked(words: Tensor, of: type[H]) -> tuple[H, int]:
    """The header that `packed` made these words of, and the size in bytes of what follows.

    Raises:
        GarbageReceived: they are no such header.
    """
    magic, size, kind, *values = _layout(of).unpack_from(words.numpy().tobytes())
    if magic != of.magic or kind not in set(Kind):
        raise GarbageReceived("not a message of lagbench")
    names = [each.name for each in fields(of)][1:]
    header = of(Kind(kind), **dict(zip(names, values, strict=True)))
    header.check()
    return header, size


def into(body: Tensor) -> BodyOf[Header]:
    """The same tensor every time, for a peer that sends none before the last one was used."""
    return lambda header: body


def like(tensor: Tensor) -> Tensor:
    """A tensor of the same size and type in host memory, with nothing in it yet."""
    return torch.empty_like(tensor, device="cpu")


def send(header: Header, to: Address, body: Tensor | None = None) -> None:
    """Send a message; returns once it is on its way.

    Raises:
        RuntimeError: the peer is gone.
    """
    group, rank = _route(to)
    group.send([packed(header, body)], rank, HEAD).wait()
    if body is not None:
        group.send([body.cpu().contiguous()], rank, BODY).wait()


def receive(source: Address, of: type[H], body_of: BodyOf[H]) -> tuple[H, Tensor]:
    """Wait for a message.

    Args:
        source: who sends it.
        of: what its header is.
        body_of: where its tensor lands.

    Raises:
        RuntimeError: the peer is gone.
        GarbageReceived: what came is no message, or its tensor is of another size.
    """
    group, rank = _route(source)
    words = torch.empty(HEADER_BYTES, dtype=torch.uint8)
    group.recv([words], rank, HEAD).wait()
    header, size = unpacked(words, of)
    body = body_of(header) if header.has_body else NOTHING
    # Gloo ends the process where more comes than fits, and is silent where less does.
    if body.nbytes != size:
        raise GarbageReceived(f"{header.kind.name} with {size} bytes, where {body.nbytes} are due")
    if header.has_body:
        group.recv([body], rank, BODY).wait()
    return header, body


def ordered(server: Address, of: type[H], body_of: BodyOf[H]) -> tuple[H, Tensor]:
    """The server's next order; its questions for the time are answered on the way.

    Raises:
        ServerGone: see `talking`.
    """
    with talking():
        while True:
            header, body = receive(server, of, body_of)
            if header.kind is Kind.CLOCK:
                send(replace(header, began_s=time.monotonic()), server)
            elif header.kind is not Kind.WAIT:
                return header, body


def _route(to: Address) -> Peer:
    return to if isinstance(to, Peer) else Peer(dist.group.WORLD, to)


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
        self._of = of
        self._arrivals: queue.Queue[Arrival[H]] = queue.Queue()
        self._sources: dict[int, Address] = {}

    def listen(self, sender: int, source: Address, body_of: BodyOf[H]) -> None:
        """Take in messages of one more peer, or of one that comes back elsewhere.

        Args:
            sender: its number.
            source: where it sends from.
            body_of: where tensors land; called in the listening thread.
        """
        self._sources[sender] = source
        threading.Thread(
            target=self._listen, args=(sender, source, body_of), daemon=True, name=f"from {sender}"
        ).start()

    def get(self) -> Arrival[H]:
        """The next arrival; waits for it."""
        return self._arrivals.get()

    def get_before(self, moment_s: float) -> Arrival[H] | None:
        """The next arrival before a moment of the monotonic clock; None if there is none."""
        left = min(moment_s - time.monotonic(), threading.TIMEOUT_MAX)
        try:
            return self._arrivals.get(timeout=left) if left > 0.0 else self._arrivals.get_nowait()
        except queue.Empty:
            return None

    def put(self, sender: int, header: H | None, trouble: str = "") -> None:
        """Let something in that came another way."""
        self._arrivals.put(Arrival(sender, header, NOTHING, trouble))

    def _listen(self, sender: int, source: Address, body_of: BodyOf[H]) -> None:
        try:
            while True:
                self._arrivals.put(Arrival(sender, *receive(source, self._of, body_of), ""))
        except Exception as error:  # a thread that ends in silence leaves its peer waiting
            if self._sources[sender] is source:  # else it has come back meanwhile
                self.put(sender, None, why_silent(error))

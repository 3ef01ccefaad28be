"""Messages between a server and its workers, point to point over torch.distributed (gloo).

A message is a head of fixed size, and for some kinds one vector of parameters after it. The
server listens to every worker in a thread of its own, so that it receives from whoever comes
first and so that a worker's death breaks that worker's connection alone. Vectors travel in
host memory: what lies on a GPU is staged, as in paper 1's server.

A peer is the number of a rank; who came later, into a group of its own, is a `Peer`.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import astuple, dataclass, fields
from enum import IntEnum
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

SERVER_RANK = 0
MAGIC = 7_105_641.0
"""First word of every head: a peer that speaks something else is found out at once."""
CLOSED = "is gone: its connection closed"
HEAD, BODY = 0, 1
"""Message tags."""
DEAD_AFTER_S = 1800.0
"""A peer that a message waits for so long without a word is taken for dead: longer than a server
scores its test sets, while workers wait. A peer whose process ends is noticed at once: its
connection closes."""


class Kind(IntEnum):
    """What a message says; those with a body are followed by a vector."""

    CLOCK = 1
    WORK = 2
    DONE = 3
    STOP = 4
    STATE = 5
    ROUNDS = 6
    TASK = 7
    FETCH = 8
    SLICE = 9
    PIECE = 10
    PUSHED = 11
    FOLDED = 12
    GONE = 13
    GATHER = 14
    NUMBER = 15
    BACK = 16

    @property
    def has_body(self) -> bool:
        """Whether a vector follows."""
        return self in (Kind.WORK, Kind.DONE, Kind.STATE, Kind.SLICE, Kind.PIECE)


@dataclass(frozen=True)
class Head:
    """The fixed part of a message.

    Args:
        kind: what it says.
        step, steps: first minibatch of a contribution and how many.
        stage, before: the run's stage, and the steps of all stages before it.
        version: of the model that is sent, or that a contribution was made from.
        rounds: how many are asked for, where workers train in rounds.
        worker, read_version: whose contribution a shard speaks of, and what it was made from.
        rate: for local steps.
        began_s, ended_s: when the sender began and ended what it reports, on its own clock.
        loss: summed over the contribution's frames, in nats.
        value: of one of the server's numbers.
    """

    kind: Kind
    step: int = 0
    steps: int = 0
    stage: int = 0
    before: int = 0
    version: int = 0
    rounds: int = 0
    worker: int = 0
    read_version: int = 0
    rate: float = 0.0
    began_s: float = 0.0
    ended_s: float = 0.0
    loss: float = 0.0
    value: float = 0.0


COUNTS = 8
"""Fields of a head that are whole numbers, after its kind."""
FINITE = COUNTS + 3
"""Fields that are finite; the loss of a run that diverges is not."""
WORDS = 2 + len(fields(Head))
"""Of a message before its body: the magic one, the body's bytes, the head."""


class GarbageReceived(Exception):  # noqa: N818 (what happened)
    """A peer sent what is no message of ours."""


class ServerGone(Exception):  # noqa: N818 (what happened)
    """The server's connection closed."""


@contextmanager
def talking() -> Iterator[None]:
    """While a worker talks to its server, trouble means that the server is gone.

    Raises:
        ServerGone: the connection closed, or what came is no message.
    """
    try:
        yield
    except (RuntimeError, GarbageReceived) as error:
        raise ServerGone from error


def packed(head: Head, body: Tensor | None = None) -> Tensor:
    """A head as ``[WORDS]`` float64, in which every count up to 2⁵³ is exact.

    Args:
        head: what is said.
        body: what follows; its size in bytes is told.
    """
    told = 0.0 if body is None else float(size_bytes(body))
    return torch.tensor([MAGIC, told, *map(float, astuple(head))], dtype=torch.float64)


def unpacked(words: Tensor) -> Head:
    """The head that `packed` made these words of.

    Raises:
        GarbageReceived: they are no head.
    """
    magic, _, kind, *values = words.tolist()
    counts, known = values[:COUNTS], kind in {float(k) for k in Kind}
    finite = all(map(math.isfinite, values[:FINITE]))
    if magic != MAGIC or not known or not finite or not all(map(is_count, counts)):
        raise GarbageReceived("not a message of lagbench")
    return Head(Kind(int(kind)), *map(int, counts), *values[COUNTS:])


def is_count(word: float) -> bool:
    """Whether a word can be a whole number from 0."""
    return math.isfinite(word) and word >= 0.0 and word == math.floor(word)


def size_bytes(body: Tensor) -> int:
    """Of a tensor's elements."""
    return body.numel() * body.element_size()


class Peer(NamedTuple):
    """A rank of a group other than the one everybody entered at first."""

    group: Any
    rank: int


Address = int | Peer
"""Whom a message goes to: a rank of the first group, or a peer in another."""


def send(head: Head, to: Address, body: Tensor | None = None) -> None:
    """Send a message; returns once it is on its way.

    Raises:
        RuntimeError: the peer is gone.
    """
    group, rank = _route(to)
    group.send([packed(head, body)], rank, HEAD).wait()
    if body is not None:
        group.send([body.cpu()], rank, BODY).wait()


def receive(source: Address, into: Tensor) -> Head:
    """Wait for a message; its body, if it has one, lands in ``into`` (in host memory).

    Raises:
        RuntimeError: the peer is gone.
        GarbageReceived: what came is no message, or its body is of another size.
    """
    group, rank = _route(source)
    words = torch.empty(WORDS, dtype=torch.float64)
    group.recv([words], rank, HEAD).wait()
    head = unpacked(words)
    if head.kind.has_body:
        # Gloo ends the process where more comes than fits, and is silent where less does.
        if words[1] != size_bytes(into):
            told, here = f"{words[1].item():.0f}", size_bytes(into)
            raise GarbageReceived(f"{head.kind.name} with {told} bytes, where {here} are due")
        group.recv([into], rank, BODY).wait()
    return head


def expect(source: Address, into: Tensor) -> Callable[[], Head]:
    """Be ready for one message with a body; what is returned waits for it, as `receive` does.

    Whoever expects from several peers at once keeps none of them waiting for another.
    """
    heard: Future[Head] = Future()

    def hear() -> None:
        try:
            heard.set_result(receive(source, into))
        except Exception as error:
            heard.set_exception(error)

    threading.Thread(target=hear, daemon=True).start()
    return heard.result


def _route(to: Address) -> Peer:
    return to if isinstance(to, Peer) else Peer(dist.group.WORLD, to)


class Arrival(NamedTuple):
    """What came from a worker: a message with its body, or why nothing more will."""

    worker: int
    head: Head | None
    body: Tensor
    trouble: str


class Inbox:
    """Messages of all workers in the order of their arrival.

    Args:
        ranks: the workers' ranks; worker w is ``ranks[w]``.
        size: of a body.
        dtype: of a body.
    """

    def __init__(self, ranks: Sequence[Address], size: int, dtype: torch.dtype) -> None:
        self._arrivals: queue.Queue[Arrival] = queue.Queue()
        self._read: dict[int, threading.Semaphore] = {}
        for worker, rank in enumerate(ranks):
            self.listen(worker, rank, torch.zeros(size, dtype=dtype))

    def listen(self, worker: int, source: Address, body: Tensor) -> None:
        """Take in messages of one more worker, or of one that comes back elsewhere.

        Args:
            worker: its number.
            source: where it sends from.
            body: of the size of its bodies, which land there.
        """
        read = self._read[worker] = threading.Semaphore(0)
        threading.Thread(
            target=self._listen,
            args=(worker, source, body, read),
            daemon=True,
            name=f"worker {worker}",
        ).start()

    def get(self) -> Arrival:
        """The next arrival. Its body holds until `release` lets that worker's next one in."""
        return self._arrivals.get()

    def get_before(self, moment_s: float) -> Arrival | None:
        """The next arrival before a moment of the monotonic clock; None if there is none."""
        left = moment_s - time.monotonic()
        try:
            return self._arrivals.get(timeout=left) if left > 0.0 else self._arrivals.get_nowait()
        except queue.Empty:
            return None

    def put(self, arrival: Arrival) -> None:
        """Let something in that came another way."""
        self._arrivals.put(arrival)

    def release(self, worker: int) -> None:
        """The last body of this worker has been used."""
        self._read[worker].release()

    def _listen(self, worker: int, rank: Address, body: Tensor, read: threading.Semaphore) -> None:
        try:
            while True:
                head = receive(rank, body)
                self._arrivals.put(Arrival(worker, head, body, ""))
                if head.kind.has_body:
                    read.acquire()
        except GarbageReceived as garbage:
            trouble = f"sent garbage: {garbage}"
        except RuntimeError:
            trouble = CLOSED
        except Exception as error:  # a thread that ends in silence leaves its worker waiting
            trouble = f"cannot be heard: {error}"
        if self._read[worker] is read:  # else it has come back meanwhile
            self._arrivals.put(Arrival(worker, None, body, trouble))

"""Messages between a server and its workers, point to point over torch.distributed (gloo).

A message is a head of fixed size, and for some kinds one vector of parameters after it. The
server listens to every worker in a thread of its own, so that it receives from whoever comes
first and so that a worker's death breaks that worker's connection alone. Vectors travel in
host memory: what lies on a GPU is staged, as in paper 1's server.
"""

from __future__ import annotations

import math
import os
import queue
import threading
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from datetime import timedelta
from enum import IntEnum
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from harness.errors import UserError

SERVER_RANK = 0
MAGIC = 7_105_641.0
"""First word of every head: a peer that speaks something else is found out at once."""
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

    @property
    def has_body(self) -> bool:
        """Whether a vector follows."""
        return self in (Kind.WORK, Kind.DONE, Kind.STATE)


@dataclass(frozen=True)
class Head:
    """The fixed part of a message.

    Args:
        kind: what it says.
        step, steps: first minibatch of a contribution and how many.
        stage, before: the run's stage, and the steps of all stages before it.
        version: of the model that is sent, or that a contribution was made from.
        rounds: how many are asked for, where workers train in rounds.
        rate: for local steps.
        began_s, ended_s: when the sender began and ended what it reports, on its own clock.
        loss: summed over the contribution's frames, in nats.
    """

    kind: Kind
    step: int = 0
    steps: int = 0
    stage: int = 0
    before: int = 0
    version: int = 0
    rounds: int = 0
    rate: float = 0.0
    began_s: float = 0.0
    ended_s: float = 0.0
    loss: float = 0.0


COUNTS = 6
"""Fields of a head that are whole numbers, after its kind."""
WORDS = 1 + len(fields(Head))


class GarbageReceived(Exception):  # noqa: N818 (what happened)
    """A peer sent what is no message of ours."""


def packed(head: Head) -> Tensor:
    """A head as ``[WORDS]`` float64, in which every count up to 2⁵³ is exact."""
    return torch.tensor([MAGIC, *map(float, astuple(head))], dtype=torch.float64)


def unpacked(words: Tensor) -> Head:
    """The head that `packed` made these words of.

    Raises:
        GarbageReceived: they are no head.
    """
    magic, kind, *values = words.tolist()
    counts, times = values[:COUNTS], values[COUNTS:]
    known = kind in {float(k) for k in Kind}
    if magic != MAGIC or not known or not all(v >= 0 and v == math.floor(v) for v in counts):
        raise GarbageReceived("not a message of lagbench")
    return Head(Kind(int(kind)), *map(int, counts), *times)


def send(head: Head, rank: int, body: Tensor | None = None) -> None:
    """Send a message; returns once it is on its way.

    Raises:
        RuntimeError: the peer is gone.
    """
    dist.send(packed(head), dst=rank, tag=HEAD)
    if body is not None:
        dist.send(body.cpu(), dst=rank, tag=BODY)


def receive(rank: int, into: Tensor) -> Head:
    """Wait for a message; its body, if it has one, lands in ``into`` (in host memory).

    Raises:
        RuntimeError: the peer is gone.
        GarbageReceived: what came is no message.
    """
    words = torch.empty(WORDS, dtype=torch.float64)
    dist.recv(words, src=rank, tag=HEAD)
    head = unpacked(words)
    if head.kind.has_body:
        dist.recv(into, src=rank, tag=BODY)
    return head


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

    def __init__(self, ranks: Sequence[int], size: int, dtype: torch.dtype) -> None:
        self._arrivals: queue.Queue[Arrival] = queue.Queue()
        self._read = [threading.Semaphore(0) for _ in ranks]
        for worker, rank in enumerate(ranks):
            body = torch.zeros(size, dtype=dtype)
            threading.Thread(
                target=self._listen, args=(worker, rank, body), daemon=True, name=f"worker {worker}"
            ).start()

    def get(self) -> Arrival:
        """The next arrival. Its body holds until `release` lets that worker's next one in."""
        return self._arrivals.get()

    def release(self, worker: int) -> None:
        """The last body of this worker has been used."""
        self._read[worker].release()

    def _listen(self, worker: int, rank: int, body: Tensor) -> None:
        try:
            while True:
                self._arrivals.put(Arrival(worker, receive(rank, body), body, ""))
                self._read[worker].acquire()
        except GarbageReceived as garbage:
            self._arrivals.put(Arrival(worker, None, body, f"sent garbage: {garbage}"))
        except RuntimeError:
            self._arrivals.put(Arrival(worker, None, body, "is gone: its connection closed"))


def join() -> tuple[int, int]:
    """Enter the process group that ``torchrun`` (or Slurm) describes; returns (rank, ranks).

    Listens on the loopback interface unless ``GLOO_SOCKET_IFNAME`` names another.

    Raises:
        UserError: the process was not started as one of a group, or nobody answers.
    """
    missing = [
        name
        for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
        if name not in os.environ
    ]
    if missing:
        raise UserError(f"environment: {missing[0]} is missing; start with torchrun")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    try:
        dist.init_process_group("gloo", timeout=timedelta(seconds=DEAD_AFTER_S))
    except (RuntimeError, ValueError) as error:
        first = str(error).splitlines()[0]
        raise UserError(f"torch.distributed: cannot form the group: {first}") from error
    return dist.get_rank(), dist.get_world_size()

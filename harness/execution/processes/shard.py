"""One shard of the server: it answers reads, and folds pieces one after the other as they come.

It knows nothing of the other shards. What it folds, and which workers it has lost, it tells the
first of them, who says when a contribution is complete.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from data_synth.corpus import Corpus
from harness.algorithms.contract import Algorithm, Server
from harness.execution.processes.membership import Door
from harness.execution.processes.messages import (
    SERVER_RANK,
    Address,
    Arrival,
    Head,
    Inbox,
    Kind,
    Peer,
    ServerGone,
    send,
    talking,
)
from harness.execution.processes.server import Pace
from harness.execution.replay.shards import edges, states
from harness.execution.runs.config import RunConfig


class _Waiting(NamedTuple):
    """A piece in the queue; or, without a head, that its worker is given up."""

    worker: int
    head: Head | None
    body: Tensor | None
    begun_s: float
    ends_s: float


class Shard:
    """Folds the pieces of its slice of the model.

    Args:
        algorithm: folds.
        server: the slice.
        tell: how the first shard hears of folds and losses; moments are on this process's clock.
        release: what is done with the body of a worker's piece once it is folded.
        fold_s: how long a worker's piece of a number takes to fold at least.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        server: Server,
        tell: Callable[[Head], None],
        release: Callable[[int], None],
        fold_s: Callable[[int, int], float],
    ) -> None:
        self.server = server
        self._algorithm, self._tell, self._release = algorithm, tell, release
        self._fold_s = fold_s
        self._waiting: deque[_Waiting] = deque()
        self._read: dict[int, tuple[int, int]] = {}
        self._reading: set[int] = set()
        self._gone: set[int] = set()
        self._queued: defaultdict[int, int] = defaultdict(int)
        self._busy_until_s = self._folded_at_s = 0.0

    @property
    def due_s(self) -> float:
        """When, by the monotonic clock, `go_on` has something to do; infinite if nothing waits."""
        return self._waiting[0].ends_s if self._waiting else math.inf

    def hear(self, worker: int, head: Head | None, body: Tensor, address: Address) -> None:
        """A message of a worker, or none any more."""
        if worker in self._gone:
            return
        if head is None or head.kind not in (Kind.FETCH, Kind.PIECE):
            self.drop(worker)
        elif head.kind is Kind.FETCH:
            self._read[worker] = head.step, self.server.version
            self._reading.add(worker)
            answer = Head(Kind.SLICE, head.step, version=self.server.version)
            with suppress(RuntimeError):  # that it is gone will be heard
                send(answer, address, self.server.model)
        elif worker not in self._reading or head.step != self._read[worker][0]:
            self.drop(worker)  # a piece of what it has not read
        else:
            self._reading.discard(worker)
            seconds = self._fold_s(worker, self._queued[worker])
            self._queued[worker] += 1
            self._wait(worker, head, body, seconds)

    def drop(self, worker: int) -> None:
        """Hear nothing more of a worker, and say so when what it sent is folded."""
        if worker not in self._gone:
            self._gone.add(worker)
            self._reading.discard(worker)
            self._wait(worker, None, None, 0.0)

    def take_back(self, worker: int) -> None:
        """Hear again what a worker says that was given up."""
        self._gone.discard(worker)

    def _wait(self, worker: int, head: Head | None, body: Tensor | None, seconds: float) -> None:
        begun = max(time.monotonic(), self._busy_until_s)
        self._busy_until_s = begun + seconds
        self._waiting.append(_Waiting(worker, head, body, begun, self._busy_until_s))

    def go_on(self) -> None:
        """Fold the first piece that waits."""
        worker, head, body, begun, _ = self._waiting.popleft()
        step, read = self._read.get(worker, (0, 0))
        if head is None or body is None:
            now = time.monotonic()
            lost = Head(Kind.GONE, step, began_s=now, ended_s=now)
            self._tell(replace(lost, worker=worker, read_version=read))
            return
        begun, version = max(begun, self._folded_at_s), self.server.version
        piece = body.to(self.server.model.device).unsqueeze(0)
        self._algorithm.fold(self.server, piece, [version - read], head.rate)
        self._release(worker)
        self._folded_at_s = time.monotonic()
        folded = Head(Kind.FOLDED, step, version=version, worker=worker, read_version=read)
        self._tell(replace(folded, began_s=begun, ended_s=self._folded_at_s))


def next_arrival(inbox: Inbox, shard: Shard) -> Arrival | None:
    """What comes before the shard has something to do; None if nothing does."""
    return inbox.get() if shard.due_s == math.inf else inbox.get_before(shard.due_s)


def tell_state(server: Server, to: Address) -> None:
    """Send a shard's tensors and numbers."""
    for tensor in states(server):
        send(Head(Kind.STATE, version=server.version), to, tensor)
    tell_numbers(server, to)


def tell_numbers(server: Server, to: Address) -> None:
    """Send a shard's numbers, in the order of their names."""
    for _, value in sorted(server.numbers.items()):
        send(Head(Kind.NUMBER, value=value), to)


class State:
    """Takes in what `tell_state` sends, message by message."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._tensors = self._numbers = 0

    @property
    def whole(self) -> bool:
        """Whether all tensors and numbers have come once."""
        wanted = len(states(self._server)), len(self._server.numbers)
        return (self._tensors, self._numbers) == wanted

    def hear(self, head: Head, body: Tensor) -> None:
        """The next of them."""
        if head.kind is Kind.STATE:
            tensors = states(self._server)
            tensors[self._tensors % len(tensors)].copy_(body)
            self._server.version, self._tensors = head.version, self._tensors + 1
        else:
            names = sorted(self._server.numbers)
            self._server.numbers[names[self._numbers % len(names)]] = head.value
            self._numbers += 1


def piece_s(pace: Pace | None, shards: int) -> Callable[[int, int], float]:
    """How long a worker's piece of a number takes to fold: a part of a whole fold's time."""
    if pace is None:
        return lambda worker, count: 0.0
    return lambda worker, count: pace.fold_s(worker, count) / shards


def serve(
    config: RunConfig,
    corpus: Corpus,
    rank: int,
    pace: Pace | None,
    say: Callable[[str], None],
    door: Door | None = None,
) -> None:
    """Be a shard other than the first until told to stop.

    Args:
        config: what is run.
        corpus: what it is trained on.
        rank: which shard.
        pace: slows the folds; None for as fast as they go.
        say: told what happens to workers.
        door: where workers that died come back; None for nowhere.

    Raises:
        ServerGone: the first shard is gone.
    """
    serving = _Serving(config, corpus, rank, pace, say)
    if door is not None:
        door.open(serving.enters)
    serving.run()


class _Serving:
    """A shard that the first one asks for its state, and tells when to stop."""

    def __init__(
        self,
        config: RunConfig,
        corpus: Corpus,
        rank: int,
        pace: Pace | None,
        say: Callable[[str], None],
    ) -> None:
        size = config.network(corpus).layout.parameters
        begin, end = edges(size, config.shards)[rank]
        self._say, self._rank, self._first = say, rank, config.workers
        self._workers: list[Address] = [config.shards + w for w in range(config.workers)]
        self._server = config.algorithm.start(torch.zeros(end - begin, device=config.device))
        model = self._server.model
        self._inbox = Inbox([*self._workers, SERVER_RANK], model.numel(), model.dtype)
        self._shard = Shard(
            config.algorithm, self._server, self._answer, self._inbox.release,
            piece_s(pace, config.shards),
        )  # fmt: skip
        self._state = State(self._server)

    def enters(self, worker: int, address: Peer) -> None:
        """A worker has come back; on the thread of the door."""
        body = torch.zeros_like(self._server.model, device="cpu")
        self._workers[worker] = address
        self._inbox.put(Arrival(worker, Head(Kind.BACK), body, ""))
        self._inbox.listen(worker, address, body)

    def run(self) -> None:
        """Answer until told to stop."""
        while True:
            arrival = next_arrival(self._inbox, self._shard)
            if arrival is None:
                self._shard.go_on()
            elif arrival.worker == self._first:
                if not self._ordered(arrival):
                    return
            else:
                worker, head, body, trouble = arrival
                if head is not None and head.kind is Kind.BACK:
                    self._shard.take_back(worker)
                    continue
                if head is None and "garbage" in trouble:
                    self._say(f"server shard {self._rank}: worker {worker} {trouble}")
                self._shard.hear(worker, head, body, self._workers[worker])

    def _ordered(self, arrival: Arrival) -> bool:
        """Do what the first shard says; whether to go on."""
        head = arrival.head
        if head is None:
            raise ServerGone
        if head.kind is Kind.CLOCK:
            self._answer(Head(Kind.CLOCK, began_s=time.monotonic()))
        elif head.kind is Kind.GONE:
            self._shard.drop(head.worker)
        elif head.kind in (Kind.STATE, Kind.NUMBER):
            self._state.hear(head, arrival.body)
            if head.kind.has_body:
                self._inbox.release(self._first)
        elif head.kind is Kind.GATHER:
            with talking():
                tell_state(self._server, SERVER_RANK)
        return head.kind is not Kind.STOP

    def _answer(self, head: Head) -> None:
        with talking():
            send(head, SERVER_RANK)

"""One shard of the server: it answers reads, and folds pieces one after the other as they come.

It knows nothing of the other shards. What it folds, and which workers it has lost, it tells the
first of them, who says when a contribution is complete.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from data_synth.corpus import Corpus
from harness.algorithms.contract import Algorithm, Server
from harness.execution.processes.headers import FrameHeader, Kind
from harness.execution.processes.lines import PeerGone
from harness.execution.processes.messages import (
    NOTHING,
    SERVER_RANK,
    Address,
    Arrival,
    Mailbox,
    ServerGone,
    line_to,
    send,
    talking,
)
from harness.execution.processes.pace import Pacing
from harness.execution.processes.rejoining import Admission
from harness.execution.processes.transfer import bodies, send_state, take_state
from harness.execution.processes.world import now_s
from harness.execution.replay.shards import edges
from harness.execution.runs.config import RunConfig


class _Waiting(NamedTuple):
    """A piece in the queue; or, without a header, that its worker is given up."""

    worker: int
    header: FrameHeader | None
    body: Tensor
    begun_s: float
    ends_s: float


class Shard:
    """Folds the pieces of its slice of the model.

    Args:
        algorithm: folds.
        server: the slice.
        tell: how the first shard hears of folds and losses; moments are on this process's clock.
        pace: slows the folds.
        shards: how many there are; a piece takes this part of a whole fold's time.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        server: Server,
        tell: Callable[[FrameHeader], None],
        pace: Pacing,
        shards: int,
    ) -> None:
        self.server = server
        self._algorithm, self._tell = algorithm, tell
        self._pace, self._shards = pace, shards
        self._waiting: deque[_Waiting] = deque()
        self._read: dict[int, tuple[int, int]] = {}
        self._reading: set[int] = set()
        self._gone: set[int] = set()
        self._queued = Counter[int]()
        self._busy_until_s = self._folded_at_s = 0.0

    @property
    def due_s(self) -> float:
        """When, by the monotonic clock, `go_on` has something to do; infinite if nothing waits."""
        return self._waiting[0].ends_s if self._waiting else math.inf

    def hear(self, worker: int, header: FrameHeader | None, body: Tensor, address: Address) -> None:
        """A message of a worker, or none any more."""
        if worker in self._gone:
            return
        if header is None or header.kind not in (Kind.FETCH, Kind.PIECE):
            self.drop(worker)
        elif header.kind is Kind.FETCH:
            self._read[worker] = header.step, self.server.version
            self._reading.add(worker)
            answer = FrameHeader(Kind.SLICE, header.step, version=self.server.version)
            with suppress(RuntimeError):  # that it is gone will be heard
                send(answer, address, self.server.model)
        elif worker not in self._reading or header.step != self._read[worker][0]:
            self.drop(worker)  # a piece of what it has not read
        else:
            self._reading.discard(worker)
            seconds = self._pace.fold_s(worker, self._queued[worker]) / self._shards
            self._queued[worker] += 1
            self._wait(worker, header, body, seconds)

    def drop(self, worker: int) -> None:
        """Hear nothing more of a worker, and say so when what it sent is folded."""
        if worker not in self._gone:
            self._gone.add(worker)
            self._reading.discard(worker)
            self._wait(worker, None, NOTHING, 0.0)

    def take_back(self, worker: int) -> None:
        """Hear again what a worker says that was given up."""
        self._gone.discard(worker)

    def _wait(self, worker: int, header: FrameHeader | None, body: Tensor, seconds: float) -> None:
        begun = max(now_s(), self._busy_until_s)
        self._busy_until_s = begun + seconds
        self._waiting.append(_Waiting(worker, header, body, begun, self._busy_until_s))

    def go_on(self) -> None:
        """Fold the first piece that waits."""
        worker, header, body, begun, _ = self._waiting.popleft()
        step, read = self._read.get(worker, (0, 0))
        if header is None:
            now = now_s()
            lost = FrameHeader(Kind.GONE, step, began_s=now, ended_s=now)
            self._tell(replace(lost, worker=worker, read_version=read))
            return
        begun, version = max(begun, self._folded_at_s), self.server.version
        piece = body.to(self.server.model.device).unsqueeze(0)
        whose = [worker], [float(header.steps)]
        self._algorithm.fold(self.server, piece, [version - read], header.rate, *whose)
        self._folded_at_s = now_s()
        folded = FrameHeader(Kind.FOLDED, step, version=version, worker=worker, read_version=read)
        self._tell(replace(folded, began_s=begun, ended_s=self._folded_at_s))


def serve(
    config: RunConfig,
    corpus: Corpus,
    rank: int,
    pace: Pacing,
    say: Callable[[str], None],
    admission: Admission | None = None,
) -> None:
    """Be a shard other than the first until told to stop.

    Args:
        config: what is run.
        corpus: what it is trained on.
        rank: which shard.
        pace: slows the folds.
        say: told what happens to workers.
        admission: lets workers in that died and come back; None for none.

    Raises:
        ServerGone: the first shard is gone.
    """
    serving = _Serving(config, corpus, rank, pace, say)
    if admission is not None:
        admission.open(serving.enter, range(config.workers).__contains__)
    serving.run()


class _Serving:
    """A shard that the first one asks for its state, and tells when to stop."""

    def __init__(
        self, config: RunConfig, corpus: Corpus, rank: int, pace: Pacing, say: Callable[[str], None]
    ) -> None:
        size = config.network(corpus).layout.parameters
        begin, end = edges(size, config.shards)[rank]
        self._say, self._rank, self._first = say, rank, config.workers
        self._server = config.algorithm.start(torch.zeros(end - begin, device=config.device))
        self._shard = Shard(config.algorithm, self._server, self._answer, pace, config.shards)
        self._mailbox = Mailbox(FrameHeader)
        self._workers: list[Address] = [config.shards + w for w in range(config.workers)]
        for sender, address in enumerate([*self._workers, SERVER_RANK]):
            self._mailbox.listen(sender, address, bodies(self._server))

    def enter(self, worker: int, address: Address) -> None:
        """A worker has come back; on the thread of the admission."""
        self._workers[worker] = address
        self._mailbox.put(worker, FrameHeader(Kind.BACK))
        self._mailbox.listen(worker, address, bodies(self._server))

    def run(self) -> None:
        """Answer until told to stop."""
        while True:
            arrival = self._mailbox.get_before(self._shard.due_s)
            if arrival is None:
                self._shard.go_on()
            elif arrival.sender != self._first:
                self._hear(arrival)
            elif not self._ordered(arrival):
                return

    def _hear(self, arrival: Arrival[FrameHeader]) -> None:
        """A worker speaks, or does so no more."""
        worker, header, body, trouble = arrival
        if header is not None and header.kind is Kind.BACK:
            self._shard.take_back(worker)
            return
        if "garbage" in trouble:
            self._say(f"server shard {self._rank}: worker {worker} {trouble}")
        self._shard.hear(worker, header, body, self._workers[worker])

    def _ordered(self, arrival: Arrival[FrameHeader]) -> bool:
        """Do what the first shard says; whether to go on."""
        header = arrival.header
        if header is None:
            raise ServerGone
        if header.kind is Kind.CLOCK:
            self._answer(replace(header, began_s=now_s()))
        elif header.kind is Kind.GONE:
            self._shard.drop(header.worker)
        elif header.kind is Kind.GATHER:
            with talking():
                send_state(self._server, SERVER_RANK)
        elif header.kind is not Kind.STOP:
            with talking():
                take_state(self._server, header, arrival.body)
            if header.kind is Kind.NUMBERS:  # the last of a state
                self._answer(FrameHeader(Kind.HELD))
        return header.kind is not Kind.STOP

    def _answer(self, header: FrameHeader) -> None:
        if header.kind is Kind.GONE:  # should it live, it notices
            with suppress(PeerGone):
                line_to(self._workers[header.worker]).end()
        with talking():
            send(header, SERVER_RANK)

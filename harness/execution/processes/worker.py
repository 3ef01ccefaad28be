"""What workers of an asynchronous run do: read, compute, send, until the server says stop."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import torch

from data_synth.corpus import Corpus
from harness.algorithms.contract import Memory
from harness.execution.data.frames import Frames
from harness.execution.processes.messages import (
    SERVER_RANK,
    Address,
    Head,
    Kind,
    expect,
    receive,
    send,
    talking,
)
from harness.execution.processes.server import Pace, sleep_until
from harness.execution.replay.shards import edges
from harness.execution.runs.config import RunConfig


def work(
    config: RunConfig,
    corpus: Corpus,
    rank: int,
    pace: Pace | None,
    server: Address = SERVER_RANK,
) -> None:
    """Contribute until the server says stop: what ranks from 1 do.

    Args:
        config: what is run.
        corpus: what it is trained on.
        rank: of this worker.
        pace: slows it; None for as fast as it goes.
        server: where the server is.

    Raises:
        ServerGone: its connection closed.
    """
    contributor = Contributor(config, corpus, rank - 1, pace)
    while True:
        with talking():
            head = receive(server, contributor.received)
        if head.kind is Kind.STOP:
            return
        if head.kind is Kind.CLOCK:
            with talking():
                send(Head(Kind.CLOCK, began_s=time.monotonic()), server)
            continue
        done = contributor.contribute(head)
        with talking():
            send(replace(done, kind=Kind.DONE), server, contributor.out[0])


class Contributor:
    """What a worker of an asynchronous run computes with.

    Args:
        config: what is run.
        corpus: what it is trained on.
        worker: which worker.
        pace: slows it; None for as fast as it goes.

    Attributes:
        received: the model it has read ``[P]``, in host memory.
        out: its contribution ``[1, P]``.
    """

    def __init__(self, config: RunConfig, corpus: Corpus, worker: int, pace: Pace | None) -> None:
        self._net = config.network(corpus)
        self._minibatches = config.minibatches(corpus, Frames.of(corpus, config.device))
        self.received = torch.zeros(self._net.layout.parameters)
        self.out = torch.zeros(1, self._net.layout.parameters, device=config.device)
        self._config, self._worker, self._pace = config, worker, pace
        self._count, self._memory = 0, Memory()

    def contribute(self, head: Head) -> Head:
        """Compute ``out`` from ``received``.

        Args:
            head: which minibatches, and the rate.

        Returns:
            The same, with when it began and ended and the loss.
        """
        began, data = time.monotonic(), self._minibatches
        if (head.stage, head.before) != (data.stage, data.before):
            data.begin(head.stage, head.before)
        steps = range(head.step, head.step + head.steps)
        minibatches = [data.of([(self._worker, step)]) for step in steps]
        replica = self.received.to(self._config.device).unsqueeze(0)
        with torch.no_grad():
            losses = self._config.algorithm.contribute(
                self._net, replica, minibatches, self.out, head.rate, self._memory
            )
        loss = losses.sum(dtype=torch.float64).item()
        if self._pace:
            sleep_until(began + self._pace.compute_s(self._worker, self._count))
        self._count += 1
        return replace(head, began_s=began, ended_s=time.monotonic(), loss=loss)


def work_in_shards(
    config: RunConfig, corpus: Corpus, worker: int, pace: Pace | None, shards: Sequence[Address]
) -> None:
    """Contribute until the first shard says stop.

    Args:
        config: what is run.
        corpus: what it is trained on.
        worker: which worker this is.
        pace: slows it; None for as fast as it goes.
        shards: where the shards of the server are.

    Raises:
        ServerGone: a connection closed.
    """
    _Worker(config, corpus, worker, pace, shards).run()


class _Worker:
    """One worker of a server in shards."""

    def __init__(
        self,
        config: RunConfig,
        corpus: Corpus,
        worker: int,
        pace: Pace | None,
        shards: Sequence[Address],
    ) -> None:
        self._contributor = Contributor(config, corpus, worker, pace)
        self._shards, self._nothing = shards, torch.zeros(0)
        self._slices = edges(self._contributor.received.numel(), len(shards))
        first = worker % len(shards)
        self._order = [*range(first, len(shards)), *range(first)]

    def run(self) -> None:
        """Answer until told to stop."""
        while True:
            with talking():
                head = receive(self._shards[0], self._nothing)
            if head.kind is Kind.STOP:
                return
            with talking():
                if head.kind is Kind.CLOCK:
                    send(Head(Kind.CLOCK, began_s=time.monotonic()), self._shards[0])
                    continue
                self._fetch(head)
            done = self._contributor.contribute(head)
            with talking():
                self._push(done)

    def _fetch(self, head: Head) -> None:
        """Read all shards, each as it is when it is asked."""
        received = self._contributor.received
        coming = [
            expect(shard, received[begin:end])
            for shard, (begin, end) in zip(self._shards, self._slices, strict=True)
        ]
        for shard in self._shards:
            send(Head(Kind.FETCH, head.step), shard)
        for wait in coming:
            wait()

    def _push(self, done: Head) -> None:
        """Send each shard its piece, one after the other."""
        for shard in self._order:
            begin, end = self._slices[shard]
            piece = self._contributor.out[0, begin:end]
            send(replace(done, kind=Kind.PIECE), self._shards[shard], piece)
        send(replace(done, kind=Kind.PUSHED), self._shards[0])

"""What workers of an asynchronous run do: read, compute, send, until the server says stop."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import repeat

import torch
from torch import Tensor

from data_synth.corpus import Corpus
from harness.algorithms.contract import Memory
from harness.execution.data.made import frames_of
from harness.execution.processes.headers import FrameHeader, Kind
from harness.execution.processes.messages import (
    NOTHING,
    SERVER_RANK,
    Address,
    into,
    ordered,
    receive,
    send,
    talking,
)
from harness.execution.processes.pace import Pacing, sleep_until
from harness.execution.replay.shards import edges
from harness.execution.runs.config import RunConfig


class Contributor:
    """What a worker computes with.

    Args:
        config: what is run.
        corpus: what it is trained on.
        worker: which worker.
        pace: slows it.

    Attributes:
        received: the model it has read ``[P]``, in host memory.
        out: its contribution ``[1, P]``.
    """

    def __init__(self, config: RunConfig, corpus: Corpus, worker: int, pace: Pacing) -> None:
        self._net = config.network(corpus)
        frames = frames_of(corpus, config.device, config.shuffling)
        self._minibatches = config.minibatches(corpus, frames)
        self.received = torch.zeros(self._net.layout.parameters)
        self.out = torch.zeros(1, self._net.layout.parameters, device=config.device)
        self._config, self._worker, self._pace = config, worker, pace
        self._count, self._memory = 0, Memory()

    def contribute(self, header: FrameHeader, model: Tensor) -> FrameHeader:
        """Compute ``out`` from a model ``[P]``, which may be overwritten.

        Args:
            header: which minibatches, and the rate.
            model: what is read.

        Returns:
            The same header, with when it began and ended and the loss.
        """
        began, data = time.monotonic(), self._minibatches
        if (header.stage, header.before) != (data.stage, data.before):
            data.begin(header.stage, header.before)
            self._memory.new_pass = True
        steps = range(header.step, header.step + header.steps)
        minibatches = [data.of([(self._worker, step)]) for step in steps]
        replica = model.to(self._config.device).unsqueeze(0)
        with torch.no_grad():
            losses = self._config.algorithm.contribute(
                self._net, replica, minibatches, self.out, header.rate, self._memory
            )
        self._memory.new_pass = False
        loss = losses.sum(dtype=torch.float64).item()
        sleep_until(began + self._at_least_s(header.steps))
        return replace(header, began_s=began, ended_s=time.monotonic(), loss=loss)

    def _at_least_s(self, steps: int) -> float:
        """How long the next minibatches take at least."""
        first, self._count = self._count, self._count + steps
        return sum(self._pace.compute_s(self._worker, n) for n in range(first, self._count))


def work(
    config: RunConfig, corpus: Corpus, rank: int, pace: Pacing, server: Address = SERVER_RANK
) -> None:
    """Contribute until the server says stop: what ranks from 1 do.

    Args:
        config: what is run.
        corpus: what it is trained on.
        rank: of this worker.
        pace: slows it.
        server: where the server is.

    Raises:
        ServerGone: its connection closed.
    """
    contributor = Contributor(config, corpus, rank - 1, pace)
    while True:
        header, model = ordered(server, FrameHeader, into(contributor.received))
        if header.kind is Kind.STOP:
            return
        done = contributor.contribute(header, model)
        with talking():
            send(replace(done, kind=Kind.DONE), server, contributor.out[0])


def work_in_shards(
    config: RunConfig, corpus: Corpus, worker: int, pace: Pacing, shards: Sequence[Address]
) -> None:
    """Contribute until the first shard says stop.

    Args:
        config: what is run.
        corpus: what it is trained on.
        worker: which worker this is.
        pace: slows it.
        shards: where the shards of the server are.

    Raises:
        ServerGone: a connection closed.
    """
    contributor = Contributor(config, corpus, worker, pace)
    slices = edges(contributor.received.numel(), len(shards))
    reads = [contributor.received[begin:end] for begin, end in slices]
    pieces = [contributor.out[0, begin:end] for begin, end in slices]
    first = worker % len(shards)
    with ThreadPoolExecutor(len(shards)) as at_once:
        while True:
            header, _ = ordered(shards[0], FrameHeader, into(NOTHING))
            if header.kind is Kind.STOP:
                return
            with talking():
                list(at_once.map(_fetch, shards, reads, repeat(header.step)))
            done = contributor.contribute(header, contributor.received)
            with talking():
                for shard in (*range(first, len(shards)), *range(first)):
                    send(replace(done, kind=Kind.PIECE), shards[shard], pieces[shard])
                send(replace(done, kind=Kind.PUSHED), shards[0])


def _fetch(shard: Address, read: Tensor, step: int) -> None:
    """Read a shard as it is when it is asked, for a minibatch."""
    send(FrameHeader(Kind.FETCH, step), shard)
    receive(shard, FrameHeader, into(read))

"""What workers of an asynchronous run do: read, compute, send, until the server says stop."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from data_synth.corpus import Corpus
from harness.algorithms.contract import Memory
from harness.execution.data.made import frames_of
from harness.execution.processes.headers import FrameHeader, Kind
from harness.execution.processes.messages import (
    NOTHING,
    SERVER_RANK,
    into,
    ordered,
    receive,
    send,
    talking,
)
from harness.execution.processes.pace import Pacing
from harness.execution.processes.world import now_s, sleep_until
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
        began, data = now_s(), self._minibatches
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
        return replace(header, began_s=began, ended_s=now_s(), loss=loss)

    def remembered(self) -> Memory:
        """What it keeps from one contribution to the next."""
        return self._memory

    def recall(self, memory: Memory, stage: int, before: int) -> None:
        """Go on as who has contributed in a stage, and remembers this of it."""
        self._memory = memory
        self._minibatches.begin(stage, before)

    def _at_least_s(self, steps: int) -> float:
        """How long the next minibatches take at least."""
        first, self._count = self._count, self._count + steps
        return sum(self._pace.compute_s(self._worker, n) for n in range(first, self._count))


def work(contributor: Contributor) -> None:
    """Contribute until the server says stop: what ranks from 1 do.

    Args:
        contributor: what computes.

    Raises:
        ServerGone: its connection closed.
    """
    while True:
        header, model = ordered(SERVER_RANK, FrameHeader, into(contributor.received))
        if header.kind is Kind.STOP:
            return
        done = contributor.contribute(header, model)
        with talking():
            send(replace(done, kind=Kind.DONE), SERVER_RANK, contributor.out[0])


def work_in_shards(contributor: Contributor, worker: int, shards: int) -> None:
    """Contribute until the first shard says stop.

    Args:
        contributor: what computes.
        worker: which worker this is.
        shards: of the server, whose ranks are the first.

    Raises:
        ServerGone: a connection closed.
    """
    slices = edges(contributor.received.numel(), shards)
    first = worker % shards
    while True:
        header, _ = ordered(SERVER_RANK, FrameHeader, into(NOTHING))
        if header.kind is Kind.STOP:
            return
        with talking():
            for shard in range(shards):  # all are asked before the first has answered
                send(FrameHeader(Kind.FETCH, header.step), shard)
            for shard, (begin, end) in enumerate(slices):
                receive(shard, FrameHeader, into(contributor.received[begin:end]))
        done = contributor.contribute(header, contributor.received)
        with talking():
            for shard in (*range(first, shards), *range(first)):
                begin, end = slices[shard]
                send(replace(done, kind=Kind.PIECE), shard, contributor.out[0, begin:end])
            send(replace(done, kind=Kind.PUSHED), SERVER_RANK)

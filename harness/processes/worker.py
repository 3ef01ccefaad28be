"""Workers of an asynchronous run on real processes, and the clock that paces them.

What workers of an asynchronous run do: read, compute, send, until the server says stop. The clock
of a run on real processes, and what slows them to the cluster that it names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from harness.algorithms.contract import LocalWork, Memory
from harness.processes.messages import (
    NOTHING,
    SERVER_RANK,
    Address,
    FrameHeader,
    Header,
    Kind,
    receive,
    receive_order,
    reuse_buffer,
    send,
    talking,
)
from harness.processes.transport import MalformedMessage, now_s, sleep_until
from harness.replay.sharded import edges
from harness.runs.config import TrainingConfig
from harness.simulator.costs import Costs, computation_s, costs_of, folding_s
from harness.tasks.contract import TaskConfig


class Contributor:
    """What a worker computes with.

    Args:
        config: what is run.
        data: what it is trained on.
        worker: which worker.
        pace: slows it.

    Attributes:
        received: the model it has read ``[P]``, in host memory.
        out: its contribution ``[1, P]``.
    """

    def __init__(self, config: TrainingConfig[Any], data: Any, worker: int, pace: Pacing) -> None:
        self._net = config.network(data)
        self._minibatches = config.minibatches(data, config.examples(data))
        self.received = config.zeros(data)
        self.out = config.zeros(data).to(config.device).unsqueeze(0)
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
        minibatches = [data.fetch([(self._worker, step)]) for step in steps]
        replica = model.to(self._config.device).unsqueeze(0)
        with torch.no_grad():
            losses = self._config.algorithm.contribute(
                LocalWork(self._net, replica, minibatches, self.out, header.rate, self._memory)
            )
        self._memory.new_pass = False
        loss = losses.sum(dtype=torch.float64).item()
        sleep_until(began + self._next_minimum_s(header.steps))
        return replace(header, began_s=began, ended_s=now_s(), loss=loss)

    def export_memory(self) -> Memory:
        """What it keeps from one contribution to the next."""
        return self._memory

    def restore_memory(self, memory: Memory, stage: int, before: int) -> None:
        """Go on as who has contributed in a stage, and remembers this of it."""
        self._memory = memory
        self._minibatches.begin(stage, before)

    def _next_minimum_s(self, steps: int) -> float:
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
        header, model = receive_order(SERVER_RANK, FrameHeader, reuse_buffer(contributor.received))
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
        header, _ = receive_order(SERVER_RANK, FrameHeader, reuse_buffer(NOTHING))
        if header.kind is Kind.STOP:
            return
        with talking():
            for shard in range(shards):  # all are asked before the first has answered
                send(FrameHeader(Kind.FETCH, header.step), shard)
            for shard, (begin, end) in enumerate(slices):
                receive(shard, FrameHeader, reuse_buffer(contributor.received[begin:end]))
        done = contributor.contribute(header, contributor.received)
        with talking():
            for shard in (*range(first, shards), *range(first)):
                begin, end = slices[shard]
                send(replace(done, kind=Kind.PIECE), shard, contributor.out[0, begin:end])
            send(replace(done, kind=Kind.PUSHED), SERVER_RANK)


QUESTIONS = 20
"""For a peer's clock; the quickest answer says most."""


@dataclass(frozen=True)
class Pacing:
    """Slows real processes to the cluster of a run: what is quicker than it says, waits.

    So a few cores stand for many workers of known speed.

    Args:
        costs: of the cluster; None for as fast as they go.
    """

    costs: Costs | None = None

    @classmethod
    def from_config(cls, config: TaskConfig, paced: bool) -> Pacing:
        """The pace of the run's own cluster and workload, if it is paced at all."""
        if not paced:
            return cls()
        return cls(costs_of(config.cluster, config.workload(), config.count, config.seed))

    def compute_s(self, worker: int, count: int) -> float:
        """How long a worker's minibatch of a number takes at least."""
        return 0.0 if self.costs is None else float(computation_s(self.costs, worker, count))

    def plain_s(self, worker: int, minibatches: float) -> float:
        """How long what costs as much as so many minibatches takes at least, without jitter."""
        return 0.0 if self.costs is None else float(self.costs.compute_s[worker]) * minibatches

    def fold_s(self, worker: int, count: int) -> float:
        """How long a worker's contribution of a number takes to fold at least."""
        return 0.0 if self.costs is None else float(folding_s(self.costs, worker, count))


Aside = Callable[[Any], None]


def only_answers(header: Header) -> None:
    """For a peer that has nothing else to say yet.

    Raises:
        MalformedMessage: it said something else.
    """
    raise MalformedMessage(f"{header.kind.name} in place of the time")


def clock_offset(address: Address, question: Header, aside: Aside) -> float:
    """What to add to a peer's monotonic clock to have ours, by the quickest of some answers.

    Args:
        address: of the peer.
        question: what it is asked.
        aside: told what else it says meanwhile.

    Raises:
        RuntimeError: it is gone.
        MalformedMessage: it answered with what is no message, or no answer.
    """
    answers = list[tuple[float, float]]()
    for _ in range(QUESTIONS):
        asked = now_s()
        send(question, address)
        while (
            answer := receive(address, type(question), reuse_buffer(NOTHING))[0]
        ).kind != question.kind:
            aside(answer)
        now = now_s()
        answers.append((now - asked, (now + asked) / 2.0 - answer.began_s))
    return min(answers)[1]


class Clock:
    """Seconds since a run began, on this process's clock, to which those of others are corrected.

    Args:
        question: what others are asked for their clocks.
    """

    def __init__(self, question: Header) -> None:
        self._began, self._question = now_s(), question
        self._offset: dict[int, float] = {}

    @property
    def now_s(self) -> float:
        """Seconds since the run began."""
        return self.to_run_time(now_s())

    def to_run_time(self, moment: float) -> float:
        """A moment of this process's monotonic clock, on the run's clock."""
        return moment - self._began

    def ask(self, peer: int, address: Address, aside: Aside = only_answers) -> None:
        """Ask a peer for its clock; see `clock_offset`."""
        self._offset[peer] = clock_offset(address, self._question, aside)

    def peer_to_run_time(self, peer: int, moment: float) -> float:
        """A moment of a peer's monotonic clock, on the run's clock."""
        return self.to_run_time(moment + self._offset[peer])

    def sleep_until(self, moment_s: float) -> None:
        """Wait until a moment of the run, if it is still to come."""
        sleep_until(self._began + moment_s)

    def go_on_at(self, now_s: float) -> None:
        """Go on where a checkpoint stopped the clock: what came after never happened."""
        self._began += self.now_s - now_s

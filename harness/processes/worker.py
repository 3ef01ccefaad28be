"""Workers of an asynchronous run on real processes, the run's clock, and pacing.

A worker reads a model, computes and sends its contribution until the server stops it. The clock
converts the monotonic clocks of all processes to seconds since the run began; pacing slows
processes down to the cluster that the run names.
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
from harness.runs.config import TrainingConfig
from harness.simulator.costs import Costs, computation_s, costs_of, folding_s
from harness.tasks.contract import TaskConfig


class Contributor:
    """Computes the contributions of one worker.

    Args:
        config: configuration of the run.
        data: training data of its task.
        worker: index of the worker.
        pace: minimal durations of its computations.

    Attributes:
        received: buffer for the model that is read ``[P]``, in host memory.
        out: contribution ``[1, P]``, on the run's device.
        rates: learning rates of the run.
    """

    def __init__(self, config: TrainingConfig[Any], data: Any, worker: int, pace: Pacing) -> None:
        self._net = config.network(data)
        self._minibatches = config.minibatches(data, config.examples(data))
        self.rates = config.rates(self._minibatches)
        self.received = config.zeros(data)
        self.out = config.zeros(data).to(config.device).unsqueeze(0)
        self._config, self._worker, self._pace = config, worker, pace
        self._count, self._memory = 0, Memory()

    def contribute(self, header: FrameHeader, model: Tensor) -> FrameHeader:
        """Compute ``out`` from a model ``[P]``, which may be overwritten.

        Args:
            header: the minibatches, their stage, the version of the model, and the learning rate
                before the schedule's factor.
            model: parameters to start from.

        Returns:
            The same header with the start and end of the computation and the summed loss.
        """
        began, data = now_s(), self._minibatches
        # The server alone knows stages; a worker follows the header, also after a restart.
        if (header.stage, header.before) != (data.stage, data.before):
            data.begin(header.stage, header.before)
            self._memory.new_pass = True
        steps = range(header.step, header.step + header.steps)
        minibatches = [data.fetch([(self._worker, step)]) for step in steps]
        replica = model.to(self._config.device).unsqueeze(0)
        rate = self.rates.step_rates(header.rate, header.version, header.steps)
        with torch.no_grad():
            losses = self._config.algorithm.contribute(
                LocalWork(self._net, replica, minibatches, self.out, rate, self._memory)
            )
        self._memory.new_pass = False
        loss = losses.sum(dtype=torch.float64).item()  # waits for the device, so before the clock
        sleep_until(began + self._next_minimum_s(header.steps))
        return replace(header, began_s=began, ended_s=now_s(), loss=loss)

    def export_memory(self) -> Memory:
        """State that the worker keeps from one contribution to the next."""
        return self._memory

    def restore_memory(self, memory: Memory, stage: int, before: int) -> None:
        """Resume in the middle of a stage with the memory of a checkpoint.

        Args:
            memory: see `export_memory`.
            stage: index of the stage.
            before: steps of all stages before it.
        """
        self._memory = memory
        self._minibatches.begin(stage, before)

    def _next_minimum_s(self, steps: int) -> float:
        """Minimal duration of the next minibatches, in seconds."""
        first, self._count = self._count, self._count + steps
        return sum(self._pace.compute_s(self._worker, n) for n in range(first, self._count))


def work(contributor: Contributor) -> None:
    """Contribute until the server sends `Kind.STOP`; the loop of ranks from 1.

    Args:
        contributor: computes the contributions.

    Raises:
        ServerGone: the server's connection closed.
    """
    while True:
        header, model = receive_order(SERVER_RANK, FrameHeader, reuse_buffer(contributor.received))
        if header.kind is Kind.STOP:
            return
        done = contributor.contribute(header, model)
        with talking():
            send(replace(done, kind=Kind.DONE), SERVER_RANK, contributor.out[0])


QUESTIONS = 20
"""Requests for a peer's clock; the quickest answer has the smallest error."""


@dataclass(frozen=True)
class Pacing:
    """Slows real processes down to the cluster of a run: a quicker computation waits.

    A few cores can so take the place of many workers of known speed.

    Args:
        costs: durations on the cluster; None for no minimal durations.
    """

    costs: Costs | None = None

    @classmethod
    def from_config(cls, config: TaskConfig, paced: bool) -> Pacing:
        """Pacing to the run's own cluster and workload; none unless ``paced``."""
        if not paced:
            return cls()
        return cls(costs_of(config.cluster, config.workload(), config.count, config.seed))

    def compute_s(self, worker: int, count: int) -> float:
        """Minimal duration of minibatch number ``count`` of a worker, in seconds."""
        return 0.0 if self.costs is None else float(computation_s(self.costs, worker, count))

    def fold_s(self, worker: int, count: int) -> float:
        """Minimal duration of the fold of contribution number ``count`` of a worker, in seconds."""
        return 0.0 if self.costs is None else float(folding_s(self.costs, worker, count))


Aside = Callable[[Any], None]


def only_answers(header: Header) -> None:
    """Reject any message but an answer; the default for `clock_offset`.

    Raises:
        MalformedMessage: always.
    """
    raise MalformedMessage(f"{header.kind.name} in place of the time")


def clock_offset(address: Address, question: Header, aside: Aside) -> float:
    """Offset to add to a peer's monotonic clock to get this process's, in seconds.

    The peer's reading is taken to lie halfway between request and answer: for the quickest of
    `QUESTIONS` answers the error is at most half its round trip.

    Args:
        address: address of the peer.
        question: header of the request.
        aside: receives the peer's other messages meanwhile.

    Raises:
        RuntimeError: the peer is gone.
        MalformedMessage: the peer sent no valid message, or no answer.
    """
    answers = list[tuple[float, float]]()
    for _ in range(QUESTIONS):
        asked = now_s()
        send(question, address)
        # Other messages of the peer may come first; they are kept for the caller.
        while (
            answer := receive(address, type(question), reuse_buffer(NOTHING))[0]
        ).kind != question.kind:
            aside(answer)
        now = now_s()
        answers.append((now - asked, (now + asked) / 2.0 - answer.began_s))
    return min(answers)[1]


class Clock:
    """Clock of a run: seconds since it began, and conversions from the clocks of its processes.

    Args:
        question: header of the requests for other processes' clocks.
    """

    def __init__(self, question: Header) -> None:
        self._began, self._question = now_s(), question
        self._offset: dict[int, float] = {}

    @property
    def now_s(self) -> float:
        """Seconds since the run began."""
        return self.to_run_time(now_s())

    def to_run_time(self, moment: float) -> float:
        """Convert a time of this process's monotonic clock to the run's clock."""
        return moment - self._began

    def ask(self, peer: int, address: Address, aside: Aside = only_answers) -> None:
        """Measure the offset of a peer's clock; see `clock_offset`."""
        self._offset[peer] = clock_offset(address, self._question, aside)

    def peer_to_run_time(self, peer: int, moment: float) -> float:
        """Convert a time of a peer's monotonic clock to the run's clock."""
        return self.to_run_time(moment + self._offset[peer])

    def sleep_until(self, moment_s: float) -> None:
        """Wait until a time of the run's clock, if it is still to come."""
        sleep_until(self._began + moment_s)

    def go_on_at(self, now_s: float) -> None:
        """Set the run's clock to the time of a checkpoint, from which the run resumes."""
        self._began += self.now_s - now_s

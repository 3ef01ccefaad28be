"""Workers of a run on real processes, and pacing.

A worker receives a model, computes and sends its contribution until the server stops it. It reports
times on the server's clock, whose offset it measures. Pacing slows processes down to the cluster
that the run names.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save  # pyright: ignore[reportUnknownVariableType]
from torch import Tensor

from harness.algorithms.contract import LocalWork, Memory
from harness.experiment.experiment import AnyExperiment
from harness.experiment.task import Problem
from harness.processes.transport import Body, Header, Kind, Link, MalformedMessage, ServerGone, fill
from harness.simulator.costs import Costs, computation_s, costs_of, folding_s

QUESTIONS = 20
"""Requests for the server's clock; the quickest answer has the smallest error."""


class Contributor:
    """Computes the contributions of one worker.

    Args:
        config: the experiment.
        problem: its opened task.
        worker: index of the worker.
        pace: minimal durations of its computations.
        offset_s: offset to add to this process's clock to get the server's.

    Attributes:
        received: buffer for the model that is read ``[P]``, in host memory.
        out: contribution ``[1, P]``, on the run's device.
        memory: state that the worker keeps from one contribution to the next.
    """

    def __init__(
        self,
        config: AnyExperiment,
        problem: Problem,
        worker: int,
        pace: Pacing,
        offset_s: float = 0.0,
    ) -> None:
        self._net, self._minibatches = problem.network, problem.minibatches(config)
        self._rates = config.rates(self._minibatches)
        self.received = torch.zeros_like(problem.like)
        self.out = torch.zeros_like(problem.like).to(config.device).unsqueeze(0)
        self._config, self._worker, self._pace = config, worker, pace
        self._count, self._offset_s, self.memory = 0, offset_s, Memory()

    def contribute(self, header: Header) -> Header:
        """Compute ``out`` from the model in ``received``, which may be overwritten.

        Args:
            header: the minibatches, their stage, the version of the model, and the learning rate
                before the schedule's factor.

        Returns:
            The header of the contribution: start and end of the computation, and the summed loss.
        """
        began, data = time.monotonic(), self._minibatches
        # The server alone knows stages; a worker follows the header, also after a restart.
        if (header.stage, header.before) != (data.stage, data.before):
            data.begin(header.stage, header.before)
            self.memory.new_pass = True
        steps = range(header.step, header.step + header.steps)
        minibatches = [data.fetch([(self._worker, step)]) for step in steps]
        replica = self.received.to(self._config.device).unsqueeze(0)
        rate = self._rates.step_rates(header.rate, header.version, header.steps)
        with torch.no_grad():
            losses = self._config.algorithm.contribute(
                LocalWork(self._net, replica, minibatches, self.out, rate, self.memory)
            )
        self.memory.new_pass = False
        loss = losses.sum(dtype=torch.float64).item()  # waits for the device, so before the clock
        time.sleep(max(0.0, began + self._next_minimum_s(header.steps) - time.monotonic()))
        began_s, ended_s = began + self._offset_s, time.monotonic() + self._offset_s
        return header._replace(kind=Kind.DONE, loss=loss, began_s=began_s, ended_s=ended_s)

    def restore(self, memory: Memory, stage: int, before: int) -> None:
        """Resume in the middle of a stage with the memory of a checkpoint.

        Args:
            memory: see ``memory``.
            stage: index of the stage.
            before: steps of all stages before it.
        """
        self.memory = memory
        self._minibatches.begin(stage, before)

    def _next_minimum_s(self, steps: int) -> float:
        """Minimal duration of the next minibatches, in seconds."""
        start, self._count = self._count, self._count + steps
        return sum(self._pace.compute_s(self._worker, n) for n in range(start, self._count))


def work(contributor: Contributor, server: Link) -> None:
    """Contribute until the server sends `Kind.STOP`.

    Args:
        contributor: computes the contributions.
        server: sends the orders.

    Raises:
        ServerGone: its connection closed, or it sent an invalid message.
    """
    while True:
        header, body = server.receive()
        if header.kind is Kind.STOP:
            return
        try:
            _obey(contributor, server, header, body)
        except MalformedMessage as error:
            raise ServerGone(f"sent garbage: {error}") from error


def _obey(contributor: Contributor, server: Link, header: Header, body: Body) -> None:
    """Execute an order of the server.

    Raises:
        MalformedMessage: it is none.
    """
    if header.kind is Kind.WORK:
        fill(contributor.received, header, body)
        server.send(contributor.contribute(header), contributor.out[0])
    elif header.kind is Kind.RECALL:
        memory = contributor.memory
        server.send(Header(Kind.MEMORY, steps=int(memory.new_pass)), memory_to_tensor(memory))
    elif header.kind is Kind.MEMORY:
        memory = memory_from_body(body, bool(header.steps), contributor.out.device)
        contributor.restore(memory, header.stage, header.before)
    else:
        raise MalformedMessage(f"{header.kind.name} at the wrong time")


def memory_to_tensor(memory: Memory) -> Tensor:
    """Encode the tensors of a memory as bytes ``[n]``, in the format of safetensors."""
    tensors = {name: tensor.contiguous() for name, tensor in memory.tensors.items()}
    return torch.frombuffer(bytearray(save(tensors)), dtype=torch.uint8)


def memory_from_body(body: Body, new_pass: bool, device: torch.device) -> Memory:
    """Decode the bytes of `memory_to_tensor`.

    Raises:
        MalformedMessage: the bytes are no memory.
    """
    try:
        tensors = load(bytes(body))
    except SafetensorError as error:
        raise MalformedMessage("no memory of a worker") from error
    return Memory({name: tensor.to(device) for name, tensor in tensors.items()}, new_pass)


def clock_offset_s(server: Link, now_s: Callable[[], float] = time.monotonic) -> float | None:
    """Offset to add to this process's clock to get the server's; None if the run is over.

    The server's reading is taken to lie halfway between request and answer: for the quickest of
    `QUESTIONS` answers the error is at most half its round trip.

    Raises:
        ServerGone: its connection closed, or it sent no answer.
    """
    answers = list[tuple[float, float]]()
    for _ in range(QUESTIONS):
        asked_at_s = now_s()
        server.send(Header(Kind.CLOCK))
        header, _ = server.receive()
        if header.kind is Kind.STOP:
            return None
        if header.kind is not Kind.CLOCK:
            raise ServerGone(f"sent garbage: {header.kind.name} in place of the time")
        answered_at_s = now_s()
        answers.append(
            (answered_at_s - asked_at_s, header.began_s - (answered_at_s + asked_at_s) / 2.0)
        )
    return min(answers)[1]


@dataclass(frozen=True)
class Pacing:
    """Slows real processes down to the cluster of a run: a quicker computation waits.

    A few cores can so take the place of many workers of known speed.

    Args:
        costs: durations on the cluster; None for no minimal durations.
    """

    costs: Costs | None = None

    @classmethod
    def from_config(cls, config: AnyExperiment, paced: bool) -> Pacing:
        """Pacing to the run's own cluster and workload; none unless ``paced``."""
        if not paced:
            return cls()
        return cls(costs_of(config.cluster, config.workload(), config.workers, config.seed))

    def compute_s(self, worker: int, count: int) -> float:
        """Minimal duration of minibatch number ``count`` of a worker, in seconds."""
        return 0.0 if self.costs is None else float(computation_s(self.costs, worker, count))

    def fold_s(self, worker: int, count: int) -> float:
        """Minimal duration of the fold of contribution number ``count`` of a worker, in seconds."""
        return 0.0 if self.costs is None else float(folding_s(self.costs, worker, count))

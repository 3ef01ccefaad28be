"""Rounds of model averaging on real processes: workers descend, then all-reduce their results.

Rank 0 computes nothing: it says how many rounds to train at which rate, and holds the model
between, for evaluations and checkpoints. The workers average among themselves, and each takes
the outer step for itself, from the same mean, so that nobody has to send a model but after the
last of the rounds asked for. A round needs everybody: when a worker dies the run stops, and
goes on from its last checkpoint.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from data_synth.corpus import Corpus
from harness.algorithms.contract import Memory
from harness.errors import UserError
from harness.execution.data.frames import Frames
from harness.execution.data.minibatches import Minibatches
from harness.execution.processes.backends import GLOO, MPI, staged_on
from harness.execution.processes.messages import (
    SERVER_RANK,
    GarbageReceived,
    Head,
    Kind,
    receive,
    send,
    talking,
)
from harness.execution.processes.recorder import Recorder, Work
from harness.execution.processes.server import NoWorkersLeft, Pace, clock_offset
from harness.execution.replay.shards import states
from harness.execution.replay.state import Arrays, Facts, part
from harness.execution.runs.config import RunConfig
from harness.simulator import Averaging, Timeline

READ, COMPUTED, AVERAGED, LOSS = range(4)
"""What a worker tells of each round: three moments on its clock, and its summed loss."""
NEEDED = "a worker is gone, and a round needs everybody"
TIMES = 2
"""Message tag of what workers tell."""


class Rounds:
    """An executor on the workers of a process group, as the one who asks them for rounds.

    Args:
        config: what is run.
        model: initial parameters ``[P]``.
        minibatches: the data.
        say: told what happens to workers.
        backend: of the workers' averages.

    Raises:
        UserError: overlapped rounds, which real workers do not have.
    """

    def __init__(
        self,
        config: RunConfig,
        model: Tensor,
        minibatches: Minibatches,
        *,
        say: Callable[[str], None],
        backend: str = GLOO,
    ) -> None:
        assert isinstance(config.protocol, Averaging)
        if config.protocol.overlap:
            raise UserError("protocol.overlap: real processes wait for each other; allowed: false")
        self._workers, self._every = config.workers, config.protocol.every
        self._minibatches, self._say = minibatches, say
        self.server = config.algorithm.start(model)
        self._began = time.monotonic()
        try:
            if backend == MPI:
                workers_group(backend)
            self._offset = [
                clock_offset(1 + worker, lambda: self.now_s) for worker in range(config.workers)
            ]
        except (RuntimeError, GarbageReceived) as error:
            self._say(NEEDED)
            raise NoWorkersLeft from error
        self._next, self._loss, self._left_s = 0, 0.0, 0.0
        self._recorder = Recorder()
        self._told = False

    @property
    def now_s(self) -> float:
        """Seconds since the run began, on this process's clock."""
        return time.monotonic() - self._began

    @property
    def loss(self) -> float:
        """See `Executor`."""
        return self._loss

    def advance(self, folds: int, *, drain: bool, handing_out: int | None, rate: float) -> Timeline:
        """See `Executor`; between rounds nothing is in flight.

        Raises:
            NoWorkersLeft: a worker is gone, and rounds need everybody.
        """
        del drain, handing_out
        try:
            return self._advance(folds, rate)
        except (RuntimeError, GarbageReceived) as error:
            self._say(NEEDED)
            raise NoWorkersLeft from error

    def _advance(self, folds: int, rate: float) -> Timeline:
        if self._told:
            self._recorder.paused(self._left_s, self.now_s)
        first, steps = self._next, self._every
        head = Head(
            Kind.ROUNDS, first, steps, self._minibatches.stage, self._minibatches.before,
            self.server.version, folds, rate=rate,
        )  # fmt: skip
        for rank in range(1, 1 + self._workers):
            if not self._told:
                for tensor in states(self.server):
                    send(Head(Kind.STATE, version=self.server.version), rank, tensor)
            send(head, rank)
        told = [self._heard(1 + worker, folds) for worker in range(self._workers)]
        staged = torch.zeros_like(self.server.model, device="cpu")
        for tensor in states(self.server):
            receive(1, staged)
            tensor.copy_(staged)
        for k in range(folds):
            self._record(self.server.version + k, first + k * steps, [t[k] for t in told])
        self._loss += sum(t[:, LOSS].sum().item() for t in told)
        self.server.version += folds
        self._next, self._told, self._left_s = first + folds * steps, True, self.now_s
        return self._recorder.segment(())

    def _heard(self, rank: int, folds: int) -> Tensor:
        times = torch.zeros(folds, 4, dtype=torch.float64)
        dist.recv(times, src=rank, tag=TIMES)
        times[:, :LOSS] += self._offset[rank - 1]
        return times

    def _record(self, fold: int, step: int, told: list[Tensor]) -> None:
        works = [
            Work(worker, step, self._every, fold, float(times[READ]))
            for worker, times in enumerate(told)
        ]
        computed = [float(times[COMPUTED]) for times in told]
        self._recorder.averaged(fold, works, computed, [float(times[AVERAGED]) for times in told])

    def pause(self, seconds: float, kind: str) -> Timeline:
        """Nothing: what takes this process's time is on record when rounds go on."""
        del seconds, kind
        return Timeline()

    def begin_stage(self) -> None:
        """See `Executor`; workers are told with the next rounds."""
        self._next = self._minibatches.before

    def close(self) -> None:
        """Send the workers home."""
        for rank in range(1, 1 + self._workers):
            with suppress(RuntimeError):  # it is gone, and needed no more
                send(Head(Kind.STOP), rank)

    def capture(self) -> tuple[Arrays, Facts]:
        """See `Executor`; what workers remember from round to round is not kept."""
        arrays = {str(i): t.cpu().numpy().copy() for i, t in enumerate(states(self.server))}
        facts = {
            "version": self.server.version,
            "next": self._next,
            "loss": self._loss,
            "now_s": self.now_s,
        }
        return {f"state/{name}": array for name, array in arrays.items()}, facts

    def reinstate(self, arrays: Arrays, facts: Facts) -> None:
        """See `Executor`."""
        kept = part(arrays, "state/")
        for i, tensor in enumerate(states(self.server)):
            tensor.copy_(torch.from_numpy(kept[str(i)]))
        self.server.version, self._next = facts["version"], facts["next"]
        self._loss = facts["loss"]
        shift = self.now_s - facts["now_s"]
        self._began += shift
        self._offset = [offset - shift for offset in self._offset]


def workers_group(backend: str = GLOO) -> Any:
    """The group of all ranks but the first, which only for MPI has to ask for it as well."""
    ranks = list(range(1, dist.get_world_size()))
    return dist.new_group(ranks, backend=backend, use_local_synchronization=backend != MPI)


def work_in_rounds(
    config: RunConfig, corpus: Corpus, rank: int, pace: Pace | None, backend: str = GLOO
) -> None:
    """Train in rounds until told to stop: what ranks from 1 do.

    Args:
        config: what is run.
        corpus: what it is trained on.
        rank: of this worker.
        pace: slows it; None for as fast as it goes.
        backend: of the averages.

    Raises:
        ServerGone: a connection closed.
        UserError: the backend is not for this run's device.
    """
    _Worker(config, corpus, rank, pace, backend).run()


class _Worker:
    """One worker in rounds."""

    def __init__(
        self, config: RunConfig, corpus: Corpus, rank: int, pace: Pace | None, backend: str
    ) -> None:
        self.net = config.network(corpus)
        self.config, self.rank, self.pace = config, rank, pace
        self.minibatches = config.minibatches(corpus, Frames.of(corpus, config.device))
        size = self.net.layout.parameters
        self.server = config.algorithm.start(torch.zeros(size, device=config.device))
        self.received = torch.zeros(size)
        self.out = torch.zeros(1, size, device=config.device)
        self.memory, self.rounds = Memory(), 0
        self.staged_on = staged_on(backend, config.device)
        with talking():
            self.group = workers_group(backend)

    def run(self) -> None:
        """Answer until told to stop."""
        states_heard = 0
        while True:
            with talking():
                head = receive(SERVER_RANK, self.received)
                if head.kind is Kind.CLOCK:
                    send(Head(Kind.CLOCK, began_s=time.monotonic()), SERVER_RANK)
                    continue
            if head.kind is Kind.STOP:
                return
            if head.kind is Kind.STATE:
                states(self.server)[states_heard].copy_(self.received)
                self.server.version, states_heard = head.version, states_heard + 1
            else:
                self._train(head)

    def _train(self, head: Head) -> None:
        """So many rounds; tell when each happened, and the first worker the model as well."""
        if (head.stage, head.before) != (self.minibatches.stage, self.minibatches.before):
            self.minibatches.begin(head.stage, head.before)
            self.memory.new_pass = True
        times = torch.zeros(head.rounds, 4, dtype=torch.float64)
        for k in range(head.rounds):
            times[k] = self._round(head.step + k * head.steps, head)
        with talking():
            dist.send(times, dst=SERVER_RANK, tag=TIMES)
            for tensor in states(self.server) if self.rank == 1 else ():
                send(Head(Kind.STATE, version=self.server.version), SERVER_RANK, tensor)

    def _round(self, first: int, head: Head) -> Tensor:
        config, worker = self.config, self.rank - 1
        read = time.monotonic()
        steps = range(first, first + head.steps)
        minibatches = [self.minibatches.of([(worker, step)]) for step in steps]
        with torch.no_grad():
            losses = config.algorithm.contribute(
                self.net, self.server.model.unsqueeze(0).clone(), minibatches, self.out,
                head.rate, self.memory,
            )  # fmt: skip
        self.memory.new_pass = False
        if self.pace:
            paced = sum(self.pace.compute_s(worker, self.rounds + k) for k in range(head.steps))
            time.sleep(max(0.0, read + paced - time.monotonic()))
        self.rounds += head.steps
        computed = time.monotonic()
        mean = self.out.to(self.staged_on)
        with talking():
            dist.all_reduce(mean, group=self.group)
        mean /= config.workers
        with torch.no_grad():
            config.algorithm.fold(self.server, mean.to(self.out.device), [0], head.rate)
        loss = losses.sum(dtype=torch.float64).item()
        return torch.tensor([read, computed, time.monotonic(), loss], dtype=torch.float64)

"""Rounds of model averaging on real processes: workers descend, then all-reduce their results.

Rank 0 computes nothing: it asks for a number of rounds at one rate, and holds the model in
between for evaluations and checkpoints. The workers average among themselves. Each takes the outer
step itself, from the same mean; so a model is sent only after the last of the rounds asked for. A
round needs all workers: when one dies, the run stops, and goes on from its last checkpoint.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import Tensor

from data_synth.corpus import Corpus
from harness.errors import UserError
from harness.execution.data.minibatches import Minibatches
from harness.execution.processes.backends import GLOO, MPI, staged_on
from harness.execution.processes.executor import OnProcesses
from harness.execution.processes.headers import FrameHeader, GarbageReceived, Kind
from harness.execution.processes.membership import NoWorkersLeft
from harness.execution.processes.messages import (
    SERVER_RANK,
    into,
    ordered,
    receive,
    send,
    talking,
)
from harness.execution.processes.pace import Clock, Pacing
from harness.execution.processes.recorder import Work
from harness.execution.processes.transfer import bodies, send_state, take_state
from harness.execution.processes.worker import Contributor
from harness.execution.replay.state import Arrays, Facts, capture_server, reinstate_server
from harness.execution.runs.config import RunConfig
from harness.simulator import Averaging, Timeline

READ, COMPUTED, AVERAGED, LOSS = range(4)
"""What a worker tells of each round: three moments on its clock, and its summed loss."""
NEEDED = "a worker is gone, and a round needs everybody"


class Rounds(OnProcesses):
    """An executor on the workers of a process group, as the one who asks them for rounds.

    Args:
        config: what is run.
        model: initial parameters ``[P]``.
        minibatches: the data.
        say: told what happens to workers.
        backend: of the workers' averages.

    Raises:
        UserError: overlapped rounds, which real workers do not have.
        NoWorkersLeft: a worker died before it began.
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
        super().__init__(config.algorithm.start(model), Clock(FrameHeader(Kind.CLOCK)))
        self._ranks, self._every = range(1, 1 + config.workers), config.protocol.every
        self._minibatches, self._say = minibatches, say
        self._next, self._begun = 0, False
        with self._needed():
            if backend == MPI:
                workers_group(backend)
            for rank in self._ranks:
                self.clock.ask(rank, rank)

    @contextmanager
    def _needed(self) -> Generator[None]:
        """A worker that is gone ends the run: a round needs everybody."""
        try:
            yield
        except (RuntimeError, GarbageReceived) as error:
            self._say(NEEDED)
            raise NoWorkersLeft from error

    def advance(self, folds: int, *, drain: bool, handing_out: int | None, rate: float) -> Timeline:
        """See `Executor`; between rounds nothing is in flight.

        Raises:
            NoWorkersLeft: a worker is gone, and rounds need everybody.
        """
        del drain, handing_out
        self.recorder.go_on(self.now_s)
        with self._needed():
            self._order(folds, rate)
            told = [self._heard(rank, folds) for rank in self._ranks]
            self._take_model()
        for k in range(folds):
            step = self._next + k * self._every
            self._record(self.server.version + k, step, [times[k] for times in told])
        self.loss += sum(times[:, LOSS].sum().item() for times in told)
        self.server.version += folds
        self._next += folds * self._every
        self.recorder.leave(self.now_s)
        return self.recorder.segment(())

    def _order(self, folds: int, rate: float) -> None:
        """Ask everybody for rounds; the first time, from the model that is here."""
        data = self._minibatches
        header = FrameHeader(
            Kind.ROUNDS, self._next, self._every, data.stage, data.before, folds, rate=rate
        )
        for rank in self._ranks:
            if not self._begun:
                send_state(self.server, rank)
            send(header, rank)
        self._begun = True

    def _heard(self, rank: int, folds: int) -> Tensor:
        """When the rounds of a worker happened, and its losses ``[folds, 4]``."""
        times = torch.zeros(folds, 4, dtype=torch.float64)
        receive(rank, FrameHeader, into(times))
        times[:, :LOSS] += self.clock.of_peer(rank, 0.0)
        return times

    def _take_model(self) -> None:
        """Take over the model of the first worker, which all of them have."""
        version, kind = self.server.version, Kind.STATE
        while kind is Kind.STATE:
            header, body = receive(self._ranks[0], FrameHeader, bodies(self.server))
            take_state(self.server, header, body)
            kind = header.kind
        self.server.version = version

    def _record(self, fold: int, step: int, told: list[Tensor]) -> None:
        works = [
            Work(worker, step, self._every, fold, float(times[READ]))
            for worker, times in enumerate(told)
        ]
        computed = [float(times[COMPUTED]) for times in told]
        self.recorder.averaged(fold, works, computed, [float(times[AVERAGED]) for times in told])

    def begin_stage(self) -> None:
        """See `Executor`; workers are told with the next rounds."""
        self._next = self._minibatches.before

    def close(self) -> None:
        """Send the workers home."""
        for rank in self._ranks:
            with suppress(RuntimeError):  # it is gone, and needed no more
                send(FrameHeader(Kind.STOP), rank)

    def capture(self) -> tuple[Arrays, Facts]:
        """See `Executor`; what workers remember from round to round is not kept."""
        arrays, facts = capture_server(self.server)
        return arrays, {**facts, "next": self._next, "loss": self.loss, "now_s": self.now_s}

    def reinstate(self, arrays: Arrays, facts: Facts) -> None:
        """See `Executor`."""
        reinstate_server(self.server, arrays, facts)
        self._next, self.loss = facts["next"], facts["loss"]
        self.clock.go_on_at(facts["now_s"])


def workers_group(backend: str = GLOO) -> dist.ProcessGroup | int | None:
    """The group of all ranks but the first, which only for MPI has to ask for it as well."""
    ranks = list(range(1, dist.get_world_size()))
    return dist.new_group(  # pyright: ignore[reportUnknownMemberType]
        ranks, backend=backend, use_local_synchronization=backend != MPI
    )


def work_in_rounds(
    config: RunConfig, corpus: Corpus, rank: int, pace: Pacing, backend: str = GLOO
) -> None:
    """Train in rounds until told to stop: what ranks from 1 do.

    Args:
        config: what is run.
        corpus: what it is trained on.
        rank: of this worker.
        pace: slows it.
        backend: of the averages.

    Raises:
        ServerGone: a connection closed.
        UserError: the backend is not for this run's device.
    """
    _Worker(config, corpus, rank, pace, backend).run()


class _Worker:
    """One worker in rounds."""

    def __init__(
        self, config: RunConfig, corpus: Corpus, rank: int, pace: Pacing, backend: str
    ) -> None:
        self.contributor = Contributor(config, corpus, rank - 1, pace)
        self.config, self.rank = config, rank
        size = self.contributor.out.numel()
        self.server = config.algorithm.start(torch.zeros(size, device=config.device))
        self.staged_on = staged_on(backend, config.device)
        with talking():
            self.group = workers_group(backend)

    def run(self) -> None:
        """Answer until told to stop."""
        body_of = bodies(self.server)
        while True:
            header, body = ordered(SERVER_RANK, FrameHeader, body_of)
            if header.kind is Kind.STOP:
                return
            if header.kind is Kind.ROUNDS:
                self._train(header)
            else:
                take_state(self.server, header, body)

    def _train(self, header: FrameHeader) -> None:
        """So many rounds; tell when each happened, and the first worker the model as well."""
        steps = range(header.step, header.step + header.rounds * header.steps, header.steps)
        times = torch.stack([self._round(replace(header, step=step)) for step in steps])
        with talking():
            send(FrameHeader(Kind.TIMES, rounds=header.rounds), SERVER_RANK, times)
            if self.rank == 1:
                send_state(self.server, SERVER_RANK)

    def _round(self, header: FrameHeader) -> Tensor:
        """Descend, average with everybody and take the outer step; when, and the loss."""
        done = self.contributor.contribute(header, self.server.model.clone())
        mean = self.contributor.out.to(self.staged_on)
        with talking():
            dist.all_reduce(mean, group=self.group)  # pyright: ignore[reportUnknownMemberType]
        mean /= self.config.workers
        with torch.no_grad():
            mean = mean.to(self.config.device)
            self.config.algorithm.fold(self.server, mean, [0], header.rate)
        times = [done.began_s, done.ended_s, time.monotonic(), done.loss]
        return torch.tensor(times, dtype=torch.float64)

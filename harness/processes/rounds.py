"""Rounds of model averaging on real processes: local steps, then an all-reduce of the results.

Rank 0 computes nothing: it orders a number of rounds at one learning rate, and holds the model
between orders for evaluations and checkpoints. The workers average among themselves, and each takes
the outer step itself, from the same mean; so a model is sent only after the last round of an order.
A round needs all workers: when one dies, the run ends, and resumes from its last checkpoint.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore  # pyright: ignore[reportPrivateImportUsage]

from harness.algorithms.contract import Fold, Server
from harness.processes import messages
from harness.processes.messages import (
    SERVER_RANK,
    Arrival,
    BodyOf,
    FrameHeader,
    Kind,
    Mailbox,
    ServerGone,
    bodies,
    send,
    send_state,
    take_state,
    talking,
)
from harness.processes.recorder import Work
from harness.processes.rendezvous import GLOO, MPI, attempt, connect_to_store, staging_device
from harness.processes.server import NoWorkersLeft, OnProcesses
from harness.processes.transport import BEAT_EVERY_S, MalformedMessage, PeerGone, now_s
from harness.processes.worker import Clock, Contributor, Pacing
from harness.replay.fold_replay import Arrays, Facts, capture_server, part, reinstate_server
from harness.runs.config import TrainingConfig
from harness.simulator import Timeline
from harness.tasks.order import Minibatches

READ, COMPUTED, AVERAGED, LOSS = range(4)
"""Columns of a worker's report, one row per round: three times (s) on its clock, summed loss."""

AVERAGED_WITHIN_S = 1800.0
"""Seconds that an average waits for workers that still compute. A dead worker is detected earlier,
by its missing heartbeats."""

MEMORY = "memory/"
"""Prefix of a worker's memory in a checkpoint; the worker's rank follows."""

NEEDED = "a worker is gone, and a round needs all workers"


class Rounds(OnProcesses):
    """An executor on the workers of a process group, which orders rounds from them as rank 0.

    Args:
        config: configuration of the run.
        model: initial parameters ``[P]``.
        minibatches: order of the training data.
        say: prints a line about workers.
        backend: back end of the workers' all-reduces.

    Raises:
        NoWorkersLeft: a worker died before the run began.
    """

    def __init__(
        self,
        config: TrainingConfig[Any],
        model: Tensor,
        minibatches: Minibatches,
        *,
        say: Callable[[str], None],
        backend: str = GLOO,
    ) -> None:
        every = config.handing.own
        assert every is not None  # each worker has its own part of the data
        super().__init__(config.algorithm.start(model), Clock(FrameHeader(Kind.CLOCK)))
        self._ranks, self._every = range(1, 1 + config.workers), every
        self._minibatches, self._say = minibatches, say
        self._next, self._begun, self._mailbox = 0, False, Mailbox(FrameHeader)
        self._times = dict[int, Tensor]()
        self._memories, self._told = dict[int, Tensor](), (0, 0)
        with self._raise_if_worker_gone():
            if backend == MPI:  # all ranks have to create a group of MPI, members or not
                workers_group(SERVER_RANK, config.workers, backend)
            for rank in self._ranks:
                self.clock.ask(rank, rank)
                self._mailbox.listen(rank, rank, self._bodies(rank))

    @contextmanager
    def _raise_if_worker_gone(self) -> Generator[None]:
        """Turn the loss of a worker into the end of the run: a round needs all workers."""
        try:
            yield
        except (RuntimeError, MalformedMessage) as error:
            self._say(NEEDED)
            raise NoWorkersLeft from error

    def advance(self, folds: int, *, drain: bool, handing_out: int | None, rate: float) -> Timeline:
        """See `Executor`; between rounds nothing is in flight.

        Raises:
            NoWorkersLeft: a worker is gone, and rounds need all workers.
        """
        del drain, handing_out
        self.recorder.go_on(self.now_s)
        with self._raise_if_worker_gone():
            # Before the order: the listening threads receive into these.
            self._times = {rank: torch.zeros(folds, 4, dtype=torch.float64) for rank in self._ranks}
            self._order(folds, rate)
            self._take_in()
        told = [self._times[rank] for rank in self._ranks]
        for k in range(folds):
            step = self._next + k * self._every
            self._record(self.server.version + k, step, [times[k] for times in told])
        self.loss += sum(times[:, LOSS].sum().item() for times in told)
        self.server.version += folds
        self._next += folds * self._every
        self.recorder.leave(self.now_s)
        return self.recorder.segment(())

    def _order(self, folds: int, rate: float) -> None:
        """Order rounds from all workers; the first order sends the model and memories ahead."""
        data = self._minibatches
        place = self._next, self._every, data.stage, data.before, folds
        header = FrameHeader(Kind.ROUNDS, *place, version=self.server.version, rate=rate)
        for rank in self._ranks:
            if not self._begun:
                send_state(self.server, rank)
                self._remind(rank)
            send(header, rank)
        self._begun, self._told = True, (data.stage, data.before)

    def _remind(self, rank: int) -> None:
        """Send a worker its memory from the checkpoint that the run resumes from, if it has one."""
        if (words := self._memories.get(rank)) is not None:
            stage, before = self._told
            send(FrameHeader(Kind.MEMORY, 0, len(words), stage, before), rank, words)

    def _collect_memories(self) -> dict[int, Tensor]:
        """Request the memory of every worker, as bytes by rank."""
        if not self._begun:  # no worker has trained since the checkpoint that was loaded
            return self._memories
        for rank in self._ranks:
            send(FrameHeader(Kind.RECALL), rank)
        arrived = [self._mailbox.get() for _ in self._ranks]
        for _, header, _, trouble in arrived:
            if header is None:
                raise PeerGone(trouble)
            if header.kind is not Kind.MEMORY:
                raise MalformedMessage(f"{header.kind.name} at the wrong time")
        return {arrival.sender: arrival.body for arrival in arrived}

    def _bodies(self, rank: int) -> BodyOf[FrameHeader]:
        """Buffers for a worker's messages: the times of its rounds ``[folds, 4]``, or a state."""
        state = _state_or_memory(self.server)

        def body(header: FrameHeader) -> Tensor:
            return self._times[rank] if header.kind is Kind.TIMES else state(header)

        return body

    def _take_in(self) -> None:
        """Receive the report of every worker, and the model from the first; all have the same."""
        version, silent, sender = self.server.version, set(self._ranks), self._ranks[0]
        modelled = False
        while silent or not modelled:
            who, header, body, trouble = self._mailbox.get()
            if header is None:
                raise PeerGone(trouble)
            if header.kind is Kind.TIMES and who in silent:
                silent.remove(who)
                # The correction is the same for all moments: the run's time at the peer's 0.
                self._times[who][:, :LOSS] += self.clock.peer_to_run_time(who, 0.0)
            elif who == sender and not modelled:
                take_state(self.server, header, body)
                modelled = header.kind is Kind.NUMBERS  # the last of a state
            else:
                raise MalformedMessage(f"{header.kind.name} at the wrong time")
        self.server.version = version  # the state has the version after the folds

    def _record(self, fold: int, step: int, told: list[Tensor]) -> None:
        works = [
            Work(worker, step, self._every, fold, float(times[READ]))
            for worker, times in enumerate(told)
        ]
        computed = [float(times[COMPUTED]) for times in told]
        self.recorder.record_round(
            fold, works, computed, [float(times[AVERAGED]) for times in told]
        )

    def begin_stage(self) -> None:
        """See `Executor`; workers receive the stage with the next order."""
        self._next = self._minibatches.before

    def close(self) -> None:
        """Stop all workers."""
        for rank in self._ranks:
            with suppress(RuntimeError):  # a worker that has died needs no stop
                send(FrameHeader(Kind.STOP), rank)

    def capture(self) -> tuple[Arrays, Facts]:
        """See `Executor`.

        Raises:
            NoWorkersLeft: a worker is gone.
        """
        arrays, facts = capture_server(self.server)
        with self._raise_if_worker_gone():
            kept = {
                f"{MEMORY}{rank}": words.numpy() for rank, words in self._collect_memories().items()
            }
        place = {"next": self._next, "told": self._told}
        return arrays | kept, {**facts, **place, "loss": self.loss, "now_s": self.now_s}

    def reinstate(self, arrays: Arrays, facts: Facts) -> None:
        """See `Executor`."""
        reinstate_server(self.server, arrays, facts)
        kept = part(arrays, MEMORY)
        self._memories = {int(rank): torch.as_tensor(words) for rank, words in kept.items()}
        self._next, self.loss = facts["next"], facts["loss"]
        self._told = tuple(facts.get("told", (0, 0)))
        self.clock.go_on_at(facts["now_s"])


def _state_or_memory(server: Server) -> BodyOf[FrameHeader]:
    """Buffers for the messages of a state, and for the memory of a worker."""
    state = bodies(server)

    def body(header: FrameHeader) -> Tensor:
        return messages.body_of(header) if header.kind is Kind.MEMORY else state(header)

    return body


def workers_group(rank: int, workers: int, backend: str = GLOO) -> dist.ProcessGroup | None:
    """Create the process group that averages: all ranks but 0, which has to call this for MPI only.

    Args:
        rank: rank of this process in the run.
        workers: number of workers.
        backend: back end of the all-reduces.
    """
    if backend == MPI:
        dist.init_process_group(backend)
        return dist.new_group(list(range(1, 1 + workers)))  # pyright: ignore[reportUnknownMemberType, reportReturnType]
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    # A prefix per attempt: torchrun's store outlives a group, and the next must not find its keys.
    store = PrefixStore(attempt("rounds"), connect_to_store())
    patience = timedelta(seconds=AVERAGED_WITHIN_S)
    dist.init_process_group(
        backend, store=store, rank=rank - 1, world_size=workers, timeout=patience
    )
    return dist.group.WORLD


def work_in_rounds(
    config: TrainingConfig[Any], data: Any, rank: int, pace: Pacing, backend: str = GLOO
) -> None:
    """Run a worker in rounds until the server stops it.

    Args:
        config: configuration of the run.
        data: training data of its task.
        rank: rank of this worker, from 1.
        pace: minimal durations of its computations.
        backend: back end of the all-reduces.

    Raises:
        ServerGone: a connection closed.
        UserError: the back end does not support the run's device.
    """
    _Worker(config, data, rank, pace, backend).run()


class _Worker:
    """One worker in rounds."""

    def __init__(
        self, config: TrainingConfig[Any], data: Any, rank: int, pace: Pacing, backend: str
    ) -> None:
        self.contributor = Contributor(config, data, rank - 1, pace)
        self.config, self.rank, self.backend = config, rank, backend
        self.server = config.algorithm.start(config.zeros(data).to(config.device))
        self.orders = Mailbox(FrameHeader)
        self.orders.listen(SERVER_RANK, SERVER_RANK, _state_or_memory(self.server))
        self.staged_on = staging_device(backend, config.device)
        with talking():
            self.group = workers_group(rank, config.workers, backend)

    def run(self) -> None:
        """Execute the server's orders until it sends `Kind.STOP`."""
        while True:
            header, body = self._order(self.orders.get())
            if header.kind is Kind.STOP:
                return
            if header.kind is Kind.ROUNDS:
                self._train(header)
            else:
                with talking():
                    self._answer(header, body)

    def _answer(self, header: FrameHeader, body: Tensor) -> None:
        """Answer a request between rounds, or take in a part of the state."""
        if header.kind is Kind.CLOCK:
            send(replace(header, began_s=now_s()), SERVER_RANK)
        elif header.kind is Kind.RECALL:
            words = messages.memory_to_tensor(self.contributor.export_memory())
            send(FrameHeader(Kind.MEMORY, steps=len(words)), SERVER_RANK, words)
        elif header.kind is Kind.MEMORY:
            memory = messages.memory_from_tensor(body, self.server.model.device)
            self.contributor.restore_memory(memory, header.stage, header.before)
        else:
            take_state(self.server, header, body)

    def _order(self, arrival: Arrival[FrameHeader]) -> tuple[FrameHeader, Tensor]:
        if arrival.header is None:
            raise ServerGone(arrival.trouble)
        return arrival.header, arrival.body

    def _train(self, header: FrameHeader) -> None:
        """Train the ordered rounds and send their times; the first worker sends the model too."""
        numbers = range(header.rounds)
        orders = [(header.version + k, header.step + k * header.steps) for k in numbers]
        rounds = (replace(header, version=version, step=step) for version, step in orders)
        times = torch.stack([self._round(each) for each in rounds])
        with talking():
            send(FrameHeader(Kind.TIMES, rounds=header.rounds), SERVER_RANK, times)
            if self.rank == 1:
                send_state(self.server, SERVER_RANK)

    def _round(self, header: FrameHeader) -> Tensor:
        """Train one round: local steps, average, outer step; returns its row of the report."""
        # A copy: local steps overwrite it, and the outer step needs the model they began from.
        done = self.contributor.contribute(header, self.server.model.clone())
        mean = self.contributor.out.to(self.staged_on)
        self._add_up(mean)
        mean /= self.config.workers
        with torch.no_grad():
            mean = mean.to(self.config.device)
            rate = self.contributor.rates.fold_rate(header.rate, header.version)
            self.config.algorithm.fold(self.server, Fold(mean, [0], rate))
        times = [done.began_s, done.ended_s, now_s(), done.loss]
        return torch.tensor(times, dtype=torch.float64)

    def _add_up(self, summed: Tensor) -> None:
        """Sum over all workers, in place; over gloo, check for the server's end meanwhile."""
        all_reduce = cast(Callable[..., dist.Work], dist.all_reduce)  # pyright: ignore[reportUnknownMemberType]
        with talking():
            adding = all_reduce(summed, group=self.group, async_op=True)
            while self.backend == GLOO:
                try:
                    adding.wait(timedelta(seconds=BEAT_EVERY_S))
                    return
                except RuntimeError:  # of the wait, which has timed out; or of the sum
                    if adding.is_completed():
                        raise
                # The server sends nothing amid a round: an arrival is its end, or an error.
                if (order := self.orders.get_before(now_s())) is not None:
                    header, _ = self._order(order)
                    raise MalformedMessage(f"{header.kind.name} at the wrong time")
            adding.wait()

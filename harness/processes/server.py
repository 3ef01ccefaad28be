"""The server of an asynchronous run on real processes, and the membership of workers.

The same algorithm on real processes: one server, and workers it sends models to. The server is
rank 0 and executes a run as the simulated cluster would: `ServerExecutor` is an executor, so
schedules, evaluations and checkpoints are the same code. It hands out minibatches by one counter,
folds what comes in the order it comes, and records a timeline by its own clock, to which it
corrects the workers'. Replaying that record gives the same parameters.

A worker that dies costs its contribution, which is recorded as lost; its minibatch goes to
another. Started again, it is let in and given work like the others. A server that dies goes on
from its last checkpoint: what was in flight then is lost and handed out again.

What executors of training on frames on real processes have in common.

Who takes part in an asynchronous run: which workers are idle, at work, gone or back. A worker that
dies is lost with the contribution it was making, whose minibatch goes to another. One that comes
back is announced in the mailbox, and has work again once that is read.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import Enum, auto
from typing import Any

from torch import Tensor

from harness.algorithms.contract import Fold, Server
from harness.processes.group import Admission
from harness.processes.messages import Address, FrameHeader, Kind, Mailbox, bodies, line_to, send
from harness.processes.recorder import Recorder, Work
from harness.processes.transport import CLOSED, MalformedMessage, PeerGone
from harness.processes.worker import Clock, Pacing
from harness.replay.stale import Arrays, Facts, capture_server, reinstate_server
from harness.runs.config import TrainingConfig
from harness.simulator import Timeline
from harness.tasks.order import Minibatches


class OnProcesses:
    """An executor on the processes of a group: see `Executor`.

    Args:
        server: the model, and what algorithms keep beside it.
        clock: of the run.

    Attributes:
        loss: of what was folded, summed over frames, in nats.
        recorder: of what happens.
    """

    def __init__(self, server: Server, clock: Clock) -> None:
        self.server, self.clock, self.recorder = server, clock, Recorder()
        self.loss = 0.0

    @property
    def now_s(self) -> float:
        """Seconds since the run began, on this process's clock."""
        return self.clock.now_s

    def pause(self, seconds: float, kind: str) -> Timeline:
        """Nothing: what takes this process's time is on record when training goes on."""
        del seconds, kind
        return Timeline()

    def begin_stage(self) -> None:
        """See `Executor`; workers are told with their next work."""


class Asynchronous(OnProcesses, ABC):
    """An executor whose workers wait for nobody.

    Args:
        server: the model, and what algorithms keep beside it.
        members: the workers.
        minibatches: the data.
    """

    def __init__(self, server: Server, members: Membership, minibatches: Minibatches) -> None:
        super().__init__(server, members.clock)
        self.members, self._minibatches = members, minibatches

    def _fold_all(self, folds: int, handed_out: int, rate: float) -> None:
        """Fold so many contributions, and hand out so many from now on.

        Raises:
            NoWorkersLeft: nobody is there to contribute.
        """
        members, goal = self.members, self.server.version + folds
        last = self.server.version + handed_out
        while self.server.version < goal:
            while members.free and self.server.version + len(members.out) < last:
                self._hand_out(rate)
            if not members.out:
                raise NoWorkersLeft
            self._go_on(rate)

    def _assign_work(self, kind: Kind, rate: float) -> tuple[int, FrameHeader]:
        """The next worker that is given work, and what it is told."""
        data, version = self._minibatches, self.server.version
        work = self.members.hand_out(version)
        place = work.step, work.steps, data.stage, data.before
        return work.worker, FrameHeader(kind, *place, version=version, rate=rate)

    @abstractmethod
    def _hand_out(self, rate: float) -> None:
        """Give the next worker its work."""

    @abstractmethod
    def _go_on(self, rate: float) -> None:
        """Wait for the next thing that happens, and do what it asks for."""


class ServerExecutor(Asynchronous):
    """An executor on the workers of a process group, as their server.

    Args:
        config: what is run; as many workers as it says have the ranks from 1.
        model: initial parameters ``[P]``.
        minibatches: the data.
        pace: slows the folds.
        say: told what happens to workers.
        admission: lets workers in that died and come back; None for none.
    """

    def __init__(
        self,
        config: TrainingConfig[Any],
        model: Tensor,
        minibatches: Minibatches,
        pace: Pacing,
        say: Callable[[str], None],
        admission: Admission | None = None,
    ) -> None:
        self._algorithm, self._pace = config.algorithm, pace
        server = config.algorithm.start(model)
        ranks = range(1, 1 + config.workers)
        members = Membership(ranks, server, say, config.handing.a_fold)
        super().__init__(server, members, minibatches)
        self._folded = Counter[int]()
        if admission is not None:
            admission.open(members.enter, members.is_gone)

    def advance(self, folds: int, *, drain: bool, handing_out: int | None, rate: float) -> Timeline:
        """See `Executor`.

        Raises:
            NoWorkersLeft: nobody is there to contribute.
        """
        most = folds if drain or handing_out is None else handing_out
        self.recorder.go_on(self.now_s)
        self._fold_all(folds, most, rate)
        self.recorder.leave(self.now_s)
        return self.recorder.segment(self.members.out.values())

    def close(self) -> None:
        """Send the workers home."""
        self.members.stop_idle_workers()

    def _hand_out(self, rate: float) -> None:
        """Send a worker the model and the number of a minibatch."""
        worker, header = self._assign_work(Kind.WORK, rate)
        try:
            send(header, self.members.addresses[worker], self.server.model)
        except RuntimeError:
            self._lose(worker, CLOSED)

    def _go_on(self, rate: float) -> None:
        """Take in the next arrival: mostly, fold it."""
        worker, header, body, trouble = self.members.mailbox.get()
        if header is None:
            self._lose(worker, trouble)
        elif header.kind is Kind.BACK:
            self.members.take_back(worker)
        elif not self._is_awaited(worker, header):
            self._lose(worker, f"sent garbage: {header.kind.name} {header.step}, not asked for")
        else:
            self._fold(worker, header, body, rate)

    def _is_awaited(self, worker: int, header: FrameHeader) -> bool:
        """Whether this is the contribution that a worker was asked for."""
        work = self.members.out.get(worker)
        return work is not None and (header.kind, header.step) == (Kind.DONE, work.step)

    def _fold(self, worker: int, header: FrameHeader, body: Tensor, rate: float) -> None:
        arrived = begun = self.now_s
        work = self.members.out.pop(worker)
        contribution = body.to(self.server.model.device).unsqueeze(0)
        staleness = self.server.version - work.read_version
        fold = Fold(contribution, [staleness], rate, [worker], [float(work.steps)])
        self._algorithm.fold(self.server, fold)
        self.clock.sleep_until(begun + self._pace.fold_s(worker, self._folded[worker]))
        self._folded[worker] += 1
        self.loss += header.loss
        ours = self.clock.peer_to_run_time
        fetched, computed = ours(worker, header.began_s), ours(worker, header.ended_s)
        moments = (fetched, computed, arrived, begun, self.now_s)
        self.recorder.record_fold(self.server.version - 1, work, moments_s=moments)
        self.members.free.append(worker)

    def _lose(self, worker: int, why: str) -> None:
        """Do without a worker from now on."""
        if self.members.is_here(worker):
            work = self.members.lose(worker, why)
            if work is not None:
                self.recorder.record_loss(work)

    def capture(self) -> tuple[Arrays, Facts]:
        """See `Executor`; what is in flight is remembered as to be handed out again."""
        arrays, facts = capture_server(self.server)
        return arrays, {**facts, **self.members.capture(), "loss": self.loss}

    def reinstate(self, arrays: Arrays, facts: Facts) -> None:
        """See `Executor`."""
        reinstate_server(self.server, arrays, facts)
        for work in self.members.reinstate(facts):
            self.recorder.record_loss(work)
        self.loss = facts["loss"]


class NoWorkersLeft(Exception):  # noqa: N818 (what happened)
    """Every worker is gone."""


class WorkerStatus(Enum):
    """How a worker stands with its server."""

    HERE = auto()
    LEAVING = auto()
    """It is dead, but some of what it has sent is still to be folded."""
    GONE = auto()
    BACK = auto()
    """It has come back, and the server has not read so yet."""


class Membership:
    """The workers of an asynchronous server, and the minibatches they are given.

    Args:
        addresses: of the workers, by number; each is asked for its clock and listened to.
        server: what their contributions are for.
        say: told who goes and who comes back.
        steps: minibatches of a contribution.

    Attributes:
        clock: of the run.
        mailbox: what workers send.
        addresses: where they are.
        free: those without work, in the order in which they are given some.
        out: the work of the others.
    """

    def __init__(
        self,
        addresses: Sequence[Address],
        server: Server,
        say: Callable[[str], None],
        steps: int = 1,
    ) -> None:
        self._server, self._say, self._steps = server, say, steps
        self.clock, self.mailbox = Clock(FrameHeader(Kind.CLOCK)), Mailbox(FrameHeader)
        self.addresses = dict(enumerate(addresses))
        self._standing = dict.fromkeys(self.addresses, WorkerStatus.HERE)
        self.free = deque(self.addresses)
        self.out: dict[int, Work] = {}
        self._next, self._again = 0, deque[int]()
        for worker, address in self.addresses.items():
            try:
                self._meet(worker, address)
            except (RuntimeError, MalformedMessage):  # it has died before the run began
                self.mailbox.put(worker, None, CLOSED)

    def _meet(self, worker: int, address: Address) -> None:
        self.clock.ask(worker, address)
        self.mailbox.listen(worker, address, bodies(self._server))

    @property
    def here(self) -> int:
        """How many workers are neither gone nor leaving."""
        return list(self._standing.values()).count(WorkerStatus.HERE)

    # -- work ---------------------------------------------------------------------------

    def hand_out(self, version: int) -> Work:
        """Give the next worker the next minibatches, or some that were lost.

        Args:
            version: of the model that the worker will read.
        """
        worker = self.free.popleft()
        step = self._again.popleft() if self._again else self._next
        self._next = max(self._next, step + self._steps)
        self.out[worker] = work = Work(worker, step, self._steps, version, self.clock.now_s)
        return work

    # -- who goes -----------------------------------------------------------------------

    def is_here(self, worker: int) -> bool:
        """Whether a worker is neither gone nor leaving."""
        return self._standing[worker] is WorkerStatus.HERE

    def is_gone(self, worker: int) -> bool:
        """Whether a number is that of a worker that may come back; on any thread."""
        return self._standing.get(worker) is WorkerStatus.GONE

    def leave(self, worker: int) -> None:
        """A worker is dead; `lose` will follow."""
        self._standing[worker] = WorkerStatus.LEAVING

    def lose(self, worker: int, why: str) -> Work | None:
        """Do without a worker from now on; should it live, it notices.

        Returns:
            What it was at, which will be handed out again.
        """
        with suppress(PeerGone):
            line_to(self.addresses[worker]).end()
        self._standing[worker] = WorkerStatus.GONE
        if worker in self.free:
            self.free.remove(worker)
        work = self.out.pop(worker, None)
        if work is not None:
            self._again.append(work.step)
        self._say(f"worker {worker} {why}; {self.here} left")
        return work

    # -- who comes back -----------------------------------------------------------------

    def enter(self, worker: int, address: Address) -> None:
        """A worker has come back; on the thread of the admission."""
        self.clock.ask(worker, address)
        self.addresses[worker] = address
        self._standing[worker] = WorkerStatus.BACK
        self.mailbox.put(worker, FrameHeader(Kind.BACK))
        self.mailbox.listen(worker, address, bodies(self._server))

    def take_back(self, worker: int) -> bool:
        """Give a worker that has come back work like the others; False if none has."""
        if self._standing[worker] is not WorkerStatus.BACK:
            return False
        self._standing[worker] = WorkerStatus.HERE
        self.free.append(worker)
        self._say(f"worker {worker} is back; {self.here} at work")
        return True

    def stop_idle_workers(self) -> None:
        """Tell all workers that wait for work that there is none."""
        back = [worker for worker, each in self._standing.items() if each is WorkerStatus.BACK]
        for worker in (*self.free, *back):
            self.tell(FrameHeader(Kind.STOP), worker)

    def tell(self, header: FrameHeader, worker: int) -> None:
        """Send a worker something; that it is gone will be heard otherwise."""
        with suppress(RuntimeError):
            send(header, self.addresses[worker])

    # -- the state ----------------------------------------------------------------------

    def capture(self) -> Facts:
        """What `reinstate` needs; work under way is remembered as to be handed out again."""
        out = [list(work) for work in self.out.values()]
        counts = {"next": self._next, "again": list(self._again), "out": out}
        return {**counts, "now_s": self.clock.now_s}

    def reinstate(self, facts: Facts) -> list[Work]:
        """Undo `capture`; returns the work that is lost."""
        lost = [Work(*work) for work in facts["out"]]
        self._next = facts["next"]
        self._again = deque([*facts["again"], *(work.step for work in lost)])
        self.clock.go_on_at(facts["now_s"])
        return lost

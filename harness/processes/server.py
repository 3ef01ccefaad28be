"""The server of an asynchronous run on real processes, and the membership of workers.

The server is rank 0, and `ServerExecutor` an executor like the simulated ones, so schedules,
evaluations and checkpoints are the same code. It hands out minibatches by one counter, sends the
model with each, folds contributions in the order of their arrival, and records a timeline on its
own clock, to which it converts the workers' times. A replay of the record gives the same
parameters.

When a worker dies, its contribution is recorded as lost, and its minibatch goes to another worker.
A restarted worker is announced in the mailbox and receives work like the others. A server that dies
resumes from its last checkpoint: contributions in flight at the checkpoint are recorded as lost,
and their minibatches handed out again.
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
from harness.processes.messages import Address, FrameHeader, Kind, Mailbox, bodies, line_to, send
from harness.processes.recorder import Recorder, Work
from harness.processes.rendezvous import Admission
from harness.processes.transport import CLOSED, MalformedMessage, PeerGone
from harness.processes.worker import Clock, Pacing
from harness.replay.fold_replay import Arrays, Facts, capture_server, reinstate_server
from harness.runs.config import TrainingConfig
from harness.simulator import Timeline
from harness.tasks.order import Minibatches


class OnProcesses:
    """An executor on the processes of a group: see `Executor`.

    Args:
        server: the model, and the algorithm's state beside it.
        clock: clock of the run.

    Attributes:
        loss: loss of all folded contributions, summed over frames, in nats.
        recorder: collects the timeline.
    """

    def __init__(self, server: Server, clock: Clock) -> None:
        self.server, self.clock, self.recorder = server, clock, Recorder()
        self.loss = 0.0

    @property
    def now_s(self) -> float:
        """Seconds since the run began, on this process's clock."""
        return self.clock.now_s

    def pause(self, seconds: float, kind: str) -> Timeline:
        """Return an empty timeline: the recorder records pauses when folds continue."""
        del seconds, kind
        return Timeline()

    def begin_stage(self) -> None:
        """See `Executor`; workers receive the stage with their next work."""


class Asynchronous(OnProcesses, ABC):
    """An executor of asynchronous training: no worker waits for another.

    Args:
        server: the model, and the algorithm's state beside it.
        members: the workers.
        minibatches: order of the training data.
    """

    def __init__(self, server: Server, members: Membership, minibatches: Minibatches) -> None:
        super().__init__(server, members.clock)
        self.members, self._minibatches = members, minibatches

    def _fold_all(self, folds: int, handed_out: int, rate: float) -> None:
        """Complete ``folds`` folds, with work handed out for ``handed_out`` folds at most.

        Raises:
            NoWorkersLeft: no worker is left.
        """
        members, goal = self.members, self.server.version + folds
        last = self.server.version + handed_out
        while self.server.version < goal:
            # Work in flight counts as folds to come; a lost one leaves room for another.
            while members.free and self.server.version + len(members.out) < last:
                self._hand_out(rate)
            if not members.out:
                raise NoWorkersLeft
            self._go_on(rate)

    def _assign_work(self, kind: Kind, rate: float) -> tuple[int, FrameHeader]:
        """Assign work to the next free worker; returns its index and the header to send."""
        data, version = self._minibatches, self.server.version
        work = self.members.hand_out(version)
        place = work.step, work.steps, data.stage, data.before
        return work.worker, FrameHeader(kind, *place, version=version, rate=rate)

    @abstractmethod
    def _hand_out(self, rate: float) -> None:
        """Send the next free worker its work."""

    @abstractmethod
    def _go_on(self, rate: float) -> None:
        """Wait for the next event and handle it."""


class ServerExecutor(Asynchronous):
    """An executor on the workers of a process group, as their server.

    Args:
        config: configuration of the run; its workers have the ranks from 1.
        model: initial parameters ``[P]``.
        minibatches: order of the training data.
        pace: minimal durations of the folds.
        say: prints a line about workers.
        admission: admits restarted workers; None if none may rejoin.
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
        self._rates = config.rates(minibatches)
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
            NoWorkersLeft: no worker is left.
        """
        most = folds if drain or handing_out is None else handing_out
        self.recorder.go_on(self.now_s)
        self._fold_all(folds, most, rate)
        self.recorder.leave(self.now_s)
        return self.recorder.segment(self.members.out.values())

    def close(self) -> None:
        """Stop the workers that wait for work."""
        self.members.stop_idle_workers()

    def _hand_out(self, rate: float) -> None:
        """Send a worker the model and the number of a minibatch."""
        worker, header = self._assign_work(Kind.WORK, rate)
        try:
            send(header, self.members.addresses[worker], self.server.model)
        except RuntimeError:  # its listening thread may report the same, which `_lose` ignores
            self._lose(worker, CLOSED)

    def _go_on(self, rate: float) -> None:
        """Handle the next arrival: a contribution, the end of a worker or its return."""
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
        """Whether a message is the contribution that was assigned to a worker."""
        work = self.members.out.get(worker)
        return work is not None and (header.kind, header.step) == (Kind.DONE, work.step)

    def _fold(self, worker: int, header: FrameHeader, body: Tensor, rate: float) -> None:
        arrived = begun = self.now_s
        work = self.members.out.pop(worker)
        contribution = body.to(self.server.model.device).unsqueeze(0)
        staleness = self.server.version - work.read_version
        own = self._rates.fold_rate(rate, self.server.version)
        fold = Fold(contribution, [staleness], own, [worker], [float(work.steps)])
        self._algorithm.fold(self.server, fold)
        # After the fold, so that the time the fold itself took is part of the paced duration.
        self.clock.sleep_until(begun + self._pace.fold_s(worker, self._folded[worker]))
        self._folded[worker] += 1
        self.loss += header.loss
        ours = self.clock.peer_to_run_time
        fetched, computed = ours(worker, header.began_s), ours(worker, header.ended_s)
        moments = (fetched, computed, arrived, begun, self.now_s)
        self.recorder.record_fold(self.server.version - 1, work, moments_s=moments)
        self.members.free.append(worker)

    def _lose(self, worker: int, why: str) -> None:
        """Remove a worker and record its unfinished work as lost."""
        if self.members.is_here(worker):
            work = self.members.lose(worker, why)
            if work is not None:
                self.recorder.record_loss(work)

    def capture(self) -> tuple[Arrays, Facts]:
        """See `Executor`; minibatches of contributions in flight will be handed out again."""
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
    """Status of a worker at its server."""

    HERE = auto()
    LEAVING = auto()
    """It has failed, and pieces that it sent are still to be folded."""
    GONE = auto()
    BACK = auto()
    """It has rejoined, and the server has not read this in its mailbox yet."""


class Membership:
    """The workers of an asynchronous server, and the minibatches assigned to them.

    Args:
        addresses: address of each worker, by its index.
        server: gives the sizes of the messages from workers.
        say: prints a line about a worker that is lost or rejoins.
        steps: minibatches of a contribution.

    Attributes:
        clock: clock of the run.
        mailbox: messages of the workers.
        addresses: present address of each worker.
        free: workers without work, in the order in which they receive it.
        out: work in flight, by worker.
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
        # First minibatch never handed out, and those of lost contributions, which go first.
        self._next, self._again = 0, deque[int]()
        for worker, address in self.addresses.items():
            try:
                self._meet(worker, address)
            except (RuntimeError, MalformedMessage):  # it died before the run began
                self.mailbox.put(worker, None, CLOSED)

    def _meet(self, worker: int, address: Address) -> None:
        self.clock.ask(worker, address)
        self.mailbox.listen(worker, address, bodies(self._server))

    @property
    def here(self) -> int:
        """Number of workers that are neither gone, leaving nor still to be taken back."""
        return list(self._standing.values()).count(WorkerStatus.HERE)

    # -- work ---------------------------------------------------------------------------

    def hand_out(self, version: int) -> Work:
        """Assign the next minibatches, lost ones first, to the next free worker.

        Args:
            version: version of the model that the worker will read.
        """
        worker = self.free.popleft()
        step = self._again.popleft() if self._again else self._next
        self._next = max(self._next, step + self._steps)
        self.out[worker] = work = Work(worker, step, self._steps, version, self.clock.now_s)
        return work

    # -- departure ----------------------------------------------------------------------

    def is_here(self, worker: int) -> bool:
        """Whether a worker takes part: its status is `WorkerStatus.HERE`."""
        return self._standing[worker] is WorkerStatus.HERE

    def is_gone(self, worker: int) -> bool:
        """Whether an index is that of a removed worker, which may rejoin; safe on any thread."""
        return self._standing.get(worker) is WorkerStatus.GONE

    def leave(self, worker: int) -> None:
        """Mark a worker as failed while its pieces are still to be folded; `lose` removes it."""
        self._standing[worker] = WorkerStatus.LEAVING

    def lose(self, worker: int, why: str) -> Work | None:
        """Remove a worker and close its connection; if it still runs, it exits.

        Returns:
            Its unfinished work, which will be handed out again; None if it had none.
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

    # -- return -------------------------------------------------------------------------

    def enter(self, worker: int, address: Address) -> None:
        """Register a worker that rejoins; called on the thread of the admission."""
        self.clock.ask(worker, address)
        self.addresses[worker] = address
        self._standing[worker] = WorkerStatus.BACK
        # By message: `free` and `out` belong to the server's thread.
        self.mailbox.put(worker, FrameHeader(Kind.BACK))
        self.mailbox.listen(worker, address, bodies(self._server))

    def take_back(self, worker: int) -> bool:
        """Let a worker that has rejoined receive work; False if it has not rejoined."""
        if self._standing[worker] is not WorkerStatus.BACK:
            return False
        self._standing[worker] = WorkerStatus.HERE
        self.free.append(worker)
        self._say(f"worker {worker} is back; {self.here} at work")
        return True

    def stop_idle_workers(self) -> None:
        """Send `Kind.STOP` to all workers without work."""
        back = [worker for worker, each in self._standing.items() if each is WorkerStatus.BACK]
        for worker in (*self.free, *back):
            self.tell(FrameHeader(Kind.STOP), worker)

    def tell(self, header: FrameHeader, worker: int) -> None:
        """Send a header to a worker; the mailbox reports if the worker is gone."""
        with suppress(RuntimeError):
            send(header, self.addresses[worker])

    # -- the state ----------------------------------------------------------------------

    def capture(self) -> Facts:
        """State for `reinstate`: minibatches to hand out, work in flight, and the clock."""
        out = [list(work) for work in self.out.values()]
        counts = {"next": self._next, "again": list(self._again), "out": out}
        return {**counts, "now_s": self.clock.now_s}

    def reinstate(self, facts: Facts) -> list[Work]:
        """Restore the state of `capture`; returns the work that was in flight, which is lost."""
        lost = [Work(*work) for work in facts["out"]]
        self._next = facts["next"]
        self._again = deque([*facts["again"], *(work.step for work in lost)])
        self.clock.go_on_at(facts["now_s"])
        return lost

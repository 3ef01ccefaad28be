"""The server of a run on real processes: who is there, who computes what, and what is folded.

The server is rank 0, and its executors are like the simulated ones, so schedules, evaluations and
checkpoints are the same code. It sends a worker the model with the number of its minibatches, folds
contributions and records a timeline on its own clock. A replay of the record gives the same
parameters.

A worker that dies, sends what was not asked for or does not answer is given up by name: its
contribution is recorded as lost, and its minibatches go to another worker. So is one that sends
numbers that are not finite: that training diverges is believed of the last worker, and where there
are several not of one alone. A worker that comes
later, or again, receives work like the others. A server that dies resumes from its last checkpoint:
contributions in flight at the checkpoint are recorded as lost and handed out again.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from harness.algorithms.contract import Fold
from harness.algorithms.saved import Saved
from harness.experiment.experiment import AnyExperiment
from harness.processes.recorder import Recorder, Work
from harness.processes.transport import Connections, Header, Kind, MalformedMessage, Message, fill
from harness.processes.worker import Pacing
from harness.simulator.timeline import Timeline
from harness.tasks.order import Minibatches

FIRST_WITHIN_S = 1800.0
"""Seconds that the first answer of a kind may take."""

WITHIN_S, TIMES_LONGER = 60.0, 20.0
"""Later answers may take so many seconds, or so many times as long as the longest so far."""


NOT_FINITE = "sent numbers that are not finite"


def is_finite(header: Header, contribution: Tensor) -> bool:
    """Whether the loss and all numbers of a contribution are finite."""
    return math.isfinite(header.loss) and bool(contribution.isfinite().all())


class NoWorkersLeft(Exception):  # noqa: N818 (what happened)
    """The workers that are left cannot go on with the run; the message says why."""


class Awaited(NamedTuple):
    """The one message that a worker is to send next.

    Attributes:
        kind, step: kind of the message, and number of its minibatch.
        since_s: time at which it was asked for, on the server's clock.
    """

    kind: Kind
    step: int
    since_s: float


class OnProcesses(Saved):
    """An executor on the workers of a group, as their server: see `FoldExecutor`.

    Args:
        config: configuration of the run.
        model: initial parameters ``[P]``.
        minibatches: order of the training data.
        peers: the workers.
        pace: minimal durations of the folds.
        say: prints a line about workers.

    Attributes:
        server: the model, and the algorithm's state beside it.
        loss: loss of all folded contributions, summed over examples.
        recorder: collects the timeline.
        free: workers without work, in the order in which they receive it.
        out: work in flight, by worker.
    """

    def __init__(
        self,
        config: AnyExperiment,
        model: Tensor,
        minibatches: Minibatches,
        peers: Connections,
        pace: Pacing,
        say: Callable[[str], None],
    ) -> None:
        self._algorithm, self._workers = config.algorithm, config.workers
        self.server = config.algorithm.start(model)
        self._minibatches, self._rates = minibatches, config.rates(minibatches)
        self._peers, self._pace, self._say = peers, pace, say
        self._began_s, self.recorder, self.loss = peers.now_s(), Recorder(), 0.0
        self.free, self.out = deque[int](), dict[int, Work]()
        self._awaited = dict[int, Awaited]()
        self._longest_s = dict[Kind, float]()
        self._gone = set[int]()
        for worker in sorted(peers.connected()):
            self._await(worker, Kind.READY)
        while self._awaited:  # all begin together, as in the simulation
            self._receive()
        self._longest_s.clear()  # who comes later loads its data by itself

    @property
    def now_s(self) -> float:
        """Seconds since the run began."""
        return self._to_run_time(self._peers.now_s())

    def _to_run_time(self, moment: float) -> float:
        """Convert a time of the server's clock."""
        return moment - self._began_s

    def _go_on_at(self, now_s: float) -> None:
        """Set the run's clock to the time of a checkpoint, from which the run resumes."""
        self._began_s += self.now_s - now_s

    def pause(self, seconds: float, kind: str) -> Timeline:
        """Return an empty timeline: the recorder records pauses when folds continue."""
        del seconds, kind
        return Timeline()

    def begin_stage(self) -> None:
        """See `FoldExecutor`; workers receive the stage with their next work."""

    def close(self) -> None:
        """Stop all workers."""
        for worker in self._peers.connected():
            self._peers.send(worker, Header(Kind.STOP))

    # -- messages -----------------------------------------------------------------------

    def _await(self, worker: int, kind: Kind, step: int = 0) -> None:
        self._awaited[worker] = Awaited(kind, step, self._peers.now_s())

    def _end_s(self, awaited: Awaited) -> float:
        """Time of the server's clock at which a worker that has not answered is given up."""
        longest = self._longest_s.get(awaited.kind)
        patience = FIRST_WITHIN_S if longest is None else max(WITHIN_S, TIMES_LONGER * longest)
        return awaited.since_s + patience

    def _receive(self) -> Message | None:
        """Wait for the next event; returns the message if it is an answer that was asked for.

        All else is dealt with: workers that come, workers that leave or are given up.
        """
        ends = [(self._end_s(awaited), worker) for worker, awaited in self._awaited.items()]
        end_s, worker = min(ends)
        # First, or messages of others might keep one that is silent for ever.
        if (now_s := self._peers.now_s()) >= end_s and not self._peers.hears(worker):
            awaited = self._awaited[worker]
            reason = f"has not sent {_describe(awaited)} for {now_s - awaited.since_s:.0f} s"
            self._lose(worker, reason)
            return None
        message = self._peers.receive(end_s)
        if message is None:
            return None
        if message.header is None:
            self._lose(message.worker, message.reason)
        elif message.header.kind is Kind.HELLO:
            self._await(message.worker, Kind.READY)
        elif self._is_answer(message.worker, message.header):
            return message
        return None

    def _is_answer(self, worker: int, header: Header) -> bool:
        """Note the end of a wait; whether it ends with more than the worker's being ready."""
        awaited = self._awaited.get(worker)
        if awaited is None or (awaited.kind, awaited.step) != (header.kind, header.step):
            self._lose(worker, f"sent garbage: {_describe(header)}, not asked for")
            return False
        del self._awaited[worker]
        waited = self._peers.now_s() - awaited.since_s
        self._longest_s[header.kind] = max(self._longest_s.get(header.kind, 0.0), waited)
        if header.kind is Kind.READY:
            self.free.append(worker)
            if worker in self._gone:
                self._gone.remove(worker)
                self._say(f"worker {worker} is back; {len(self._peers.connected())} at work")
            return False
        return True

    def _hand_out(self, worker: int, step: int, steps: int, rate: float) -> None:
        """Send a worker the model and the number of its minibatches."""
        data, version = self._minibatches, self.server.version
        self.out[worker] = Work(worker, step, steps, version, self.now_s)
        header = Header(Kind.WORK, step, steps, data.stage, data.before, version, rate)
        self._peers.send(worker, header, self.server.model)
        self._await(worker, Kind.DONE, step)

    def _fill(self, row: Tensor, message: Message) -> bool:
        """Copy a contribution into a row ``[P]``; a worker that sends another size is given up."""
        assert message.header is not None
        try:
            fill(row, message.header, message.body)
        except MalformedMessage as error:
            self._lose(message.worker, f"sent garbage: {error}")
            return False
        return True

    def _moments(self, header: Header, work: Work) -> tuple[float, float]:
        """Start and end of a worker's computation, between sending the model and now."""
        began, ended = map(self._to_run_time, (header.began_s, header.ended_s))
        began = min(max(began, work.read_time_s), self.now_s)
        return began, min(max(ended, began), self.now_s)

    def _lose(self, worker: int, reason: str) -> Work | None:
        """Give up a worker; returns its unfinished work."""
        self._peers.drop(worker, reason)
        self._awaited.pop(worker, None)
        self._gone.add(worker)
        if worker in self.free:
            self.free.remove(worker)
        work = self.out.pop(worker, None)
        self._say(f"worker {worker} {reason}; {len(self._peers.connected())} left")
        return work


def _describe(message: Header | Awaited) -> str:
    return f"{message.kind.name} {message.step}" if message.step else message.kind.name


class ServerExecutor(OnProcesses):
    """An executor of asynchronous training: no worker waits for another; see `OnProcesses`."""

    def __init__(self, config: AnyExperiment, *parts: Any) -> None:
        self._steps = config.handing.a_fold
        # First minibatch never handed out, and those of lost contributions, which go first.
        self._next, self._again, self._folded = 0, deque[int](), Counter[int]()
        self._not_finite = set[int]()  # workers that have sent such numbers
        super().__init__(config, *parts)

    def advance(self, folds: int, *, handing_out: int | None, rate: float) -> Timeline:
        """See `FoldExecutor`.

        Raises:
            NoWorkersLeft: no worker is left.
        """
        self.recorder.go_on(self.now_s)
        goal = self.server.version + folds
        limit = goal if handing_out is None else self.server.version + handing_out
        while self.server.version < goal:
            # Work in flight counts as folds to come; a lost one leaves room for another.
            while self.free and self.server.version + len(self.out) < limit:
                step = self._again.popleft() if self._again else self._next
                self._next = max(self._next, step + self._steps)
                self._hand_out(self.free.popleft(), step, self._steps, rate)
            if not self.out:
                raise NoWorkersLeft("no worker is left")
            if (message := self._receive()) is not None:
                self._fold(message, rate)
        self.recorder.leave(self.now_s)
        return self.recorder.segment(self.out.values())

    def _fold(self, message: Message, rate: float) -> None:
        arrived = start = self.now_s
        worker, header, model = message.worker, message.header, self.server.model
        contribution = torch.empty_like(model, device="cpu")
        if header is None or not self._fill(contribution, message):
            return
        if not (is_finite(header, contribution) or self._is_witnessed(worker)):
            self._lose(worker, NOT_FINITE)
            return
        work = self.out.pop(worker)
        staleness = self.server.version - work.read_version
        fold_rate = self._rates.fold_rate(rate, self.server.version)
        entering = contribution.to(model.device).unsqueeze(0)
        fold = Fold(entering, [staleness], fold_rate, [worker], [float(work.steps)])
        self._algorithm.fold(self.server, fold)
        # After the fold, so that the time the fold itself took is part of the paced duration.
        end = start + self._pace.fold_s(worker, self._folded[worker])
        self._peers.sleep(max(0.0, end - self.now_s))
        self._folded[worker] += 1
        self.loss += header.loss
        moments = (*self._moments(header, work), arrived, start, self.now_s)
        self.recorder.record_fold(self.server.version - 1, work, moments_s=moments)
        self.free.append(worker)

    def _is_witnessed(self, worker: int) -> bool:
        """Whether the last worker says, and not alone of several, that training diverges."""
        self._not_finite.add(worker)
        is_last = len(self._peers.connected()) == 1
        return is_last and len(self._not_finite) >= min(2, self._workers)

    def _lose(self, worker: int, reason: str) -> Work | None:
        """Give up a worker, and record its unfinished work as lost."""
        if (work := super()._lose(worker, reason)) is not None:
            self._again.append(work.step)
            self.recorder.record_loss(work)
        return work

    def state(self) -> dict[str, Any]:
        """See `Saved`; minibatches of contributions in flight will be handed out again."""
        counts = {"next": self._next, "again": list(self._again), "out": list(self.out.values())}
        return {"server": self.server, **counts, "loss": self.loss, "now_s": self.now_s}

    def restore(self, state: Mapping[str, Any]) -> None:
        """See `Executor`."""
        self.server.restore(state["server"])
        for work in state["out"]:
            self.recorder.record_loss(work)
        self._next, self.loss = state["next"], state["loss"]
        self._again = deque([*state["again"], *(work.step for work in state["out"])])
        self._go_on_at(state["now_s"])

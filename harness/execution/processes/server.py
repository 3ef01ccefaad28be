"""The same algorithm on real processes: one server, and workers it sends models to.

The server is rank 0 and executes a run as the simulated cluster would: `Distributed` is an
executor, so schedules, evaluations and checkpoints are the same code. It hands out minibatches
by one counter, folds what comes in the order it comes, and records a timeline by its own clock,
to which it corrects the workers'. Replaying that record gives the same parameters.

A worker that dies costs its contribution, which is recorded as lost; its minibatch goes to
another. Started again, it is let in and given work like the others. A server that dies goes on
from its last checkpoint: what was in flight then is lost and handed out again.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from harness.execution.data.minibatches import Minibatches
from harness.execution.processes.membership import Door
from harness.execution.processes.messages import (
    CLOSED,
    Address,
    Arrival,
    GarbageReceived,
    Head,
    Inbox,
    Kind,
    Peer,
    receive,
    send,
)
from harness.execution.processes.messages import (
    ServerGone as ServerGone,
)
from harness.execution.processes.recorder import Recorder, Work
from harness.execution.replay import state as resume
from harness.execution.replay.state import Arrays, Facts
from harness.execution.runs.config import RunConfig
from harness.simulator import Timeline
from harness.simulator.costs import Costs, computation_s, costs_of, folding_s

CLOCK_ROUNDS = 20
"""Questions for a worker's clock; the quickest answer says most."""

Clock = Callable[[], float]


class NoWorkersLeft(Exception):  # noqa: N818 (what happened)
    """Every worker is gone."""


@dataclass(frozen=True)
class Pace:
    """Slows real processes to the cluster of a run: what is quicker than it says, waits.

    So a few cores stand for many workers of known speed.

    Args:
        costs: of the cluster.
    """

    costs: Costs

    @classmethod
    def of(cls, config: RunConfig) -> Pace:
        """The pace of the run's own cluster and workload."""
        return cls(costs_of(config.cluster, config.workload(0), config.workers, config.seed))

    def compute_s(self, worker: int, count: int) -> float:
        """How long a worker's minibatch of a number takes at least."""
        return float(computation_s(self.costs, worker, count))

    def fold_s(self, worker: int, count: int) -> float:
        """How long a worker's contribution of a number takes to fold at least."""
        return float(folding_s(self.costs, worker, count))


class Distributed:
    """An executor on the workers of a process group, as their server.

    Args:
        config: what is run; as many workers as it says have the ranks from 1.
        model: initial parameters ``[P]``.
        minibatches: the data.
        pace: slows the folds; None for as fast as they go.
        say: told what happens to workers.
        door: where workers that died come back; None for nowhere.
    """

    def __init__(
        self,
        config: RunConfig,
        model: Tensor,
        minibatches: Minibatches,
        pace: Pace | None,
        say: Callable[[str], None],
        door: Door | None = None,
    ) -> None:
        self._algorithm, self._minibatches = config.algorithm, minibatches
        self._pace, self._say = pace, say
        self.server = config.algorithm.start(model)
        self._began = time.monotonic()
        self._offset = [0.0] * config.workers
        self._address: list[Address] = [1 + w for w in range(config.workers)]
        self._inbox = Inbox([], 0, self.server.model.dtype)
        for worker in range(config.workers):
            self._meet(worker)
        self._absent: set[int] = set()
        self._back: dict[int, Returned] = {}
        self._free = deque(range(config.workers))
        self._out: dict[int, Work] = {}
        self._next = 0
        self._again: deque[int] = deque()
        self._folded = [0] * config.workers
        self._loss = 0.0
        self._recorder = Recorder()
        self._left_s: float | None = None
        if door is not None:
            door.open(self._enters, self._is_absent)

    def _meet(self, worker: int) -> None:
        """Ask a worker for its clock, and listen to it; it may have died before it began."""
        body = torch.zeros_like(self.server.model, device="cpu")
        try:
            self._offset[worker] = clock_offset(self._address[worker], lambda: self.now_s)
        except (RuntimeError, GarbageReceived):
            self._inbox.put(Arrival(worker, None, body, CLOSED))
        else:
            self._inbox.listen(worker, self._address[worker], body)

    def _is_absent(self, worker: int) -> bool:
        """Whether a worker is gone and has not come back; on the thread of the door."""
        return worker in self._absent and worker not in self._back

    @property
    def now_s(self) -> float:
        """Seconds since the run began, on the server's clock."""
        return time.monotonic() - self._began

    @property
    def loss(self) -> float:
        """See `Executor`; of what was folded."""
        return self._loss

    def advance(self, folds: int, *, drain: bool, handing_out: int | None, rate: float) -> Timeline:
        """See `Executor`.

        Raises:
            NoWorkersLeft: nobody is there to contribute.
        """
        most = folds if drain or handing_out is None else handing_out
        if self._left_s is not None:
            self._recorder.paused(self._left_s, self.now_s)
        goal, last = self.server.version + folds, self.server.version + most
        while self.server.version < goal:
            while self._free and self.server.version + len(self._out) < last:
                self._hand_out(self._free.popleft(), rate)
            if not self._out:
                raise NoWorkersLeft
            self._take_in(rate)
        self._left_s = self.now_s
        return self._recorder.segment(self._out.values())

    def pause(self, seconds: float, kind: str) -> Timeline:
        """Nothing: what takes the server's time is on record when it goes on."""
        del seconds, kind
        return Timeline()

    def begin_stage(self) -> None:
        """See `Executor`; workers are told with their next work."""

    def close(self) -> None:
        """Send the workers home."""
        here = [self._address[worker] for worker in self._free]
        for address in [*here, *(returned.address for returned in self._back.values())]:
            try:
                send(Head(Kind.STOP), address)
            except RuntimeError:
                continue

    def _hand_out(self, worker: int, rate: float) -> None:
        """Send a worker the model and the number of a minibatch."""
        step = self._again.popleft() if self._again else self._next
        self._next = max(self._next, step + 1)
        data, version = self._minibatches, self.server.version
        work = Work(worker, step, 1, version, self.now_s)
        head = Head(Kind.WORK, step, 1, data.stage, data.before, version, rate=rate)
        self._out[worker] = work
        try:
            send(head, self._address[worker], self.server.model)
        except RuntimeError:
            self._lose(worker, CLOSED)

    def _take_in(self, rate: float) -> None:
        """Wait for the next arrival, and fold it."""
        worker, head, body, trouble = self._inbox.get()
        arrived = self.now_s
        if head is None:
            self._lose(worker, trouble)
            return
        if head.kind is Kind.BACK:
            self._take_back(worker)
            return
        work, offset = self._out.get(worker), self._offset[worker]
        if work is None or (head.kind, head.step) != (Kind.DONE, work.step):
            self._lose(worker, f"sent garbage: {head.kind.name} {head.step}, not asked for")
            return
        del self._out[worker]
        begun, count = self.now_s, self._folded[worker]
        contribution = body.to(self.server.model.device).unsqueeze(0)
        staleness = self.server.version - work.read_version
        self._algorithm.fold(self.server, contribution, [staleness], rate)
        self._inbox.release(worker)
        if self._pace:
            sleep_until(self._began + begun + self._pace.fold_s(worker, count))
        self._folded[worker], self._loss = count + 1, self._loss + head.loss
        fetched, computed = head.began_s + offset, head.ended_s + offset
        moments = (fetched, computed, arrived, begun, self.now_s)
        self._recorder.folded(self.server.version - 1, work, moments_s=moments)
        self._free.append(worker)

    def _lose(self, worker: int, why: str) -> None:
        """Do without a worker from now on."""
        if worker in self._absent:
            return
        self._absent.add(worker)
        if worker in self._free:
            self._free.remove(worker)
        work = self._out.pop(worker, None)
        if work is not None:
            self._recorder.lost(work)
            self._again.append(work.step)
        left = len(self._free) + len(self._out)
        self._say(f"worker {worker} {why}; {left} left")

    def _enters(self, worker: int, address: Peer) -> None:
        """A worker has come back; on the thread of the door."""
        offset = clock_offset(address, time.monotonic)
        body = torch.zeros_like(self.server.model, device="cpu")
        self._back[worker] = Returned(address, offset)
        self._inbox.put(Arrival(worker, Head(Kind.BACK), body, ""))
        self._inbox.listen(worker, address, body)

    def _take_back(self, worker: int) -> None:
        """Give a worker that has come back work like the others."""
        if worker not in self._back:
            return
        returned = self._back[worker]
        self._address[worker] = returned.address
        self._offset[worker] = returned.offset_s - self._began
        # In this order: in between, the door must not take it for one that is gone.
        self._absent.discard(worker)
        del self._back[worker]
        self._free.append(worker)
        self._say(f"worker {worker} is back; {len(self._free) + len(self._out)} at work")

    def capture(self) -> tuple[Arrays, Facts]:
        """See `Executor`; what is in flight is remembered as to be handed out again."""
        vectors = {f"vector/{k}": v for k, v in self.server.vectors.items()}
        momenta = {f"momentum/{k}": v for k, v in self.server.momenta.items()}
        tensors = {"model": self.server.model, **vectors, **momenta}
        arrays = {name: tensor.cpu().numpy().copy() for name, tensor in tensors.items()}
        facts = {
            "version": self.server.version,
            "numbers": dict(self.server.numbers),
            "next": self._next,
            "again": list(self._again),
            "out": [list(work) for work in self._out.values()],
            "loss": self._loss,
            "now_s": self.now_s,
        }
        return arrays, facts

    def reinstate(self, arrays: Arrays, facts: Facts) -> None:
        """See `Executor`."""
        server = self.server
        server.model.copy_(torch.from_numpy(arrays["model"]))
        for name, vector in resume.part(arrays, "vector/").items():
            server.vectors[name].copy_(torch.from_numpy(vector))
        for name, vector in resume.part(arrays, "momentum/").items():
            server.momenta[name].copy_(torch.from_numpy(vector))
        server.version, server.numbers = facts["version"], facts["numbers"]
        lost = [Work(*work) for work in facts["out"]]
        for work in lost:
            self._recorder.lost(work)
        self._next = facts["next"]
        self._again = deque([*facts["again"], *(work.step for work in lost)])
        self._loss = facts["loss"]
        # The clock goes on where the checkpoint stopped it: what came after never happened.
        shift = self.now_s - facts["now_s"]
        self._began += shift
        self._offset = [offset - shift for offset in self._offset]


class Returned(NamedTuple):
    """A worker that has come back and is still to be taken in.

    Attributes:
        address: where it is now.
        offset_s: what to add to its monotonic clock to have ours.
    """

    address: Address
    offset_s: float


def clock_offset(rank: Address, clock: Clock) -> float:
    """What to add to a worker's clock to have ours, by the quickest of some answers."""
    nothing, answers = torch.zeros(0), list[tuple[float, float]]()
    for _ in range(CLOCK_ROUNDS):
        asked = clock()
        send(Head(Kind.CLOCK), rank)
        theirs = receive(rank, nothing).began_s
        now = clock()
        answers.append((now - asked, (now + asked) / 2.0 - theirs))
    return min(answers)[1]


def sleep_until(moment: float) -> None:
    """Wait until a moment of the monotonic clock, if it is still to come."""
    time.sleep(max(0.0, moment - time.monotonic()))

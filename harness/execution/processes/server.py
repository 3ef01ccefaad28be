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

from collections import Counter
from collections.abc import Callable

from torch import Tensor

from harness.execution.data.minibatches import Minibatches
from harness.execution.processes.executor import Asynchronous
from harness.execution.processes.headers import FrameHeader, Kind
from harness.execution.processes.lines import CLOSED
from harness.execution.processes.membership import Membership
from harness.execution.processes.messages import send
from harness.execution.processes.pace import Pacing
from harness.execution.processes.rejoining import Admission
from harness.execution.replay.state import Arrays, Facts, capture_server, reinstate_server
from harness.execution.runs.config import RunConfig
from harness.simulator import Timeline


class Distributed(Asynchronous):
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
        config: RunConfig,
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
        self.members.send_home()

    def _hand_out(self, rate: float) -> None:
        """Send a worker the model and the number of a minibatch."""
        worker, header = self._given(Kind.WORK, rate)
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
        whose = [worker], [float(work.steps)]
        self._algorithm.fold(self.server, contribution, [staleness], rate, *whose)
        self.clock.sleep_until(begun + self._pace.fold_s(worker, self._folded[worker]))
        self._folded[worker] += 1
        self.loss += header.loss
        ours = self.clock.of_peer
        fetched, computed = ours(worker, header.began_s), ours(worker, header.ended_s)
        moments = (fetched, computed, arrived, begun, self.now_s)
        self.recorder.folded(self.server.version - 1, work, moments_s=moments)
        self.members.free.append(worker)

    def _lose(self, worker: int, why: str) -> None:
        """Do without a worker from now on."""
        if self.members.is_here(worker):
            work = self.members.lose(worker, why)
            if work is not None:
                self.recorder.lost(work)

    def capture(self) -> tuple[Arrays, Facts]:
        """See `Executor`; what is in flight is remembered as to be handed out again."""
        arrays, facts = capture_server(self.server)
        return arrays, {**facts, **self.members.capture(), "loss": self.loss}

    def reinstate(self, arrays: Arrays, facts: Facts) -> None:
        """See `Executor`."""
        reinstate_server(self.server, arrays, facts)
        for work in self.members.reinstate(facts):
            self.recorder.lost(work)
        self.loss = facts["loss"]

"""What executors of training on frames on real processes have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod

from harness.algorithms.contract import Server
from harness.execution.data.minibatches import Minibatches
from harness.execution.processes.headers import FrameHeader, Kind
from harness.execution.processes.membership import Membership, NoWorkersLeft
from harness.execution.processes.pace import Clock
from harness.execution.processes.recorder import Recorder
from harness.simulator import Timeline


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

    def _given(self, kind: Kind, rate: float) -> tuple[int, FrameHeader]:
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

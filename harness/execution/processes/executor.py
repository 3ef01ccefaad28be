"""What executors of training on frames on real processes have in common."""

from __future__ import annotations

from harness.algorithms.contract import Server
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

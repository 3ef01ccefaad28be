"""Training by folds on a simulated cluster, whose every segment is replayed at once."""

from __future__ import annotations

from typing import Generic, TypeVar

from torch import Tensor

from harness.algorithms.contract import Server
from harness.execution.data.minibatches import Minibatches
from harness.execution.replay import state as resume
from harness.execution.replay.sharded import ShardedReplay
from harness.execution.replay.stale import StaleReplay
from harness.execution.replay.state import Arrays, Facts
from harness.execution.runs.training import Data, TrainingConfig
from harness.simulator import Simulation, Timeline

Replay = TypeVar("Replay", bound=StaleReplay | ShardedReplay)


class OnSimulation(Generic[Replay]):
    """What every executor on a simulated cluster has: when things happen, and what they do."""

    simulation: Simulation
    replay: Replay

    @property
    def server(self) -> Server:
        """See `Executor`."""
        return self.replay.server

    @property
    def now_s(self) -> float:
        """Simulated seconds."""
        return self.simulation.now_s


class Simulated(OnSimulation[StaleReplay | ShardedReplay]):
    """See `FrameExecutor`.

    Args:
        config: what is run.
        data: what it is trained on.
        model: initial parameters ``[P]``.
        minibatches: the data.
    """

    def __init__(
        self, config: TrainingConfig[Data], data: Data, model: Tensor, minibatches: Minibatches
    ) -> None:
        self._config, self._minibatches = config, minibatches
        self.simulation = config.simulation(config.pieces(data))
        algorithm = config.algorithm
        parts = algorithm, config.network(data), algorithm.start(model), minibatches.of
        self.replay = (
            ShardedReplay(*parts, config.shards)
            if config.shards > 1
            # Who comes back to rounds remembers what it knew: each worker by itself.
            else StaleReplay(*parts, slots=config.handing.under_way, alone=config.may_be_lost)
        )

    @property
    def loss(self) -> float:
        """See `FrameExecutor`."""
        return self.replay.loss.item()

    def advance(self, folds: int, *, drain: bool, handing_out: int | None, rate: float) -> Timeline:
        """See `FrameExecutor`."""
        segment = self.simulation.advance(folds=folds, drain=drain, handing_out=handing_out)
        if isinstance(self.replay, ShardedReplay):
            self.replay.run(segment, rate)
        else:
            self.replay.run(segment, rate, self.simulation.restorable)
        return segment

    def pause(self, seconds: float, kind: str) -> Timeline:
        """See `FrameExecutor`."""
        return self.simulation.pause(seconds, kind)

    def begin_stage(self) -> None:
        """See `FrameExecutor`."""
        self.replay.begin_pass()
        self.simulation.change(workload=self._config.workload(self._minibatches.stage))

    def capture(self) -> tuple[Arrays, Facts]:
        """See `Executor`."""
        arrays, facts = self.replay.capture()
        simulation = resume.prefixed(self.simulation.state(), "simulation/")
        return {**resume.prefixed(arrays, "replay/"), **simulation}, facts

    def reinstate(self, arrays: Arrays, facts: Facts) -> None:
        """See `Executor`."""
        self.replay.reinstate(resume.part(arrays, "replay/"), facts)
        self.simulation = self.simulation.restored(resume.part(arrays, "simulation/"))

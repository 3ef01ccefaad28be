"""Training by folds on a simulated cluster, whose every segment is replayed at once."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from harness.algorithms.contract import Repeating, Server
from harness.execution.data.minibatches import Minibatches
from harness.execution.replay import state as resume
from harness.execution.replay.blocks import BlockReplay
from harness.execution.replay.sharded import ShardedReplay
from harness.execution.replay.stale import StaleReplay
from harness.execution.replay.state import Arrays, Facts
from harness.execution.runs.training import Data, TrainingConfig
from harness.networks.contract import Network
from harness.networks.feedforward import Dnn
from harness.simulator import Simulation, Timeline

Replay = TypeVar("Replay", bound=StaleReplay | ShardedReplay | BlockReplay)

IN_BLOCKS = ("cuda",)
"""Devices that are told of folds block by block; a processor has nothing to be told of at once."""


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


class Simulated(OnSimulation[StaleReplay | ShardedReplay | BlockReplay]):
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
        self.replay = _replay(config, config.network(data), model, minibatches)

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
        data = self._minibatches
        self._config.begin_stage(self.simulation, data.stage, data.order)

    def capture(self) -> tuple[Arrays, Facts]:
        """See `Executor`."""
        arrays, facts = self.replay.capture()
        simulation = resume.prefixed(self.simulation.state(), "simulation/")
        return {**resume.prefixed(arrays, "replay/"), **simulation}, facts

    def reinstate(self, arrays: Arrays, facts: Facts) -> None:
        """See `Executor`."""
        self.replay.reinstate(resume.part(arrays, "replay/"), facts)
        self.simulation = self.simulation.restored(resume.part(arrays, "simulation/"))


def _replay(
    config: TrainingConfig[Data], network: Network, model: Tensor, minibatches: Minibatches
) -> StaleReplay | ShardedReplay | BlockReplay:
    algorithm, server = config.algorithm, config.algorithm.start(model)
    if isinstance(algorithm, Repeating) and isinstance(network, Dnn) and in_blocks(config):
        narrow = network.precision == "bf16" and not config.rounds
        stack = torch.bfloat16 if narrow else model.dtype
        return BlockReplay(algorithm, network, server, minibatches.of, stack)
    parts = algorithm, network, server, minibatches.of
    if config.shards > 1:
        return ShardedReplay(*parts, config.shards)
    # Who comes back to rounds remembers what it knew: each worker by itself.
    return StaleReplay(*parts, slots=config.handing.under_way, alone=config.may_be_lost)


def in_blocks(config: TrainingConfig[Any]) -> bool:
    """Whether a run's folds are all alike, and its device is to be told of them in blocks."""
    algorithm, handing = config.algorithm, config.handing
    if not (isinstance(algorithm, Repeating) and algorithm.repeats):
        return False
    unlike = config.cluster.faults or handing.missed or config.shards > 1
    # Rounds that overlap have stale contributions; folds of several minibatches, local steps.
    plain = handing.under_way == config.workers if handing.rounds else handing.a_fold == 1
    return config.device in IN_BLOCKS and plain and not unlike

"""Two kinds of run that paper 2 alone has, each a check: an all-reduce's messages, and equivalence.

The messages of one all-reduce cross a simulated network. Two algorithms that should be equivalent
train on the same minibatches from the same start, and the distance of their models is measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from harness.algorithms.catalogue import Algorithm
from harness.algorithms.contract import Fold, LocalWork, Memory
from harness.experiment.contract import Configuration, Watch
from harness.experiment.experiment import plain
from harness.networks.contract import Minibatch
from harness.networks.feedforward import Dnn, Layout, random_parameters
from harness.simulator.cluster import Cluster
from harness.simulator.collectives import AllReduce
from harness.simulator.protocols.all_reduce import build_wiring
from harness.store import Run, RunWriter, Store

MESSAGE = "message"
"""The metric that is logged once a message; its value is the message's size in bytes."""


@dataclass(frozen=True)
class AllReduceConfig(Configuration):
    """One all-reduce among workers that begin it together.

    Args:
        cluster: with the network that its messages cross.
        workers: number of participants.
        collective: a name among `harness.simulator.collectives.ALGORITHMS`.
        size_bytes: of the model.
    """

    cluster: Cluster
    workers: int
    collective: str
    size_bytes: float

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values: what the run's identity hashes."""
        return plain(self)

    def execute(self, store: Store, watch: Watch) -> Run:
        """See `Configuration`."""
        del watch  # it takes no second
        return store.obtain(self.to_dict(), partial(_simulate, self))


def _simulate(config: AllReduceConfig, writer: RunWriter) -> None:
    """The finished run: sender, receiver, size, times and kind of every message."""
    reduce = AllReduce(config.collective, build_wiring(config.cluster, config.workers))
    sent = reduce.messages(np.zeros(config.workers), config.size_bytes)
    for row in sent:
        names = {name: row[name] for name in ("source", "target", "adds", "arrived_s")}
        writer.log(MESSAGE, row["size_bytes"], fold=0, time_s=row["sent_s"], epoch=0.0, **names)
    writer.finish("done", {"messages": len(sent), "last_arrival_s": sent["arrived_s"].max()})


HIDDEN_GAIN = 4.0
"""Gain of the initial parameters between hidden levels; suits the sigmoid."""


@dataclass(frozen=True, kw_only=True)
class EquivalenceConfig(Configuration):
    """Two algorithms trained in float64 on drawn frames, every worker in every fold.

    Args:
        algorithms: the two; a worker contributes after each minibatch.
        layers: units of each level of a sigmoid network.
        workers, frames: minibatches of a fold, and frames in each.
        folds: number of folds.
        rate: learning rate of every fold.
        seed: of the initial parameters; frames and targets are drawn with the next.
    """

    algorithms: tuple[Algorithm, Algorithm]
    layers: tuple[int, ...]
    workers: int
    frames: int
    folds: int
    rate: float
    seed: int = 1

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values: what the run's identity hashes."""
        return plain(self)

    def execute(self, store: Store, watch: Watch) -> Run:
        """See `Configuration`."""
        del watch  # it takes seconds
        return store.obtain(self.to_dict(), partial(_compare, self))


def _compare(config: EquivalenceConfig, writer: RunWriter) -> None:
    """The finished run: largest difference of a parameter, and its largest distance travelled."""
    network = Dnn(Layout(config.layers))
    generator = torch.Generator().manual_seed(config.seed)
    start = random_parameters(network.layout, generator, HIDDEN_GAIN)[0].double()
    model, twin = (_train(config, algorithm, network, start) for algorithm in config.algorithms)
    apart, moved = (model - twin).abs().max(), (model - start).abs().max()
    writer.finish("done", {"largest_difference": apart.item(), "largest_move": moved.item()})


@torch.no_grad()
def _train(config: EquivalenceConfig, algorithm: Algorithm, network: Dnn, start: Tensor) -> Tensor:
    """The model ``[P]`` after all folds."""
    generator = torch.Generator().manual_seed(config.seed + 1)
    server, memory, size = algorithm.start(start), Memory(), (config.workers, config.frames)
    for _ in range(config.folds):
        x = torch.randn(*size, config.layers[0], generator=generator, dtype=torch.float64)
        targets = torch.randint(config.layers[-1], size, generator=generator)
        replicas = server.model.repeat(config.workers, 1)
        out = torch.empty_like(replicas)
        batches = [Minibatch(x, targets)]
        algorithm.contribute(LocalWork(network, replicas, batches, out, config.rate, memory))
        algorithm.fold(server, Fold(out, [0] * config.workers, config.rate))
    return server.model

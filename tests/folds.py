"""Folds of every algorithm as they are counted: what a device is asked for, and what is moved.

Of training nothing but the operations matters here: networks are small or have no content.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from harness.algorithms.averaging import BlockMomentum, OuterNesterov
from harness.algorithms.catalogue import (
    AdamW,
    AsyncDescent,
    AsyncSgd,
    AveragedSgd,
    ClippedSgd,
    Compressed,
    DelayCompensated,
    DelayedNesterov,
    EagerDiLoCo,
    Easgd,
    ElasticDiLoCo,
    FedBuff,
    GradientAveraging,
    Int8,
    ModelAveraging,
    Momentum,
    Muon,
    PartialFolds,
    PowerSgd,
    Ringmaster,
    ServerDescent,
    StalenessAware,
    StreamingDiLoCo,
    TopK,
)
from harness.algorithms.contract import Repeating
from harness.natural_gradient import NaturalGradient, PerComponent, PerSample, Preconditioner
from harness.natural_gradient import batched_layers as natural_steps
from harness.natural_gradient.estimate import FIRST_CALLS
from harness.networks.contract import Minibatch
from harness.networks.feedforward import Dnn, Layout, random_parameters
from harness.replay.block_replay import BLOCK, BlockReplay
from harness.replay.fold_replay import StaleReplay
from harness.simulator import Averaging, ParameterServer, Simulation, Workload, load_cluster
from harness.speech.frames import Frames
from harness.tasks.order import Minibatches, Order
from tests.logical_device import DEVICE, Counts, LogicalDevice
from tests.traffic import Traffic

CLUSTER = load_cluster(Path(__file__).parents[1] / "reproductions/clusters/k20m-server.toml")
SIZES, WORKERS, FRAMES, CONTEXT = (20, 16, 16, 16, 10), 4, 8, 2
START, LENGTH = np.arange(40) * 30, np.full(40, 30)
"""Of utterances."""
NATURAL = NaturalGradient(Preconditioner(6, 4), Preconditioner(6, 4), PerSample(0.1))
BY_COMPONENT = NaturalGradient(Preconditioner(6, 4), Preconditioner(6, 4), PerComponent())
ALGORITHMS = {
    "asynchronous": AsyncSgd(),
    "averaged": AveragedSgd(),
    "averaging": ModelAveraging(),
    "block momentum": ModelAveraging(outer=BlockMomentum()),
    "outer Nesterov": ModelAveraging(outer=OuterNesterov()),
    "gradients": GradientAveraging(),
    "natural": ModelAveraging(descent=NATURAL),
    "natural, layers apart": ModelAveraging(descent=BY_COMPONENT),
    "natural, asynchronous": AsyncDescent(NATURAL),
    "memory of one": AsyncSgd("memory_of_one"),
    "clipped": ClippedSgd(),
    "delay compensated": DelayCompensated(),
    "staleness aware": StalenessAware(),
    "ringmaster": Ringmaster(),
    "partial folds": PartialFolds(),
    "asynchronous AdamW": AsyncDescent(AdamW()),
    "momentum": ModelAveraging(Momentum()),
    "AdamW": ModelAveraging(AdamW()),
    "Muon": ModelAveraging(Muon()),
    "top k": Compressed(coder=TopK(0.1)),
    "int8": Compressed(ModelAveraging(), Int8()),
    "PowerSGD": Compressed(coder=PowerSgd(2)),
    "FedBuff": FedBuff(AdamW(), buffer=2),
    "delayed Nesterov": DelayedNesterov(AdamW(), every=2),
    "EASGD": Easgd(),
    "the server's AdamW": ServerDescent(),
    "elastic DiLoCo": ElasticDiLoCo(AdamW(), fragments=2),
    "streaming DiLoCo": StreamingDiLoCo(AdamW(), fragments=2, mixing=0.5),
    "eager DiLoCo": EagerDiLoCo(4, AdamW()),
}
REPEATING = [name for name, a in ALGORITHMS.items() if isinstance(a, Repeating) and a.repeats]
"""Those that a GPU executes in blocks."""
NETWORKS = {
    "paper 1": ((429, *(2048,) * 7, 10217), 256),
    "512 x 3": ((429, 512, 512, 512, 355), 256),
    "128 x 4": ((429, 128, 128, 128, 128, 352), 32),
}
"""Units of each level, and frames of a minibatch."""


@dataclass
class InBlocks:
    """What blocks of 16 folds ask of a device.

    Args:
        inside: what is recorded.
        outside: a graph in its place, and what else there is.
    """

    inside: Counts
    outside: Counts


def speech() -> Frames:
    """Utterances of four features a frame, on the device."""
    draw = np.random.default_rng(0)
    features = draw.normal(size=(1200, 4)).astype(np.float32)
    targets = draw.integers(10, size=1200)
    return Frames.from_arrays(features, targets, START, LENGTH, context=CONTEXT, device=str(DEVICE))


def simulation_of(algorithm: Any) -> Simulation:
    """Four workers of paper 1's server, or in rounds of four minibatches."""
    protocol = Averaging(4) if algorithm.rounds else ParameterServer()
    job = Workload.of_network(SIZES, FRAMES)
    return Simulation(CLUSTER, protocol, job, workers=WORKERS, seed=0)


def replayed(algorithm: Any, folds: int, skipped: int = 8) -> tuple[Counts, int]:
    """What happened in so many folds after the first ones, and the bytes that they moved."""
    layout, simulation = Layout(SIZES), simulation_of(algorithm)
    order = Order(0, 0, START, LENGTH, FRAMES)
    with LogicalDevice() as device:
        model = device.holds(random_parameters(layout, torch.Generator().manual_seed(0))[0])
        minibatches = Minibatches(lambda stage: order, speech())
        server = algorithm.start(model)
        replay = StaleReplay(algorithm, Dnn(layout), server, minibatches.fetch, slots=2 * WORKERS)
        replay.run(simulation.advance(folds=skipped), 1e-3)
        segment, device.counts = simulation.advance(folds=folds), Counts()
        with Traffic() as traffic:
            replay.run(segment, 1e-3)
    assert device.has(replay.server.model)
    return device.counts, traffic.bytes


def asked_in_blocks(algorithm: Any) -> InBlocks:
    """What the second block of 16 folds asks for."""
    layout, simulation = Layout(SIZES), simulation_of(algorithm)
    order, found = Order(0, 0, START, LENGTH, FRAMES), InBlocks(Counts(), Counts())
    with LogicalDevice() as device:

        def recorder(work: Any, where: torch.device) -> Any:
            assert where == DEVICE

            def played() -> None:
                outside, device.counts = device.counts, Counts()
                work()
                found.inside, device.counts = device.counts, outside
                device.counts.launches["graph"] += 1

            return played

        model = device.holds(random_parameters(layout, torch.Generator().manual_seed(0))[0])
        minibatches = Minibatches(lambda stage: order, speech())
        parts = algorithm, Dnn(layout), algorithm.start(model), minibatches.fetch
        replay = BlockReplay(*parts, recorder=recorder)
        replay.run(simulation.advance(folds=BLOCK), 0.02)
        segment, device.counts = simulation.advance(folds=BLOCK), Counts()
        replay.run(segment, 0.02)
        found.outside = device.counts
    return found


def moved(network: str, **stack: torch.dtype) -> Counter[str]:
    """Bytes of a block of averaged SGD, by operation; with a stack, products in bf16."""
    sizes, frames = NETWORKS[network]
    features = np.zeros((1200, sizes[0] // 11), np.float32)
    said = Frames.from_arrays(features, np.zeros(1200, int), START, LENGTH, 5, "meta")
    order, job = Order(0, 0, START, LENGTH, frames), Workload.of_network(sizes, frames)
    simulation = Simulation(CLUSTER, ParameterServer(), job, WORKERS, seed=0)
    algorithm, layout = AveragedSgd(), Layout(sizes)
    server = algorithm.start(torch.empty(layout.parameters, device="meta"))
    net = Dnn(layout, precision="bf16" if stack else "float32")
    minibatches = Minibatches(lambda _: order, said)
    replay = BlockReplay(algorithm, net, server, minibatches.fetch, **stack)
    replay.run(simulation.advance(folds=BLOCK), 0.1)
    segment = simulation.advance(folds=BLOCK)
    with Traffic() as traffic:
        replay.run(segment, 0.1)
    return traffic.moved


def launches_of_natural_steps(layers: int) -> tuple[int, int, int]:
    """Of a minibatch in layers of equal width: by its gradient alone, and what natural gradient
    adds in the first step after an update of its estimates and in the next.
    """
    network = Dnn(Layout((16,) * (layers + 1)))
    with LogicalDevice() as device:
        draw = torch.Generator().manual_seed(0)
        stack = device.holds(random_parameters(network.layout, draw).repeat(WORKERS, 1))
        x, y = torch.randn(WORKERS, FRAMES, 16), torch.zeros(WORKERS, FRAMES, dtype=torch.int64)
        minibatch = Minibatch(device.holds(x), device.holds(y))
        joint = natural_steps.join(NATURAL.start(network.layout.sizes, WORKERS, device=DEVICE))
        counts = list[int]()
        for _ in range(FIRST_CALLS + 2):  # the last two of which update no estimate
            device.counts = Counts()
            _, joint = natural_steps.step_(NATURAL, network, stack, minibatch, joint, 0.01)
            counts.append(device.counts.launches.total())
        device.counts = Counts()
        network.backward(stack, *minibatch, lambda *_: None)
        gradient = device.counts.launches.total()
    return gradient, counts[-2] - gradient, counts[-1] - gradient

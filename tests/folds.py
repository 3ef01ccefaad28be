"""Folds of every algorithm as they are counted: what a device is asked for.

Of training nothing but the operations matters here: networks are small or have no content.
"""

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
from harness.natural_gradient import NaturalGradient, PerComponent, PerSample, Preconditioner
from harness.networks.feedforward import Dnn, Layout, random_parameters
from harness.replay.fold_replay import StaleReplay
from harness.simulator.cluster import Workload, load_cluster
from harness.simulator.protocols.averaging import Averaging
from harness.simulator.protocols.parameter_server import ParameterServer
from harness.simulator.simulation import Simulation
from harness.speech.frames import FramesOnDevice
from harness.tasks.order import Minibatches, Order
from tests.logical_device import DEVICE, Counts, LogicalDevice

CLUSTER = load_cluster(Path(__file__).parents[1] / "reproductions/clusters/k20m-server.toml")
SIZES, WORKERS, FRAMES, CONTEXT = (20, 16, 16, 16, 10), 4, 8, 2
START, LENGTH = np.arange(40) * 30, np.full(40, 30)
"""Of utterances."""
NATURAL = NaturalGradient(Preconditioner(6, 4), Preconditioner(6, 4), PerSample(0.1))
BY_COMPONENT = NaturalGradient(Preconditioner(6, 4), Preconditioner(6, 4), PerComponent())
ALGORITHMS = {
    "asynchronous": AsyncSgd(), "averaged": AveragedSgd(), "averaging": ModelAveraging(),
    "block momentum": ModelAveraging(outer=BlockMomentum()),
    "outer Nesterov": ModelAveraging(outer=OuterNesterov()), "gradients": GradientAveraging(),
    "natural": ModelAveraging(descent=NATURAL),
    "natural, layers apart": ModelAveraging(descent=BY_COMPONENT),
    "natural, asynchronous": AsyncDescent(NATURAL), "memory of one": AsyncSgd("memory_of_one"),
    "clipped": ClippedSgd(), "delay compensated": DelayCompensated(),
    "staleness aware": StalenessAware(), "ringmaster": Ringmaster(),
    "partial folds": PartialFolds(), "asynchronous AdamW": AsyncDescent(AdamW()),
    "momentum": ModelAveraging(Momentum()), "AdamW": ModelAveraging(AdamW()),
    "Muon": ModelAveraging(Muon()), "top k": Compressed(coder=TopK(0.1)),
    "int8": Compressed(ModelAveraging(), Int8()), "PowerSGD": Compressed(coder=PowerSgd(2)),
    "FedBuff": FedBuff(AdamW(), buffer=2), "delayed Nesterov": DelayedNesterov(AdamW(), every=2),
    "EASGD": Easgd(), "the server's AdamW": ServerDescent(),
    "elastic DiLoCo": ElasticDiLoCo(AdamW(), fragments=2),
    "streaming DiLoCo": StreamingDiLoCo(AdamW(), fragments=2, mixing=0.5),
    "eager DiLoCo": EagerDiLoCo(4, AdamW()),
}  # fmt: skip


def speech() -> FramesOnDevice:
    """Utterances of four features a frame, on the device."""
    draw = np.random.default_rng(0)
    features = draw.normal(size=(1200, 4)).astype(np.float32)
    targets = draw.integers(10, size=1200)
    return FramesOnDevice.from_arrays(
        features, targets, START, LENGTH, context=CONTEXT, device=str(DEVICE)
    )


def simulation_of(algorithm: Any) -> Simulation:
    """Four workers of paper 1's server, or in rounds of four minibatches."""
    protocol = Averaging(4) if algorithm.rounds else ParameterServer()
    job = Workload.of_network(SIZES, FRAMES)
    return Simulation(CLUSTER, protocol, job, workers=WORKERS, seed=0)


def replayed(algorithm: Any, folds: int, skipped: int = 8) -> Counts:
    """What happened in so many folds after the first ones."""
    layout, simulation = Layout(SIZES), simulation_of(algorithm)
    order = Order(0, 0, START, LENGTH, FRAMES)
    with LogicalDevice() as device:
        model = device.holds(random_parameters(layout, torch.Generator().manual_seed(0))[0])
        minibatches = Minibatches(lambda stage: order, speech())
        server = algorithm.start(model)
        replay = StaleReplay(algorithm, Dnn(layout), server, minibatches.fetch, slots=2 * WORKERS)
        replay.run(simulation.advance(folds=skipped), 1e-3)
        segment, device.counts = simulation.advance(folds=folds), Counts()
        replay.run(segment, 1e-3)
    assert device.has(replay.server.model)
    return device.counts

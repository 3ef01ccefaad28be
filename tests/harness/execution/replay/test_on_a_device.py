"""What a block of folds would ask of a device, counted where there is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from harness.acoustics.dnn import Dnn
from harness.acoustics.rbm import Machine, step_
from harness.acoustics.stack import Layout, random_parameters
from harness.algorithms import catalogue
from harness.algorithms.catalogue import (
    AdamW,
    Algorithm,
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
from harness.algorithms.local_optimizer import LocalOptimizer
from harness.algorithms.outer_step import BlockMomentum, OuterNesterov
from harness.execution.data.frames import Frames, Order
from harness.execution.data.minibatches import Minibatches
from harness.execution.evaluation.frames import frame_scores
from harness.execution.replay.stale import StaleReplay
from harness.natural_gradient import NaturalGradient, PerComponent, PerSample, Preconditioner
from harness.natural_gradient import joint as natural_steps
from harness.natural_gradient.estimate import FIRST_CALLS
from harness.network import Minibatch
from harness.simulator import Averaging, ParameterServer, Simulation, Workload, load_cluster
from tests.logical_device import DEVICE, Counts, LogicalDevice

CLUSTER = load_cluster(Path(__file__).parents[4] / "reproductions/clusters/k20m-server.toml")
SIZES, WORKERS, FRAMES, CONTEXT = (20, 16, 16, 16, 10), 4, 8, 2
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


def speech() -> Frames:
    """40 utterances of 30 frames each, on the device."""
    draw = np.random.default_rng(0)
    features = draw.normal(size=(1200, 4)).astype(np.float32)
    length = np.full(40, 30)
    targets = draw.integers(10, size=1200)
    return Frames.laid_out(
        features, targets, np.arange(40) * 30, length, context=CONTEXT, device=str(DEVICE)
    )


def replayed(algorithm: Any, folds: int, skipped: int = 8) -> Counts:
    """What happened in so many folds after the first ones."""
    layout = Layout(SIZES)
    protocol = Averaging(4) if algorithm.rounds else ParameterServer()
    simulation = Simulation(
        CLUSTER, protocol, Workload.of_network(SIZES, FRAMES), workers=WORKERS, seed=0
    )
    order = Order(0, 0, np.arange(40) * 30, np.full(40, 30), FRAMES)
    with LogicalDevice() as device:
        model = device.holds(random_parameters(layout, torch.Generator().manual_seed(0))[0])
        minibatches = Minibatches(lambda stage: order, speech())
        server = algorithm.start(model)
        replay = StaleReplay(algorithm, Dnn(layout), server, minibatches.of, slots=2 * WORKERS)
        replay.run(simulation.advance(folds=skipped), 1e-3)
        device.counts = Counts()
        replay.run(simulation.advance(folds=folds), 1e-3)
    assert device.has(replay.server.model)
    return device.counts


def waits_of_updates(counts: Counts) -> int:
    """Round trips that torch makes in an eigendecomposition, one for each update of estimates."""
    return sum(
        n for where, n in counts.round_trips.items() if where.startswith("aten._linalg_eigh")
    )


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_host_waits_for_no_value_and_mixes_nothing(name):
    counts = replayed(ALGORITHMS[name], folds=6)
    assert not counts.mixes
    assert counts.round_trips.total() == waits_of_updates(counts)
    assert bool(waits_of_updates(counts)) is name.startswith("natural")


def test_no_algorithm_of_the_catalogue_is_missing():
    kinds = {type(each) for each in ALGORITHMS.values()}
    offered = {getattr(catalogue, name) for name in catalogue.__all__}
    abstract = {Algorithm, LocalOptimizer}
    inside = {AdamW, Momentum, Muon, Int8, PowerSgd, TopK}  # parts of those above
    assert offered - abstract - inside == kinds


def test_gathering_and_splicing_are_three_launches():
    with LogicalDevice() as device:
        frames = speech()
        rows = device.holds(torch.arange(32).view(4, 8))
        device.counts = Counts()
        found = frames.gather(rows)
    assert found.x.shape == (4, 8, 20)
    assert dict(device.counts.launches) == {"aten.index": 2, "aten.index_select": 1}
    assert not device.counts.mixes
    assert not device.counts.round_trips


def test_scoring_frames_waits_for_two_numbers():
    layout = Layout(SIZES)
    with LogicalDevice() as device:
        model = device.holds(random_parameters(layout, torch.Generator().manual_seed(0))[0])
        scores = frame_scores(Dnn(layout), model, speech(), torch.arange(0, 1200, 3))
    assert 0.0 < scores.frame_error < 1.0
    assert device.counts.round_trips.total() == 2
    assert not device.counts.mixes


@pytest.mark.parametrize("kind", ["gaussian", "bernoulli"])
def test_pretraining_waits_for_nothing(kind):
    with LogicalDevice() as device:
        v = device.holds(torch.rand(2, 8, 5))
        machine = Machine(*(v.new_zeros(2, *shape) for shape in ((6, 5), (6,), (5,))))
        velocity = Machine(*(torch.zeros_like(x) for x in machine))
        uniforms = torch.rand(2, 8, 6).to(v)
        step_(machine, velocity, v.new_full((2,), 0.1), 0.5, 1e-4, v, uniforms, kind)
    assert device.has(machine.weight)
    assert not device.counts.round_trips
    assert not device.counts.mixes


class Planted(AsyncSgd):
    """Asynchronous SGD with a fault in every fold."""

    def __init__(self, fault):
        super().__init__()
        object.__setattr__(self, "fault", fault)

    def fold(self, server, contributions, *others, **more):
        self.fault(server, contributions)
        super().fold(server, contributions, *others, **more)


def looks_at_a_value(server, contributions):
    server.numbers["norm"] = contributions.norm().item()


def branches(server, contributions):
    if contributions.sum() > 0:
        server.numbers["positive"] = 1.0


def goes_through_the_host(server, contributions):
    server.model.add_(contributions[0].cpu().to(server.model.device) * 0.0)


def picks_by_a_mask(server, contributions):
    server.model.add_(0.0 * server.model[server.model > 0].sum())


def indexes_from_the_host(server, contributions):
    server.model[torch.arange(3)] += 0.0


def forgets_the_device(server, contributions):
    server.model.add_(torch.zeros(server.model.shape))


@pytest.mark.parametrize(
    "fault", [looks_at_a_value, branches, goes_through_the_host, picks_by_a_mask]
)
def test_a_planted_round_trip_is_counted(fault):
    counts = replayed(Planted(fault), folds=3)
    assert counts.round_trips.total() == 3
    assert not counts.mixes


@pytest.mark.parametrize("fault", [indexes_from_the_host, forgets_the_device])
def test_a_planted_mix_is_counted(fault):
    assert replayed(Planted(fault), folds=3).mixes.total() >= 3


def test_layers_apart_ask_for_more_than_layers_together():
    joint, apart = (replayed(ALGORITHMS[n], 2) for n in ("natural", "natural, layers apart"))
    assert joint.launches.total() < apart.launches.total()


def launches_of_steps(layers: int) -> tuple[int, int, int]:
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


@pytest.mark.parametrize("layers", [3, 5, 9, 24])
def test_natural_gradients_own_launches_do_not_grow_with_layers_of_equal_width(layers):
    gradient, first, later = launches_of_steps(layers)
    assert gradient == 4 * layers + 7, "forwards and backwards, and the loss"
    assert (first, later) == (59, 53)

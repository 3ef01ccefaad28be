"""Bytes that a fold moves, counted without its numbers, against what it cannot do without."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from harness.acoustics.dnn import Dnn
from harness.acoustics.stack import Layout
from harness.algorithms.averaged_sgd import AveragedSgd
from harness.execution.data.frames import Frames, Order
from harness.execution.data.minibatches import Minibatches
from harness.execution.replay.blocks import BLOCK, BlockReplay
from harness.simulator import ParameterServer, Simulation, Workload, load_cluster
from tests.traffic import Traffic

CLUSTER = Path(__file__).parents[4] / "reproductions/clusters/k20m-server.toml"
CONTEXT = 5
NETWORKS = {
    "paper 1": ((429, *(2048,) * 7, 10217), 256),
    "512 x 3": ((429, 512, 512, 512, 355), 256),
    "128 x 4": ((429, 128, 128, 128, 128, 352), 32),
}


def floor(sizes, frames):
    """Bytes that one fold of averaged SGD cannot do without, in float32.

    Weights are read forwards and (but for the first layer) backwards, and gradients written;
    a fold that is one operation with its average reads gradient, model and average, and writes
    model and average. Levels and derivatives are written once, and read once by every product
    and slope; frames that are gathered and the loss's derivatives likewise.
    """
    layers = list(pairwise(sizes))
    weights = [m * n + n for m, n in layers]
    parameters = 2 * sum(weights) + sum(weights[1:]) + 5 * sum(weights)
    forwards = gradients = sum(m + n for m, n in layers)
    backwards = sum(n + 2 * m for m, n in layers[1:])
    ends = 2 * sizes[0] + 2 * sizes[-1]
    return 4 * (parameters + frames * (forwards + gradients + backwards + ends))


def moved(sizes, frames, **stack):
    """Bytes a fold, by operation."""
    start, length = np.arange(40) * 30, np.full(40, 30)
    features = np.zeros((1200, sizes[0] // (2 * CONTEXT + 1)), np.float32)
    speech = Frames.laid_out(features, np.zeros(1200, int), start, length, CONTEXT, "meta")
    order = Order(0, 0, start, length, frames)
    simulation = Simulation(
        load_cluster(CLUSTER), ParameterServer(), Workload.of_network(sizes, frames), 4, seed=0
    )
    algorithm, layout = AveragedSgd(), Layout(sizes)
    server = algorithm.start(torch.empty(layout.parameters, device="meta"))
    network = Dnn(layout, precision="bf16" if stack else "float32")
    minibatches = Minibatches(lambda _: order, speech)
    replay = BlockReplay(algorithm, network, server, minibatches.of, **stack)
    replay.run(simulation.advance(folds=BLOCK), 0.1)
    with Traffic() as traffic:
        replay.run(simulation.advance(folds=BLOCK), 0.1)
    return {name: moved / BLOCK for name, moved in traffic.moved.items()}


@pytest.mark.parametrize(
    ("name", "share"), [("paper 1", 1.42), ("512 x 3", 1.51), ("128 x 4", 1.45)]
)
def test_a_fold_moves_so_many_times_what_it_must(name, share):
    sizes, frames = NETWORKS[name]
    found = sum(moved(sizes, frames).values()) / floor(sizes, frames)
    assert round(found, 2) == share


def test_a_fold_and_its_average_are_three_passes_each_over_the_parameters():
    sizes, frames = NETWORKS["paper 1"]
    found, whole = moved(sizes, frames), 4 * Layout(sizes).parameters
    assert found["aten.addcmul"] == 3 * whole + 4
    assert found["aten.lerp_"] == 3 * whole + 4


def test_a_stack_of_bfloat16_moves_less_than_rounding_at_every_gradient():
    sizes, frames = NETWORKS["paper 1"]
    narrow = sum(moved(sizes, frames, stack=torch.bfloat16).values())
    assert narrow < sum(moved(sizes, frames, stack=torch.float32).values())


def test_traffic_counts_an_expanded_operand_once_and_what_is_picked():
    with Traffic() as traffic:
        torch.ones(5).expand(3, 5).add(torch.ones(3, 5))
        torch.ones(100, 2).index_select(0, torch.tensor([1, 2]))
    assert traffic.moved["aten.add"] == 4 * (5 + 15 + 15)
    assert traffic.moved["aten.index_select"] == 2 * 4 * 4 + 2 * 8

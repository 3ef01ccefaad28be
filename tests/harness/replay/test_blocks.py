"""Folds in blocks: the bits of folds one by one, and the same operations in every block."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from harness.algorithms.async_sgd import AsyncSgd, AveragedSgd
from harness.algorithms.averaging import ModelAveraging
from harness.base.errors import UserError
from harness.networks.feedforward import Dnn, Layout, random_parameters
from harness.replay.block_replay import BlockReplay
from harness.replay.fold_replay import StaleReplay
from harness.simulator import Averaging, ParameterServer, Simulation, Workload, load_cluster
from harness.speech.frames import Frames
from harness.tasks.order import Minibatches, Order
from tests.folds import ALGORITHMS as COUNTED
from tests.folds import REPEATING, asked_in_blocks

CLUSTERS = Path(__file__).parents[3] / "reproductions/clusters"
LAYOUT, FRAMES, WORKERS = Layout((20, 16, 16, 10)), 8, 4
SEGMENTS = ((7, 0.05), (30, 0.02), (18, 0.01))
ALGORITHMS = {
    name: COUNTED[name]
    for name in ("asynchronous", "averaged", "averaging", "block momentum", "outer Nesterov")
}


def minibatches(device="cpu"):
    """Of 40 utterances of 30 frames each."""
    draw, start, length = np.random.default_rng(0), np.arange(40) * 30, np.full(40, 30)
    features = draw.normal(size=(1200, 4)).astype(np.float32)
    frames = Frames.from_arrays(features, draw.integers(10, size=1200), start, length, 2, device)
    order = Order(0, 0, start, length, FRAMES)
    return Minibatches(lambda stage: order, frames)


def simulated(algorithm, cluster="k20m-server.toml", workers=WORKERS):
    protocol = Averaging(3) if algorithm.rounds else ParameterServer()
    job = Workload.of_network(LAYOUT.sizes, FRAMES)
    return Simulation(load_cluster(CLUSTERS / cluster), protocol, job, workers=workers, seed=0)


def server_of(algorithm, held=lambda model: model):
    server = algorithm.start(held(random_parameters(LAYOUT, torch.Generator().manual_seed(0))[0]))
    if "averaged" in server.numbers:
        server.numbers["averaged"] = 3.0  # weights differ from fold to fold
    return server


def one_by_one(algorithm, workers=WORKERS):
    parts = algorithm, Dnn(LAYOUT), server_of(algorithm), minibatches().fetch
    return StaleReplay(*parts, slots=2 * workers, alone=True)


def in_blocks(algorithm, **options):
    return BlockReplay(algorithm, Dnn(LAYOUT), server_of(algorithm), minibatches().fetch, **options)


def assert_equal(ours, other):
    assert ours.server.version == other.server.version
    assert ours.server.numbers == other.server.numbers
    for name, model in other.server.candidates().items():
        assert torch.equal(ours.server.candidates()[name], model), name
    for name, vector in other.server.tensors.items():
        assert torch.equal(ours.server.tensors[name], vector), name


@pytest.mark.parametrize("name", ALGORITHMS)
def test_blocks_give_the_bits_of_folds_one_by_one(name):
    algorithm = ALGORITHMS[name]
    ours, other, simulation = in_blocks(algorithm), one_by_one(algorithm), simulated(algorithm)
    for folds, rate in SEGMENTS:
        segment = simulation.advance(folds=folds)
        for replay in (ours, other):
            replay.run(segment, rate)
        assert_equal(ours, other)
    assert ours.loss.item() == pytest.approx(other.loss.item(), rel=1e-6)


def test_a_ring_grows_with_the_stalest_contribution_and_forgets_nothing():
    algorithm = AsyncSgd()
    ours, other = in_blocks(algorithm), one_by_one(algorithm, 50)
    simulation = simulated(algorithm, "heterogeneous-10k.toml", 50)
    sizes, stalest = [], 0
    for folds in (3, 60, 80):
        segment = simulation.advance(folds=folds)
        stalest = max(stalest, int(segment.staleness().max()))
        for replay in (ours, other):
            replay.run(segment, 0.01)
        assert_equal(ours, other)
        sizes.append(ours.block)
    assert stalest >= 32
    assert sizes[0] < sizes[-1] <= 256


def test_a_replay_in_blocks_goes_on_where_it_was_captured():
    algorithm, simulation = AveragedSgd(), simulated(AveragedSgd())
    ours = in_blocks(algorithm)
    ours.run(simulation.advance(folds=21), 0.02)
    arrays, facts = ours.capture()
    again = in_blocks(algorithm)
    again.reinstate({name: array.copy() for name, array in arrays.items()}, facts)
    segment = simulation.advance(folds=45)
    for replay in (ours, again):
        replay.run(segment, 0.02)
    assert_equal(again, ours)
    assert again.loss.item() == ours.loss.item()


def test_what_blocks_cannot_follow_is_refused():
    rounds = simulated(ModelAveraging())
    with pytest.raises(UserError, match="shards; allowed in blocks: neither"):
        in_blocks(ModelAveraging()).run(rounds.advance(folds=2), 0.1, restorable=0)
    with pytest.raises(ValueError, match="fold 2 meets version 0"):
        in_blocks(ModelAveraging()).run(rounds.advance(folds=2), 0.1)


class Asked(TorchDispatchMode):
    """What was asked of torch: operations, their numbers, and where what outlives them lies."""

    def __init__(self, lasting):
        super().__init__()
        self.lasting, self.calls = lasting, []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.calls.append((str(function), self.told(args), self.told(kwargs or {})))
        return function(*args, **(kwargs or {}))

    def told(self, value):
        if isinstance(value, torch.Tensor):
            storage = value.untyped_storage().data_ptr()
            where = (storage, value.storage_offset()) if storage in self.lasting else "passing"
            return tuple(value.shape), value.stride(), where
        if isinstance(value, (tuple, list)):
            return tuple(map(self.told, value))
        if isinstance(value, dict):
            return tuple((key, self.told(each)) for key, each in value.items())
        return value


@pytest.mark.parametrize("name", ["averaged", "outer Nesterov"])
def test_every_block_asks_for_the_same_operations_at_the_same_places(name):
    algorithm, blocks, replay = ALGORITHMS[name], [], None

    def recorder(work, device):
        def noted():
            server = replay.server
            kept = (replay._ring, replay._models, *replay._inputs, replay.loss)
            kept += (*server.vectors.values(), *server.tensors.values())
            with Asked({t.untyped_storage().data_ptr() for t in kept}) as asked:
                work()
            blocks.append(asked.calls)

        return noted

    replay, simulation = in_blocks(algorithm, recorder=recorder), simulated(algorithm)
    replay.run(simulation.advance(folds=16), 0.02)
    blocks.clear()
    replay.run(simulation.advance(folds=32), 0.02)
    assert len(blocks) == 2
    assert blocks[0] == blocks[1]


@pytest.mark.parametrize("name", REPEATING)
def test_a_block_of_sixteen_folds_is_one_launch_and_the_copies_of_its_inputs(name):
    found = asked_in_blocks(COUNTED[name])
    for counts in (found.inside, found.outside):
        assert not counts.round_trips
        assert not counts.mixes
        assert not counts.uploads
    assert found.outside.launches["graph"] == 1
    assert found.outside.launches.total() == 9
    assert found.inside.launches.total() > 100


def test_a_stack_of_bfloat16_stays_near_and_its_masters_are_float32():
    ends = {}
    for precision, stack in (("float32", torch.float32), ("bf16", torch.bfloat16)):
        algorithm = AveragedSgd()
        network, server = Dnn(LAYOUT, precision=precision), server_of(algorithm)
        replay = BlockReplay(algorithm, network, server, minibatches().fetch, stack=stack)
        begun = server.model.clone()
        replay.run(simulated(algorithm).advance(folds=96), 0.02)
        assert server.model.dtype == torch.float32
        ends[precision] = server.candidates()
    for name, exact in ends["float32"].items():
        way = (exact - begun).norm()
        assert (ends["bf16"][name] - exact).norm() < 0.02 * way, name
        assert not torch.equal(ends["bf16"][name], exact)

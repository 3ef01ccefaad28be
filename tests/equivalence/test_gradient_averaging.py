"""Paper 2, section 3: averaging models after every update is averaging gradients."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from harness.algorithms.averaging import GradientAveraging, ModelAveraging
from harness.base.settings import build
from harness.networks.contract import Minibatch
from harness.networks.feedforward import Dnn, Layout
from harness.replay.fold_replay import StaleReplay
from harness.simulator import Simulation, Workload
from harness.simulator.cluster import Cluster
from harness.simulator.protocols.averaging import Averaging

LAYOUT = Layout((6, 8, 5))
ROUNDS, FRAMES = 40, 8
UNIT = 2.0**-30
MACHINE = {
    "name": "some",
    "workers": [{"count": 4, "device": "card"}],
    "devices": {"card": {"achieved_flops_per_s": 1e9}},
    "link": {"bandwidth_bytes_per_s": 1e7},
    "host": {},
    "server": {},
    "jitter": {"law": "lognormal", "cv": 0.3},
}


@dataclass(frozen=True)
class Coarse(Dnn):
    """A network whose derivatives are whole multiples of `UNIT` where a layer sees them.

    The steps are then multiples of a small power of two, every sum and mean of them is exact
    in float64, and nothing but the algorithms' difference could tell them apart.
    """

    def backward(self, stack, x, targets, visit):
        def coarsely(i, inputs, deltas):
            visit(i, (inputs * 2**6).round() * 2.0**-6, (deltas / UNIT).round() * UNIT)

        return super().backward(stack, x, targets, coarsely)


def minibatch_of(keys: Sequence[tuple[int, int]]) -> Minibatch:
    x, y = [], []
    for worker, step in keys:
        draw = torch.Generator().manual_seed(1000 * worker + step)
        x.append(torch.randn(FRAMES, 6, dtype=torch.float64, generator=draw))
        y.append(torch.randint(0, 5, (FRAMES,), generator=draw))
    return Minibatch(torch.stack(x), torch.stack(y))


def trained(algorithm, net: Dnn, workers: int, rate: float, every: int = 1) -> torch.Tensor:
    cluster = build(Cluster, MACHINE, "the test's machine")
    workload = Workload.of_network(LAYOUT.sizes, FRAMES)
    simulation = Simulation(cluster, Averaging(every), workload, workers, seed=1)
    draw = torch.Generator().manual_seed(7)
    start = torch.randn(LAYOUT.parameters, dtype=torch.float64, generator=draw)
    start = (start * 2**10).round() * 2.0**-10
    replay = StaleReplay(algorithm, net, algorithm.start(start), minibatch_of, workers)
    replay.run(simulation.advance(folds=ROUNDS, drain=True), rate)
    assert replay.server.version == ROUNDS
    assert not torch.equal(replay.server.model, start)
    return replay.server.model


def test_averaging_after_every_update_equals_gradient_averaging_bit_for_bit():
    for workers in (1, 2, 4):
        models, gradients = (
            trained(algorithm, Coarse(LAYOUT), workers, rate=0.5)
            for algorithm in (ModelAveraging(), GradientAveraging())
        )
        assert torch.equal(models, gradients)


def test_with_any_numbers_the_two_differ_by_the_rounding_of_the_mean_alone():
    models, gradients = (
        trained(algorithm, Dnn(LAYOUT), 3, rate=0.3)
        for algorithm in (ModelAveraging(), GradientAveraging())
    )
    torch.testing.assert_close(models, gradients, rtol=0, atol=1e-14)


def test_averaging_after_two_updates_is_something_else():
    models, gradients = (
        trained(algorithm, Dnn(LAYOUT), 4, rate=0.3, every=2)
        for algorithm in (ModelAveraging(), GradientAveraging())
    )
    assert not torch.allclose(models, gradients, rtol=0, atol=1e-3)

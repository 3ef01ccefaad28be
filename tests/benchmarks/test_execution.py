"""What the harness costs beyond the arithmetic: ratios within one run."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import torch

from harness.acoustics.dnn import Dnn
from harness.acoustics.stack import Layout, random_parameters
from harness.algorithms.averaged_sgd import AveragedSgd
from harness.algorithms.contract import Minibatch
from harness.execution.simulated import StaleReplay
from harness.simulator import Simulation, Workload, load_cluster

CLUSTER = Path(__file__).parents[2] / "reproductions" / "clusters" / "k20m-server.toml"
LAYOUT, FRAMES, WORKERS = Layout((440, 512, 512, 512, 1000)), 256, 4
FOLDS = 24


def minibatch_of(keys: Sequence[tuple[int, int]]) -> Minibatch:
    """The same drawn frames for every step: what is timed is not the drawing."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(1, FRAMES, LAYOUT.sizes[0], generator=draw)
    targets = torch.randint(0, LAYOUT.sizes[-1], (1, FRAMES), generator=draw)
    return Minibatch(x.expand(len(keys), -1, -1), targets.expand(len(keys), -1))


def bare_loop(net: Dnn, model: torch.Tensor) -> None:
    """The gradients of as many minibatches, one after another, and nothing else."""
    stack, out = model.unsqueeze(0), torch.empty(1, LAYOUT.parameters)
    for step in range(FOLDS):
        net.gradient(stack, *minibatch_of([(0, step)]), out)


def simulated(net: Dnn, model: torch.Tensor) -> StaleReplay:
    """Timing, reads, gradients, folds and the average of asynchronous ASGD."""
    workload = Workload.of_network(LAYOUT.sizes, FRAMES)
    cluster = load_cluster(CLUSTER)
    simulation = Simulation(cluster, "parameter_server", workload, WORKERS, seed=0)
    algorithm = AveragedSgd()
    server = algorithm.start(model)
    replay = StaleReplay(algorithm, net, server, minibatch_of, WORKERS)
    replay.run(simulation.advance(folds=FOLDS, drain=True), 1e-4)
    return replay


def test_harness_over_bare_loop(benchmark):
    net = Dnn(LAYOUT)
    model = random_parameters(LAYOUT, torch.Generator().manual_seed(0))[0]
    torch.set_num_threads(1)
    for warm in (bare_loop, simulated):
        warm(net, model)

    def ratio() -> float:
        seconds = []
        for run in (bare_loop, simulated):
            began = time.perf_counter()
            run(net, model)
            seconds.append(time.perf_counter() - began)
        return seconds[1] / seconds[0]

    ratios = [ratio() for _ in range(5 if benchmark.enabled else 1)]
    benchmark.extra_info["ratio"] = sorted(ratios)[len(ratios) // 2]
    replay = benchmark.pedantic(simulated, (net, model), rounds=1)
    # What the ratio rests on: every fold was executed, four workers' gradients to a batch.
    assert (replay.server.version, replay.batches) == (FOLDS, FOLDS // WORKERS)

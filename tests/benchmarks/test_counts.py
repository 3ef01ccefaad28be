"""What has to be exactly as it was: events, virtual time, bytes, operations, parameters.

A count does not depend on the machine, so one that differs is a change of what is computed,
or of how much: it is meant, and the baseline is renewed with a reason, or it is a mistake.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from harness.algorithms.async_sgd import AsyncSgd, AveragedSgd
from harness.networks.contract import Minibatch
from harness.networks.feedforward import Dnn, Layout, random_parameters
from harness.replay.fold_replay import StaleReplay
from harness.simulator import Simulation, Workload, load_cluster
from harness.simulator.protocols.averaging import Averaging

CLUSTERS = Path(__file__).parents[2] / "reproductions" / "clusters"
FULL = (440, 2048, 2048, 2048, 2048, 2048, 2048, 8806)
SMALL = Layout((44, 64, 64, 100))
FRAMES, WORKERS, FOLDS = 32, 4, 60

SEGMENTS = {
    "server": ("k20m-server.toml", "parameter_server", 4, 2000),
    "nodes": ("stampede.toml", Averaging(10, collective="ring"), 16, 20),
    "replicas": ("heterogeneous-10k.toml", "parameter_server", 1000, 5000),
}


@pytest.mark.parametrize("name", SEGMENTS)
def test_a_simulated_segment(benchmark, name):
    file, protocol, workers, folds = SEGMENTS[name]
    job = Workload.of_network(FULL, 256)

    def segment():
        simulation = Simulation(load_cluster(CLUSTERS / file), protocol, job, workers, seed=0)
        return simulation, simulation.advance(folds=folds)

    simulation, timeline = benchmark.pedantic(segment, rounds=1)
    assert len(timeline.folds) == folds
    benchmark.extra_info["counts"] = {
        "events": simulation.dispatched,
        "folded": len(timeline.folded()),
        "spans": len(timeline.spans),
        "end_s": float(timeline.folds.time_s[-1]),
        "flops": job.flops_per_frame * job.minibatch_frames * len(timeline.folded()),
        "bytes": job.parameter_bytes * len(timeline.folded()),
        "sha256": timeline.sha256(),
    }


class WholeNumbers:
    """A network whose gradients are small whole numbers of the parameters they are taken at.

    Every operation on them is exact, so the parameters at the end are the same on every
    machine; and they depend on who read which version.
    """

    def gradient(self, stack, x, targets, out):
        torch.remainder(stack + x[:, 0, :1] + torch.arange(stack.shape[1]) % 5, 7.0, out=out)
        out.sub_(3.0)
        return torch.zeros(len(stack))


def replay_of(algorithm, network, model, minibatch_of):
    """A replay and the segment it is to execute: four workers of paper 1's server."""
    cluster, job = load_cluster(CLUSTERS / "k20m-server.toml"), Workload.of_network(FULL, 256)
    simulation = Simulation(cluster, "parameter_server", job, WORKERS, seed=0)
    replay = StaleReplay(algorithm, network, algorithm.start(model), minibatch_of, WORKERS)
    return replay, simulation.advance(folds=FOLDS)


def test_parameters_after_folds_in_simulated_order(benchmark):
    def numbers(keys):
        x = torch.tensor([[[float(worker + 3 * step)]] for worker, step in keys])
        return Minibatch(x, torch.zeros(len(keys), 1, dtype=torch.int64))

    model = torch.arange(1000.0) % 11
    replay, segment = replay_of(AsyncSgd(), WholeNumbers(), model, numbers)
    benchmark.pedantic(replay.run, (segment, 1.0), rounds=1)
    end = replay.server.model
    assert torch.equal(end, end.round())
    digest = hashlib.sha256(end.to(torch.int64).numpy().tobytes()).hexdigest()
    benchmark.extra_info["counts"] = {"folds": replay.server.version, "parameters": digest}


class Operations(TorchDispatchMode):
    """Counts torch's operations and the bytes they write into memory."""

    def __init__(self):
        super().__init__()
        self.operations = self.bytes = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        written = out if isinstance(out, (tuple, list)) else (out,)
        if not function.is_view:
            self.operations += 1
            tensors = (each for each in written if isinstance(each, torch.Tensor))
            self.bytes += sum(each.numel() * each.element_size() for each in tensors)
        return out


@pytest.mark.parametrize("blocks", [True, False], ids=["in blocks", "one by one"])
def test_what_a_replay_executes(benchmark, blocks, monkeypatch):
    if not blocks:
        monkeypatch.setattr(AsyncSgd, "can_fold_in_blocks", lambda self, model: False)
    draw = torch.Generator().manual_seed(0)
    model, x = random_parameters(SMALL, draw)[0], torch.randn(1, FRAMES, 44, generator=draw)
    targets = torch.randint(100, (1, FRAMES), generator=draw)

    def minibatch_of(keys):
        return Minibatch(x.expand(len(keys), -1, -1), targets.expand(len(keys), -1))

    replay, segment = replay_of(AveragedSgd(), Dnn(SMALL), model, minibatch_of)

    def execute():
        with Operations() as counted:
            replay.run(segment, 1e-3)
        return counted

    counted = benchmark.pedantic(execute, rounds=1)
    assert replay.server.version == FOLDS
    noted = {"folds": FOLDS, "batches": replay.batches}
    noted |= {"operations": counted.operations, "bytes": counted.bytes}
    benchmark.extra_info["counts"] = noted

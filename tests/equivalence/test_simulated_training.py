"""The simulated executor against straight code that does the same by hand."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from harness.algorithms.async_sgd import AsyncSgd
from harness.base.errors import UserError
from harness.networks.contract import Minibatch
from harness.networks.feedforward import Dnn, Layout
from harness.replay.fold_replay import StaleReplay
from harness.simulator.cluster import Workload, load_cluster
from harness.simulator.protocols.parameter_server import ParameterServer
from harness.simulator.simulation import Simulation
from harness.simulator.timeline import Timeline, concat

LAYOUT = Layout((4, 5, 3))
NET = Dnn(LAYOUT)
FREE = """
name = "free"
[[workers]]
count = 5
device = "instant"
[devices.instant]
[server]
fold_traffic = 0.0
"""
BUSY = """
name = "busy"
[[workers]]
count = 5
device = "card"
[devices.card]
achieved_flops_per_s = 1e9
[link]
bandwidth_bytes_per_s = 1e7
[server]
fold_s = 0.0002
[jitter]
law = "gamma"
cv = 0.8
"""


def simulate(text: str, folder: Path, protocol="parameter_server") -> Simulation:
    path = folder / "cluster.toml"
    path.write_text(text)
    workload = Workload(6, 0.0, 0.0) if text is FREE else Workload.of_network(LAYOUT.sizes, 6)
    return Simulation(load_cluster(path), protocol, workload, 5, seed=3)


def minibatch_of(keys: Sequence[tuple[int, int]]) -> Minibatch:
    x, y = [], []
    for _, step in keys:
        draw = torch.Generator().manual_seed(step)
        x.append(torch.randn(6, 4, dtype=torch.float64, generator=draw))
        y.append(torch.randint(0, 3, (6,), generator=draw))
    return Minibatch(torch.stack(x), torch.stack(y))


def start() -> torch.Tensor:
    draw = torch.Generator().manual_seed(99)
    return torch.randn(LAYOUT.parameters, dtype=torch.float64, generator=draw)


def replayed(*segments: Timeline) -> StaleReplay:
    algorithm = AsyncSgd()
    replay = StaleReplay(algorithm, NET, algorithm.start(start()), minibatch_of, slots=5)
    for segment in segments:
        replay.run(segment, 0.05)
    return replay


def test_serial_sgd_of_the_harness_is_torch_optim_sgd(tmp_path):
    timeline = simulate(FREE, tmp_path).advance(folds=40, drain=True)
    assert timeline.staleness().tolist() == [0] * 40
    flat = start()
    linear = [torch.nn.Linear(4, 5).double(), torch.nn.Linear(5, 3).double()]
    with torch.no_grad():
        for module, layer in zip(linear, LAYOUT.views(flat.unsqueeze(0)), strict=True):
            module.weight.copy_(layer.weight[0])
            module.bias.copy_(layer.bias[0])
    model = torch.nn.Sequential(linear[0], torch.nn.Sigmoid(), linear[1])
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(40):
        x, y = minibatch_of([(0, step)])
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(model(x[0]), y[0], reduction="sum").backward()
        optimiser.step()
    theirs = torch.cat([p.detach().flatten() for p in model.parameters()])
    torch.testing.assert_close(replayed(timeline).server.model, theirs, rtol=1e-11, atol=1e-12)


def test_a_segment_that_does_not_follow_is_refused(tmp_path):
    timeline = simulate(BUSY, tmp_path).advance(folds=10, drain=True)
    replay = replayed(timeline)
    with pytest.raises(ValueError, match="meets version 10"):
        replay.run(timeline, 0.05)


DYING = """
[[faults]]
kind = "death"
mean_s = 0.0005
down_s = 0.0001
"""
FAILING = """
[[faults]]
kind = "server"
mean_s = 0.002
down_s = 0.0005
checkpoint_s = 0.0021
"""


def test_contributions_are_computed_together_and_those_of_the_dead_forgotten(tmp_path):
    simulation = simulate(BUSY + DYING, tmp_path)
    segments = [simulation.advance(folds=folds) for folds in (7, 20, 1, 2, 60)]
    whole, last = concat(segments), segments[-1].in_flight()
    assert len(whole.lost()) > 5
    replay = replayed(*segments)
    assert replay.batches < len(whole.folds) / 2
    under_way = zip(last.worker.tolist(), last.first_step.tolist(), strict=True)
    assert replay.in_flight.keys() == {(worker, step) for worker, step in under_way}


def test_no_state_of_a_failing_server_is_kept_that_cannot_be_restored(tmp_path):
    simulation, replay = simulate(BUSY + FAILING, tmp_path), replayed()
    for folds in (7, 20, 1, 2, 60):
        replay.run(segment := simulation.advance(folds=folds), 0.05, simulation.restorable)
    assert min(replay.checkpoints.states) >= segment.restarts.restored_version.max() > 0


def test_training_on_a_server_whose_past_is_not_kept_is_refused_in_one_line(tmp_path):
    simulation = simulate(BUSY + FAILING, tmp_path)
    segments = [simulation.advance(folds=15) for _ in range(6)]
    with pytest.raises(UserError, match="can be timed but not trained with here"):
        replayed(*segments)


def test_training_on_a_server_in_shards_is_refused_in_one_line(tmp_path):
    simulation = simulate(BUSY, tmp_path, ParameterServer(shards=2))
    with pytest.raises(UserError, match="timeline: of a server in shards"):
        replayed(simulation.advance(folds=60))

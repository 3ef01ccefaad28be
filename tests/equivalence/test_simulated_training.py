"""The simulated executor against straight code that does the same by hand."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from harness.algorithms.async_sgd import AsyncSgd, AveragedSgd
from harness.algorithms.averaging import ModelAveraging
from harness.base.errors import UserError
from harness.networks.contract import Minibatch
from harness.networks.feedforward import Dnn, Layout
from harness.replay.fold_replay import StaleReplay
from harness.simulator import (
    Contributions,
    Folds,
    ParameterServer,
    Simulation,
    Timeline,
    Workload,
    concat,
    load_cluster,
)

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


def simulate(text: str, folder: Path, folds: int, workers: int = 5) -> Timeline:
    path = folder / "cluster.toml"
    path.write_text(text)
    workload = Workload.of_network(LAYOUT.sizes, 6) if text is BUSY else Workload(6, 0.0, 0.0)
    simulation = Simulation(load_cluster(path), "parameter_server", workload, workers, seed=3)
    return simulation.advance(folds=folds, drain=True)


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


def test_a_cluster_where_nothing_costs_time_is_serial_sgd_parameter_by_parameter(tmp_path):
    timeline = simulate(FREE, tmp_path, 40)
    theta = start().unsqueeze(0)
    for step in range(40):
        gradient = torch.empty_like(theta)
        NET.gradient(theta, *minibatch_of([(0, step)]), gradient)
        theta.sub_(gradient, alpha=0.05)
    assert timeline.staleness().tolist() == [0] * 40
    assert torch.equal(replayed(timeline).server.model, theta[0])


def test_serial_sgd_of_the_harness_is_torch_optim_sgd(tmp_path):
    timeline = simulate(FREE, tmp_path, 40)
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


def test_stale_training_keeps_every_version_and_uses_the_one_that_was_read(tmp_path):
    timeline = simulate(BUSY, tmp_path, 60)
    assert timeline.staleness().max() > 3
    versions = [start()]
    rows = timeline.folded()
    for fold in range(60):
        read, step = int(rows.read_version[fold]), int(rows.first_step[fold])
        gradient = torch.empty(1, LAYOUT.parameters, dtype=torch.float64)
        NET.gradient(versions[read].unsqueeze(0), *minibatch_of([(0, step)]), gradient)
        versions.append(versions[-1] - 0.05 * gradient[0])
    # Batched and single products may round differently, hence not torch.equal.
    torch.testing.assert_close(
        replayed(timeline).server.model, versions[-1], rtol=1e-12, atol=1e-13
    )


def test_pending_contributions_are_computed_in_fewer_batches_than_folds(tmp_path):
    replay = replayed(simulate(BUSY, tmp_path, 60))
    assert replay.batches < 60 / 2


def test_segments_give_the_same_bytes_as_one_run(tmp_path):
    path = tmp_path / "cluster.toml"
    path.write_text(BUSY)
    workload = Workload.of_network(LAYOUT.sizes, 6)

    def simulation() -> Simulation:
        return Simulation(load_cluster(path), "parameter_server", workload, 5, seed=3)

    whole = replayed(simulation().advance(folds=50))
    in_parts = simulation()
    parts = replayed(*(in_parts.advance(folds=n) for n in (1, 19, 30)))
    assert torch.equal(whole.server.model, parts.server.model)


def test_a_segment_that_does_not_follow_is_refused(tmp_path):
    timeline = simulate(BUSY, tmp_path, 10)
    replay = replayed(timeline)
    with pytest.raises(ValueError, match="meets version 10"):
        replay.run(timeline, 0.05)


def test_a_round_of_many_contributions_and_steps_is_executed_as_the_timeline_says():
    workers, steps, rounds = 3, 4, 2
    rows = [(k, w, k, 0.0, steps * k, steps) for k in range(rounds) for w in range(workers)]
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    timeline = Timeline(
        Folds(np.arange(rounds), np.arange(rounds, dtype=float)), Contributions(*columns)
    )
    algorithm = ModelAveraging()

    def frames_of(keys: Sequence[tuple[int, int]]) -> Minibatch:
        return minibatch_of([(w, 100 * w + step) for w, step in keys])

    replay = StaleReplay(algorithm, NET, algorithm.start(start()), frames_of, workers)
    replay.run(timeline, 0.05)
    theta = start()
    for k in range(rounds):
        ends = []
        for worker in range(workers):
            local = theta.unsqueeze(0).clone()
            for step in range(steps * k, steps * (k + 1)):
                gradient = torch.empty_like(local)
                NET.gradient(local, *frames_of([(worker, step)]), gradient)
                local.sub_(gradient, alpha=0.05 / 6)
            ends.append(local[0])
        theta = torch.stack(ends).mean(0)
    torch.testing.assert_close(replay.server.model, theta, rtol=1e-12, atol=1e-13)
    assert replay.batches == rounds


DYING = (
    BUSY
    + """
[[faults]]
kind = "death"
mean_s = 0.0005
down_s = 0.0001
"""
)


def by_hand(timeline: Timeline) -> torch.Tensor:
    """The model after all folds, with every version kept."""
    versions, rows = [start()], timeline.folded()
    for read, step in zip(rows.read_version.tolist(), rows.first_step.tolist(), strict=True):
        gradient = torch.empty(1, LAYOUT.parameters, dtype=torch.float64)
        NET.gradient(versions[read].unsqueeze(0), *minibatch_of([(0, step)]), gradient)
        versions.append(versions[-1] - 0.05 * gradient[0])
    return versions[-1]


def test_what_a_dead_worker_had_under_way_leaves_no_trace_in_the_model(tmp_path):
    path = tmp_path / "cluster.toml"
    path.write_text(DYING)
    workload = Workload.of_network(LAYOUT.sizes, 6)
    simulation = Simulation(load_cluster(path), "parameter_server", workload, 5, seed=3)
    segments = [simulation.advance(folds=folds) for folds in (7, 20, 1, 2, 60)]
    whole, last = concat(segments), segments[-1].in_flight()
    assert len(whole.lost()) > 5
    replay = replayed(*segments)
    torch.testing.assert_close(replay.server.model, by_hand(whole), rtol=1e-12, atol=1e-13)
    under_way = zip(last.worker.tolist(), last.first_step.tolist(), strict=True)
    assert replay.in_flight.keys() == {(worker, step) for worker, step in under_way}


FAILING = """
[[faults]]
kind = "server"
mean_s = 0.002
down_s = 0.0005
checkpoint_s = 0.0021
"""


def by_hand_with_failures(timeline: Timeline) -> list[torch.Tensor]:
    """Every version, as it was at last, where the server goes back to versions of its past."""
    columns = ("version", "restored_version", "time_s")
    restarts = list(zip(*(getattr(timeline.restarts, c).tolist() for c in columns), strict=True))
    first = {version: time_s for version, _, time_s in reversed(restarts)}
    before, after, rows = [start()], [start()], timeline.folded()
    columns = (rows.read_version, rows.first_step, rows.read_time_s)
    for fold, (read, step, time_s) in enumerate(zip(*(c.tolist() for c in columns), strict=True)):
        seen = after[read] if time_s >= first.get(read, np.inf) else before[read]
        gradient = torch.empty(1, LAYOUT.parameters, dtype=torch.float64)
        NET.gradient(seen.unsqueeze(0), *minibatch_of([(0, step)]), gradient)
        before.append(after[fold] - 0.05 * gradient[0])
        restored = [back for version, back, _ in restarts if version == fold + 1]
        # A checkpoint of the version itself may have come between two failures at it.
        after.append(after[restored[0]] if restored and restored[0] <= fold else before[-1])
    return after


def open_busy(tmp_path, text=BUSY + FAILING, protocol="parameter_server") -> Simulation:
    path = tmp_path / "cluster.toml"
    path.write_text(text)
    return Simulation(load_cluster(path), protocol, Workload.of_network(LAYOUT.sizes, 6), 5, seed=3)


@pytest.mark.parametrize("lengths", [(90,), (7, 20, 1, 2, 60), (1,) * 90])
def test_a_server_that_fails_goes_on_from_the_model_it_had_kept(lengths, tmp_path):
    simulation = open_busy(tmp_path)
    replay, segments = replayed(), list[Timeline]()
    for folds in lengths:
        segments.append(simulation.advance(folds=folds))
        replay.run(segments[-1], 0.05, simulation.restorable)
        state, replay = replay.capture(), replayed()
        replay.reinstate(*state)
    whole = concat(segments)
    undone = whole.restarts.version - whole.restarts.restored_version
    assert len(undone) >= 3
    assert undone.max() > 3
    expected = by_hand_with_failures(whole)[-1]
    torch.testing.assert_close(replay.server.model, expected, rtol=1e-12, atol=1e-13)
    assert min(replay.checkpoints.states) >= whole.restarts.restored_version.max()


def test_training_on_a_server_whose_past_is_not_kept_is_refused_in_one_line(tmp_path):
    simulation = open_busy(tmp_path)
    segments = [simulation.advance(folds=15) for _ in range(6)]
    with pytest.raises(UserError, match="can be timed but not trained with here"):
        replayed(*segments)


def test_training_on_a_server_in_shards_is_refused_in_one_line(tmp_path):
    simulation = open_busy(tmp_path, BUSY, ParameterServer(shards=2))
    with pytest.raises(UserError, match="timeline: of a server in shards"):
        replayed(simulation.advance(folds=60))


class OneByOne:
    """An algorithm of which only the contract is known."""

    rounds = False

    def __init__(self, algorithm: AveragedSgd) -> None:
        self.start, self.contribute, self.fold = (
            algorithm.start,
            algorithm.contribute,
            algorithm.fold,
        )
        self.on = lambda network: self


@pytest.mark.parametrize("text", [BUSY, DYING])
def test_folds_that_waited_for_one_another_leave_the_bytes_of_folds_one_by_one(text, tmp_path):
    path = tmp_path / "cluster.toml"
    path.write_text(text)
    simulation = Simulation(
        load_cluster(path), "parameter_server", Workload.of_network(LAYOUT.sizes, 6), 5, seed=3
    )
    segments = [simulation.advance(folds=folds) for folds in (7, 20, 1, 60)]
    servers = []
    for algorithm in (AveragedSgd(), OneByOne(AveragedSgd())):
        replay = StaleReplay(algorithm, NET, algorithm.start(start()), minibatch_of, slots=5)
        for segment in segments:
            replay.run(segment, 0.05)
        servers.append(replay.server)
    assert torch.equal(servers[0].model, servers[1].model)
    assert torch.equal(servers[0].vectors["average"], servers[1].vectors["average"])
    assert servers[0].version == servers[1].version == 88

"""The replay of a server in shards."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from harness.algorithms.async_sgd import AsyncSgd, AveragedSgd
from harness.algorithms.contract import LocalWork, Memory, Server
from harness.base.errors import UserError
from harness.base.seeds import identity
from harness.networks.contract import Minibatch
from harness.networks.feedforward import Dnn, Layout
from harness.replay.sharded_replay import ShardedReplay, ShardedServer, edges
from harness.simulator import (
    Cluster,
    Fault,
    ParameterServer,
    Simulation,
    Timeline,
    Workload,
    concat,
)

LAYOUT = Layout((9, 6, 5))


def minibatch_of(keys: Any) -> Minibatch:
    draws = [torch.Generator().manual_seed(step) for _, step in keys]
    x = torch.stack([torch.randn(8, 9, generator=g) for g in draws])
    return Minibatch(x, torch.stack([torch.randint(5, (8,), generator=g) for g in draws]))


def simulated(unequal: Cluster, shards: int) -> list[Timeline]:
    """Segments with nothing in flight between them."""
    work = Workload.of_network((9, 60, 50), 256)
    simulation = Simulation(unequal, ParameterServer(shards=shards), work, workers=4, seed=2)
    return [simulation.advance(folds=folds, drain=True) for folds in (30, 20)]


def every_version_kept(timeline: Timeline, start: Server, shards: int, rate: float) -> np.ndarray:
    """Each shard's model at each of its versions; contributions in the order of their reads."""
    algorithm, net, cuts = AveragedSgd(), Dnn(LAYOUT), edges(LAYOUT.parameters, shards)
    versions = [{0: start.model[a:b].clone()} for a, b in cuts]
    averages = [start.vectors["average"][a:b].clone() for a, b in cuts]
    rows, pieces = timeline.folded(), timeline.pieces
    read, before = (c.reshape(-1, shards) for c in (pieces.read_version, pieces.version))
    gradients: dict[int, torch.Tensor] = {}
    while len(gradients) < len(rows):
        for fold in range(len(rows)):
            known = all(int(read[fold, s]) in versions[s] for s in range(shards))
            if fold in gradients or not known:
                continue
            stale = torch.cat([versions[s][int(read[fold, s])] for s in range(shards)])
            gradients[fold] = out = torch.empty(1, LAYOUT.parameters)
            batch = minibatch_of([(int(rows.worker[fold]), int(rows.first_step[fold]))])
            work = LocalWork(net, stale.unsqueeze(0), [batch], out, rate, Memory())
            algorithm.contribute(work)
        for s, (a, b) in enumerate(cuts):
            for fold in np.argsort(before[:, s]).tolist():
                version = int(before[fold, s])
                if version + 1 in versions[s]:
                    continue
                if fold not in gradients:
                    break
                versions[s][version + 1] = versions[s][version] - rate * gradients[fold][0, a:b]
                averages[s] += 0.01 * (versions[s][version + 1] - averages[s])
    last = torch.cat([versions[s][len(rows)] for s in range(shards)])
    return torch.stack([last, torch.cat(averages)]).numpy()


@pytest.mark.parametrize("shards", [2, 3])
def test_a_replay_folds_what_keeping_every_version_of_every_shard_folds(
    unequal: Cluster, shards: int
) -> None:
    model = torch.randn(LAYOUT.parameters, generator=torch.Generator().manual_seed(0))
    segments = simulated(unequal, shards)
    read = concat(segments).pieces.read_version.reshape(-1, shards)
    assert (read.std(axis=1) > 0.0).any()
    server = AveragedSgd().start(model)
    replay = ShardedReplay(AveragedSgd(), Dnn(LAYOUT), server, minibatch_of, shards)
    for segment in segments:
        replay.run(segment, 0.01)
    expected = every_version_kept(concat(segments), AveragedSgd().start(model), shards, 0.01)
    found = torch.stack([server.model, server.vectors["average"]]).numpy()
    assert found == pytest.approx(expected, rel=1e-5, abs=1e-6)
    assert server.version == 50


def test_a_replay_that_is_captured_and_taken_up_ends_the_same(unequal: Cluster) -> None:
    model = torch.randn(LAYOUT.parameters, generator=torch.Generator().manual_seed(0))
    first, second = simulated(unequal, 2)
    made = [
        ShardedReplay(
            AveragedSgd(), Dnn(LAYOUT), AveragedSgd().start(model), minibatch_of, shards=2
        )
        for _ in range(2)
    ]
    made[0].run(first, 0.01)
    made[0].server.numbers["averaged"] = 1.0  # training begins the average in between
    made[1].reinstate(*made[0].capture())
    for replay in made:
        replay.run(second, 0.01)
    assert torch.equal(made[0].server.model, made[1].server.model)
    assert torch.equal(made[0].server.vectors["average"], made[1].server.vectors["average"])
    assert made[0].server.numbers == made[1].server.numbers == {"averaged": 21.0}


def test_a_record_of_other_shards_or_of_impossible_reads_is_refused(unequal: Cluster) -> None:
    model, (segment, _) = torch.zeros(LAYOUT.parameters), simulated(unequal, 2)
    parts = AsyncSgd(), Dnn(LAYOUT)
    with pytest.raises(UserError, match="timeline: not of a server in 3 shards"):
        ShardedReplay(*parts, Server(model.clone()), minibatch_of, 3).run(segment, 0.1)
    segment.pieces.read_version[:] += 1
    with pytest.raises(UserError, match="timeline: pieces that wait for each other"):
        ShardedReplay(*parts, Server(model.clone()), minibatch_of, 2).run(segment, 0.1)


def test_slices_are_contiguous_and_as_equal_as_can_be() -> None:
    assert edges(10, 3) == [(0, 3), (3, 6), (6, 10)]
    whole = AveragedSgd().start(torch.arange(10.0))
    sharded = ShardedServer(whole, 3)
    sharded.parts[1].model += 100.0
    assert whole.model[3:6].tolist() == [103.0, 104.0, 105.0]
    assert [len(part.vectors["average"]) for part in sharded.parts] == [3, 3, 4]


def test_shards_have_a_name_and_with_rounds_or_faults_are_refused(
    configure: Callable[..., Any], unequal: Cluster
) -> None:
    one = configure(shards=1).to_dict()
    assert configure(shards=2).timed == ParameterServer(shards=2)
    assert identity(configure(shards=2).to_dict()) != identity(one)
    failing = Cluster(
        "failing", unequal.devices, unequal.workers, faults=(Fault("death", mean_s=9.0),)
    )
    with pytest.raises(UserError, match="shards: 2 is not allowed with faults"):
        configure(shards=2, cluster=failing)

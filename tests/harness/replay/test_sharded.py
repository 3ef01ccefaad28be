"""The replay of a server in shards."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from harness.algorithms.async_sgd import AsyncSgd, AveragedSgd
from harness.algorithms.contract import Server
from harness.algorithms.saved import pack, unpack
from harness.base.errors import UserError
from harness.base.seeds import identity
from harness.networks.contract import Minibatch
from harness.networks.feedforward import Dnn, Layout
from harness.replay.sharded_replay import ShardedReplay, ShardedServer, edges
from harness.simulator.cluster import Cluster, Fault, Workload
from harness.simulator.protocols.parameter_server import ParameterServer
from harness.simulator.simulation import Simulation
from harness.simulator.timeline import Timeline

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
    made[1].restore(unpack(*pack(made[0]), "cpu"))
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

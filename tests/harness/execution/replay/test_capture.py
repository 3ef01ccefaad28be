"""A replay that is taken up again has everything that the one before had."""

from __future__ import annotations

import torch

from harness.algorithms.async_sgd import AsyncSgd
from harness.algorithms.contract import Memory, Server
from harness.execution.replay.sharded import ShardedReplay
from harness.execution.replay.stale import Pending, StaleReplay


def server(value: float) -> Server:
    vectors = {name: torch.full((3,), value + i) for i, name in enumerate(("average", "momentum"))}
    return Server(
        torch.full((3,), value),
        7,
        {"average": vectors["average"]},
        {"averaged": value},
        {"momentum": vectors["momentum"]},
    )


def replay(value: float) -> StaleReplay:
    made = StaleReplay(AsyncSgd(), None, server(value), None, slots=2)
    made.replicas += value + 2.0
    made.contributions += value + 3.0
    made.loss += value + 4.0
    return made


def test_a_replay_is_taken_up_with_all_that_is_under_way():
    ours, again = replay(1.0), replay(50.0)
    ours.in_flight = {(0, 4): 1, (2, 3): 0}
    ours.pending = [Pending(2, 1, (0, 4))]
    ours.memories[3] = Memory({"basis": torch.tensor([5.0])}, new_pass=False)
    ours.memory.tensors, ours.batches = {"basis": torch.arange(4.0)}, 9
    again.reinstate(*ours.capture())
    for name in ("replicas", "contributions", "loss"):
        assert torch.equal(getattr(again, name), getattr(ours, name))
    assert torch.equal(again.server.model, ours.server.model)
    assert torch.equal(again.server.vectors["average"], ours.server.vectors["average"])
    assert torch.equal(again.server.tensors["momentum"], ours.server.tensors["momentum"])
    assert (again.server.version, again.server.numbers) == (7, {"averaged": 1.0})
    assert (again.in_flight, again.pending) == (ours.in_flight, ours.pending)
    assert list(again.in_flight) == list(ours.in_flight)
    assert again.memory.tensors["basis"].tolist() == [0.0, 1.0, 2.0, 3.0]
    assert (again.memory.new_pass, again.batches) == (True, 9)
    assert again.memories[3].tensors["basis"].tolist() == [5.0]
    assert not again.memories[3].new_pass
    ours.memory.new_pass = False
    again.reinstate(*ours.capture())
    assert not again.memory.new_pass


def test_what_workers_around_a_server_in_shards_remember_is_taken_up_too():
    def sharded():
        return ShardedReplay(None, None, Server(torch.zeros(4)), None, shards=2)

    ours, again = sharded(), sharded()
    ours.memories[1] = Memory({"basis": torch.tensor([5.0])}, new_pass=False)
    ours.loss += 2.5
    again.reinstate(*ours.capture())
    assert again.memories[1].tensors["basis"].tolist() == [5.0]
    assert not again.memories[1].new_pass
    assert again.loss.item() == 2.5

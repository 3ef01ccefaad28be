"""A replay that is taken up again has everything that the one before had."""

import torch

from harness.algorithms.async_sgd import AsyncSgd
from harness.algorithms.contract import Memories, Memory, Server
from harness.algorithms.saved import pack, unpack
from harness.replay.fold_replay import Pending, StaleReplay
from harness.replay.sharded_replay import ShardedReplay


def server(value: float) -> Server:
    vectors = {name: torch.full((3,), value + i) for i, name in enumerate(("average", "momentum"))}
    return Server(
        torch.full((3,), value), 7, {"average": vectors["average"]}, {"averaged": value},
        {"momentum": vectors["momentum"]}, {"model": torch.full((3,), value - 1.0)}, undone=2,
        restarts=1,
    )  # fmt: skip


def replay(value: float) -> StaleReplay:
    made = StaleReplay(AsyncSgd(), None, server(value), None, slots=2)
    made.replicas += value + 2.0
    made.contributions += value + 3.0
    made.loss.add_(value + 4.0)
    return made


def test_a_replay_is_taken_up_with_all_that_is_under_way():
    ours, again = replay(1.0), replay(50.0)
    ours.in_flight, ours.restarts = {(0, 4): 1, (2, 3): 0}, {(0, 4): 2, (2, 3): 0}
    ours.pending = [Pending(2, 1, (0, 4), 7, 0.1, 1, True)]
    ours.passes, ours.latest = 2, {3: 2, 1: 1}
    ours.memories = Memories(
        {
            3: Memory({"basis": torch.tensor([[5.0]]), "steps": torch.tensor(7.0)}),
            1: Memory({"basis": torch.tensor([[2.0]]), "steps": torch.tensor(7.0)}),
        }
    )
    joint = ours.memories.join([1, 3])
    joint.tensors["basis"] += 1.0
    ours.batches = 9
    again.restore(unpack(*pack(ours), "cpu"))
    for name in ("replicas", "contributions", "loss"):
        assert torch.equal(getattr(again, name), getattr(ours, name))
    assert torch.equal(again.server.model, ours.server.model)
    assert torch.equal(again.server.vectors["average"], ours.server.vectors["average"])
    assert torch.equal(again.server.tensors["momentum"], ours.server.tensors["momentum"])
    assert torch.equal(again.server.past["model"], ours.server.past["model"])
    assert (again.server.version, again.server.numbers) == (7, {"averaged": 1.0})
    assert (again.server.undone, again.server.restarts) == (2, 1)
    assert (again.in_flight, again.restarts) == (ours.in_flight, ours.restarts)
    assert (again.pending, again.batches) == (ours.pending, 9)
    assert list(again.in_flight) == list(ours.in_flight)
    memories = again.memories.split()
    assert {w: m.tensors["basis"].item() for w, m in memories.items()} == {1: 3.0, 3: 6.0}
    assert {w: m.tensors["steps"].item() for w, m in memories.items()} == {1: 7.0, 3: 7.0}
    assert (again.passes, again.latest) == (2, {3: 2, 1: 1})


def test_what_workers_around_a_server_in_shards_remember_is_taken_up_too():
    def sharded():
        return ShardedReplay(None, None, Server(torch.zeros(4)), None, shards=2)

    ours, again = sharded(), sharded()
    ours.memories[1] = Memory({"basis": torch.tensor([5.0])}, new_pass=False)
    ours.loss += 2.5
    again.restore(unpack(*pack(ours), "cpu"))
    assert again.memories[1].tensors["basis"].tolist() == [5.0]
    assert not again.memories[1].new_pass
    assert again.loss.item() == 2.5

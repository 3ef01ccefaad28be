"""What a replay asks of an algorithm: a fold adds 1 to the model, so a model says its version."""

import numpy as np
import torch

from harness.algorithms.contract import Server
from harness.networks.contract import Minibatch
from harness.replay.fold_replay import StaleReplay
from harness.replay.sharded_replay import ShardedReplay
from harness.simulator.timeline import IN_FLIGHT, SERVER, Contributions, Folds, Pieces, Timeline
from harness.speech.protocol import CountQueries
from harness.speech.streams import SequenceReplay


class Told:
    """Writes down what it is asked, and remembers a worker's minibatches one by one."""

    rounds = False

    def __init__(self):
        self.contributed, self.folded, self.whose = [], [], []

    def on(self, network):
        return self

    def contribute(self, work):
        _, replicas, minibatches, out, _, memory = work
        keys = torch.stack([minibatch.x[:, 0] for minibatch in minibatches], 1)
        before = memory.tensors.get("keys", torch.zeros(len(replicas), 0, 2))
        for worker, read in enumerate(replicas):
            each = keys[worker].tolist(), read.unique().tolist(), before[worker].tolist()
            self.contributed.append(each)
        memory.tensors["keys"] = torch.cat([before, keys], 1)
        out[:] = minibatches[0].x[:, 0, 1:]
        return torch.zeros(len(replicas))

    def fold(self, server, fold):
        self.folded.append((fold.contributions[:, 0].tolist(), list(fold.staleness)))
        self.whose.append((list(fold.workers), list(fold.weights)))
        server.model += 1.0
        server.version += 1


def named(keys) -> Minibatch:
    """A minibatch that says whose it is, and of which step."""
    return Minibatch(torch.tensor([[key] for key in keys], dtype=torch.float32), torch.zeros(0))


def timeline(*rows: tuple[int, int, int, int, int], pieces: Pieces | None = None) -> Timeline:
    """Rows of fold, worker, version read, first step and steps."""
    fold, worker, read, first, steps = (np.array(column) for column in zip(*rows, strict=True))
    times = np.arange(len(rows), dtype=np.float64)
    folds = np.unique(fold[fold >= 0])
    return Timeline(
        Folds(folds, 10.0 * folds),
        Contributions(fold, worker.astype(np.int32), read, times, first, steps.astype(np.int32)),
        pieces=pieces or Pieces(),
    )


def replay(kind=StaleReplay, slots=3, **more):
    told = Told()
    made = kind(told, None, Server(torch.zeros(2)), named, slots, **more)
    return told, made


def test_a_contribution_is_of_the_version_read_and_of_its_own_minibatches():
    told, made = replay(alone=True)
    made.run(timeline((0, 0, 0, 0, 1), (1, 1, 0, 1, 2), (2, 0, 1, 3, 1), (3, 1, 2, 4, 2)), 0.1)
    seen = sorted((keys[0], read) for keys, read, _ in told.contributed)
    assert seen == [([0, 0], [0]), ([0, 3], [1]), ([1, 1], [0]), ([1, 4], [2])]
    assert [keys for keys, *_ in told.contributed if keys[0] == [1, 4]] == [[[1, 4], [1, 5]]]


def test_a_fold_is_told_how_stale_each_of_its_contributions_is():
    told, made = replay()
    made.run(timeline((0, 0, 0, 0, 1), (1, 1, 0, 1, 1), (2, 0, 1, 3, 1), (2, 1, 2, 2, 1)), 0.1)
    assert told.folded == [([0.0], [0]), ([1.0], [1]), ([3.0, 2.0], [1, 0])]


def test_a_fold_is_told_whose_its_contributions_are_and_of_how_many_minibatches():
    told, made = replay()
    made.run(timeline((0, 2, 0, 0, 3), (1, 0, 0, 1, 1), (1, 1, 0, 2, 2)), 0.1)
    assert told.whose == [([2], [3.0]), ([0, 1], [1.0, 2.0])]


def test_what_a_worker_remembers_is_its_own_and_comes_in_its_own_order():
    told, made = replay(alone=True)
    rows = ((0, 0, 0, 0, 1), (1, 0, 0, 1, 1), (2, 1, 0, 2, 1), (3, 0, 2, 3, 1), (4, 1, 3, 4, 1))
    made.run(timeline(*rows), 0.1)
    assert told.folded == [([float(step)], [step - read]) for step, _, read, *_ in rows]
    remembered = {keys[0][1]: [step for _, step in before] for keys, _, before in told.contributed}
    assert remembered == {0: [], 1: [0], 2: [], 3: [0, 1], 4: [2]}


def test_workers_that_remember_as_much_are_computed_together_and_others_after_them():
    told, made = replay(slots=6)
    sizes = list[int]()
    contribute = told.contribute

    def counted(work):
        sizes.append(len(work.replicas))
        return contribute(work)

    told.contribute = counted
    rows = ((0, 0, 0, 0, 1), (1, 1, 0, 1, 1), (2, 2, 0, 2, 1), (3, 0, 1, 3, 1), (4, 1, 1, 4, 1))
    made.run(timeline(*rows, (5, 3, 1, 5, 1), (6, 2, 4, 6, 1)), 0.1)
    assert sizes == [3, 1, 2, 1]  # one that remembers nothing is by itself
    seen = {keys[0][1]: [step for _, step in before] for keys, _, before in told.contributed}
    assert seen == {0: [], 1: [], 2: [], 3: [0], 4: [1], 5: [], 6: [2]}


def test_in_shards_too_what_a_worker_remembers_is_its_own():
    rows = ((0, 0, 0, 0, 1), (1, 1, 0, 1, 1), (2, 0, 1, 2, 1), (3, 1, 2, 3, 1))
    fold = np.repeat(np.arange(4), 2)
    pieces = Pieces(
        fold, np.tile([SERVER, SERVER - 1], 4).astype(np.int32), np.repeat([0, 0, 1, 2], 2),
        fold.copy(), np.arange(8.0),
    )  # fmt: skip
    told = Told()
    made = ShardedReplay(told, None, Server(torch.zeros(2)), named, 2)
    made.run(timeline(*rows, pieces=pieces), 0.1)
    seen = {keys[0][1]: (read, [s for _, s in before]) for keys, read, before in told.contributed}
    assert seen == {0: ([0], []), 1: ([0], []), 2: ([1], [0]), 3: ([2], [1])}
    assert made.server.model.tolist() == [4.0, 4.0]
    assert sorted(told.whose) == [([0], [1.0])] * 4 + [([1], [1.0])] * 4


def test_a_decoder_keeps_the_version_it_read_while_its_trainer_reads_others():
    _, made = replay(SequenceReplay, slots=2)
    nothing = np.zeros(0)
    none = nothing.astype(np.int64)
    first = timeline((0, 0, 0, 0, 1), (1, 1, 0, 1, 1), (2, 0, 1, 2, 1), (IN_FLIGHT, 1, 2, 3, 1))
    at_two = CountQueries(np.array([1, 0]), none, none, np.array([2, 0]), nothing)
    made.follow(first, 0.1, at_two)
    assert made.decoders[:, 0].tolist() == [0.0, 2.0]
    assert made.decoder_versions == [0, 2]
    then = timeline((3, 1, 2, 3, 1), (4, 0, 3, 4, 1))
    made.follow(then, 0.1, CountQueries(np.array([1, 0]), none, none, np.array([2, 4]), nothing))
    assert made.decoders[:, 0].tolist() == [4.0, 2.0]
    assert made.server.version == 5


def test_of_two_contributions_under_way_together_the_earlier_is_computed_first():
    told, made = replay(alone=False)
    made.run(timeline((0, 0, 0, 0, 1), (1, 0, 0, 1, 1)), 0.5)
    assert [keys for keys, _, _ in told.contributed] == [[[0.0, 0.0]], [[0.0, 1.0]]]

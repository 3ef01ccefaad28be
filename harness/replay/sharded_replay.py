"""Replay of a timeline of a server in shards: every piece folded in its shard's order.

Shards fold in different orders, and a read finds another version at each, so whole folds have no
common order. A shard folds pieces until its next one belongs to a contribution that is not read
completely; a contribution is computed once every shard has been read at the recorded version.

`ShardedServer` divides a server into shards, each with versions of its own. The parts are views of
the whole, so a fold of a shard changes the whole's model at once. Training uses the whole, and only
when nothing is in flight.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from harness.algorithms.contract import Algorithm, Fold, LocalWork, Memory, Server
from harness.algorithms.saved import Saved
from harness.algorithms.schedules import STEADY, Rates
from harness.base.errors import UserError
from harness.networks.contract import Network
from harness.replay.fold_replay import MinibatchOf, ReplicaStates
from harness.simulator.timeline import SERVER, Timeline


@dataclass(eq=False)
class _Contribution:
    """A contribution and its progress through the shards.

    Args:
        worker, step, steps: its worker, first minibatch and number of minibatches.
        versions: version read, by shard.
        folded: version before the fold of the piece, by shard.
        unread, unfolded: numbers of shards still to be read, and still to fold their piece.
        tensor: the slices of the model read so far, then the contribution ``[1, P]``.
        computed: whether ``tensor`` is the contribution.
    """

    worker: int
    step: int
    steps: int
    versions: dict[int, int] = field(default_factory=dict[int, int])
    folded: dict[int, int] = field(default_factory=dict[int, int])
    unread: int = 0
    unfolded: int = 0
    tensor: Tensor | None = None
    computed: bool = False


class ShardedReplay(Saved):
    """Trains by replaying drained timeline segments of a server in shards.

    Every contribution is computed by itself, as by its worker.

    Args:
        algorithm: computes and folds contributions.
        network: the network to train.
        server: changed in place.
        minibatch_of: gives the rows of local steps.
        shards: number of shards.
        rates: learning rates of folds and local steps, from the rate of a segment; that of local
            steps is of the oldest version among the slices read.
    """

    SAVED = ("_sharded", "states", "memories", "loss")

    def __init__(
        self,
        algorithm: Algorithm,
        network: Network,
        server: Server,
        minibatch_of: MinibatchOf,
        shards: int,
        rates: Rates = STEADY,
    ) -> None:
        self._rates = rates
        self._algorithm, self._minibatch_of = algorithm, minibatch_of
        self._sharded = ShardedServer(server, shards)
        self.server = server
        self.memories: dict[int, Memory] = {}
        self.states = ReplicaStates(network)
        self.loss = server.model.new_zeros((), dtype=torch.float64)

    @torch.no_grad()
    def run(self, segment: Timeline, rate: float, restorable: int | None = None) -> None:
        """Execute every read and piece of a segment in which nothing is in flight at either end.

        Args:
            segment: the segment.
            rate: learning rate of folds and local steps.
            restorable: for `StaleReplay`; servers in shards do not fail.

        Raises:
            UserError: the record is not of these shards, or its pieces wait for each other.
        """
        self._sharded.begin()
        self._reads: list[defaultdict[int, list[_Contribution]]]
        self._reads = [defaultdict(list) for _ in self._sharded.parts]
        queues = self._build_queues(segment)
        for shard in range(len(queues)):  # reads of the version at which the segment begins
            self._read(shard)
        while any(queues):
            # In turns: a piece may need reads of versions that other shards have still to make.
            if not any(self._go_on(shard, queue, rate) for shard, queue in enumerate(queues)):
                raise UserError("timeline: pieces that wait for each other")
        self._sharded.end(self.server.version + len(segment.folds))

    def _build_queues(self, segment: Timeline) -> list[deque[_Contribution]]:
        """Contributions of each shard in the order of its folds; fills ``_reads`` by version."""
        folded = _contributions(segment, len(self._sharded.parts))
        for task in folded:
            for shard, version in task.versions.items():
                self._reads[shard][version].append(task)
        return [
            deque(sorted(folded, key=lambda task: task.folded[shard]))
            for shard in range(len(self._sharded.parts))
        ]

    def _go_on(self, shard: int, queue: deque[_Contribution], rate: float) -> bool:
        """Fold pieces at a shard until one is not computable; True if any was folded."""
        part, edge, moved = self._sharded.parts[shard], self._sharded.edges[shard], False
        while queue and not queue[0].unread:
            task, moved = queue.popleft(), True
            if task.folded[shard] != part.version:
                raise UserError(f"timeline: shard {shard} has no piece of version {part.version}")
            piece = self._compute(task, rate)[:, slice(*edge)]
            staleness = part.version - task.versions[shard]
            fold_rate = self._rates.fold_rate(rate, part.version)
            fold = Fold(piece, [staleness], fold_rate, [task.worker], [float(task.steps)])
            self._algorithm.fold(part, fold)
            task.unfolded -= 1
            if not task.unfolded:  # its last piece: the memory can go
                task.tensor = None
            self._read(shard)
        return moved

    def _read(self, shard: int) -> None:
        """Copy a shard's slice to every contribution that reads its present version."""
        part, rows = self._sharded.parts[shard], slice(*self._sharded.edges[shard])
        for task in self._reads[shard].pop(part.version, ()):
            if task.tensor is None:
                task.tensor = torch.empty_like(self.server.model).unsqueeze(0)
            task.tensor[0, rows].copy_(part.model)
            task.unread -= 1

    def _compute(self, task: _Contribution, rate: float) -> Tensor:
        assert task.tensor is not None
        if task.computed:  # by the shard that folded first; the others take their slices
            return task.tensor
        steps = range(task.step, task.step + task.steps)
        minibatches = [self._minibatch_of([(task.worker, step)]) for step in steps]
        # Of one worker, contributions come in order: it reads again only once the last is folded.
        memory = self.memories.setdefault(task.worker, Memory())
        out = torch.empty_like(task.tensor)
        local = self._rates.step_rates(rate, min(task.versions.values()), task.steps)
        losses = self._algorithm.contribute(
            LocalWork(self.states.bind([task.worker]), task.tensor, minibatches, out, local, memory)
        )
        memory.new_pass = False
        self.states.send([(task.worker, task.step)])
        self.states.fold([(task.worker, task.step)])
        self.loss += losses.sum(dtype=torch.float64)
        task.tensor, task.computed = out, True
        return out

    def begin_pass(self) -> None:
        """Mark the next contribution of each worker as the first of a pass over the data."""
        for memory in self.memories.values():
            memory.new_pass = True


def _contributions(segment: Timeline, shards: int) -> list[_Contribution]:
    """The folded contributions of a segment, with their pieces."""
    rows, pieces = segment.folded(), segment.pieces
    columns = (rows.fold, rows.worker, rows.first_step, rows.steps)
    by_fold = {
        fold: _Contribution(worker, step, steps)
        for fold, worker, step, steps in zip(*(c.tolist() for c in columns), strict=True)
    }
    columns = (pieces.fold, SERVER - pieces.worker, pieces.read_version, pieces.version)
    for fold, shard, read_version, version in zip(*(c.tolist() for c in columns), strict=True):
        task = by_fold[fold]
        task.versions[shard], task.folded[shard] = read_version, version
        task.unread += 1
        task.unfolded += 1
    if any(task.versions.keys() != set(range(shards)) for task in by_fold.values()):
        raise UserError(f"timeline: not of a server in {shards} shards")
    return list(by_fold.values())


def edges(size: int, shards: int) -> list[tuple[int, int]]:
    """First parameter and end of each shard's slice; sizes differ by at most one.

    Example:
        >>> edges(10, 3)
        [(0, 3), (3, 6), (6, 10)]
    """
    cuts = [size * shard // shards for shard in range(shards + 1)]
    return list(pairwise(cuts))


class ShardedServer(Saved):
    """A server and its shards; the vectors of a shard are views of the whole's.

    Args:
        server: as started by the algorithm.
        shards: number of shards.

    Attributes:
        server: the undivided server; its version counts complete folds, its numbers are shard 0's.
        parts: one server per shard; its version counts its folded pieces.
        edges: see `edges`.
    """

    def __init__(self, server: Server, shards: int) -> None:
        self.server = server
        self.edges = edges(server.model.numel(), shards)
        self.parts = [_part(server, slice(*edge)) for edge in self.edges]
        self._known = dict(server.numbers)

    def begin(self) -> None:
        """Copy the whole's numbers to all shards before folds, if training has changed them."""
        if self.server.numbers != self._known:
            for part in self.parts:
                part.numbers = dict(self.server.numbers)

    def end(self, version: int) -> None:
        """Set the whole's version after folds, and take over the first shard's numbers."""
        self.server.version, self.server.numbers = version, dict(self.parts[0].numbers)
        self._known = dict(self.server.numbers)

    def state(self) -> dict[str, Any]:
        """See `Saved`; when nothing is in flight."""
        parts = [(part.version, part.numbers) for part in self.parts]
        return {"server": self.server, "parts": parts, "known": self._known}

    def restore(self, state: Mapping[str, Any]) -> None:
        """See `Saved`."""
        self.server.restore(state["server"])
        for part, (version, numbers) in zip(self.parts, state["parts"], strict=True):
            part.version, part.numbers = version, numbers
        self._known = state["known"]


def _part(server: Server, rows: slice) -> Server:
    # Slices are views; numbers are copied, for shards change them at different times.
    return Server(
        server.model[rows],
        server.version,
        {name: vector[rows] for name, vector in server.vectors.items()},
        dict(server.numbers),
        {name: vector[rows] for name, vector in server.tensors.items()},
        {name: vector[rows] for name, vector in server.past.items()},
    )

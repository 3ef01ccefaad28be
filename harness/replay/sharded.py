"""Walk a timeline of a server in shards: every piece folded in its shard's order.

Walk a timeline of a server in shards on one device: every piece folded in its shard's order.
Shards do not fold in one order, and a read finds another version at each, so there is no order of
whole folds to follow. A shard goes on as long as its next piece is computed; a contribution is
computed once every shard has been read at the version that is on record.

A server whose model lies in shards, each with versions of its own. The parts are views of the
whole, so what a shard folds is in the whole's model at once. Training looks at the whole, and only
when nothing is in flight.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor

from harness.algorithms.contract import Algorithm, Fold, LocalWork, Memory, Server
from harness.base.errors import UserError
from harness.networks.contract import Network
from harness.replay.stale import (
    Arrays,
    Facts,
    MinibatchOf,
    capture_server,
    memory_from_arrays,
    memory_to_arrays,
    reinstate_server,
)
from harness.simulator import LOST, Timeline
from harness.simulator.timeline import SERVER


@dataclass(eq=False)
class _Contribution:
    """One on its way through the shards.

    Args:
        worker, step, steps: whose, its first minibatch and how many.
        read, folded: by shard, its version at the read and before the piece is folded; a shard
            that never had its piece has `LOST`.
        unread, unfolded: shards whose turn is still to come.
        tensor: what has been read of the model ``[1, P]``, then the contribution.
        computed: which of the two.
    """

    worker: int
    step: int
    steps: int
    read: dict[int, int] = field(default_factory=dict[int, int])
    folded: dict[int, int] = field(default_factory=dict[int, int])
    unread: int = 0
    unfolded: int = 0
    tensor: Tensor | None = None
    computed: bool = False


class ShardedReplay:
    """An algorithm and its server in shards, moved along by drained timeline segments.

    Every contribution is computed by itself, as its worker did it.

    Args:
        algorithm: contributes and folds.
        network: what is trained.
        server: changed in place.
        minibatch_of: gives the frames of local steps.
        shards: how many.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        network: Network,
        server: Server,
        minibatch_of: MinibatchOf,
        shards: int,
    ) -> None:
        self._algorithm, self._network, self._minibatch_of = algorithm, network, minibatch_of
        self._sharded = ShardedServer(server, shards)
        self.server = server
        self.memories: dict[int, Memory] = {}
        self.loss = server.model.new_zeros((), dtype=torch.float64)

    @torch.no_grad()
    def run(self, segment: Timeline, rate: float) -> None:
        """Execute every read and piece of a segment in which nothing is in flight at either end.

        Raises:
            UserError: the record is not one of these shards, or its pieces wait for each other.
        """
        self._sharded.begin()
        self._reads: list[defaultdict[int, list[_Contribution]]]
        self._reads = [defaultdict(list) for _ in self._sharded.parts]
        queues = self._build_queues(segment)
        for shard in range(len(queues)):
            self._read(shard)
        while any(queues):
            if not any(self._go_on(shard, queue, rate) for shard, queue in enumerate(queues)):
                raise UserError("timeline: pieces that wait for each other")
        self._sharded.end(self.server.version + len(segment.folds))

    def _build_queues(self, segment: Timeline) -> list[deque[_Contribution]]:
        """The contributions each shard folds, in its order; who reads what is noted."""
        folded = _contributions(segment, len(self._sharded.parts))
        for each in folded:
            for shard, version in each.read.items():
                self._reads[shard][version].append(each)
        return [
            deque(
                sorted(
                    (each for each in folded if each.folded[shard] != LOST),
                    key=lambda each: each.folded[shard],
                )
            )
            for shard in range(len(self._sharded.parts))
        ]

    def _go_on(self, shard: int, queue: deque[_Contribution], rate: float) -> bool:
        """Fold what can be folded at a shard; whether anything could."""
        part, edge, moved = self._sharded.parts[shard], self._sharded.edges[shard], False
        while queue and not queue[0].unread:
            each, moved = queue.popleft(), True
            if each.folded[shard] != part.version:
                raise UserError(f"timeline: shard {shard} has no piece of version {part.version}")
            piece = self._compute(each, rate)[:, slice(*edge)]
            staleness = part.version - each.read[shard]
            fold = Fold(piece, [staleness], rate, [each.worker], [float(each.steps)])
            self._algorithm.fold(part, fold)
            each.unfolded -= 1
            if not each.unfolded:
                each.tensor = None
            self._read(shard)
        return moved

    def _read(self, shard: int) -> None:
        """Copy the shard's slice to everybody who reads its present version."""
        part, rows = self._sharded.parts[shard], slice(*self._sharded.edges[shard])
        for each in self._reads[shard].pop(part.version, ()):
            if each.tensor is None:
                each.tensor = torch.empty_like(self.server.model).unsqueeze(0)
            each.tensor[0, rows].copy_(part.model)
            each.unread -= 1

    def _compute(self, each: _Contribution, rate: float) -> Tensor:
        assert each.tensor is not None
        if each.computed:
            return each.tensor
        steps = range(each.step, each.step + each.steps)
        minibatches = [self._minibatch_of([(each.worker, step)]) for step in steps]
        memory = self.memories.setdefault(each.worker, Memory())
        out = torch.empty_like(each.tensor)
        losses = self._algorithm.contribute(
            LocalWork(self._network, each.tensor, minibatches, out, rate, memory)
        )
        memory.new_pass = False
        self.loss += losses.sum(dtype=torch.float64)
        each.tensor, each.computed = out, True
        return out

    def begin_pass(self) -> None:
        """The next contributions are the first of a pass over the data."""
        for memory in self.memories.values():
            memory.new_pass = True

    def capture(self) -> tuple[Arrays, Facts]:
        """Everything a resume needs, between segments."""
        arrays, facts = self._sharded.capture()
        for worker, memory in self.memories.items():
            arrays |= memory_to_arrays(f"memories/{worker}/", memory)
        new_passes = [[worker, m.new_pass] for worker, m in self.memories.items()]
        return arrays, {**facts, "loss": self.loss.item(), "new_passes": new_passes}

    def reinstate(self, arrays: Arrays, facts: Facts) -> None:
        """Undo `capture`."""
        self._sharded.reinstate(arrays, facts)
        self.loss.fill_(facts["loss"])
        device = self.server.model.device
        self.memories = {
            worker: memory_from_arrays(arrays, f"memories/{worker}/", new_pass, device)
            for worker, new_pass in facts["new_passes"]
        }


def _contributions(segment: Timeline, shards: int) -> list[_Contribution]:
    """The folded contributions of a segment, with their pieces."""
    rows, pieces = segment.folded(), segment.pieces
    columns = (rows.fold, rows.worker, rows.first_step, rows.steps)
    by_fold = {
        fold: _Contribution(worker, step, steps)
        for fold, worker, step, steps in zip(*(c.tolist() for c in columns), strict=True)
    }
    columns = (pieces.fold, SERVER - pieces.worker, pieces.read_version, pieces.version)
    for fold, shard, read, version in zip(*(c.tolist() for c in columns), strict=True):
        each = by_fold[fold]
        each.read[shard], each.folded[shard] = read, version
        each.unread += 1
        each.unfolded += version != LOST
    if any(each.read.keys() != set(range(shards)) for each in by_fold.values()):
        raise UserError(f"timeline: not of a server in {shards} shards")
    return list(by_fold.values())


def edges(size: int, shards: int) -> list[tuple[int, int]]:
    """First parameter and end of each shard's contiguous slice, as equal as can be."""
    cuts = [size * shard // shards for shard in range(shards + 1)]
    return list(pairwise(cuts))


class ShardedServer:
    """The whole, and its parts.

    Args:
        whole: as the algorithm starts it.
        shards: how many.

    Attributes:
        whole: its version counts complete folds; its numbers are the first shard's.
        parts: one server a shard, whose vectors are views; its version counts its pieces.
        edges: of the parts' slices.
    """

    def __init__(self, whole: Server, shards: int) -> None:
        self.whole = whole
        self.edges = edges(whole.model.numel(), shards)
        self.parts = [_part(whole, slice(*edge)) for edge in self.edges]
        self._known = dict(whole.numbers)

    def begin(self) -> bool:
        """Folds come: what training has changed of the whole's numbers holds in every shard.

        Returns:
            Whether it has changed any.
        """
        changed = self.whole.numbers != self._known
        if changed:
            for part in self.parts:
                part.numbers = dict(self.whole.numbers)
        return changed

    def end(self, version: int) -> None:
        """Folds are over, and the whole has had so many."""
        self.whole.version, self.whole.numbers = version, dict(self.parts[0].numbers)
        self._known = dict(self.whole.numbers)

    def capture(self) -> tuple[Arrays, Facts]:
        """All that `reinstate` needs, when nothing is in flight."""
        arrays, facts = capture_server(self.whole)
        parts = [[part.version, dict(part.numbers)] for part in self.parts]
        return arrays, {**facts, "parts": parts, "known": self._known}

    def reinstate(self, arrays: Arrays, facts: Facts) -> None:
        """Undo `capture`."""
        reinstate_server(self.whole, arrays, facts)
        for part, (version, numbers) in zip(self.parts, facts["parts"], strict=True):
            part.version, part.numbers = version, numbers
        self._known = facts["known"]


def _part(whole: Server, rows: slice) -> Server:
    return Server(
        whole.model[rows],
        whole.version,
        {name: vector[rows] for name, vector in whole.vectors.items()},
        dict(whole.numbers),
        {name: vector[rows] for name, vector in whole.tensors.items()},
        {name: vector[rows] for name, vector in whole.past.items()},
    )

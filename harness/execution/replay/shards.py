"""A server whose model lies in shards, each with versions of its own.

The parts are views of the whole, so what a shard folds is in the whole's model at once. Training
looks at the whole, and only when nothing is in flight.
"""

from __future__ import annotations

from itertools import pairwise

from harness.algorithms.contract import Server
from harness.execution.replay.state import Arrays, Facts, capture_server, reinstate_server


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

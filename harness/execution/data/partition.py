"""The data of workers that train in rounds: each has its own part of the utterances.

As paper 2's program does it: utterances in order of length go, one by one, to the worker that
has the fewest frames so far; each worker shuffles its frames anew for every pass; a pass ends
for all after as many rounds as the worker with the fewest frames can fill, and what is left
over is dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heapreplace

import numpy as np

from harness.errors import UserError
from harness.execution.data.frames import InBlocks, Shuffling, row_numbers
from harness.seeds import stream


@dataclass(frozen=True, eq=False)
class Partition:
    """The minibatches of one pass, worker by worker.

    Args:
        seed: the run's seed; ``stage`` numbers the pass, so that every pass differs.
        start, frames: first row and length of each training utterance.
        workers: how many share them.
        minibatch: frames a minibatch.
        every: minibatches a round.
        share: the share of the utterances used.
        shuffling: of a worker's frames: ``"full"``, or ``"in blocks"`` within each piece.
        unit: what a user calls the frames.

    Raises:
        UserError: a worker's part does not fill one round.
    """

    seed: int
    stage: int
    start: np.ndarray
    frames: np.ndarray
    workers: int
    minibatch: int
    every: int
    share: float = 1.0
    shuffling: Shuffling = "full"
    unit: str = "frames"

    def __post_init__(self) -> None:
        if not self.folds:
            need, left = self.every * self.minibatch, min(self._sizes)
            raise UserError(
                f"workers: {self.workers} leave one of them {left} {self.unit};"
                f" allowed: as many as have {need} each, one round's"
            )

    @property
    def folds(self) -> int:
        """Rounds in the pass."""
        return min(self._sizes) // (self.every * self.minibatch)

    @property
    def steps(self) -> int:
        """Minibatches of each worker in the pass."""
        return self.folds * self.every

    def rows_of(self, keys: Sequence[tuple[int, int]]) -> np.ndarray:
        """The frames (row numbers, ``[W, B]``) of minibatches named by (worker, step).

        After the last step comes the first: a round that is given up is handed out anew.
        """
        size = self.minibatch
        at = [(worker, size * (step % self.steps)) for worker, step in keys]
        return np.stack([self._shuffled[worker][first : first + size] for worker, first in at])

    @property
    def _sizes(self) -> list[int]:
        """How many frames each worker has."""
        return [int(self.frames[own].sum()) for own in self._owned]

    @cached_property
    def _owned(self) -> list[np.ndarray]:
        """The utterances of each worker."""
        every = len(self.start)
        subset = stream(self.seed, "subset").permutation(every)[: max(1, round(self.share * every))]
        return balanced(self.frames, np.sort(subset), self.workers)

    @cached_property
    def _shuffled(self) -> list[np.ndarray | InBlocks]:
        """Every worker's frames of this pass in the order they are trained on."""
        return [self._order_of(worker, own) for worker, own in enumerate(self._owned)]

    def _order_of(self, worker: int, own: np.ndarray) -> np.ndarray | InBlocks:
        if self.shuffling == "in blocks":
            chosen = stream(self.seed, "pieces of a worker", self.stage, worker).permutation(own)
            named = (self.seed, "frames of a worker", self.stage, worker)
            return InBlocks(self.start[chosen], self.frames[chosen], named)
        rows = row_numbers(self.start[own], self.frames[own])
        return stream(self.seed, "frames of a worker", self.stage, worker).permutation(rows)


def balanced(frames: np.ndarray, chosen: np.ndarray, workers: int) -> list[np.ndarray]:
    """Hand utterances out, the longest first, each to the worker with the fewest frames so far.

    Args:
        frames: length of every utterance.
        chosen: numbers of those to hand out.
        workers: how many share them; the first of equals comes first.

    Returns:
        The utterances of each worker, in the order they were handed out.
    """
    longest_first = chosen[np.argsort(-frames[chosen], kind="stable")]
    least = [(0, worker) for worker in range(workers)]
    dealt: list[list[int]] = [[] for _ in range(workers)]
    for utterance in longest_first.tolist():
        has, worker = least[0]
        dealt[worker].append(utterance)
        heapreplace(least, (has + int(frames[utterance]), worker))
    return [np.array(own, dtype=np.int64) for own in dealt]

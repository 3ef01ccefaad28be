"""The data of workers that train in rounds: each has its own part of them.

As paper 2's program does it: utterances in order of length go, one by one, to the worker that
has the fewest frames so far; each worker shuffles its frames anew for every pass; a pass ends
for all after as many rounds as the worker with the fewest frames can fill, and what is left
over is dropped.

Examples that are not speech are dealt and shuffled in the same way, and none is dropped: rounds
run over the end of a pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from heapq import heapreplace

import numpy as np

from harness.base.errors import UserError
from harness.base.seeds import stream
from harness.execution.data.frames import InBlocks, Order, Shuffling, row_numbers


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
    def size(self) -> int:
        """Frames of the pass, with those that fill no round."""
        return sum(self._sizes)

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

    def sequence(self, worker: int) -> np.ndarray | InBlocks:
        """A worker's rows of the pass in the order of training."""
        return self._shuffled[worker]

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


@dataclass(frozen=True, eq=False)
class Unbroken:
    """The minibatches of one pass of rounds that run over the ends of passes.

    A worker's examples of all passes are one sequence, shuffled anew for each pass. Pass k
    (from 1) of P ends for all with round ``ceil(k N / (B m))``: N examples, B in a minibatch and m
    minibatches in a round of all workers. So every example is trained on once a pass, but for what
    the last minibatches take of one more, and for a worker with an example more than another: both
    make as many minibatches, so the former is that much behind.

    Args:
        pass_of: the examples of a pass by its number, from 0.
        stage: the number of this pass.
        passes: P.
        workers: how many train.
        own: a worker's minibatches in a round, where it counts them itself; the last round of the
            last pass is as much shorter as it takes. None where one counter hands out all.
        a_fold: what that counter hands out for a round.
    """

    pass_of: Callable[[int], Order | Partition]
    stage: int
    passes: int
    workers: int
    own: int | None
    a_fold: int

    @property
    def frames(self) -> np.ndarray:
        """Rows of each example: one."""
        return self._pass(self.stage).frames

    @property
    def minibatch(self) -> int:
        """Examples in a minibatch."""
        return self._pass(self.stage).minibatch

    @property
    def size(self) -> int:
        """Examples of the pass."""
        return self._pass(self.stage).size

    @property
    def folds(self) -> int:
        """Rounds that end in the pass."""
        return self._rounds(self.stage + 1) - self._rounds(self.stage)

    @property
    def steps(self) -> int:
        """Minibatches of each counter in the pass."""
        if self.own is None or self.stage + 1 != self.passes:
            return self.folds * self._each
        whole = -(-self.passes * self.size // (self.workers * self.minibatch))
        return whole - self._rounds(self.stage) * self.own

    def rows_of(self, keys: Sequence[tuple[int, int]]) -> np.ndarray:
        """The examples (row numbers, ``[W, B]``) of minibatches named by (worker, step).

        Steps beyond the pass are of the next one: where contributions are lost, more are handed
        out.
        """
        before = self._rounds(self.stage) * self._each
        return np.stack([self._rows(worker, before + step) for worker, step in keys])

    @property
    def _each(self) -> int:
        """Minibatches of each counter in a whole round."""
        return self.own or self.a_fold

    def _rounds(self, passes: int) -> int:
        """Rounds that have ended with so many passes."""
        at_once = self.workers * self.own if self.own else self.a_fold
        return -(-passes * self.size // (at_once * self.minibatch))

    def _rows(self, worker: int, step: int) -> np.ndarray:
        """The rows of a minibatch by its number since the run began."""
        size, length = self.minibatch, len(self._pass(self.stage).sequence(worker))
        number, first = divmod(step * size, length)
        rows = self._pass(number).sequence(worker)[first : first + size]
        if len(rows) == size:
            return rows
        more = self._pass(number + 1).sequence(worker)[: size - len(rows)]
        return np.concatenate([rows, more])

    @cached_property
    def _pass(self) -> Callable[[int], Order | Partition]:
        """`pass_of`, which keeps the two or three passes that are being asked about."""
        return lru_cache(maxsize=3)(self.pass_of)


Laid = Order | Partition | Unbroken
"""The minibatches of one stage, laid out."""


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

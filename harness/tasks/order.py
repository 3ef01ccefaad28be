"""Order of training data: minibatches stage by stage, and each worker's own part.

The data of workers that train in rounds: each has its own part of them. As paper 2's program does
it: utterances in order of length go, one by one, to the worker that has the fewest frames so far;
each worker shuffles its frames anew for every pass; a pass ends for all after as many rounds as
the worker with the fewest frames can fill, and what is left over is dropped.

Examples that are not speech are dealt and shuffled in the same way, and none is dropped: rounds
run over the end of a pass.

Which frames a minibatch has: the training data of a run, stage by stage. Frames on a device, and
the order in which a run sees them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from heapq import heapreplace
from typing import Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from harness.base.errors import UserError
from harness.base.seeds import stream
from harness.networks.contract import Minibatch

Shuffling = Literal["none", "on the fly", "full", "in blocks"]


@dataclass(frozen=True, eq=False)
class Order:
    """The minibatches of one stage: its frames, shuffled.

    The last frames that do not fill a fold are left out of the stage.

    Args:
        seed: the run's seed; ``stage`` numbers the stage, so that every pass differs.
        start, frames: first row and length of each training utterance.
        minibatch: frames a minibatch.
        share: the share of the utterances used.
        a_fold: minibatches that are handed out for a fold.
        shuffling: ``"full"`` as above; ``"none"`` leaves frames in the order of their utterances;
            ``"on the fly"`` has in a minibatch a frame of each slot's utterance (`slotted`);
            ``"in blocks"`` shuffles pieces, and frames within each (`InBlocks`).
    """

    seed: int
    stage: int
    start: np.ndarray
    frames: np.ndarray
    minibatch: int
    share: float = 1.0
    a_fold: int = 1
    shuffling: Shuffling = "full"

    @property
    def steps(self) -> int:
        """Minibatches in the stage: whole folds of them."""
        return self.folds * self.a_fold

    @cached_property
    def folds(self) -> int:
        """Folds in the stage."""
        slots = self.shuffling == "on the fly"  # which leave frames out at the end
        rows = len(self._shuffled) if slots else self.size
        return rows // (self.minibatch * self.a_fold)

    @property
    def size(self) -> int:
        """Frames of the stage, with those that fill no fold."""
        return int(self.frames[self._subset].sum())

    def sequence(self, worker: int) -> np.ndarray | InBlocks:
        """The rows of the stage in the order of training, which all workers share."""
        del worker
        return self._shuffled

    def rows(self, step: int) -> np.ndarray:
        """The frames (row numbers, ``[B]``) of minibatch ``step``.

        After the last comes the first: where contributions are lost, more are handed out.
        """
        first = self.minibatch * (step % self.steps)
        return self._shuffled[first : first + self.minibatch]

    def rows_of(self, keys: Sequence[tuple[int, int]]) -> np.ndarray:
        """The frames (``[W, B]``) of minibatches named by (worker, step), whoever the worker."""
        if len(keys) == 1:  # without a copy
            return self.rows(keys[0][1])[None]
        return np.stack([self.rows(step) for _, step in keys])

    @cached_property
    def _subset(self) -> np.ndarray:
        """Numbers of the utterances used: a pass over 25% is the same 25% whichever stage asks."""
        every = stream(self.seed, "subset").permutation(len(self.start))
        return every[: max(1, round(self.share * len(every)))]

    @cached_property
    def _shuffled(self) -> np.ndarray | InBlocks:
        """Every row of the stage in the order it is trained on."""
        chosen = stream(self.seed, "utterance order", self.stage).permutation(self._subset)
        if self.shuffling == "in blocks":
            named = (self.seed, "frame order", self.stage)
            return InBlocks(self.start[chosen], self.frames[chosen], named)
        rows = row_numbers(self.start[chosen], self.frames[chosen])
        if self.shuffling == "none":
            return rows
        if self.shuffling == "on the fly":
            return rows[interleave_slots(self.frames[chosen], self.minibatch)]
        # 0, because frames were once shuffled piece by piece: one piece keeps its bytes.
        return stream(self.seed, "frame order", self.stage, 0).permutation(rows)


class InBlocks:
    """Rows of pieces, shuffled within each: made as they are asked for, and not all at once.

    Args:
        start, frames: first row and length of each piece, in the order they are taken.
        named: seed, purpose and keys of the random numbers; a piece adds its place.
    """

    def __init__(
        self, start: np.ndarray, frames: np.ndarray, named: tuple[int, str, *tuple[int, ...]]
    ) -> None:
        self._start, self._frames, self._named = start, frames, named
        self._ends = np.cumsum(frames)
        self._rows = lru_cache(maxsize=2)(self._piece)

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def __getitem__(self, some: slice) -> np.ndarray:
        first, last, _ = some.indices(len(self))
        begin, end = np.searchsorted(self._ends, [first, last - 1], side="right").tolist()
        pieces = [self._rows(k) for k in range(begin, end + 1)]
        before = int(self._ends[begin] - self._frames[begin])
        return np.concatenate(pieces)[first - before : last - before]

    def _piece(self, place: int) -> np.ndarray:
        first, length = int(self._start[place]), int(self._frames[place])
        return first + stream(*self._named, place).permutation(length)


def row_numbers(start: np.ndarray, frames: np.ndarray) -> np.ndarray:
    """The row numbers of utterances, one after the other."""
    before = np.cumsum(frames) - frames
    return np.arange(int(frames.sum())) + np.repeat(start - before, frames)


def interleave_slots(frames: np.ndarray, slots: int) -> np.ndarray:
    """Paper 3's on-the-fly shuffling (section 3.1), of frames that need no decoding.

    Each slot has an utterance and gives one frame to every minibatch; a slot that has run out
    takes the next utterance, the first slot first. What is left when no slot can take another
    and one has run out fills no minibatch and is left out.

    Args:
        frames: length of each utterance, in the order they are taken.
        slots: frames of a minibatch.

    Returns:
        Positions in the utterances laid end to end, int64, minibatch after minibatch.
    """
    free = [(0, slot) for slot in range(slots)]
    given: list[list[np.ndarray]] = [[] for _ in free]
    begin = 0
    for length in map(int, frames):
        steps, slot = free[0]
        given[slot].append(np.arange(begin, begin + length))
        heapreplace(free, (steps + length, slot))
        begin += length
    columns = [np.concatenate([np.zeros(0, np.int64), *own]) for own in given]
    return np.stack([own[: free[0][0]] for own in columns], axis=1).ravel()


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
        return balance_utterances(self.frames, np.sort(subset), self.workers)

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
class ContinuousOrder:
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


Laid = Order | Partition | ContinuousOrder
"""The minibatches of one stage, laid out."""


def balance_utterances(frames: np.ndarray, chosen: np.ndarray, workers: int) -> list[np.ndarray]:
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


Key = tuple[int, int]
"""A contribution's name: (worker, first_step)."""


class Examples(Protocol):
    """Training data on a device, row by row."""

    @property
    def device(self) -> torch.device:
        """Where they are."""
        ...

    def gather(self, rows: Tensor) -> Minibatch:
        """The minibatches of ``rows [W, B]``, which may be on the host."""
        ...


class Minibatches:
    """The minibatches of one run; all who execute the run make themselves the same.

    Args:
        order_of: the order of each stage, by its number.
        examples: the training data on its device.

    Attributes:
        order: of the present stage.
        stage: its number.
        before: the steps of all stages before it.
    """

    def __init__(self, order_of: Callable[[int], Laid], examples: Examples) -> None:
        self._order_of, self._examples = order_of, examples
        self.begin(0, 0)

    def begin(self, stage: int, before: int) -> None:
        """Lay out a stage that begins after so many steps."""
        self.stage, self.before, self.order = stage, before, self._order_of(stage)

    def fetch(self, keys: Sequence[Key]) -> Minibatch:
        """The frames of the minibatches named by worker and by step since the run began."""
        rows = self.order.rows_of([(worker, step - self.before) for worker, step in keys])
        return self._examples.gather(torch.as_tensor(rows))

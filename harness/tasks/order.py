"""Order of training data: minibatches stage by stage, and each worker's own part.

Without rounds, all workers share one shuffled order of the stage's rows (`Order`).

In rounds, each worker has its own part of the data (`Partition`), as in paper 2's program:
pieces in order of length go, one by one, to the worker with the fewest rows so far; each
worker shuffles its rows again for every pass; a pass ends for all workers after as many rounds as
the worker with the fewest rows can fill, and the remaining rows are dropped.

Examples that are not speech are dealt and shuffled in the same way, and none is dropped: rounds
continue over the end of a pass (`ContinuousOrder`). If workers have different data (`Shares`), each
goes around its own share, in rounds or without.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from heapq import heapreplace
from typing import Any, Generic, Literal, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from harness.base.errors import UserError
from harness.base.seeds import stream
from harness.base.settings import format_count
from harness.networks.contract import Key, Minibatch

Shuffling = Literal["none", "on the fly", "full", "in blocks"]

AnyOrder = TypeVar("AnyOrder", bound="Order | Partition | Shares")


@dataclass(frozen=True, eq=False)
class Order:
    """The minibatches of one stage: its rows, shuffled.

    The last rows that do not fill a fold are left out of the stage.

    Args:
        seed: the run's seed; ``stage`` numbers the stage, so that every pass differs.
        start, lengths: first row and length of each training piece, ``[pieces]``.
        minibatch: rows in a minibatch.
        share: the share of the pieces used, in (0, 1].
        a_fold: minibatches that are handed out for a fold.
        shuffling: ``"full"`` permutes all rows; ``"none"`` keeps the order of pieces;
            ``"on the fly"`` takes one row of each slot's piece (`interleave_slots`);
            ``"in blocks"`` shuffles pieces, and rows within each (`InBlocks`).
    """

    seed: int
    stage: int
    start: np.ndarray
    lengths: np.ndarray
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
        slots = self.shuffling == "on the fly"  # leaves out the last rows, see `interleave_slots`
        rows = len(self._shuffled) if slots else self.size
        return rows // (self.minibatch * self.a_fold)

    @property
    def size(self) -> int:
        """Number of rows of the stage, including those that fill no fold."""
        return int((self.lengths if self.share == 1.0 else self.lengths[self._subset]).sum())

    def sequence(self, worker: int) -> np.ndarray | InBlocks:
        """The rows of the stage in the order of training, which all workers share."""
        return self._shuffled

    def rows(self, step: int) -> np.ndarray:
        """The row numbers (``[B]``) of minibatch ``step``."""
        begin = self.minibatch * step
        return self._shuffled[begin : begin + self.minibatch]

    def rows_of(self, keys: Sequence[tuple[int, int]]) -> np.ndarray:
        """The row numbers (``[W, B]``) of minibatches by (worker, step), whoever the worker is."""
        if len(keys) == 1:  # without a copy
            return self.rows(keys[0][1])[None]
        return np.stack([self.rows(step) for _, step in keys])

    @cached_property
    def _subset(self) -> np.ndarray:
        """Indices of the pieces used."""
        return draw_subset(self.seed, len(self.start), self.share)

    @cached_property
    def _shuffled(self) -> np.ndarray | InBlocks:
        """All rows of the stage in the order of training."""
        chosen = stream(self.seed, "utterance order", self.stage).permutation(self._subset)
        if self.shuffling == "in blocks":
            keys = (self.seed, "frame order", self.stage)
            return InBlocks(self.start[chosen], self.lengths[chosen], keys)
        rows = row_numbers(self.start[chosen], self.lengths[chosen])
        if self.shuffling == "none":
            return rows
        if self.shuffling == "on the fly":
            return rows[interleave_slots(self.lengths[chosen], self.minibatch)]
        # The key 0 numbers the only piece; it stays, so that stored runs keep their order.
        return stream(self.seed, "frame order", self.stage, 0).permutation(rows)


def draw_subset(seed: int, pieces: int, share: float) -> np.ndarray:
    """Indices of a share of the pieces; 25% are the same 25% in every stage and pass."""
    return stream(seed, "subset").permutation(pieces)[: max(1, round(share * pieces))]


class InBlocks:
    """A lazy sequence of rows, shuffled within each piece, in the order of the pieces.

    Only the rows of the pieces that a slice touches are computed.

    Args:
        start, lengths: first row and length of each piece, in the order of training.
        named: seed, purpose and keys of the random stream; each piece appends its position.
    """

    def __init__(
        self, start: np.ndarray, lengths: np.ndarray, keys: tuple[int, str, *tuple[int, ...]]
    ) -> None:
        self._start, self._lengths, self._named = start, lengths, keys
        self._ends = np.cumsum(lengths)
        self._rows = lru_cache(maxsize=2)(self._piece)

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def __getitem__(self, rows: slice) -> np.ndarray:
        start, stop, _ = rows.indices(len(self))
        begin, end = np.searchsorted(self._ends, [start, stop - 1], side="right").tolist()
        pieces = [self._rows(k) for k in range(begin, end + 1)]
        before = int(self._ends[begin] - self._lengths[begin])
        return np.concatenate(pieces)[start - before : stop - before]

    def _piece(self, place: int) -> np.ndarray:
        start, length = int(self._start[place]), int(self._lengths[place])
        return start + stream(*self._named, place).permutation(length)


def row_numbers(start: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Row numbers of pieces, concatenated."""
    before = np.cumsum(lengths) - lengths
    return np.arange(int(lengths.sum())) + np.repeat(start - before, lengths)


def interleave_slots(lengths: np.ndarray, slots: int) -> np.ndarray:
    """Shuffling on the fly (Heigold et al. 2014, section 3.1).

    Each slot holds a piece and gives one row to every minibatch; a slot that has run out
    takes the next piece, lower slots first. When a slot has run out and no piece is left,
    the remaining rows of the others are dropped.

    Args:
        lengths: length of each piece, in the order they are taken.
        slots: number of slots, the rows of a minibatch.

    Returns:
        Positions in the concatenated pieces, int64, minibatch after minibatch.

    Example:
        >>> interleave_slots(np.array([3, 1, 2]), slots=2).reshape(-1, 2).tolist()
        [[0, 3], [1, 4], [2, 5]]
    """
    free = [(0, slot) for slot in range(slots)]
    pieces: list[list[np.ndarray]] = [[] for _ in free]
    begin = 0
    for length in map(int, lengths):
        steps, slot = free[0]
        pieces[slot].append(np.arange(begin, begin + length))
        heapreplace(free, (steps + length, slot))
        begin += length
    columns = [np.concatenate([np.zeros(0, np.int64), *positions]) for positions in pieces]
    return np.stack([positions[: free[0][0]] for positions in columns], axis=1).ravel()


@dataclass(frozen=True, eq=False)
class Partition:
    """The minibatches of one pass, worker by worker.

    Args:
        seed: the run's seed; ``stage`` numbers the pass, so that every pass differs.
        start, lengths: first row and length of each training piece, ``[pieces]``.
        workers: number of workers that share them.
        minibatch: rows in a minibatch.
        every: minibatches of a worker in a round.
        share: the share of the pieces used, in (0, 1].
        shuffling: of a worker's rows: ``"full"``, or ``"in blocks"`` within each piece.
        unit: the word for frames in messages.
        drops_rest: whether rows that fill no round are left out (see `Task.drops_rest`).

    Raises:
        UserError: a worker's part does not fill one round, or is empty if rounds go on over passes.
    """

    seed: int
    stage: int
    start: np.ndarray
    lengths: np.ndarray
    workers: int
    minibatch: int
    every: int
    share: float = 1.0
    shuffling: Shuffling = "full"
    unit: str = "frames"
    drops_rest: bool = True

    def __post_init__(self) -> None:
        rows, need = min(self._sizes), self.every * self.minibatch
        if rows >= need or (rows and not self.drops_rest):
            return
        mistake = f"workers: {self.workers} leave one of them {rows} {self.unit}"
        if not rows:
            raise UserError(f"{mistake}; allowed: fewer workers")
        minibatches = f"{format_count(self.every, 'minibatch')} of {self.minibatch}"
        most = rows // self.minibatch
        fits = f"at most {most} minibatches in a round" if most else "smaller minibatches"
        needed = f"and a round takes {need} of each ({minibatches})"
        raise UserError(f"{mistake}, {needed}; allowed: fewer workers, or {fits}")

    @property
    def size(self) -> int:
        """Number of rows of the pass, including those that fill no round."""
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
        """The row numbers (``[W, B]``) of minibatches named by (worker, step)."""
        size = self.minibatch
        at = [(worker, size * step) for worker, step in keys]
        return np.stack([self._shuffled[worker][begin : begin + size] for worker, begin in at])

    def sequence(self, worker: int) -> np.ndarray | InBlocks:
        """A worker's rows of the pass in the order of training."""
        return self._shuffled[worker]

    @property
    def _sizes(self) -> list[int]:
        """Number of rows of each worker."""
        return [int(self.lengths[pieces].sum()) for pieces in self._owned]

    @cached_property
    def _owned(self) -> list[np.ndarray]:
        """The pieces of each worker."""
        subset = draw_subset(self.seed, len(self.start), self.share)
        return balance_pieces(self.lengths, np.sort(subset), self.workers)

    @cached_property
    def _shuffled(self) -> list[np.ndarray | InBlocks]:
        """Each worker's rows of this pass in the order of training."""
        return [self._order_of(worker, pieces) for worker, pieces in enumerate(self._owned)]

    def _order_of(self, worker: int, pieces: np.ndarray) -> np.ndarray | InBlocks:
        if self.shuffling == "in blocks":
            chosen = stream(self.seed, "pieces of a worker", self.stage, worker).permutation(pieces)
            keys = (self.seed, "frames of a worker", self.stage, worker)
            return InBlocks(self.start[chosen], self.lengths[chosen], keys)
        rows = row_numbers(self.start[pieces], self.lengths[pieces])
        return stream(self.seed, "frames of a worker", self.stage, worker).permutation(rows)


@dataclass(frozen=True, eq=False)
class OfStages(Generic[AnyOrder]):
    """The minibatches of a stage that may need those of its neighbours.

    Args:
        order_of: from the number of a stage to its examples.
        stage: number of this stage.
    """

    order_of: Callable[[int], AnyOrder]
    stage: int

    def __post_init__(self) -> None:
        self._stage(self.stage)  # fails here if the data fill no fold

    @property
    def lengths(self) -> np.ndarray:
        """Rows of each training piece; of examples, ones."""
        return self._stage(self.stage).lengths

    @property
    def minibatch(self) -> int:
        """Rows in a minibatch."""
        return self._stage(self.stage).minibatch

    @property
    def size(self) -> int:
        """Number of rows of the stage, including those that fill no fold."""
        return self._stage(self.stage).size

    @cached_property
    def _stage(self) -> Callable[[int], AnyOrder]:
        # A minibatch may be of this stage or of the one before or after it.
        return lru_cache(maxsize=3)(self.order_of)


@dataclass(frozen=True, eq=False)
class Consecutive(OfStages[Order | Partition]):
    """The minibatches of a stage among others of equal minibatches, without a wait between them.

    Steps beyond a stage belong to the next one, and earlier ones to the one before.

    Args:
        stages: numbers of the stages from one wait for all workers to the next.
    """

    stages: range

    @property
    def folds(self) -> int:
        """Folds in the stage."""
        return self._stage(self.stage).folds

    @property
    def steps(self) -> int:
        """Minibatches of each counter in the stage."""
        return self._stage(self.stage).steps

    def ahead(self, enough: int) -> int:
        """Folds of later stages before the next wait; any number from ``enough`` if so many."""
        folds = 0
        for stage in range(self.stage + 1, self.stages.stop):
            if folds >= enough:
                break
            folds += self._stage(stage).folds
        return folds

    def rows_of(self, keys: Sequence[tuple[int, int]]) -> np.ndarray:
        """The row numbers (``[W, B]``) of minibatches named by (worker, step)."""
        places = [(worker, *self._find(step)) for worker, step in keys]
        rows = [self._stage(stage).rows_of([(worker, step)]) for worker, stage, step in places]
        return rows[0] if len(rows) == 1 else np.concatenate(rows)

    def passes_of(self, keys: Sequence[tuple[int, int]]) -> np.ndarray:
        """The number of the pass of each row of `rows_of`: that of its stage."""
        stages = [self._find(step)[0] for _, step in keys]
        return np.repeat(np.array(stages)[:, None], self.minibatch, axis=1)

    def _find(self, step: int) -> tuple[int, int]:
        """The stage of a step that is counted from the beginning of this one, and its step."""
        stage = self.stage
        while step < 0:
            stage -= 1
            step += self._stage(stage).steps
        # The first stage follows the last one: more minibatches than there are get handed out if
        # contributions are lost.
        while step >= (steps := self._stage(stage).steps):
            step -= steps
            stage = stage + 1 if stage + 1 in self.stages else self.stages.start
        return stage, step


@dataclass(frozen=True, eq=False)
class Shares:
    """The examples of every worker's own share, shuffled; for `ContinuousOrder` only.

    Args:
        seed: the run's seed.
        stage: number of times that a worker has gone through its share before.
        rows: the examples of each worker.
        minibatch: examples in a minibatch.
    """

    seed: int
    stage: int
    rows: Sequence[np.ndarray]
    minibatch: int

    @property
    def lengths(self) -> np.ndarray:
        """Rows of each example: one."""
        return np.ones(self.size, np.int64)

    @property
    def size(self) -> int:
        """Number of examples of all workers."""
        return sum(map(len, self.rows))

    def sequence(self, worker: int) -> np.ndarray:
        """A worker's examples in the order of training."""
        generator = stream(self.seed, "frames of a worker", self.stage, worker)
        return generator.permutation(self.rows[worker])


@dataclass(frozen=True, eq=False)
class ContinuousOrder(OfStages[Order | Partition | Shares]):
    """The minibatches of one pass whose folds continue over the ends of passes.

    A worker's examples of all passes form one sequence, shuffled again for each pass. Pass k
    (from 1) of P ends for all workers with round ``ceil(k N / (B m))``: N examples, B in a
    minibatch, m minibatches in a round of all workers. So every example is trained on once a pass,
    with two exceptions: the last minibatches take examples of one pass more, and a worker with one
    example more than another makes as many minibatches, so it falls behind by that example. Of
    `Shares`, a pass is as many examples, and each worker goes around its own share meanwhile: more
    often if it is small, or if the worker is fast and waits for no other.

    Args:
        order_of: with `Shares`, from the number of times that a worker has gone through its share.
        passes: P.
        until: number of the next stage that begins with nothing in flight.
        workers: number of workers.
        own: minibatches of one worker in a round, if each worker counts its own; the last round of
            all is shorter as needed. None if one counter hands out all minibatches.
        a_fold: minibatches that this counter hands out for a round.
    """

    passes: int
    until: int
    workers: int
    own: int | None
    a_fold: int

    @property
    def folds(self) -> int:
        """Rounds that end in the pass."""
        return self._rounds(self.stage + 1) - self._rounds(self.stage)

    @property
    def steps(self) -> int:
        """Minibatches of each counter in the pass."""
        return self._steps_after(self.stage + 1) - self._steps_after(self.stage)

    def ahead(self, enough: int) -> int:
        """Folds of later passes before the next wait for all workers."""
        return self._rounds(self.until) - self._rounds(self.stage + 1)

    def rows_of(self, keys: Sequence[tuple[int, int]]) -> np.ndarray:
        """The examples (row numbers, ``[W, B]``) of minibatches named by (worker, step).

        Steps beyond the pass belong to the next one: more minibatches are handed out if
        contributions are lost.
        """
        return np.stack([np.concatenate(self._rows(*key)) for key in keys])

    def passes_of(self, keys: Sequence[tuple[int, int]]) -> np.ndarray:
        """The number of the pass of each row of `rows_of`, counted for its worker."""
        size, numbers = self.minibatch, list[np.ndarray]()
        for worker, step in keys:
            number, _ = self._begin(worker, step)
            pieces = [len(rows) for rows in self._rows(worker, step)]
            numbers.append(np.repeat(np.arange(number, number + len(pieces)), pieces)[:size])
        return np.stack(numbers)

    @property
    def _each(self) -> int:
        """Minibatches of each counter in a whole round."""
        return self.own or self.a_fold

    def _rounds(self, passes: int) -> int:
        """Number of rounds after ``passes`` passes: their examples over a round's, rounded up."""
        at_once = self.workers * self.own if self.own else self.a_fold
        return -(-passes * self.size // (at_once * self.minibatch))

    def _steps_after(self, passes: int) -> int:
        """Minibatches of each counter after ``passes`` passes, in whole rounds but for the last."""
        total = -(-self.passes * self.size // (self.workers * self.minibatch))
        steps = self._rounds(passes) * self._each
        return steps if self.own is None else min(steps, total)

    def _begin(self, worker: int, step: int) -> tuple[int, int]:
        """The pass in which a worker's minibatch of this stage begins, and its first row in it."""
        since_start = self._steps_after(self.stage) + step
        return divmod(since_start * self.minibatch, len(self._sequence(self.stage, worker)))

    def _rows(self, worker: int, step: int) -> list[np.ndarray]:
        """The rows of a worker's minibatch of this stage, in a piece for each pass."""
        # Its last rows may be the first of the next pass, or of several where a share is smaller
        # than a minibatch.
        number, begin = self._begin(worker, step)
        size, pieces = self.minibatch, list[np.ndarray]()
        while size:
            pieces.append(self._sequence(number, worker)[begin : begin + size])
            size -= len(pieces[-1])
            number, begin = number + 1, 0
        return pieces

    @cached_property
    def _sequence(self) -> Callable[[int, int], np.ndarray | InBlocks]:
        """The rows of a pass and worker, with a cache: workers may be in different passes."""

        def sequence(number: int, worker: int) -> np.ndarray | InBlocks:
            return self._stage(number).sequence(worker)

        return lru_cache(maxsize=3 * self.workers)(sequence)


Laid = Consecutive | ContinuousOrder
"""The minibatches of one stage in their order."""


def balance_pieces(lengths: np.ndarray, chosen: np.ndarray, workers: int) -> list[np.ndarray]:
    """Hand pieces out, the longest first, each to the worker with the fewest rows so far.

    Args:
        lengths: length of every piece.
        chosen: indices of the pieces to hand out.
        workers: number of workers; of equally loaded ones the first gets the next piece.

    Returns:
        The pieces of each worker, in the order they were handed out.

    Example:
        >>> [own.tolist() for own in balance_pieces(np.array([5, 3, 1]), np.arange(3), 2)]
        [[0], [1, 2]]
    """
    longest_first = chosen[np.argsort(-lengths[chosen], kind="stable")]
    least = [(0, worker) for worker in range(workers)]
    dealt: list[list[int]] = [[] for _ in range(workers)]
    for piece in longest_first.tolist():
        has, worker = least[0]
        dealt[worker].append(piece)
        heapreplace(least, (has + int(lengths[piece]), worker))
    return [np.array(pieces, dtype=np.int64) for pieces in dealt]


class Examples(Protocol):
    """Training data on a device, row by row."""

    def gather(self, rows: Tensor) -> Minibatch:
        """The minibatches of ``rows [W, B]``, which may be in host memory."""
        ...


@dataclass(frozen=True, eq=False)
class Rows:
    """Training data in memory, each row a piece of its own.

    Args:
        x: inputs ``[N, ...]``, a tensor.
        y: targets ``[N, ...]``, a tensor.
    """

    x: Any
    y: Any

    def __len__(self) -> int:
        return len(self.x)

    @property
    def start(self) -> np.ndarray:
        """The first row of each piece: itself."""
        return np.arange(len(self))

    @property
    def frames(self) -> np.ndarray:
        """Rows of each piece: one."""
        return np.ones(len(self), np.int64)

    def gather(self, rows: Tensor) -> Minibatch:
        """See `Examples`."""
        return Minibatch(self.x[rows], self.y[rows])


class Minibatches:
    """The minibatches of one run; equal in every process that executes it.

    Args:
        order_of: from the number of a stage to its order.
        examples: the training data on its device.

    Attributes:
        order: order of the present stage.
        stage: number of the present stage, from 0.
        before: steps of all earlier stages together.
    """

    def __init__(self, order_of: Callable[[int], Laid], examples: Examples) -> None:
        self.order_of, self._examples = order_of, examples
        self.begin(0, 0)

    def begin(self, stage: int, before: int) -> None:
        """Begin stage ``stage``, with ``before`` steps in all earlier stages."""
        self.stage, self.before, self.order = stage, before, self.order_of(stage)

    def fetch(self, keys: Sequence[Key]) -> Minibatch:
        """Gather the minibatches named by worker and by step since the run began."""
        return self.gather([(worker, step - self.before) for worker, step in keys])

    def gather(self, keys: Sequence[Key]) -> Minibatch:
        """Gather the minibatches named by worker and by step since the stage began."""
        return self._examples.gather(torch.as_tensor(self.order.rows_of(keys)))

"""Frames on a device, and the order in which a run sees them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from heapq import heapreplace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from data_synth.corpus import Corpus
from harness.base.seeds import stream
from harness.networks.contract import Minibatch, uploaded

Shuffling = Literal["none", "on the fly", "full", "in blocks"]


@dataclass(frozen=True)
class Frames:
    """A corpus on one device, the ends of every utterance repeated as splicing wants them.

    A spliced frame is then one piece of memory, and is copied as one. Spliced beforehand, the
    eleven-frame inputs of paper 1 would take eleven times the memory.

    Args:
        features: ``[N + 2 context U, dim]`` of N frames in U utterances.
        before: where the first frame lies that is spliced with each, ``[N]``.
        targets: ``[N]``.
        context: frames that are spliced on either side.
    """

    features: Tensor
    before: Tensor
    targets: Tensor
    context: int

    @classmethod
    def of(cls, corpus: Corpus, device: str) -> Frames:
        """Copy a corpus, as far as it is stored, to ``device`` (``"cpu"`` or ``"cuda"``)."""
        stored, table = len(corpus.features), corpus.utterances
        there = table.start < stored
        parts = corpus.features, corpus.targets[:stored], table.start[there], table.frames[there]
        return cls.laid_out(*parts, corpus.context, device)

    @classmethod
    def laid_out(
        cls,
        features: np.ndarray,
        targets: np.ndarray,
        start: np.ndarray,
        frames: np.ndarray,
        context: int,
        device: str,
    ) -> Frames:
        """Copy frames ``[N, dim]`` and targets ``[N]`` of utterances to a device.

        Args:
            features: of every frame.
            targets: of every frame.
            start: first row of each utterance.
            frames: its length.
            context: frames that are spliced on either side.
            device: ``"cpu"`` or ``"cuda"``.
        """
        before = np.zeros(len(targets), np.int64)
        before[row_numbers(start, frames)] = spliced_from(frames, context)
        parts = features[longer_rows(start, frames, context)], before, targets.astype(np.int64)
        longer_features, first_spliced, wanted = (torch.as_tensor(p).to(device) for p in parts)
        return cls(longer_features, first_spliced, wanted, context)

    @property
    def device(self) -> torch.device:
        """Where they are."""
        return self.features.device

    def gather(self, rows: Tensor) -> Minibatch:
        """The spliced frames ``[W, B, (2c+1) dim]`` and targets ``[W, B]`` of ``rows [W, B]``."""
        rows = uploaded(rows, self.device)
        spliced = self._spliced.index_select(0, self.before[rows].flatten())
        return Minibatch(spliced.view(*rows.shape, -1), self.targets[rows])

    @cached_property
    def _spliced(self) -> Tensor:
        """All that can be spliced: rows that overlap in memory."""
        length, dim = self.features.shape
        window = 2 * self.context + 1
        return self.features.as_strided((length - window + 1, window * dim), (dim, 1))


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
            return rows[slotted(self.frames[chosen], self.minibatch)]
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


def longer_rows(start: np.ndarray, frames: np.ndarray, context: int) -> np.ndarray:
    """Row numbers of utterances whose first and last frames are repeated ``context`` times."""
    longer = frames + 2 * context
    first, last = np.repeat(start, longer), np.repeat(start + frames - 1, longer)
    return np.clip(row_numbers(start - context, longer), first, last)


def spliced_from(frames: np.ndarray, context: int) -> np.ndarray:
    """Where among such rows the first one lies that is spliced with each frame."""
    longer = frames + 2 * context
    return row_numbers(np.cumsum(longer) - longer, frames)


def row_numbers(start: np.ndarray, frames: np.ndarray) -> np.ndarray:
    """The row numbers of utterances, one after the other."""
    before = np.cumsum(frames) - frames
    return np.arange(int(frames.sum())) + np.repeat(start - before, frames)


def slotted(frames: np.ndarray, slots: int) -> np.ndarray:
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

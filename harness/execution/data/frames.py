"""Frames on a device, and the order in which a run sees them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from data_synth.corpus import Corpus, frame_edges
from harness.network import Minibatch
from harness.seeds import stream


@dataclass(frozen=True)
class Frames:
    """One corpus on one device: features ``[N, dim]``, targets ``[N]``, utterance edges ``[N]``.

    Splicing happens when a minibatch is gathered: the eleven-frame inputs of paper 1 would
    take eleven times the memory.
    """

    features: Tensor
    targets: Tensor
    first: Tensor
    last: Tensor
    context: int

    @classmethod
    def of(cls, corpus: Corpus, device: str) -> Frames:
        """Copy a corpus to ``device`` (``"cpu"`` or ``"cuda"``)."""
        row, start, end = frame_edges(corpus.utterances)
        first, last = np.zeros_like(row), np.zeros_like(row)
        first[row], last[row] = start, end
        return cls(
            torch.as_tensor(np.array(corpus.features)).to(device),
            torch.as_tensor(corpus.targets.astype(np.int64)).to(device),
            torch.as_tensor(first).to(device),
            torch.as_tensor(last).to(device),
            corpus.context,
        )

    @cached_property
    def _reach(self) -> Tensor:
        """From a frame to each that is spliced with it."""
        return torch.arange(-self.context, self.context + 1, device=self.features.device)

    def gather(self, rows: Tensor) -> Minibatch:
        """The spliced frames ``[W, B, (2c+1) dim]`` and targets ``[W, B]`` of ``rows [W, B]``."""
        index = torch.clamp(
            rows.unsqueeze(-1) + self._reach,
            self.first[rows].unsqueeze(-1),
            self.last[rows].unsqueeze(-1),
        )
        # Three times as fast as indexing with a tensor of indices.
        spliced = self.features.index_select(0, index.flatten())
        return Minibatch(spliced.view(*rows.shape, -1), self.targets[rows])


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
    """

    seed: int
    stage: int
    start: np.ndarray
    frames: np.ndarray
    minibatch: int
    share: float = 1.0
    a_fold: int = 1

    @property
    def steps(self) -> int:
        """Minibatches in the stage: whole folds of them."""
        return self.folds * self.a_fold

    @cached_property
    def folds(self) -> int:
        """Folds in the stage."""
        return int(self.frames[self._subset].sum()) // (self.minibatch * self.a_fold)

    def rows(self, step: int) -> np.ndarray:
        """The frames (row numbers, ``[B]``) of minibatch ``step``.

        After the last comes the first: where contributions are lost, more are handed out.
        """
        first = self.minibatch * (step % self.steps)
        return self._shuffled[first : first + self.minibatch]

    def rows_of(self, keys: Sequence[tuple[int, int]]) -> np.ndarray:
        """The frames (``[W, B]``) of minibatches named by (worker, step), whoever the worker."""
        return np.stack([self.rows(step) for _, step in keys])

    @cached_property
    def _subset(self) -> np.ndarray:
        """Numbers of the utterances used: a pass over 25% is the same 25% whichever stage asks."""
        every = stream(self.seed, "subset").permutation(len(self.start))
        return every[: max(1, round(self.share * len(every)))]

    @cached_property
    def _shuffled(self) -> np.ndarray:
        """Every row of the stage in the order it is trained on."""
        chosen = stream(self.seed, "utterance order", self.stage).permutation(self._subset)
        # 0, because frames were once shuffled piece by piece: one piece keeps its bytes.
        frame_order = stream(self.seed, "frame order", self.stage, 0)
        return frame_order.permutation(row_numbers(self.start[chosen], self.frames[chosen]))


def row_numbers(start: np.ndarray, frames: np.ndarray) -> np.ndarray:
    """The row numbers of utterances, one after the other."""
    before = np.cumsum(frames) - frames
    return np.arange(int(frames.sum())) + np.repeat(start - before, frames)

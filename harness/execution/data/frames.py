"""Frames on a device, and the order in which a run sees them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

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

    def gather(self, rows: Tensor) -> Minibatch:
        """The spliced frames ``[W, B, (2c+1) dim]`` and targets ``[W, B]`` of ``rows [W, B]``."""
        reach = torch.arange(-self.context, self.context + 1, device=rows.device)
        index = rows.unsqueeze(-1) + reach
        index = torch.maximum(
            torch.minimum(index, self.last[rows].unsqueeze(-1)), self.first[rows].unsqueeze(-1)
        )
        # Three times as fast as indexing with a tensor of indices.
        spliced = self.features.index_select(0, index.flatten())
        return Minibatch(spliced.view(*rows.shape, -1), self.targets[rows])


@dataclass(frozen=True)
class Order:
    """The minibatches of one stage: utterances shuffled, cut into chunks, frames shuffled in each.

    Paper 1, section 2.4: the training set is divided into chunks that are sent out one by
    one. The last frames that do not fill a minibatch are left out of the stage.

    Args:
        seed: the run's seed; ``stage`` numbers the stage, so that every pass differs.
        start, frames: first row and length of each training utterance.
        minibatch: frames a minibatch.
        share: the share of the utterances used.
        chunk_steps: minibatches a chunk.
        a_fold: minibatches that are handed out for a fold.
    """

    seed: int
    stage: int
    start: np.ndarray
    frames: np.ndarray
    minibatch: int
    share: float
    chunk_steps: int
    a_fold: int = 1

    @property
    def steps(self) -> int:
        """Minibatches in the stage: whole folds of them."""
        return self.folds * self.a_fold

    @property
    def folds(self) -> int:
        """Folds in the stage."""
        return len(self._rows) // (self.minibatch * self.a_fold)

    @property
    def _rows(self) -> np.ndarray:
        return _shuffled_rows(self)

    def rows(self, step: int) -> np.ndarray:
        """The frames (row numbers, ``[B]``) of minibatch ``step``.

        After the last comes the first: where contributions are lost, more are handed out.
        """
        chunk, within = divmod(step % self.steps, self.chunk_steps)
        order = _chunk_order(self, chunk)
        return order[within * self.minibatch : (within + 1) * self.minibatch]

    def rows_of(self, keys: Sequence[tuple[int, int]]) -> np.ndarray:
        """The frames (``[W, B]``) of minibatches named by (worker, step), whoever the worker."""
        return np.stack([self.rows(step) for _, step in keys])

    def __hash__(self) -> int:
        return hash((self.seed, self.stage, self.minibatch, self.share, self.chunk_steps))

    def __eq__(self, other: object) -> bool:
        return self is other


@lru_cache(maxsize=2)
def _shuffled_rows(order: Order) -> np.ndarray:
    """Every row of the stage, utterance after utterance in a drawn order."""
    every = len(order.start)
    # One subset a run, whichever stage asks: a pass over 25% is the same 25% each time.
    subset = stream(order.seed, "subset").permutation(every)[: max(1, round(order.share * every))]
    chosen = stream(order.seed, "utterance order", order.stage).permutation(subset)
    return np.concatenate(
        [
            np.arange(int(a), int(a + n))
            for a, n in zip(order.start[chosen], order.frames[chosen], strict=True)
        ]
    )


@lru_cache(maxsize=3)
def _chunk_order(order: Order, chunk: int) -> np.ndarray:
    """The rows of one chunk in the order they are trained on."""
    size = order.chunk_steps * order.minibatch
    rows = _shuffled_rows(order)[chunk * size : (chunk + 1) * size]
    return stream(order.seed, "frame order", order.stage, chunk).permutation(rows)

"""What is measured of a model, and what a run in progress tells whoever waits for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from data_synth.corpus import Corpus
from harness.acoustics.cross_entropy import cross_entropy, frame_errors
from harness.acoustics.dnn import Dnn
from harness.acoustics.scoring import isolated_word_errors
from harness.execution.frames import Frames

BLOCK = 4096
"""Frames evaluated at once: large enough for the matrix product, small enough for caches."""


@dataclass(frozen=True)
class Progress:
    """Where a run is: its name, passes done of at most ``passes``, and the last frame error."""

    run: str
    done: float
    passes: float
    frame_error: float


Watch = Callable[[Progress], None]


@dataclass(frozen=True)
class Scores:
    """Loss a frame (nats) and share of frames wrong."""

    loss: float
    frame_error: float

    @property
    def finite(self) -> bool:
        """Whether the model still computes numbers."""
        return bool(np.isfinite(self.loss))


@torch.no_grad()
def frame_scores(net: Dnn, model: Tensor, frames: Frames, rows: Tensor) -> Scores:
    """Loss and frame error of one model ``[P]`` on the frames ``rows [n]``."""
    loss = model.new_zeros((), dtype=torch.float64)
    wrong = torch.zeros((), dtype=torch.int64, device=model.device)
    for logits, targets in _outputs(net, model, frames, rows):
        loss += cross_entropy(logits, targets).double()[0]
        wrong += frame_errors(logits, targets)[0]
    return Scores(loss.item() / len(rows), wrong.item() / len(rows))


@torch.no_grad()
def word_errors(
    net: Dnn, model: Tensor, frames: Frames, corpus: Corpus, split: str, log_prior: np.ndarray
) -> np.ndarray:
    """Which utterances of a test set one model ``[P]`` gets wrong: uint8 ``[utterances]``."""
    part = corpus.split(split)
    references = [words[0] for words in part.words]
    posteriors = (
        torch.log_softmax(logits[0].double(), 1).cpu().numpy() - log_prior
        for logits, _ in _utterances(net, model, frames, part.start, part.frames)
    )
    return isolated_word_errors(posteriors, references, corpus.lexicon, corpus.silence)


def log_prior(corpus: Corpus) -> np.ndarray:
    """Log relative frequency ``[K]`` of each target in training; unseen ones count once."""
    part = corpus.split("train")
    counts = np.zeros(corpus.n_targets)
    for start, length in zip(part.start.tolist(), part.frames.tolist(), strict=True):
        counts += np.bincount(corpus.targets[start : start + length], minlength=len(counts))
    counts = np.maximum(counts, 1.0)
    return np.log(counts / counts.sum())


def rows_of(corpus: Corpus, split: str, at_most: int | None = None) -> Tensor:
    """Row numbers of a split's frames; evenly thinned to about ``at_most``."""
    part = corpus.split(split)
    rows = np.concatenate(
        [
            np.arange(a, a + n)
            for a, n in zip(part.start.tolist(), part.frames.tolist(), strict=True)
        ]
    )
    stride = 1 if at_most is None else max(1, len(rows) // at_most)
    return torch.from_numpy(rows[::stride])


def _outputs(
    net: Dnn, model: Tensor, frames: Frames, rows: Tensor
) -> Iterator[tuple[Tensor, Tensor]]:
    stack = model.unsqueeze(0)
    for block in rows.to(model.device).split(BLOCK):
        x, targets = frames.gather(block.unsqueeze(0))
        yield net.logits(stack, x), targets[0]


def _utterances(
    net: Dnn, model: Tensor, frames: Frames, start: np.ndarray, length: np.ndarray
) -> Iterator[tuple[Tensor, Tensor]]:
    for a, n in zip(start.tolist(), length.tolist(), strict=True):
        yield from _outputs(net, model, frames, torch.arange(a, a + n))

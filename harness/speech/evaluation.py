"""Measures of a model on frames and words, and errors on a test set.

What is measured of a model on frames and words. Errors on a test set: isolated words by the best-
scoring model, sentences by decoding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from data_synth.corpus import Corpus, Utterances, frame_edges
from harness.acoustics import language_model
from harness.acoustics.decoder import Beam
from harness.acoustics.graph import decoding_graph
from harness.acoustics.language_model import Lexicon
from harness.acoustics.scoring import (
    TuningResult,
    isolated_word_errors,
    recognise,
    tune,
    word_errors,
)
from harness.networks.feedforward import Dnn, cross_entropy, frame_errors
from harness.speech.decoding import sample_evenly
from harness.tasks.order import Examples

BLOCK = 4096
"""Frames evaluated at once: large enough for the matrix product, small enough for caches."""

DEV_FRAMES = 10_000

HELD_OUT_FRAMES = 2000


@dataclass(frozen=True)
class Scores:
    """Loss a frame (nats) and share of frames wrong."""

    loss: float
    frame_error: float

    @property
    def finite(self) -> bool:
        """Whether the model still computes numbers."""
        return bool(np.isfinite(self.loss))

    @property
    def error(self) -> float:
        """What candidates are judged by."""
        return self.frame_error

    @property
    def measured(self) -> dict[str, float]:
        """Both, by name."""
        return {"frame_error": self.frame_error, "loss": self.loss}


@torch.no_grad()
def frame_scores(net: Dnn, model: Tensor, frames: Examples, rows: Tensor) -> Scores:
    """Loss and frame error of one model ``[P]`` on the frames ``rows [n]``."""
    loss = model.new_zeros((), dtype=torch.float64)
    wrong = torch.zeros((), dtype=torch.int64, device=model.device)
    for logits, targets in _outputs(net, model, frames, rows):
        loss += cross_entropy(logits, targets).double()[0]
        wrong += frame_errors(logits, targets)[0]
    return Scores(loss.item() / len(rows), wrong.item() / len(rows))


class FrameEvaluator:
    """Scores models of one network on the sets of one corpus.

    Args:
        net: the network.
        frames: the corpus on its device.
        corpus: the corpus.
    """

    def __init__(self, net: Dnn, frames: Examples, corpus: Corpus) -> None:
        self.net, self.frames, self.corpus = net, frames, corpus
        self.recogniser = recogniser_of(corpus)
        self._log_prior = log_prior(corpus)
        self._dev = rows_of(corpus, "dev", DEV_FRAMES)
        self._held_out = rows_of(corpus, "dev", HELD_OUT_FRAMES)

    def dev(self, model: Tensor) -> Scores:
        """Scores of ``model [P]`` on the development set, evenly thinned where it is large."""
        return frame_scores(self.net, model, self.frames, self._dev)

    def held_out_loss(self, model: Tensor) -> float:
        """Loss on an even thinning of the development set, for schedules that ask often."""
        return frame_scores(self.net, model, self.frames, self._held_out).loss

    def frames_of(self, split: str, model: Tensor) -> Scores:
        """Frame scores of ``model [P]`` on any set."""
        return frame_scores(self.net, model, self.frames, rows_of(self.corpus, split))

    def tune_decoding(self, model: Tensor) -> TuningResult | None:
        """What development data say ``model [P]`` is best decoded with, if it is decoded."""
        return self.recogniser.tune_decoding(lambda part: self.likelihoods(model, part))

    def word_errors(self, split: str, model: Tensor, tuned: TuningResult | None) -> np.ndarray:
        """Errors that ``model [P]`` makes in each utterance of a test set, int64 ``[U]``.

        Args:
            split: the test set.
            model: the parameters.
            tuned: of the same model.
        """
        return self.recogniser.errors(split, lambda part: self.likelihoods(model, part), tuned)

    @torch.no_grad()
    def likelihoods(self, model: Tensor, part: Utterances) -> list[np.ndarray]:
        """``[T, K]`` log p(s|x_t) - log prior(s) of each utterance."""
        rows = torch.as_tensor(frame_edges(part)[0])
        prior = torch.as_tensor(self._log_prior).to(model.device)
        scores = torch.empty(len(rows), len(prior), dtype=torch.float64, device=model.device)
        blocks = torch.split(scores, BLOCK)
        outputs = _outputs(self.net, model, self.frames, rows)
        for block, (logits, _) in zip(blocks, outputs, strict=True):
            torch.sub(torch.log_softmax(logits[0].double(), 1), prior, out=block)
        return np.split(scores.cpu().numpy(), np.cumsum(part.frames)[:-1])


def log_prior(corpus: Corpus) -> np.ndarray:
    """Log relative frequency ``[K]`` of each target in training; unseen ones count once."""
    train = corpus.split("train")  # in one piece
    first = int(train.start[0]) if len(train) else 0
    targets = corpus.targets[first : first + train.total_frames]
    counts = np.bincount(targets, minlength=corpus.n_targets)
    return np.log(np.maximum(counts, 1) / np.maximum(counts, 1).sum())


def rows_of(corpus: Corpus, split: str, at_most: int | None = None) -> Tensor:
    """Row numbers of a split's frames; evenly thinned to about ``at_most``."""
    rows = frame_edges(corpus.split(split))[0]
    stride = 1 if at_most is None else max(1, len(rows) // at_most)
    return torch.as_tensor(rows[::stride].copy())


def _outputs(
    net: Dnn, model: Tensor, frames: Examples, rows: Tensor
) -> Iterator[tuple[Tensor, Tensor]]:
    stack = model.unsqueeze(0)
    for block in torch.split(rows, BLOCK):
        x, targets = frames.gather(block.unsqueeze(0))
        yield net.logits(stack, x), targets[0]


ORDER = 2
"""Of the language model that tests are decoded with."""

TUNED_ON = 100
"""How many development utterances, evenly chosen, decide a model's acoustic scale."""

BEAM = Beam(12.0, max_active=1500)

ScoresOf = Callable[[Utterances], Iterable[np.ndarray]]
"""Gives ``[T, K]`` log p(s|x_t) - log prior(s) of each utterance, by one model."""


class Recogniser(Protocol):
    """What turns a model's frame scores into errors of one corpus; it remembers no model."""

    def tune_decoding(self, scores_of: ScoresOf) -> TuningResult | None:
        """The model's own acoustic scale, by development data; None where none is needed."""
        ...

    def errors(self, split: str, scores_of: ScoresOf, tuned: TuningResult | None) -> np.ndarray:
        """Errors of each utterance of a test set, int64 ``[U]``, as tuned for the same model."""
        ...

    def lengths(self, split: str) -> np.ndarray:
        """Words that were said in each utterance, int64 ``[U]``."""
        ...


def recogniser_of(corpus: Corpus) -> Recogniser:
    """By decoding if the corpus has text for a language model, else one word an utterance."""
    return Sentences(corpus) if corpus.lm_text else SingleWords(corpus)


class SingleWords:
    """Every utterance is one word: the word whose model scores best."""

    def __init__(self, corpus: Corpus) -> None:
        self.corpus = corpus

    def tune_decoding(self, scores_of: ScoresOf) -> None:
        """Nothing: no language model is weighed against the scores."""
        del scores_of

    def errors(self, split: str, scores_of: ScoresOf, tuned: TuningResult | None) -> np.ndarray:
        """1 where the wrong word scored best."""
        del tuned
        part = self.corpus.split(split)
        said = [words[0] for words in part.words]
        lexicon, silence = self.corpus.lexicon, self.corpus.silence
        return isolated_word_errors(scores_of(part), said, lexicon, silence).astype(np.int64)

    def lengths(self, split: str) -> np.ndarray:
        """1 for every utterance."""
        return np.ones(len(self.corpus.split(split)), np.int64)


class Sentences:
    """Beam search with a bigram; each model's acoustic scale is tuned on the development set."""

    def __init__(self, corpus: Corpus) -> None:
        self.corpus = corpus
        model = language_model.train(corpus.lm_text, ORDER)
        self.graph = decoding_graph(model, Lexicon.from_entries(corpus.lexicon, corpus.silence))

    def tune_decoding(self, scores_of: ScoresOf) -> TuningResult:
        """The acoustic scale, without a penalty for words."""
        dev = sample_evenly(self.corpus.split("dev"), TUNED_ON)
        return tune(dev.words, scores_of(dev), self.graph, insertions=(0.0,), beam=BEAM)

    def errors(self, split: str, scores_of: ScoresOf, tuned: TuningResult | None) -> np.ndarray:
        """Substitutions, insertions and deletions of each utterance."""
        assert tuned is not None
        part = self.corpus.split(split)
        found = recognise(self.graph, scores_of(part), tuned.best.scale, BEAM)
        return word_errors(part.words, [each.words for each in found]).errors

    def lengths(self, split: str) -> np.ndarray:
        """Words said in each utterance."""
        return np.array([len(words) for words in self.corpus.split(split).words], np.int64)

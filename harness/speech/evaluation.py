"""Measures of a model: loss and error on frames, and recognised words with their errors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from data_synth.corpus import Corpus, Utterances, frame_edges
from harness.acoustics import language_model
from harness.acoustics.decoder import Beam
from harness.acoustics.graph import decoding_graph
from harness.acoustics.hmm import chain_scores, chains
from harness.acoustics.language_model import Lexicon, read_arpa
from harness.acoustics.scoring import (
    INSERTIONS,
    ErrorCounts,
    Sentence,
    TuningResult,
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
    """Loss per frame (nats) and share of wrong frames."""

    loss: float
    frame_error: float


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
        self._transcriber = Transcriber(corpus, insertions=(0.0,))
        self._log_prior = log_prior(corpus)
        self._dev = rows_of(corpus, "dev", DEV_FRAMES)
        self._held_out = rows_of(corpus, "dev", HELD_OUT_FRAMES)

    def dev(self, model: Tensor) -> Scores:
        """Scores of ``model [P]`` on the development set, evenly thinned where it is large."""
        return frame_scores(self.net, model, self.frames, self._dev)

    def evaluate_held_out(self, model: Tensor) -> float:
        """Loss on a thinned development set, for schedules that evaluate often."""
        return frame_scores(self.net, model, self.frames, self._held_out).loss

    def tune_decoding(self, model: Tensor) -> TuningResult | None:
        """Tune the decoding of ``model [P]`` on development data; None without decoding."""
        return self._transcriber.tune_decoding(lambda part: self.likelihoods(model, part))

    def test(
        self, split: str, model: Tensor, tuned: TuningResult | None
    ) -> tuple[ErrorCounts, float]:
        """Errors in each utterance of a test set, and the share of wrong frames.

        Args:
            split: the test set.
            model: the parameters ``[P]``.
            tuned: from ``tune_decoding`` of the same model.
        """
        part = self.corpus.split(split)
        scores, wrong = self._score(model, part)
        heard = self._transcriber.hear(split, lambda _: scores, tuned)
        return word_errors(part.words, heard), wrong / part.total_frames

    def likelihoods(self, model: Tensor, part: Utterances) -> list[np.ndarray]:
        """``[T, K]`` log p(s|x_t) - log prior(s) of each utterance."""
        return self._score(model, part)[0]

    @torch.no_grad()
    def _score(self, model: Tensor, part: Utterances) -> tuple[list[np.ndarray], int]:
        """`likelihoods`, and the number of wrong frames."""
        rows = torch.as_tensor(frame_edges(part)[0])
        wrong = torch.zeros((), dtype=torch.int64, device=model.device)
        prior = torch.as_tensor(self._log_prior).to(model.device)
        scores = torch.empty(len(rows), len(prior), dtype=torch.float64, device=model.device)
        blocks = torch.split(scores, BLOCK)
        outputs = _outputs(self.net, model, self.frames, rows)
        for block, (logits, targets) in zip(blocks, outputs, strict=True):
            wrong += frame_errors(logits, targets)[0]
            torch.sub(torch.log_softmax(logits[0].double(), 1), prior, out=block)
        return np.split(scores.cpu().numpy(), np.cumsum(part.frames)[:-1]), int(wrong.item())


def log_prior(corpus: Corpus) -> np.ndarray:
    """Log relative frequency ``[K]`` of each target in training; unseen ones count once."""
    train = corpus.split("train")  # in one piece
    start = int(train.start[0]) if len(train) else 0
    targets = corpus.targets[start : start + train.total_frames]
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
"""Order of the language model that test sets are decoded with."""

TUNED_ON = 100
"""Number of development utterances, evenly chosen, for tuning a model's acoustic scale."""

BEAM = Beam(12.0, max_active=1500)

ScoresOf = Callable[[Utterances], Iterable[np.ndarray]]
"""Function from utterances to each one's ``[T, K]`` log p(s|x_t) - log prior(s)."""


class Transcriber:
    """Recognises words from frame scores: sentences by beam search, or isolated words.

    A corpus without text for a language model has isolated words: each utterance is one. No
    network is stored here.

    Args:
        corpus: source of the lexicon, the language model's text and the development set.
        order: order of the n-gram model estimated on the corpus's ``lm_text``.
        closed: whether the model has every word of the lexicon; else those of its text alone.
        insertions: candidate word insertion penalties.
        dev: number of development utterances for tuning, evenly chosen.
        arpa: file of a language model in place of the corpus's text.
    """

    def __init__(
        self,
        corpus: Corpus,
        *,
        order: int = ORDER,
        closed: bool = False,
        insertions: Sequence[float] = INSERTIONS,
        dev: int = TUNED_ON,
        arpa: Path | None = None,
    ) -> None:
        self.corpus, self.insertions, self.dev = corpus, insertions, dev
        lexicon = Lexicon.from_entries(corpus.lexicon, corpus.silence)
        model = None
        if arpa is not None:
            model = read_arpa(arpa)
        elif corpus.lm_text:
            words = lexicon.words if closed else None
            model = language_model.train(corpus.lm_text, order, vocabulary=words)
        self._graph = None if model is None else decoding_graph(model, lexicon)
        words = set(lexicon.words)
        self.vocabulary = frozenset(words if model is None else words & set(model.words))
        """Words that can be recognised."""

    def tune_decoding(self, scores_of: ScoresOf) -> TuningResult | None:
        """Tune scale and penalty for a model on development data; None for isolated words."""
        if self._graph is None:
            return None
        dev, insertions = sample_evenly(self.corpus.split("dev"), self.dev), self.insertions
        return tune(dev.words, scores_of(dev), self._graph, insertions=insertions, beam=BEAM)

    def hear(self, split: str, scores_of: ScoresOf, tuned: TuningResult | None) -> list[Sentence]:
        """Recognised words of each utterance, with the settings tuned for the same model."""
        part = self.corpus.split(split)
        if tuned is None:
            laid = chains(self.corpus.lexicon, self.corpus.silence)
            best = (int(np.argmax(chain_scores(result, laid))) for result in scores_of(part))
            return [(laid.words[i],) for i in best]
        assert self._graph is not None
        graph = self._graph.with_insertion_penalty(tuned.best.insertion)
        results = recognise(graph, scores_of(part), tuned.best.scale, BEAM)
        return [result.words for result in results]

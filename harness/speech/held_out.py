"""Measures of a model in sequence training."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from torch import Tensor

from data_synth.corpus import Corpus, Utterances
from harness.acoustics import language_model
from harness.acoustics.graph import Graph, decoding_graph
from harness.acoustics.mmi import SequenceCriterion
from harness.acoustics.scoring import (
    ErrorCounts,
    Sentence,
    TuningResult,
    recognise,
    tune,
    word_errors,
)
from harness.networks.feedforward import Dnn
from harness.speech.decoding import Tally, posteriors_of, references_of, sample_evenly
from harness.speech.evaluation import BEAM
from harness.tasks.order import Examples


@dataclass(frozen=True)
class HoldoutScores:
    """Measures of a model on the held-out utterances.

    Attributes:
        criterion: value per frame, in nats.
        frame_error: share of frames with a most probable target that is wrong.
        words: tuning of the acoustic scale with the criterion's own graph, with its word error;
            None if not requested.
    """

    criterion: float
    frame_error: float
    words: TuningResult | None


@lru_cache(maxsize=2)
def _test_graph(corpus: Corpus, order: int) -> Graph:
    """Decoding graph of test sets; built once per process, corpus and order."""
    text = corpus.lm_text or corpus.split("train").words
    return decoding_graph(language_model.train(text, order), references_of(corpus).lexicon)


class SequenceEvaluator:
    """Measures models of one network on one corpus.

    Args:
        net: the whole network.
        frames: the corpus on its device.
        corpus: the corpus.
        criterion: the criterion of training.
        held_out: number of utterances of the development set, evenly chosen.
    """

    def __init__(
        self,
        net: Dnn,
        frames: Examples,
        corpus: Corpus,
        criterion: SequenceCriterion,
        held_out: int,
    ) -> None:
        self.net, self.frames, self.corpus, self.criterion = net, frames, corpus, criterion
        self._held_out = sample_evenly(corpus.split("dev"), held_out)

    def evaluate_held_out(self, model: Tensor, words: bool = True) -> HoldoutScores:
        """Criterion, frame error and, if ``words``, word error of ``model [P]``."""
        part, tally, wrong = self._held_out, Tally(), 0
        scores: list[np.ndarray] = []
        for i, posteriors in enumerate(self._posteriors(model, part)):
            outer = self.criterion.outer(posteriors, part.words[i])
            tally.add(outer)
            wrong += self._wrong(part, i, posteriors)
            if outer.trouble == "not finite":  # the run has diverged: no other value counts
                return HoldoutScores(np.nan, np.nan, None)
            if words:
                scores.append(posteriors - self.criterion.log_prior)
        value = tally.value / tally.value_frames if tally.value_frames else np.nan
        graph = self.criterion.graph
        tuned = tune(part.words, scores, graph, insertions=(0.0,), beam=BEAM) if words else None
        return HoldoutScores(value, wrong / part.total_frames, tuned)

    def tune_decoding(self, model: Tensor, order: int) -> TuningResult:
        """Tune the acoustic scale and the insertion penalty of ``model [P]`` on held-out speech.

        Args:
            model: the parameters.
            order: order of the language model.
        """
        part = self._held_out
        graph = _test_graph(self.corpus, order)
        scores = (p - self.criterion.log_prior for p in self._posteriors(model, part))
        return tune(part.words, scores, graph, beam=BEAM)

    def test(
        self, split: str, model: Tensor, order: int, tuned: TuningResult
    ) -> tuple[ErrorCounts, float]:
        """Errors in each utterance of a test set, and the share of wrong frames.

        Args:
            split: the test set.
            model: the parameters.
            order: order of the language model.
            tuned: from ``tune_decoding`` of the same model and order.
        """
        graph = _test_graph(self.corpus, order).with_insertion_penalty(tuned.best.insertion)
        part, wrong = self.corpus.split(split), 0
        heard: list[Sentence] = []
        for i, posteriors in enumerate(self._posteriors(model, part)):
            wrong += self._wrong(part, i, posteriors)
            scores = [posteriors - self.criterion.log_prior]
            heard += [r.words for r in recognise(graph, scores, tuned.best.scale, BEAM)]
        return word_errors(part.words, heard), wrong / part.total_frames

    def _posteriors(self, model: Tensor, part: Utterances) -> Iterator[np.ndarray]:
        return posteriors_of(self.net, model, self.frames, part)

    def _wrong(self, part: Utterances, i: int, posteriors: np.ndarray) -> int:
        start = int(part.start[i])
        return int((posteriors.argmax(1) != self.corpus.targets[start:][: len(posteriors)]).sum())

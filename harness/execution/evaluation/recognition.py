"""Errors on a test set: isolated words by the best-scoring model, sentences by decoding."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

import numpy as np

from data_synth.corpus import Corpus, Utterances
from harness.acoustics import language_model
from harness.acoustics.decoder import Beam
from harness.acoustics.graph import decoding_graph
from harness.acoustics.lexicon import Lexicon
from harness.acoustics.scoring import isolated_word_errors, word_errors
from harness.acoustics.tuning import recognise, tune

ORDER = 2
"""Of the language model that tests are decoded with."""
TUNED_ON = 40
"""How many development utterances, evenly chosen, decide the acoustic scale."""
BEAM = Beam(12.0)

ScoresOf = Callable[[Utterances], Iterable[np.ndarray]]
"""Gives ``[T, K]`` log p(s|x_t) - log prior(s) of each utterance."""


class Recogniser(Protocol):
    """What turns frame scores into errors of one corpus.

    Attributes:
        scale: the acoustic scale in use; None before it is tuned, or where none is needed.
    """

    scale: float | None

    def errors(self, split: str, scores_of: ScoresOf) -> np.ndarray:
        """Errors of each utterance of a test set, int64 ``[U]``."""
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
        self.scale: float | None = None

    def errors(self, split: str, scores_of: ScoresOf) -> np.ndarray:
        """1 where the wrong word scored best."""
        part = self.corpus.split(split)
        said = [words[0] for words in part.words]
        lexicon, silence = self.corpus.lexicon, self.corpus.silence
        return isolated_word_errors(scores_of(part), said, lexicon, silence).astype(np.int64)

    def lengths(self, split: str) -> np.ndarray:
        """1 for every utterance."""
        return np.ones(len(self.corpus.split(split)), np.int64)


class Sentences:
    """Beam search with a bigram; the acoustic scale is tuned on the development set, once.

    The first model that is tested decides the scale, so it is the same for all tests and
    passes of a run.
    """

    def __init__(self, corpus: Corpus) -> None:
        self.corpus = corpus
        model = language_model.train(corpus.lm_text, ORDER)
        self.graph = decoding_graph(model, Lexicon.of(corpus.lexicon, corpus.silence))
        self.scale: float | None = None

    def errors(self, split: str, scores_of: ScoresOf) -> np.ndarray:
        """Substitutions, insertions and deletions of each utterance."""
        if self.scale is None:
            self.scale = self._tuned(scores_of)
        part = self.corpus.split(split)
        found = recognise(self.graph, scores_of(part), self.scale, BEAM)
        return word_errors(part.words, [each.words for each in found]).errors

    def lengths(self, split: str) -> np.ndarray:
        """Words said in each utterance."""
        return np.array([len(words) for words in self.corpus.split(split).words], np.int64)

    def _tuned(self, scores_of: ScoresOf) -> float:
        dev = self.corpus.split("dev")
        few = dev.take(np.arange(0, len(dev), max(1, len(dev) // TUNED_ON)))
        return tune(few.words, scores_of(few), self.graph, insertions=(), beam=BEAM).best.scale

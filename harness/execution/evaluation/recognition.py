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
from harness.acoustics.tuning import Tuned, recognise, tune
from harness.execution.data.utterances import evenly

ORDER = 2
"""Of the language model that tests are decoded with."""
TUNED_ON = 100
"""How many development utterances, evenly chosen, decide a model's acoustic scale."""
BEAM = Beam(12.0, max_active=1500)

ScoresOf = Callable[[Utterances], Iterable[np.ndarray]]
"""Gives ``[T, K]`` log p(s|x_t) - log prior(s) of each utterance, by one model."""


class Recogniser(Protocol):
    """What turns a model's frame scores into errors of one corpus; it remembers no model."""

    def tuned(self, scores_of: ScoresOf) -> Tuned | None:
        """The model's own acoustic scale, by development data; None where none is needed."""
        ...

    def errors(self, split: str, scores_of: ScoresOf, tuned: Tuned | None) -> np.ndarray:
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

    def tuned(self, scores_of: ScoresOf) -> None:
        """Nothing: no language model is weighed against the scores."""
        del scores_of

    def errors(self, split: str, scores_of: ScoresOf, tuned: Tuned | None) -> np.ndarray:
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
        self.graph = decoding_graph(model, Lexicon.of(corpus.lexicon, corpus.silence))

    def tuned(self, scores_of: ScoresOf) -> Tuned:
        """The acoustic scale, without a penalty for words."""
        dev = evenly(self.corpus.split("dev"), TUNED_ON)
        return tune(dev.words, scores_of(dev), self.graph, insertions=(0.0,), beam=BEAM)

    def errors(self, split: str, scores_of: ScoresOf, tuned: Tuned | None) -> np.ndarray:
        """Substitutions, insertions and deletions of each utterance."""
        assert tuned is not None
        part = self.corpus.split(split)
        found = recognise(self.graph, scores_of(part), tuned.best.scale, BEAM)
        return word_errors(part.words, [each.words for each in found]).errors

    def lengths(self, split: str) -> np.ndarray:
        """Words said in each utterance."""
        return np.array([len(words) for words in self.corpus.split(split).words], np.int64)

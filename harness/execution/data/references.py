"""What the transcripts of a corpus compete with in sequence training."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from data_synth.corpus import Corpus, frame_edges
from harness.acoustics import language_model
from harness.acoustics.hmm import stay_probabilities
from harness.acoustics.lexicon import Lexicon, word_of
from harness.acoustics.numerator import References


@lru_cache(maxsize=2)
def references_of(corpus: Corpus) -> References:
    """Paper 3's graphs for a corpus: a unigram over its lexicon, transitions from its alignment.

    Made once for all runs of a process on a corpus: their graphs of transcripts are the same.

    The unigram is estimated from the corpus's text, or from its training transcripts if it
    has none.
    """
    # Corpora are validated by decoding, so these would import each other.

    train = corpus.split("train")
    words = {word_of(entry) for entry in corpus.lexicon}
    model = language_model.train(corpus.lm_text or train.words, 1, vocabulary=words)
    row, first, _ = frame_edges(train)
    stay = stay_probabilities(corpus.targets[row], np.flatnonzero(row == first), corpus.n_targets)
    return References(model, Lexicon.of(corpus.lexicon, corpus.silence, stay))

"""Word errors from frame scores."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from harness.acoustics.hmm import word_scores


@dataclass(frozen=True)
class WordErrors:
    """How many of ``words`` were recognised wrongly."""

    errors: int
    words: int

    @property
    def rate(self) -> float:
        """Errors a word; NaN where there were no words."""
        return self.errors / self.words if self.words else float("nan")


def isolated_word_errors(
    scores: Iterable[np.ndarray],
    references: Sequence[str],
    lexicon: Mapping[str, tuple[int, ...]],
) -> WordErrors:
    """Recognise each utterance as the word whose hidden Markov model scores best.

    Args:
        scores: for each utterance ``[T, K]``: log p(s | x_t) - log prior(s), the
            hybrid system's log likelihood up to a constant.
        references: the word spoken in each utterance.
        lexicon: each word's left-to-right sequence of targets.
    """
    words = list(lexicon)
    errors = 0
    for frame_scores, reference in zip(scores, references, strict=True):
        best = words[int(np.argmax(word_scores(frame_scores, lexicon)))]
        errors += best != reference
    return WordErrors(errors, len(references))

"""Word errors from frame scores."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from harness.acoustics.hmm import chain_scores, chains


def isolated_word_errors(
    scores: Iterable[np.ndarray],
    references: Sequence[str],
    lexicon: Mapping[str, tuple[int, ...]],
    silence: tuple[int, ...] = (),
) -> np.ndarray:
    """Recognise each utterance as the word whose hidden Markov model scores best.

    Args:
        scores: for each utterance ``[T, K]``: log p(s | x_t) - log prior(s), the
            hybrid system's log likelihood up to a constant.
        references: the word spoken in each utterance.
        lexicon: each word's left-to-right sequence of targets.
        silence: the targets that may stand before and after a word.

    Returns:
        uint8 [utterances]: 1 where the wrong word scored best.
    """
    laid = chains(lexicon, silence)
    best = (laid.words[int(np.argmax(chain_scores(each, laid)))] for each in scores)
    return np.array([b != r for b, r in zip(best, references, strict=True)], np.uint8)

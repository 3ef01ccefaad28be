"""Word and character errors: what was recognised against what was said."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from harness.acoustics.compiling import kernel
from harness.acoustics.hmm import chain_scores, chains

Sentence = Sequence[str]


class Edits(NamedTuple):
    """The fewest changes that turn what was said into what was recognised."""

    substitutions: int
    insertions: int
    deletions: int


@dataclass(frozen=True, eq=False)
class ErrorCounts:
    """Errors of each utterance, as ``harness.judge.utterances`` takes them.

    Attributes:
        edits: int64 [U, 3], columns as in ``Edits``.
        lengths: int64 [U], words (or characters) of the references.
    """

    edits: np.ndarray
    lengths: np.ndarray

    @property
    def errors(self) -> np.ndarray:
        """int64 [U], all three kinds together."""
        return self.edits.sum(axis=1)

    @property
    def rate(self) -> float:
        """Errors over length, all utterances pooled; it can exceed 1."""
        return float(self.errors.sum() / self.lengths.sum())


def edits(reference: Sentence, hypothesis: Sentence) -> Edits:
    """Levenshtein's distance by kinds; of equally few edits, those with most substitutions.

    Example:
        >>> edits(["the", "cat", "sat"], ["the", "mat", "sat", "down"])
        Edits(substitutions=1, insertions=1, deletions=0)
    """
    number: dict[str, int] = {}
    said, heard = (
        np.array([number.setdefault(word, len(number)) for word in sentence], np.int64)
        for sentence in (reference, hypothesis)
    )
    return Edits(*_edits(said, heard))


def word_errors(references: Iterable[Sentence], hypotheses: Iterable[Sentence]) -> ErrorCounts:
    """Count the edits of every utterance.

    Args:
        references: what was said, a sequence of words (or characters) an utterance.
        hypotheses: what was recognised, in the same order.

    Raises:
        ValueError: there are not as many of the one as of the other.

    Example:
        >>> word_errors([["yes", "no"], ["no"]], [["yes"], ["no"]]).rate == 1 / 3
        True
    """
    pairs = list(zip(references, hypotheses, strict=True))
    counts = np.array([edits(r, h) for r, h in pairs], np.int64).reshape(-1, 3)
    return ErrorCounts(counts, np.array([len(r) for r, _ in pairs], np.int64))


def characters(words: Sentence, separator: str = "") -> tuple[str, ...]:
    """A sentence as characters.

    Args:
        words: its words.
        separator: what stands between words and counts as a character: nothing in
            Mandarin, a space where words are written apart.
    """
    return tuple(separator.join(words))


def character_errors(
    references: Iterable[Sentence], hypotheses: Iterable[Sentence], separator: str = ""
) -> ErrorCounts:
    """Count the edits of every utterance's characters; see ``word_errors``."""
    spelt = ([characters(s, separator) for s in side] for side in (references, hypotheses))
    return word_errors(*spelt)


def phones(words: Sentence, pronunciations: Mapping[str, Sentence]) -> tuple[str, ...]:
    """A sentence as phones, each word in its first pronunciation.

    Args:
        words: its words.
        pronunciations: word -> phones; a word that is not among them counts as one phone.

    Example:
        >>> phones(["no", "uh"], {"no": ("n", "ow")})
        ('n', 'ow', 'uh')
    """
    return tuple(phone for word in words for phone in pronunciations.get(word, (word,)))


def phone_errors(
    references: Iterable[Sentence],
    hypotheses: Iterable[Sentence],
    pronunciations: Mapping[str, Sentence],
) -> ErrorCounts:
    """Count the edits of every utterance's phones: a homophone is no error.

    See ``word_errors`` and ``phones``.
    """
    spelt = ([phones(s, pronunciations) for s in side] for side in (references, hypotheses))
    return word_errors(*spelt)


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


@kernel
def _edits(said: np.ndarray, heard: np.ndarray) -> tuple[int, int, int]:
    cost = np.empty((len(said) + 1, len(heard) + 1), np.int64)
    cost[0] = np.arange(len(heard) + 1)
    for i in range(1, len(said) + 1):
        cost[i, 0] = i
        for j in range(1, len(heard) + 1):
            change = cost[i - 1, j - 1] + (said[i - 1] != heard[j - 1])
            cost[i, j] = min(change, cost[i - 1, j] + 1, cost[i, j - 1] + 1)
    # Insertions minus deletions is the difference in length, so the fewest of both go with
    # the most substitutions: found by counting substitutions along best ways only.
    most = np.full(cost.shape, -1, np.int64)
    most[0, 0] = 0
    for i in range(len(said) + 1):
        for j in range(len(heard) + 1):
            if i and j:
                differs = said[i - 1] != heard[j - 1]
                if cost[i - 1, j - 1] + differs == cost[i, j]:
                    most[i, j] = most[i - 1, j - 1] + differs
            if i and cost[i - 1, j] + 1 == cost[i, j]:
                most[i, j] = max(most[i, j], most[i - 1, j])
            if j and cost[i, j - 1] + 1 == cost[i, j]:
                most[i, j] = max(most[i, j], most[i, j - 1])
    substitutions = most[-1, -1]
    others, longer = cost[-1, -1] - substitutions, len(heard) - len(said)
    return substitutions, (others + longer) // 2, (others - longer) // 2

"""Invented text: a bigram of words whose entropy is known exactly.

After word v comes one of its few favourites with probability λ (``habit``), else any word
by Zipf's law: P(w|v) = λ F(w|v) + (1 − λ) Z(w). A sentence's length is drawn apart.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from harness.base.seeds import stream


@dataclass(frozen=True)
class Manner:
    """How people talk in an invented language.

    Attributes:
        habit: λ, the probability that a word is followed by one of its favourites.
        favourites: how many each word has; the k-th has weight 1/k.
        zipf: exponent of the words' frequencies, rank^−zipf.
        sentence_words: (least, most) in a sentence, every length equally likely.
    """

    habit: float = 0.7
    favourites: int = 8
    zipf: float = 0.8
    sentence_words: tuple[int, int] = (4, 12)


@dataclass(frozen=True)
class Bigram:
    """A manner of talking about ``words`` words, numbered from 0.

    Attributes:
        manner: the knobs.
        often: float64 [words], Z.
        next: int64 [words, favourites], who likes to follow whom.
    """

    manner: Manner
    often: np.ndarray
    next: np.ndarray

    @property
    def weights(self) -> np.ndarray:
        """Of a word's favourites: float64 [favourites]."""
        weights = 1.0 / np.arange(1, int(self.next.shape[1]) + 1)
        return weights / weights.sum()

    def successors(self, word: int) -> np.ndarray:
        """P(· | word), float64 [words]."""
        row = (1.0 - self.manner.habit) * self.often
        np.add.at(row, self.next[word], self.manner.habit * self.weights)
        return row

    def sentence(self, rng: np.random.Generator) -> tuple[int, ...]:
        """One sentence; its first word follows Zipf's law."""
        least, most = self.manner.sentence_words
        length = int(rng.integers(least, most + 1))
        anybody = _draw(self.often, rng.random(length))
        liked, habit = _draw(self.weights, rng.random(length)), rng.random(length)
        words = [int(anybody[0])]
        for i in range(1, length):
            usual = habit[i] < self.manner.habit
            words.append(int(self.next[words[-1], liked[i]] if usual else anybody[i]))
        return tuple(words)

    def stationary(self, rounds: int = 200) -> np.ndarray:
        """How often each word comes in a long text, float64 [words], by power iteration."""
        pi = self.often
        for _ in range(rounds):
            flow = np.zeros_like(pi)
            np.add.at(flow, self.next, pi[:, None] * self.weights)
            pi = self.manner.habit * flow + (1.0 - self.manner.habit) * self.often
        return pi

    def entropy_bits(self) -> float:
        """Bits a word of a long text: −Σ_v π(v) Σ_w P(w|v) log2 P(w|v); 2 to it is perplexity."""
        rows = (self.successors(v) for v in range(len(self.often)))
        return float(self.stationary() @ [-(p * np.log2(p)).sum() for p in rows])


def edges_of(weights: np.ndarray) -> np.ndarray:
    """Where between 0 and 1 one index ends and the next begins, float64 [indices - 1]."""
    edges = np.cumsum(weights)
    return edges[:-1] / edges[-1]


def _draw(weights: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    """Indices drawn by weight: the inverse of the cumulative distribution at ``uniform``."""
    return np.searchsorted(edges_of(weights), uniform, side="right")


def invent_bigram(seed: int, words: int, manner: Manner) -> Bigram:
    """Draws how frequent each word is and what follows it."""
    rng = stream(seed, "text bigram")
    often = np.arange(1, words + 1) ** -manner.zipf
    often = often[rng.permutation(words)] / often.sum()
    return Bigram(manner, often, rng.integers(words, size=(words, manner.favourites)))

"""N-gram language models, estimated from text.

Both smoothings are interpolated, so both are back-off models in the ARPA sense: with
h' the history h without its oldest word,

    p(w | h) = p*(w | h)          where the n-gram (h, w) was seen,
    p(w | h) = b(h) p(w | h')     where it was not.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Literal

BEGIN, END, UNKNOWN = "<s>", "</s>", "<unk>"
MARKS = (BEGIN, END, UNKNOWN)

Ngram = tuple[str, ...]
Counts = Mapping[Ngram, Mapping[str, int]]
"""History -> word -> how often; the histories of one order have one length."""
Smoothing = Literal["kneser-ney", "witten-bell"]
SMOOTHINGS: tuple[Smoothing, ...] = ("kneser-ney", "witten-bell")


@dataclass(frozen=True, eq=False)
class LanguageModel:
    """A back-off n-gram model.

    Attributes:
        order: the longest n-gram's length.
        log_probs: n-gram -> log p(last word | the words before); ``<s>`` stands before a
            sentence and is never predicted, ``</s>`` ends one.
        backoffs: history -> log b(history); 0 where a history is missing.
    """

    order: int
    log_probs: Mapping[Ngram, float]
    backoffs: Mapping[Ngram, float]

    @cached_property
    def words(self) -> tuple[str, ...]:
        """The words that can be said, in the model's order: no ``<s>``, ``</s>``, ``<unk>``."""
        return tuple(g[0] for g in self.log_probs if len(g) == 1 and g[0] not in MARKS)

    @cached_property
    def followers(self) -> Mapping[Ngram, Mapping[str, float]]:
        """History -> word -> log probability, of the n-grams that were seen."""
        table: dict[Ngram, dict[str, float]] = defaultdict(dict)
        for gram, value in self.log_probs.items():
            table[gram[:-1]][gram[-1]] = value
        return dict(table)

    def known(self, word: str) -> str:
        """The word itself, or ``<unk>`` where the model does not have it."""
        return word if (word,) in self.log_probs else UNKNOWN

    def log_prob(self, word: str, history: Sequence[str] = ()) -> float:
        """Log p(word | history).

        An unknown word has the probability of ``<unk>``; -inf in a model without ``<unk>``.

        Args:
            word: any word, or ``</s>``.
            history: the words before, oldest first; begin a sentence with ``<s>``. Only
                the last ``order - 1`` count.
        """
        context = tuple(map(self.known, history))[max(0, len(history) - self.order + 1) :]
        word, penalty = self.known(word), 0.0
        while (*context, word) not in self.log_probs:
            if not context:
                return -math.inf
            penalty += self.backoffs.get(context, 0.0)
            context = context[1:]
        return penalty + self.log_probs[(*context, word)]

    def sentence_log_prob(self, words: Sequence[str]) -> float:
        """Log probability of a whole sentence, its end included."""
        said = (BEGIN, *words, END)
        return sum(self.log_prob(said[i], said[:i]) for i in range(1, len(said)))

    def perplexity(self, text: Iterable[Sequence[str]]) -> float:
        """Exp of the mean negative log probability of a word, sentence ends counted as words.

        Raises:
            ValueError: there is no text.
        """
        sentences = list(text)
        if not sentences:
            raise ValueError("perplexity of no sentences")
        total = sum(self.sentence_log_prob(words) for words in sentences)
        return math.exp(-total / sum(len(words) + 1 for words in sentences))


def train(
    text: Iterable[Sequence[str]],
    order: int = 2,
    *,
    smoothing: Smoothing = "kneser-ney",
    vocabulary: Iterable[str] | None = None,
) -> LanguageModel:
    """Estimate an n-gram model from sentences.

    Single words are interpolated with the uniform distribution over the vocabulary, ``</s>``
    and ``<unk>``, so that every one of them can follow anything.

    - ``"kneser-ney"`` (Kneser and Ney 1995, interpolated as in Chen and Goodman 1998,
      section 2.7): p(w|h) = max(c(hw) - D, 0) / c(h) + b(h) p(w|h'), with
      b(h) = D N(h) / c(h), N(h) the distinct followers of h and D = n1 / (n1 + 2 n2) of
      each order (0.5 if the text has no n-gram seen once, or none seen twice). Below the
      highest order c counts distinct words in front, except after ``<s>``.
    - ``"witten-bell"`` (Witten and Bell 1991): p(w|h) = (c(hw) + N(h) p(w|h')) /
      (c(h) + N(h)).

    Args:
        text: sentences, each a sequence of words.
        order: 1 for unigrams, 2 for bigrams, and so on.
        smoothing: which of the two.
        vocabulary: the words to know; others count as ``<unk>``. All of the text's words
            if left out.

    Raises:
        ValueError: there is no text, the order is not positive, the smoothing is unknown or
            a word is one of the marks.

    Example:
        >>> model = train([("yes", "no"), ("no",)], order=1, smoothing="witten-bell")
        >>> model.words
        ('no', 'yes')
    """
    if order < 1 or smoothing not in SMOOTHINGS:
        raise ValueError(f"order {order}, smoothing {smoothing!r}; allowed: ≥ 1, {SMOOTHINGS}")
    sentences = [tuple(words) for words in text]
    words = sorted({w for s in sentences for w in s} if vocabulary is None else set(vocabulary))
    if set(words) & set(MARKS) or not sentences:
        raise ValueError(f"no text, or one of {', '.join(MARKS)} as a word")
    counts = _counts(sentences, set(words), order)
    if smoothing == "kneser-ney":
        counts = _continuations(counts)
    return _interpolated(counts, (*words, END, UNKNOWN), smoothing)


def _counts(sentences: Sequence[Ngram], words: set[str], order: int) -> list[Counts]:
    """How often each word follows each history, for every order from 1 up."""
    tables: list[dict[Ngram, Counter[str]]] = [defaultdict(Counter) for _ in range(order)]
    for sentence in sentences:
        said = (BEGIN, *(w if w in words else UNKNOWN for w in sentence), END)
        for i in range(1, len(said)):
            for n in range(min(order, i + 1)):
                tables[n][said[i - n : i]][said[i]] += 1
    return list(tables)


def _continuations(counts: list[Counts]) -> list[Counts]:
    """Kneser-Ney's counts: below the highest order, the number of distinct words in front."""
    out: list[Counts] = []
    for lower, higher in pairwise(counts):
        table: dict[Ngram, Counter[str]] = defaultdict(Counter)
        for history, followers in higher.items():
            table[history[1:]].update(followers.keys())
        # Nothing can stand in front of <s>: those n-grams keep their own counts.
        table.update({h: Counter(f) for h, f in lower.items() if h[:1] == (BEGIN,)})
        out.append(table)
    return [*out, counts[-1]]


def _discount(counts: Counts) -> float:
    """Ney, Essen and Kneser's (1994) estimate n1 / (n1 + 2 n2) of the absolute discount."""
    seen = Counter(c for followers in counts.values() for c in followers.values())
    return seen[1] / (seen[1] + 2 * seen[2]) if seen[1] and seen[2] else 0.5


def _interpolated(counts: list[Counts], vocabulary: Ngram, smoothing: Smoothing) -> LanguageModel:
    """Mix every order with the one below it, from the uniform distribution upwards."""
    probs: dict[Ngram, float] = {(): 1.0}
    log_probs: dict[Ngram, float] = {(BEGIN,): -math.inf}
    backoffs: dict[Ngram, float] = {}
    for n, table in enumerate(counts):
        discount = _discount(table) if smoothing == "kneser-ney" else 0.0
        lower, probs = probs, {}
        for history, followers in table.items():
            total, kinds = sum(followers.values()), len(followers)
            if smoothing == "witten-bell":
                total += kinds
            weight = (discount or 1.0) * kinds / total
            if history:
                backoffs[history] = math.log(weight)
            for word in followers if n else vocabulary:
                below = lower[(*history[1:], word)] if n else 1.0 / len(vocabulary)
                seen = max(followers.get(word, 0) - discount, 0.0)
                probs[(*history, word)] = seen / total + weight * below
        log_probs.update((gram, math.log(p)) for gram, p in probs.items())
    return LanguageModel(len(counts), log_probs, backoffs)

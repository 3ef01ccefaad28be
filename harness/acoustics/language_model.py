"""N-gram language models, ARPA files and pronunciations.

N-gram models are estimated from text, with interpolated smoothing, so they are back-off
models in the ARPA sense: with h' the history h without its oldest word,

    p(w | h) = p*(w | h)          where the n-gram (h, w) was seen,
    p(w | h) = b(h) p(w | h')     where it was not.

ARPA files hold a model as text, with base-10 logarithms; they may be gzip-compressed.

A pronunciation is a sequence of targets. In a lexicon ``"word"``, ``"word(2)"``, ... are
different pronunciations of one word.
"""

from __future__ import annotations

import gzip
import math
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from harness.base.errors import UserError

BEGIN, END, UNKNOWN = "<s>", "</s>", "<unk>"

MARKS = (BEGIN, END, UNKNOWN)

Ngram = tuple[str, ...]

Counts = Mapping[Ngram, Mapping[str, int]]
"""History -> word -> count; the histories of one order have one length."""


@dataclass(frozen=True, eq=False)
class LanguageModel:
    """A back-off n-gram model.

    Attributes:
        order: length of the longest n-grams.
        log_probs: n-gram -> log p(last word | the words before); ``<s>`` begins a sentence and
            is never predicted, ``</s>`` ends one.
        backoffs: history -> log b(history); 0 if a history is missing.
    """

    order: int
    log_probs: Mapping[Ngram, float]
    backoffs: Mapping[Ngram, float]

    @cached_property
    def words(self) -> tuple[str, ...]:
        """The vocabulary in the model's order, without ``<s>``, ``</s>`` and ``<unk>``."""
        return tuple(g[0] for g in self.log_probs if len(g) == 1 and g[0] not in MARKS)

    @cached_property
    def followers(self) -> Mapping[Ngram, Mapping[str, float]]:
        """History -> word -> log probability, of the n-grams that were seen."""
        table: dict[Ngram, dict[str, float]] = defaultdict(dict)
        for gram, value in self.log_probs.items():
            table[gram[:-1]][gram[-1]] = value
        return dict(table)

    def map_unknown(self, word: str) -> str:
        """The word itself, or ``<unk>`` if it is not in the model."""
        return word if (word,) in self.log_probs else UNKNOWN

    def log_prob(self, word: str, history: Sequence[str] = ()) -> float:
        """Log p(word | history).

        An unknown word has the probability of ``<unk>``; -inf in a model without ``<unk>``.

        Args:
            word: any word, or ``</s>``.
            history: preceding words, oldest first, from ``<s>`` at the start of a sentence.
                Only the last ``order - 1`` are used.
        """
        context = tuple(map(self.map_unknown, history))[max(0, len(history) - self.order + 1) :]
        word, penalty = self.map_unknown(word), 0.0
        while (*context, word) not in self.log_probs:
            if not context:
                return -math.inf
            penalty += self.backoffs.get(context, 0.0)
            context = context[1:]
        return penalty + self.log_probs[(*context, word)]


def train(
    text: Iterable[Sequence[str]], order: int = 2, *, vocabulary: Iterable[str] | None = None
) -> LanguageModel:
    """Estimate an n-gram model from sentences.

    Unigrams are interpolated with the uniform distribution over the vocabulary, ``</s>`` and
    ``<unk>``, so that each of these has a positive probability after any history.

    Kneser and Ney (1995), interpolated as in Chen and Goodman (1998, section 2.7): p(w|h) =
    max(c(hw) - D, 0) / c(h) + b(h) p(w|h'), with b(h) = D N(h) / c(h), N(h) the distinct
    followers of h and D = n1 / (n1 + 2 n2) of each order (0.5 if the text has no n-gram seen once,
    or none seen twice). Below the highest order c counts distinct words in front, except after
    ``<s>``.

    Args:
        text: sentences, each a sequence of words.
        order: 1 for unigrams, 2 for bigrams, and so on.
        vocabulary: words of the model; others count as ``<unk>``. All words of the text if
            left out.

    Raises:
        ValueError: there is no text, the order is not positive, or a word is one of the
            marks.

    Example:
        >>> model = train([("yes", "no"), ("no",)], order=1)
        >>> model.words
        ('no', 'yes')
    """
    if order < 1:
        raise ValueError(f"order {order}; allowed: ≥ 1")
    sentences = [tuple(words) for words in text]
    words = sorted({w for s in sentences for w in s} if vocabulary is None else set(vocabulary))
    if set(words) & set(MARKS) or not sentences:
        raise ValueError(f"no text, or one of {', '.join(MARKS)} as a word")
    counts = _continuations(_counts(sentences, set(words), order))
    return _interpolate(counts, (*words, END, UNKNOWN))


def _counts(sentences: Sequence[Ngram], words: set[str], order: int) -> list[Counts]:
    """Counts of each word after each history, for every order from 1 up."""
    tables: list[dict[Ngram, Counter[str]]] = [defaultdict(Counter) for _ in range(order)]
    for sentence in sentences:
        said = (BEGIN, *(w if w in words else UNKNOWN for w in sentence), END)
        for i in range(1, len(said)):
            for n in range(min(order, i + 1)):
                tables[n][said[i - n : i]][said[i]] += 1
    return list(tables)


def _continuations(counts: list[Counts]) -> list[Counts]:
    """Kneser-Ney's counts: below the highest order, the number of distinct preceding words."""
    out: list[Counts] = []
    for lower, higher in pairwise(counts):
        table: dict[Ngram, Counter[str]] = defaultdict(Counter)
        for history, followers in higher.items():
            table[history[1:]].update(followers.keys())
        # No word precedes <s>: those n-grams keep their own counts.
        table.update({h: Counter(f) for h, f in lower.items() if h[:1] == (BEGIN,)})
        out.append(table)
    return [*out, counts[-1]]


def _discount(counts: Counts) -> float:
    """Ney, Essen and Kneser's (1994) estimate n1 / (n1 + 2 n2) of the absolute discount."""
    times = Counter(c for followers in counts.values() for c in followers.values())
    return times[1] / (times[1] + 2 * times[2]) if times[1] and times[2] else 0.5


def _interpolate(counts: list[Counts], vocabulary: Ngram) -> LanguageModel:
    """Interpolate every order with the one below it, from the uniform distribution upwards."""
    probs: dict[Ngram, float] = {(): 1.0}
    log_probs: dict[Ngram, float] = {(BEGIN,): -math.inf}
    backoffs: dict[Ngram, float] = {}
    for n, table in enumerate(counts):
        discount = _discount(table)
        lower, probs = probs, {}
        for history, followers in table.items():
            total, kinds = sum(followers.values()), len(followers)
            weight = discount * kinds / total
            if history:
                backoffs[history] = math.log(weight)
            for word in followers if n else vocabulary:
                below = lower[(*history[1:], word)] if n else 1.0 / len(vocabulary)
                share = max(followers.get(word, 0) - discount, 0.0)
                probs[(*history, word)] = share / total + weight * below
        log_probs.update((gram, math.log(p)) for gram, p in probs.items())
    return LanguageModel(len(counts), log_probs, backoffs)


LN10 = math.log(10.0)

NEVER = -99.0
"""Logarithm of zero in ARPA files."""


def read_arpa(path: Path) -> LanguageModel:
    """Read a model of any order.

    Raises:
        UserError: the file cannot be read, is not UTF-8 or not an ARPA file, or holds
            another number of n-grams than it announces.
    """
    try:
        opener: Any = gzip.open if path.suffix == ".gz" else open
        with opener(path, "rt", encoding="utf-8") as lines:
            return _Reader(path).model(lines)
    except UnicodeDecodeError:
        raise UserError(f"{path}: not UTF-8 text; an ARPA file must be") from None
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path}: cannot be read ({error})") from None


class _Reader:
    """Reads one ARPA file line by line; keeps the line number for error messages."""

    def __init__(self, path: Path) -> None:
        self.path, self.number = path, 0
        self.announced: dict[int, int] = {}
        self.log_probs: dict[Ngram, float] = {}
        self.backoffs: dict[Ngram, float] = {}

    def model(self, lines: Iterator[str]) -> LanguageModel:
        r"""Read the model; lines before ``\data\`` and after ``\end\`` are ignored."""
        section: int | None = None
        for self.number, raw in enumerate(lines, 1):
            line = raw.strip()
            if line == "\\data\\":
                section = 0
            elif line == "\\end\\" and section is not None:
                return self._whole()
            elif line.startswith("\\") and line.endswith("-grams:"):
                section = self._integer(line[1 : -len("-grams:")])
            elif line and section is not None:
                self._entry(line, section)
        raise UserError(f"{self.path}: ends after line {self.number} without a line \\end\\")

    def _entry(self, line: str, section: int) -> None:
        if section == 0:
            order, _, count = line.removeprefix("ngram").partition("=")
            self.announced[self._integer(order)] = self._integer(count)
            return
        fields = line.split()
        if not section + 1 <= len(fields) <= section + 2:
            raise self._wrong(f"{line!r}; allowed: log10 p, {section} words, perhaps log10 b")
        gram = tuple(fields[1 : section + 1])
        value = self._log(fields[0])
        self.log_probs[gram] = -math.inf if gram == (BEGIN,) else value
        if len(fields) == section + 2:
            self.backoffs[gram] = self._log(fields[-1])

    def _whole(self) -> LanguageModel:
        sizes = Counter(map(len, self.log_probs))
        for order, count in self.announced.items():
            if sizes[order] != count:
                raise UserError(
                    f"{self.path}: announces {count} n-grams of order {order}, holds {sizes[order]}"
                )
        if set(sizes) - set(self.announced) or not self.announced:
            raise UserError(f"{self.path}: n-gram orders {sorted(sizes)} are not all announced")
        return LanguageModel(max(sizes), self.log_probs, self.backoffs)

    def _integer(self, text: str) -> int:
        try:
            return int(text)
        except ValueError:
            raise self._wrong(f"{text!r}; a whole number is needed") from None

    def _log(self, text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise self._wrong(f"{text!r}; a base-10 logarithm is needed") from None
        if math.isnan(value) or value == math.inf:
            raise self._wrong(f"{text!r}; a finite base-10 logarithm is needed")
        return -math.inf if value <= NEVER else value * LN10

    def _wrong(self, mistake: str) -> UserError:
        return UserError(f"{self.path}: line {self.number}: {mistake}")


def word_of(entry: str) -> str:
    """The word of a lexicon entry, without the number of a further pronunciation.

    Example:
        >>> word_of("either"), word_of("either(2)"), word_of("f(x)")
        ('either', 'either', 'f(x)')
    """
    stem, bracket, number = entry.removesuffix(")").rpartition("(")
    return stem if bracket and stem and entry.endswith(")") and number.isdigit() else entry


def variants(pronunciations: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Word -> its lexicon entries, in the lexicon's order.

    Example:
        >>> variants({"a": (1,), "the": (2,), "the(2)": (3,)})
        {'a': ('a',), 'the': ('the', 'the(2)')}
    """
    entries: dict[str, tuple[str, ...]] = {}
    for entry in pronunciations:
        entries[word_of(entry)] = (*entries.get(word_of(entry), ()), entry)
    return entries


@dataclass(frozen=True, eq=False)
class Lexicon:
    """Pronunciations of words, and the optional silence between them.

    Args:
        words: word -> its pronunciations, each a left-to-right sequence of targets; they
            share the word's probability equally.
        silence: targets of the optional silence between words and at both ends.
        silence_prob: probability of silence at each of these places.
        stay: probability [K] that a target's state is followed by itself, in (0, 1); if
            left out, staying and advancing have weight 0.
    """

    words: Mapping[str, Sequence[Sequence[int]]]
    silence: Sequence[int] = ()
    silence_prob: float = 0.5
    stay: np.ndarray | None = None

    @classmethod
    def from_entries(
        cls,
        entries: Mapping[str, Sequence[int]],
        silence: Sequence[int] = (),
        stay: np.ndarray | None = None,
    ) -> Lexicon:
        """From a corpus's lexicon, where ``"word(2)"`` is a second pronunciation of ``"word"``."""
        words = {w: tuple(entries[e] for e in found) for w, found in variants(entries).items()}
        return cls(words, silence, stay=stay)

    def staying(self, target: int) -> tuple[float, float]:
        """Log weights of staying in and of leaving a state of ``target``."""
        if self.stay is None:
            return 0.0, 0.0
        p = float(self.stay[target])
        return math.log(p), math.log1p(-p)

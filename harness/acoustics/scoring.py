"""Word and character errors, and the tuning of recognition on development data.

Word and character errors: what was recognised against what was said. Recognising whole sets, and
tuning what only a development set may decide.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from harness.acoustics.compiling import kernel
from harness.acoustics.decoder import Beam, decode
from harness.acoustics.graph import Graph
from harness.acoustics.lattice import BestPath

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


_E6 = (1.0, 1.5, 2.2, 3.3, 4.7, 6.8)  # preferred numbers, each about 10^(1/6) of the last

SCALES = (*(round(decade * step, 3) for decade in (0.01, 0.1, 1.0) for step in _E6), 10.0)

INSERTIONS = tuple(float(nats) for nats in range(-12, 13, 2))

TELLS = 2.0
"""Standard errors of a paired difference beyond which one setting is clearly worse."""

UNITS = {"words": word_errors, "characters": character_errors}


def recognise(
    graph: Graph, scores: Iterable[np.ndarray], scale: float, beam: Beam | None = None
) -> list[BestPath]:
    """The best path of every utterance.

    Args:
        graph: from ``decoding_graph``, perhaps ``with_insertion_penalty``.
        scores: for each utterance ``[T, K]``: log p(s | x_t) - log prior(s).
        scale: κ, what these are multiplied with.
        beam: what to keep; by default ``Beam()``.
    """
    return [decode(graph, scale * each, beam) for each in scores]


@dataclass(frozen=True)
class Trial:
    """One setting: acoustic scale κ, insertion penalty in nats, and its error rate."""

    scale: float
    insertion: float
    rate: float


@dataclass(frozen=True)
class Plateau:
    """Neighbouring settings that development data cannot tell from the best one.

    Attributes:
        middle: the one to use.
        low, high: the first and the last of them.
        decided: whether the next ones on both sides were tried and are clearly worse, or there
            was nothing to choose from.
    """

    middle: float
    low: float
    high: float
    decided: bool


@dataclass(frozen=True)
class TuningResult:
    """The setting to use, all that were tried, and which others are as good."""

    best: Trial
    trials: tuple[Trial, ...]
    scale: Plateau
    insertion: Plateau

    @property
    def decided(self) -> bool:
        """Whether development data could tell where the good settings end."""
        return self.scale.decided and self.insertion.decided


def tune(
    said: Sequence[Sentence],
    scores: Iterable[np.ndarray],
    graph: Graph,
    *,
    scales: Sequence[float] = SCALES,
    insertions: Sequence[float] = INSERTIONS,
    unit: Literal["words", "characters"] = "words",
    beam: Beam | None = None,
) -> TuningResult:
    """Find the acoustic scale without a penalty, then the insertion penalty at that scale.

    Args:
        said: words of each utterance of the development set, or of a part of it.
        scores: ``[T, K]`` log p(s | x_t) - log prior(s) of each.
        graph: what to search.
        scales: values of κ that may be tried, as `plateau` has them.
        insertions: penalties that may be tried, in nats a word; less than 0 favours more words.
        unit: what the error rate counts.
        beam: what the search keeps.

    Raises:
        ValueError: there is no scale or no penalty to try.
    """
    heard = list(scores)
    found: dict[tuple[float, float], ErrorCounts] = {}

    def errors(scale: float, insertion: float) -> np.ndarray:
        if (scale, insertion) not in found:
            best = recognise(graph.with_insertion_penalty(insertion), heard, scale, beam)
            found[scale, insertion] = UNITS[unit](said, [each.words for each in best])
        return found[scale, insertion].errors

    scale = plateau(scales, lambda value: errors(value, 0.0))
    insertion = plateau(insertions, lambda value: errors(scale.middle, value))
    trials = {setting: Trial(*setting, counts.rate) for setting, counts in found.items()}
    return TuningResult(
        trials[scale.middle, insertion.middle], tuple(trials.values()), scale, insertion
    )


def plateau(settings: Sequence[float], errors_of: Callable[[float], np.ndarray]) -> Plateau:
    """The best setting and its neighbours that are as good as far as utterances can tell.

    From the middle of the settings the search goes on in both directions until the next one is
    clearly worse than the best: it makes more errors, by more than `TELLS` standard errors of
    the difference utterance by utterance. The rest is not tried. What is used is the middle of
    the plateau: the best one itself is often the best by chance (Breiman et al., Classification
    and Regression Trees, section 3.4.3, have the rule of one standard error). Of two middles
    it is the one with fewer errors, then the one nearer to where the search began.

    Args:
        settings: in ascending order, such that steps change the errors about equally.
        errors_of: the errors ``[U]`` of each utterance with a setting.

    Raises:
        ValueError: there are no settings.
    """
    if not settings:
        raise ValueError("there is no setting to try")
    begin, last = len(settings) // 2, len(settings) - 1
    tried, asked = dict[int, np.ndarray](), [begin]
    low = high = begin
    while asked:
        tried |= {i: errors_of(settings[i]) for i in asked}
        low, high = _as_good(tried)
        asked = [i for i in (low - 1, high + 1) if 0 <= i <= last and i not in tried]
    middles = ((low + high) // 2, (low + high + 1) // 2)
    middle = min(middles, key=lambda i: (tried[i].sum(), abs(i - begin)))
    decided = not last or (low > 0 and high < last)
    return Plateau(settings[middle], settings[low], settings[high], decided)


def _as_good(tried: Mapping[int, np.ndarray]) -> tuple[int, int]:
    """The first and the last of the settings in a row with the best that are as good."""
    low = high = best = min(sorted(tried), key=lambda i: tried[i].sum())
    while low - 1 in tried and not is_clearly_worse(tried[low - 1], tried[best]):
        low -= 1
    while high + 1 in tried and not is_clearly_worse(tried[high + 1], tried[best]):
        high += 1
    return low, high


def is_clearly_worse(errors: np.ndarray, fewest: np.ndarray) -> bool:
    """Whether utterances tell that errors ``[U]`` are more than the fewest, ``[U]``."""
    more = errors - fewest
    if len(more) < 2:
        return False
    return bool(more.sum() > TELLS * math.sqrt(len(more)) * more.std(ddof=1))

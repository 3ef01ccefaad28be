"""Word errors, and the tuning of recognition on development data.

Errors compare recognised sentences with references. The acoustic scale and the insertion penalty
are tuned on a development set.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from harness.acoustics.compiling import kernel
from harness.acoustics.decoder import Beam, decode
from harness.acoustics.graph import Graph
from harness.acoustics.lattice import BestPath

Sentence = Sequence[str]


class Edits(NamedTuple):
    """Numbers of a smallest set of edits that turns the reference into the hypothesis."""

    substitutions: int
    insertions: int
    deletions: int


@dataclass(frozen=True, eq=False)
class ErrorCounts:
    """Errors of each utterance, in the form that ``harness.judge.utterances`` takes.

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
    """Levenshtein distance by kind of edit; ties go to the most substitutions.

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
        references: a sequence of words (or characters) per utterance.
        hypotheses: recognised words, in the same order.

    Raises:
        ValueError: the numbers of references and hypotheses differ.

    Example:
        >>> word_errors([["yes", "no"], ["no"]], [["yes"], ["no"]]).rate == 1 / 3
        True
    """
    pairs = list(zip(references, hypotheses, strict=True))
    counts = np.array([edits(r, h) for r, h in pairs], np.int64).reshape(-1, 3)
    return ErrorCounts(counts, np.array([len(r) for r, _ in pairs], np.int64))


@kernel
def _edits(reference: np.ndarray, heard: np.ndarray) -> tuple[int, int, int]:
    cost = np.empty((len(reference) + 1, len(heard) + 1), np.int64)
    cost[0] = np.arange(len(heard) + 1)
    for i in range(1, len(reference) + 1):
        cost[i, 0] = i
        for j in range(1, len(heard) + 1):
            change = cost[i - 1, j - 1] + (reference[i - 1] != heard[j - 1])
            cost[i, j] = min(change, cost[i - 1, j] + 1, cost[i, j - 1] + 1)
    # Insertions minus deletions is the difference in length, so fewest edits with the most
    # substitutions have the fewest of both: count substitutions along optimal paths only.
    most = np.full(cost.shape, -1, np.int64)
    most[0, 0] = 0
    for i in range(len(reference) + 1):
        for j in range(len(heard) + 1):
            if i and j:
                differs = reference[i - 1] != heard[j - 1]
                if cost[i - 1, j - 1] + differs == cost[i, j]:
                    most[i, j] = most[i - 1, j - 1] + differs
            if i and cost[i - 1, j] + 1 == cost[i, j]:
                most[i, j] = max(most[i, j], most[i - 1, j])
            if j and cost[i, j - 1] + 1 == cost[i, j]:
                most[i, j] = max(most[i, j], most[i, j - 1])
    substitutions = most[-1, -1]
    unequal, longer = cost[-1, -1] - substitutions, len(heard) - len(reference)
    return substitutions, (unequal + longer) // 2, (unequal - longer) // 2


_E6 = (1.0, 1.5, 2.2, 3.3, 4.7, 6.8)  # preferred numbers, each about 10^(1/6) of the last

SCALES = (*(round(decade * step, 3) for decade in (0.01, 0.1, 1.0) for step in _E6), 10.0)

INSERTIONS = tuple(float(nats) for nats in range(-12, 13, 2))

TELLS = 2.0
"""Standard errors of the paired difference above which a setting is clearly worse."""


def recognise(
    graph: Graph, scores: Iterable[np.ndarray], scale: float, beam: Beam | None = None
) -> list[BestPath]:
    """Search for the best path of every utterance.

    Args:
        graph: from ``decoding_graph``, perhaps ``with_insertion_penalty``.
        scores: for each utterance ``[T, K]``: log p(s | x_t) - log prior(s).
        scale: κ, factor of the scores.
        beam: limits of the search; by default ``Beam()``.
    """
    return [decode(graph, scale * matrix, beam) for matrix in scores]


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
        middle: setting to use.
        low, high: first and last setting of the plateau.
        decided: whether the next settings on both sides were tried and are clearly worse, or
            there was only one setting.
    """

    middle: float
    low: float
    high: float
    decided: bool


@dataclass(frozen=True)
class TuningResult:
    """Settings to use, all trials, and the plateaus of scale and insertion penalty."""

    best: Trial
    trials: tuple[Trial, ...]
    scale: Plateau
    insertion: Plateau

    @property
    def decided(self) -> bool:
        """Whether development data bound both plateaus."""
        return self.scale.decided and self.insertion.decided


def tune(
    said: Sequence[Sentence],
    scores: Iterable[np.ndarray],
    graph: Graph,
    *,
    scales: Sequence[float] = SCALES,
    insertions: Sequence[float] = INSERTIONS,
    beam: Beam | None = None,
) -> TuningResult:
    """Find the acoustic scale without a penalty, then the insertion penalty at that scale.

    Args:
        said: words of each utterance of the development set, or of a part of it.
        scores: ``[T, K]`` log p(s | x_t) - log prior(s) of each.
        graph: decoding graph without a penalty.
        scales: candidate values of κ, ascending; see `plateau`.
        insertions: candidate penalties in nats per word, ascending; below 0 favours more words.
        beam: limits of the search.
    """
    heard = list(scores)
    counts_of: dict[tuple[float, float], ErrorCounts] = {}

    def errors(scale: float, insertion: float) -> np.ndarray:
        if (scale, insertion) not in counts_of:
            best = recognise(graph.with_insertion_penalty(insertion), heard, scale, beam)
            counts_of[scale, insertion] = word_errors(said, [path.words for path in best])
        return counts_of[scale, insertion].errors

    scale = plateau(scales, lambda value: errors(value, 0.0))
    insertion = plateau(insertions, lambda value: errors(scale.middle, value))
    trials = {setting: Trial(*setting, counts.rate) for setting, counts in counts_of.items()}
    return TuningResult(
        trials[scale.middle, insertion.middle], tuple(trials.values()), scale, insertion
    )


def plateau(settings: Sequence[float], errors_of: Callable[[float], np.ndarray]) -> Plateau:
    """Find the settings that are not clearly worse than the best one, and their middle.

    The search starts at the middle of the settings and proceeds in both directions until the next
    setting is clearly worse than the best: its excess of errors exceeds `TELLS` standard errors of
    the difference utterance by utterance. The middle of the plateau is used, because the best
    setting is often the best by chance (compare the rule of one standard error in Breiman et al.,
    Classification and Regression Trees, section 3.4.3). Of two middles it is the one with fewer
    errors, then the one nearer to the start of the search.

    Args:
        settings: in ascending order, with steps that change the errors about equally.
        errors_of: function from a setting to the errors ``[U]`` of each utterance.
    """
    begin, end = len(settings) // 2, len(settings) - 1
    tried, queue = dict[int, np.ndarray](), [begin]
    low = high = begin
    while queue:
        tried |= {i: errors_of(settings[i]) for i in queue}
        low, high = _as_good(tried)
        queue = [i for i in (low - 1, high + 1) if 0 <= i <= end and i not in tried]
    middles = ((low + high) // 2, (low + high + 1) // 2)
    middle = min(middles, key=lambda i: (tried[i].sum(), abs(i - begin)))
    decided = not end or (low > 0 and high < end)
    return Plateau(settings[middle], settings[low], settings[high], decided)


def _as_good(tried: Mapping[int, np.ndarray]) -> tuple[int, int]:
    """First and last index of the tried settings around the best that are not clearly worse."""
    low = high = best = min(sorted(tried), key=lambda i: tried[i].sum())
    while low - 1 in tried and not is_clearly_worse(tried[low - 1], tried[best]):
        low -= 1
    while high + 1 in tried and not is_clearly_worse(tried[high + 1], tried[best]):
        high += 1
    return low, high


def is_clearly_worse(errors: np.ndarray, fewest: np.ndarray) -> bool:
    """Whether ``errors`` [U] exceed ``fewest`` [U] by more than `TELLS` standard errors."""
    excess = errors - fewest
    if len(excess) < 2:
        return False
    return bool(excess.sum() > TELLS * math.sqrt(len(excess)) * excess.std(ddof=1))

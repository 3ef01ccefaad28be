"""Recognising whole sets, and tuning what only a development set may decide."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from harness.acoustics.decoder import Beam, decode
from harness.acoustics.graph import Graph
from harness.acoustics.lattice import Recognised
from harness.acoustics.scoring import ErrorCounts, Sentence, character_errors, word_errors

SCALES = (0.1, 0.2, 0.3, 0.5, 0.7, 1.0)
INSERTIONS = (-6.0, -4.0, -2.0, 0.0, 2.0, 4.0)
UNITS = {"words": word_errors, "characters": character_errors}


def recognise(
    graph: Graph, scores: Iterable[np.ndarray], scale: float, beam: Beam | None = None
) -> list[Recognised]:
    """The best path of every utterance.

    Args:
        graph: from ``decoding_graph``, perhaps ``penalised``.
        scores: for each utterance ``[T, K]``: log p(s | x_t) - log prior(s).
        scale: κ, what these are multiplied with.
        beam: what to keep; by default ``Beam()``.
    """
    return [decode(graph, scale * each, beam) for each in scores]


@dataclass(frozen=True)
class Trial:
    """One setting: acoustic scale κ, insertion penalty in nats, and its error rate.

    A setting is given up once it has made more errors than the best one made in all. Then the
    rate is of those errors over all words: less than its own, but above the best one's.
    """

    scale: float
    insertion: float
    rate: float


@dataclass(frozen=True)
class Tuned:
    """The best trial, and all of them in the order given."""

    best: Trial
    trials: tuple[Trial, ...]


def tune(
    said: Sequence[Sentence],
    scores: Iterable[np.ndarray],
    graph: Graph,
    *,
    scales: Sequence[float] = SCALES,
    insertions: Sequence[float] = INSERTIONS,
    unit: Literal["words", "characters"] = "words",
    beam: Beam | None = None,
) -> Tuned:
    """Find the acoustic scale without a penalty, then the insertion penalty at that scale.

    Of equally good settings the first given is kept.

    Args:
        said: words of each utterance of the development set, or of a part of it.
        scores: ``[T, K]`` log p(s | x_t) - log prior(s) of each.
        graph: what to search.
        scales: values of κ to try.
        insertions: penalties to try, in nats a word; less than 0 favours more words.
        unit: what the error rate counts.
        beam: what the search keeps.

    Raises:
        ValueError: there is no scale to try.
    """
    trials = _Trials(graph, said, list(scores), UNITS[unit], beam)
    tried = trials.of([(scale, 0.0) for scale in scales])
    scale = min(tried, key=lambda t: t.rate).scale
    tried += trials.of([(scale, insertion) for insertion in insertions if insertion != 0.0])
    return Tuned(min(tried, key=lambda t: t.rate), tuple(tried))


@dataclass
class _Trials:
    """What a graph makes of a development set.

    Args:
        graph: what to search.
        said: words of each utterance.
        scores: ``[T, K]`` of each.
        count: counts errors.
        beam: what the search keeps.
    """

    graph: Graph
    said: Sequence[Sentence]
    scores: Sequence[np.ndarray]
    count: Callable[[Sequence[Sentence], Sequence[Sentence]], ErrorCounts]
    beam: Beam | None

    def __post_init__(self) -> None:
        self.fewest = math.inf
        self.length = int(self.count(self.said, self.said).lengths.sum())

    def of(self, settings: Sequence[tuple[float, float]]) -> list[Trial]:
        """A trial of each (scale, insertion), in the order given.

        Large scales and penalties go first: their searches keep least and end soonest.
        """
        found = {each: self._errors(*each) for each in sorted(settings, reverse=True)}
        return [Trial(*each, found[each] / max(1, self.length)) for each in settings]

    def _errors(self, scale: float, insertion: float) -> int:
        graph, errors = self.graph.penalised(insertion), 0
        for said, each in zip(self.said, self.scores, strict=True):
            heard = decode(graph, scale * each, self.beam).words
            errors += int(self.count([said], [heard]).errors[0])
            if errors > self.fewest:
                return errors
        self.fewest = errors
        return errors

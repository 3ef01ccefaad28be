"""The numerator of sequence training: what was said, aligned or summed over all alignments."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from harness.acoustics.decoder import EVERYTHING, decode
from harness.acoustics.forward_backward import Shares, occupancies
from harness.acoustics.graph import Graph, decoding_graph, transcript_graph
from harness.acoustics.language_model import LanguageModel
from harness.acoustics.lexicon import Lexicon

REMEMBERED = 16_384
"""Transcripts whose graphs are kept."""

Words = tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Alignment:
    """One path of a reference.

    Attributes:
        targets: int32 [T], the target of each frame.
        weight: log weight of the path's arcs: transitions, pronunciations, language model.
    """

    targets: np.ndarray
    weight: float

    def log_weight(self, scores: np.ndarray) -> float:
        """Log weight of the path, its acoustic ``scores`` [T, K] included."""
        return self.weight + float(scores[np.arange(len(scores)), self.targets].sum())

    def occupancies(self, n_targets: int) -> np.ndarray:
        """γ [T, K], float64: one in each frame's target."""
        gamma = np.zeros((len(self.targets), n_targets))
        gamma[np.arange(len(self.targets)), self.targets] = 1.0
        return gamma


class References:
    """Makes the graphs of references, arc for arc those of the word loop they compete in.

    Args:
        model: a unigram model: with it a path's weight is the same in both graphs.
        lexicon: how words are said.

    Attributes:
        loop: the graph of everything that can be said.
    """

    def __init__(self, model: LanguageModel, lexicon: Lexicon) -> None:
        self.model, self.lexicon = model, lexicon
        self.loop = decoding_graph(model, lexicon)
        self._sayable = frozenset(self.loop.words)

        @lru_cache(REMEMBERED)
        def kept(words: Words) -> Graph:
            return transcript_graph(words, model, lexicon)

        self._graph = kept

    def unsayable(self, reference: Words) -> Words:
        """The words of a reference that the loop does not have."""
        return tuple(w for w in reference if w not in self._sayable)

    def graph(self, reference: Words) -> Graph:
        """The graph of one reference, whose words must all be sayable."""
        return self._graph(reference)

    def align(self, reference: Words, scores: np.ndarray) -> Alignment | None:
        """The heaviest path of a reference (Viterbi); None if none has T frames.

        Args:
            reference: what was said.
            scores: float64 [T, K], scaled acoustic scores.
        """
        found = decode(self.graph(reference), scores, EVERYTHING)
        if not found.complete or found.score == -math.inf:
            return None
        acoustic = scores[np.arange(len(scores)), found.targets].sum()
        return Alignment(found.targets, found.score - float(acoustic))

    def sum(
        self, reference: Words, scores: np.ndarray, shares: Shares | None = None
    ) -> tuple[float, np.ndarray]:
        """Log Z and γ [T, K] of all paths of a reference; -inf and zeros if none has T frames."""
        return occupancies(self.graph(reference), scores, shares)

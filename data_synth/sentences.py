"""Forced alignment of whole sentences: pronunciations to choose from, silence where it helps.

The search is that of recognition (``harness.acoustics.decoder``) on a graph that knows one
sentence. Scores may be those of Gaussians or a network's log posterior minus log prior.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from data_synth.corpus import Utterances
from harness.acoustics.decoder import EVERYTHING, decode
from harness.acoustics.graph import Graph, transcript_graph
from harness.acoustics.language_model import LanguageModel, Lexicon, train
from harness.acoustics.lattice import Recognised


@dataclass(frozen=True, eq=False)
class Alignment:
    """Targets of some utterances, and which could not be aligned.

    Attributes:
        paths: the best path of each utterance, None where its sentence does not fit.
        score: mean log score of an aligned frame.
    """

    paths: tuple[Recognised | None, ...]
    score: float

    @property
    def failed(self) -> np.ndarray:
        """Indices of the utterances that could not be aligned, int64."""
        return np.flatnonzero([path is None for path in self.paths])

    @property
    def targets(self) -> np.ndarray:
        """int32 [frames of the aligned utterances, in their order]."""
        found = [path.targets for path in self.paths if path is not None]
        return np.concatenate([np.zeros(0, np.int32), *found])


class Aligner:
    """Aligns utterances to their words; graphs are built once for all rounds.

    Args:
        lexicon: lexicon entry -> targets; ``"word(2)"`` is another way to say ``"word"``.
        silence: targets that may stand between words and at both ends.
    """

    def __init__(self, lexicon: Mapping[str, Sequence[int]], silence: Sequence[int]) -> None:
        self.lexicon = Lexicon.of(lexicon, silence)
        self.model: LanguageModel = train([tuple(self.lexicon.words)], 1)
        self.graphs: dict[tuple[str, ...], Graph] = {}

    def graph(self, words: tuple[str, ...]) -> Graph:
        """The graph of a sentence."""
        if words not in self.graphs:
            self.graphs[words] = transcript_graph(words, self.model, self.lexicon)
        return self.graphs[words]

    def fewest_frames(self, words: tuple[str, ...]) -> int:
        """How many frames the words need at least."""
        said = self.lexicon.words
        return sum(min(map(len, said[word])) for word in words)

    def align(self, words: tuple[str, ...], scores: np.ndarray) -> Recognised | None:
        """The best path through a sentence; None if it has no words or too few frames.

        Args:
            words: what was said.
            scores: float [frames, n_targets].
        """
        if not words or len(scores) < self.fewest_frames(words):
            return None
        found = decode(self.graph(words), np.asarray(scores, np.float64), EVERYTHING)
        return found if found.complete else None

    def align_all(
        self, utterances: Utterances, scores: Callable[[int, int], np.ndarray]
    ) -> Alignment:
        """The best path of every utterance.

        Args:
            utterances: whom to align.
            scores: (first row, rows) -> float [rows, n_targets].
        """
        rows = zip(utterances.start.tolist(), utterances.frames.tolist(), strict=True)
        paths = tuple(
            self.align(words, scores(start, frames)) if frames else None
            for (start, frames), words in zip(rows, utterances.words, strict=True)
        )
        found = [path for path in paths if path is not None]
        frames = sum(len(path.targets) for path in found)
        return Alignment(paths, sum(path.score for path in found) / max(1, frames))

"""Forced alignment from transcripts: Gaussian state models, and the search for the best path.

Mixtures are one model of many voices: every call of ``refit`` splits the heaviest Gaussians until
there are as many as wanted, then re-estimates by expectation and maximisation (as in The HTK Book
3.4, section 10.6, and Dempster, Laird and Rubin 1977). With one component it is that Gaussian.

An ``Aligner`` aligns whole sentences, with pronunciations to choose from and silence where it
helps. The search is that of recognition (``harness.acoustics.decoder``) on a graph that knows one
sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from data_synth.corpus import Utterances
from harness.acoustics.decoder import EVERYTHING, decode
from harness.acoustics.graph import Graph, transcript_graph
from harness.acoustics.language_model import LanguageModel, Lexicon, train
from harness.acoustics.lattice import BestPath

VARIANCE_FLOOR = 0.01  # of features with variance 1


@dataclass(frozen=True, eq=False)
class Gaussians:
    """One Gaussian with diagonal covariance for every HMM state.

    Attributes:
        mean: float64 [n_targets, dim].
        variance: float64 [n_targets, dim].
    """

    mean: np.ndarray
    variance: np.ndarray

    def loglik(self, features: np.ndarray) -> np.ndarray:
        """Log N(x; μ_s, diag σ²_s) of every frame in every state: float64 [frames, n_targets]."""
        x, precision = np.asarray(features, np.float64), 1.0 / self.variance
        distance = x**2 @ precision.T - 2 * x @ (self.mean * precision).T
        constant = (self.mean**2 * precision + np.log(2 * np.pi * self.variance)).sum(axis=1)
        return -0.5 * (distance + constant)


def equal_parts(frames: int, chain: tuple[int, ...]) -> np.ndarray:
    """A flat start: the chain's states share the frames as evenly as can be, int32 [frames]."""
    return np.asarray(chain, np.int32)[np.arange(frames) * len(chain) // frames]


def flat_start(
    utterances: Utterances, lexicon: Mapping[str, tuple[int, ...]], silence: tuple[int, ...]
) -> np.ndarray:
    """First targets of every utterance: its words' states in equal parts between silences.

    The silence's states get about as many frames as a word's; an utterance too short for
    all states starts without silence.

    Returns:
        int32 [frames of all the utterances, in their order].
    """
    out: list[np.ndarray] = []
    for frames, words in zip(utterances.frames.tolist(), utterances.words, strict=True):
        chain = tuple(state for word in words for state in lexicon[word])
        full = (*silence, *chain, *silence)
        out.append(equal_parts(frames, full if len(full) <= frames else chain))
    return np.concatenate(out)


LEAST_FRAMES = 50  # that a component is estimated from

APART = 0.2  # standard deviations that the halves of a split Gaussian move from its mean

ITERATIONS = 2  # of expectation and maximisation


@dataclass(frozen=True, eq=False)
class Mixtures:
    """One mixture of diagonal Gaussians for every HMM state.

    Attributes:
        parts: the Gaussians of all mixtures, [components].
        log_weight: float64 [components], within its mixture.
        state: int64 [components], state of each, ascending; every state has one or more.
    """

    parts: Gaussians
    log_weight: np.ndarray
    state: np.ndarray

    def loglik(self, features: np.ndarray) -> np.ndarray:
        """Log Σ_c w_c N(x; μ_c, diag σ²_c) of every frame in every state: [frames, n_targets]."""
        parts = self.parts.loglik(features) + self.log_weight
        starts = np.flatnonzero(np.diff(self.state, prepend=-1))
        top = np.maximum.reduceat(parts, starts, axis=1)
        share = np.add.reduceat(np.exp(parts - top[:, self.state]), starts, axis=1)
        return top + np.log(share)

    def mixture_of(self, state: int) -> Mixture:
        """The components of one state: means, variances, log weights."""
        columns = self.state == state
        return self.parts.mean[columns], self.parts.variance[columns], self.log_weight[columns]


Mixture = tuple[np.ndarray, np.ndarray, np.ndarray]


def refit(
    features: np.ndarray,
    targets: np.ndarray,
    n_targets: int,
    components: int | np.ndarray = 1,
    before: Mixtures | None = None,
) -> Mixtures:
    """Maximum likelihood mixtures of aligned frames; a state without frames gets those of all.

    Args:
        features: float [frames, dim].
        targets: int [frames].
        n_targets: number of HMM states.
        components: wanted of every state, or int [n_targets]; a state gets as many as it has
            ``LEAST_FRAMES`` for.
        before: initial mixtures; single Gaussians if left out.
    """
    x = np.asarray(features, np.float64)
    order = np.argsort(targets, kind="stable")
    edges = np.searchsorted(targets[order], np.arange(n_targets + 1))
    everything = _gaussian(x)
    mixtures: list[Mixture] = []
    for state, count in enumerate(np.broadcast_to(components, n_targets).tolist()):
        frames = x[order[edges[state] : edges[state + 1]]]
        if not len(frames):
            mixtures.append(everything)
        elif count == 1:
            mixtures.append(_gaussian(frames))
        else:
            initial = _gaussian(frames) if before is None else before.mixture_of(state)
            mixtures.append(_fit_mixture(frames, *_split(initial, count, len(frames))))
    mean, variance, weight = (np.concatenate(column) for column in zip(*mixtures, strict=True))
    state = np.repeat(np.arange(n_targets), [len(w) for _, _, w in mixtures])
    return Mixtures(Gaussians(mean, variance), weight, state)


def _gaussian(x: np.ndarray) -> Mixture:
    return x.mean(axis=0)[None], np.maximum(x.var(axis=0), VARIANCE_FLOOR)[None], np.zeros(1)


def _split(mixture: Mixture, components: int, frames: int) -> Mixture:
    """Split the heaviest component until there are enough, or too few frames for more."""
    mean, variance, weight = (part.copy() for part in mixture)
    while len(mean) < components and frames >= LEAST_FRAMES * (len(mean) + 1):
        heaviest = int(np.argmax(weight))
        step = APART * np.sqrt(variance[heaviest])
        weight[heaviest] -= np.log(2.0)
        mean = np.concatenate([mean, mean[heaviest : heaviest + 1] + step])
        mean[heaviest] -= step
        variance = np.concatenate([variance, variance[heaviest : heaviest + 1]])
        weight = np.concatenate([weight, weight[heaviest : heaviest + 1]])
    return mean, variance, weight


def _fit_mixture(
    x: np.ndarray, mean: np.ndarray, variance: np.ndarray, weight: np.ndarray
) -> Mixture:
    """A few rounds of expectation and maximisation on a state's frames."""
    if len(mean) == 1:
        return _gaussian(x)
    for _ in range(ITERATIONS):
        logs = Gaussians(mean, variance).loglik(x) + weight
        share = np.exp(logs - logs.max(axis=1, keepdims=True))
        share /= share.sum(axis=1, keepdims=True)
        frames = share.sum(axis=0) + 1e-8
        mean = share.T @ x / frames[:, None]
        second = share.T @ x**2 / frames[:, None]
        variance = np.maximum(second - mean**2, VARIANCE_FLOOR)
        weight = np.log(frames / frames.sum())
    return mean, variance, weight


@dataclass(frozen=True, eq=False)
class Alignment:
    """Targets of some utterances, and the indices of those that could not be aligned.

    Attributes:
        paths: the best path of each utterance, None where its sentence does not fit.
        score: mean log score of an aligned frame.
    """

    paths: tuple[BestPath | None, ...]
    score: float

    @property
    def failed(self) -> np.ndarray:
        """Indices of the utterances that could not be aligned, int64."""
        return np.flatnonzero([path is None for path in self.paths])

    @property
    def targets(self) -> np.ndarray:
        """int32 [frames of the aligned utterances, in their order]."""
        targets = [path.targets for path in self.paths if path is not None]
        return np.concatenate([np.zeros(0, np.int32), *targets])


class Aligner:
    """Aligns utterances to their words; graphs are built once for all rounds.

    Args:
        lexicon: lexicon entry -> targets; ``"word(2)"`` is another way to say ``"word"``.
        silence: targets that may stand between words and at both ends.
    """

    def __init__(self, lexicon: Mapping[str, Sequence[int]], silence: Sequence[int]) -> None:
        self.lexicon = Lexicon.from_entries(lexicon, silence)
        self.model: LanguageModel = train([tuple(self.lexicon.words)], 1)
        self.graphs: dict[tuple[str, ...], Graph] = {}

    def graph(self, words: tuple[str, ...]) -> Graph:
        """The graph of a sentence."""
        if words not in self.graphs:
            self.graphs[words] = transcript_graph(words, self.model, self.lexicon)
        return self.graphs[words]

    def fewest_frames(self, words: tuple[str, ...]) -> int:
        """Smallest number of frames that the words fit into."""
        entries = self.lexicon.words
        return sum(min(map(len, entries[word])) for word in words)

    def align(self, words: tuple[str, ...], scores: np.ndarray) -> BestPath | None:
        """The best path through a sentence; None if it has no words or too few frames.

        Args:
            words: what was said.
            scores: float [frames, n_targets].
        """
        if not words or len(scores) < self.fewest_frames(words):
            return None
        path = decode(self.graph(words), np.asarray(scores, np.float64), EVERYTHING)
        return path if path.complete else None

    def align_all(
        self, utterances: Utterances, scores: Callable[[int, int], np.ndarray]
    ) -> Alignment:
        """The best path of every utterance.

        Args:
            utterances: table of the utterances to align.
            scores: (first row, rows) -> float [rows, n_targets].
        """
        rows = zip(utterances.start.tolist(), utterances.frames.tolist(), strict=True)
        paths = tuple(
            self.align(words, scores(start, frames)) if frames else None
            for (start, frames), words in zip(rows, utterances.words, strict=True)
        )
        aligned = [path for path in paths if path is not None]
        frames = sum(len(path.targets) for path in aligned)
        return Alignment(paths, sum(path.score for path in aligned) / max(1, frames))

"""Targets from transcripts alone: flat start, then Viterbi training of Gaussian states.

Realignment takes any scores: those of Gaussians here, or a network's log posterior
minus log prior later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from data_synth.corpus import Utterances
from harness.acoustics.hmm import align

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


def fit(features: np.ndarray, targets: np.ndarray, n_targets: int) -> Gaussians:
    """Maximum likelihood means and variances; a state without frames gets those of all.

    Args:
        features: float [frames, dim].
        targets: int [frames].
        n_targets: how many states.
    """
    mean = np.tile(features.mean(axis=0, dtype=np.float64), (n_targets, 1))
    variance = np.tile(features.var(axis=0, dtype=np.float64), (n_targets, 1))
    for state in np.unique(targets):
        own = features[targets == state].astype(np.float64)
        mean[state], variance[state] = own.mean(axis=0), own.var(axis=0)
    return Gaussians(mean, np.maximum(variance, VARIANCE_FLOOR))


def chain_of(words: tuple[str, ...], lexicon: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
    """The states of a transcript from left to right, without silence."""
    return tuple(state for word in words for state in lexicon[word])


def equal_parts(frames: int, chain: tuple[int, ...]) -> np.ndarray:
    """A flat start: the chain's states share the frames as evenly as can be, int32 [frames]."""
    return np.asarray(chain, np.int32)[np.arange(frames) * len(chain) // frames]


def flat_start(
    utterances: Utterances,
    lexicon: Mapping[str, tuple[int, ...]],
    silence: tuple[int, ...],
) -> np.ndarray:
    """First targets of every utterance: its words' states in equal parts between silences.

    The silence's states get about as many frames as a word's; an utterance too short for
    all states starts without silence.

    Returns:
        int32 [frames of all the utterances, in their order].
    """
    out: list[np.ndarray] = []
    for frames, words in zip(utterances.frames.tolist(), utterances.words, strict=True):
        chain = chain_of(words, lexicon)
        full = (*silence, *chain, *silence)
        out.append(equal_parts(frames, full if len(full) <= frames else chain))
    return np.concatenate(out)


def realign(
    utterances: Utterances,
    lexicon: Mapping[str, tuple[int, ...]],
    silence: tuple[int, ...],
    loglik: Callable[[int, int], np.ndarray],
) -> tuple[np.ndarray, float]:
    """Best targets of every utterance under the given scores.

    Args:
        utterances: whom to align.
        lexicon: word -> chain of states.
        silence: states that may stand at either end of an utterance.
        loglik: (first row, rows) -> float [rows, n_targets].

    Returns:
        int32 [frames of all the utterances, in their order], and the mean score of a frame.
    """
    targets: list[np.ndarray] = []
    total = 0.0
    rows = zip(utterances.start.tolist(), utterances.frames.tolist(), strict=True)
    for (start, frames), words in zip(rows, utterances.words, strict=True):
        path, score = align(loglik(start, frames), chain_of(words, lexicon), silence)
        targets.append(path)
        total += score
    return np.concatenate(targets), total / utterances.total_frames


def viterbi_training(
    features: np.ndarray,
    utterances: Utterances,
    lexicon: Mapping[str, tuple[int, ...]],
    silence: tuple[int, ...],
    n_targets: int,
    rounds: int,
) -> tuple[Gaussians, list[float]]:
    """Gaussian states from transcripts: fit to a flat start, then realign and refit.

    Args:
        features: float [all frames, dim]; the utterances' rows are used.
        utterances: the training set.
        lexicon: word -> chain of states.
        silence: states that may stand at either end of an utterance.
        n_targets: how many states.
        rounds: realignments.

    Returns:
        The Gaussians, and the mean log-likelihood of a frame after each round: it never
        falls, but for the variance floor (segmental k-means; Juang and Rabiner 1990).
    """
    pieces = zip(utterances.start.tolist(), utterances.frames.tolist(), strict=True)
    own = np.concatenate([features[start : start + frames] for start, frames in pieces])
    model = fit(own, flat_start(utterances, lexicon, silence), n_targets)
    history: list[float] = []
    for _ in range(rounds):
        targets, score = realign(
            utterances, lexicon, silence, lambda s, n, m=model: m.loglik(features[s : s + n])
        )
        history.append(score)
        model = fit(own, targets, n_targets)
    return model, history

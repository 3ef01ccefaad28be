"""Left-to-right hidden Markov models: scoring of single words.

A path runs through a chain of states from the first to the last; each frame it stays or
advances by one; silence at either end may be left out. Transitions have weight 0 here: with a few
frames per state the acoustic scores decide. Decoding graphs can weight them with
``stay_probabilities``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from harness.acoustics.compiling import kernel


@dataclass(frozen=True, eq=False)
class Chains:
    """The state chains of a lexicon laid end to end, silence included.

    Attributes:
        words: words in the order of the scores.
        states: int64 [sum of lengths], states of all chains.
        ends: int64 [words], end of each chain in ``states``, exclusive.
        skippable: number of silence states at each end of every chain.
    """

    words: tuple[str, ...]
    states: np.ndarray
    ends: np.ndarray
    skippable: int


def chains(lexicon: Mapping[str, Sequence[int]], silence: Sequence[int] = ()) -> Chains:
    """Lay out a lexicon for ``chain_scores``."""
    full = [[*silence, *states, *silence] for states in lexicon.values()]
    ends = np.cumsum([len(states) for states in full])
    return Chains(tuple(lexicon), np.concatenate(full).astype(np.int64), ends, len(silence))


@kernel
def _chain_scores(
    loglik: np.ndarray, states: np.ndarray, ends: np.ndarray, skippable: int
) -> np.ndarray:
    out = np.empty(len(ends))
    best = np.empty(len(states))
    start = 0
    for word in range(len(ends)):
        end = ends[word] - 1
        best[start : end + 1] = -np.inf
        best[start] = loglik[0, states[start]]
        best[start + skippable] = loglik[0, states[start + skippable]]
        for t in range(1, len(loglik)):
            for j in range(end, start, -1):
                best[j] = max(best[j], best[j - 1]) + loglik[t, states[j]]
            best[start] += loglik[t, states[start]]
        out[word] = max(best[end], best[end - skippable])
        start = end + 1
    return out


def chain_scores(loglik: np.ndarray, words: Chains) -> np.ndarray:
    """Score of the best path through each word's chain, -inf where the word is too long.

    Args:
        loglik: float [frames, n_targets]: log-likelihoods, or a network's log posterior
            minus log prior.
        words: from ``chains``; lay out once, score many utterances.

    Returns:
        float64 [words].
    """
    scores = np.ascontiguousarray(loglik, np.float64)
    return _chain_scores(scores, words.states, words.ends, words.skippable)


def stay_probabilities(targets: np.ndarray, starts: np.ndarray, n_targets: int) -> np.ndarray:
    """Probability that each target is followed by itself, estimated from an alignment.

    Laplace's estimate (stays + 1) / (frames + 2), so always between 0 and 1. A target
    that follows itself in a chain counts as staying.

    Args:
        targets: int [frames], all utterances concatenated.
        starts: the first frame of each utterance.
        n_targets: number K of targets.

    Returns:
        float64 [K].
    """
    stays = targets[1:] == targets[:-1]
    stays[starts[starts > 0] - 1] = False
    stayed = np.bincount(targets[:-1][stays], minlength=n_targets)
    return (stayed + 1) / (np.bincount(targets, minlength=n_targets) + 2)

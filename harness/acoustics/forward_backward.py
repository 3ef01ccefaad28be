"""Forward-backward over a whole decoding graph: what an infinitely wide lattice would give.

Probabilities, not logarithms, with each frame's largest taken out: one multiplication and
one addition an arc. Junctions factor the graph, so a frame costs its arcs, about two a
state and one a word, where a graph without junctions would cost the square of the words.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from harness.acoustics.decoder import EVERYTHING, check_scores, lattice
from harness.acoustics.graph import Graph
from harness.acoustics.lattice import posteriors

TINY = 1e-290
"""Shares below this count as zero: numbers just above zero take a processor many times as long."""
LEAST = 1e-250
"""Where forward and backward scarcely meet, their product may have lost paths to underflow."""


def occupancies(graph: Graph, scores: np.ndarray) -> tuple[float, np.ndarray]:
    """Log Z and γ of all paths of a graph.

    With l_t(s) the scores: Z = Σ_paths exp(Σ_t l_t(s_t) + log weights of its arcs), and
    γ_t(s) is the share of Z of the paths that are in target s in frame t. Exact up to
    rounding: where frames differ by more than a double's range holds, the sums are done
    again on logarithms.

    Args:
        graph: from ``decoding_graph`` or ``transcript_graph``.
        scores: float [T, K], scaled acoustic scores.

    Returns:
        log Z, and γ float64 [T, K], whose rows sum to 1. If no path has T frames, -inf and
        zeros.

    Raises:
        ValueError: there are no frames, a score is NaN or +inf, or every score of a frame
            is -inf.
    """
    check_scores(scores)
    arrays = graph.target, graph.first, graph.split, graph.to, np.exp(graph.weight)
    log_z, gamma, least = _sums(np.asarray(scores, np.float64), *arrays, graph.start, graph.end)
    if least > LEAST:
        return log_z, gamma
    return posteriors(lattice(graph, scores, EVERYTHING), scores.shape[1])


@njit(cache=True, nogil=True)
def _close(
    a: np.ndarray, states: int, split: np.ndarray, first: np.ndarray, to: np.ndarray, w: np.ndarray
) -> None:
    """Let weight flow from states into junctions and on, in topological order."""
    for n in range(len(a)):
        if a[n] > 0.0:
            for arc in range(split[n], first[n + 1]):
                a[to[arc]] += a[n] * w[arc]


@njit(cache=True, nogil=True)
def _forward(
    likely: np.ndarray,
    target: np.ndarray,
    first: np.ndarray,
    split: np.ndarray,
    to: np.ndarray,
    w: np.ndarray,
    start: int,
) -> tuple[np.ndarray, float]:
    """α of every layer, each divided by its largest; the sum of the divisors' logarithms."""
    states, frames = len(target), len(likely)
    alpha = np.zeros((frames + 1, len(split)))
    alpha[0, start] = 1.0
    _close(alpha[0], states, split, first, to, w)
    log_scale = 0.0
    for t in range(frames):
        a, b = alpha[t], alpha[t + 1]
        for n in range(len(a)):
            if a[n] > 0.0:
                for arc in range(first[n], split[n]):
                    b[to[arc]] += a[n] * w[arc]
        for s in range(states):
            b[s] *= likely[t, target[s]]
        most = b[:states].max()
        if most == 0.0:
            return alpha, -np.inf
        for s in range(states):
            b[s] = b[s] / most if b[s] > most * TINY else 0.0
        log_scale += np.log(most)
        _close(b, states, split, first, to, w)
    return alpha, log_scale


@njit(cache=True, nogil=True)
def _retreat(
    b: np.ndarray,
    entered: np.ndarray,
    first: np.ndarray,
    split: np.ndarray,
    to: np.ndarray,
    w: np.ndarray,
) -> None:
    """β of a layer into ``b`` from ``entered``, the next frame's states; its end may be set."""
    for n in range(len(b) - 1, -1, -1):
        total = b[n]
        for arc in range(first[n], split[n]):
            total += w[arc] * entered[to[arc]]
        for arc in range(split[n], first[n + 1]):
            total += w[arc] * b[to[arc]]
        b[n] = total


@njit(cache=True, nogil=True)
def _sums(
    scores: np.ndarray,
    target: np.ndarray,
    first: np.ndarray,
    split: np.ndarray,
    to: np.ndarray,
    w: np.ndarray,
    start: int,
    end: int,
) -> tuple[float, np.ndarray, float]:
    """Log Z, γ, and the least that forward and backward shared in any frame."""
    frames, states = len(scores), len(target)
    likely, log_scale = np.empty_like(scores), 0.0
    for t in range(frames):
        most = scores[t].max()
        likely[t] = np.exp(scores[t] - most)
        log_scale += most
    gamma = np.zeros_like(scores)
    alpha, grown = _forward(likely, target, first, split, to, w, start)
    if grown == -np.inf or alpha[frames, end] == 0.0:
        return -np.inf, gamma, 0.0
    log_z = log_scale + grown + np.log(alpha[frames, end])
    beta, entered = np.zeros(len(split)), np.zeros(states)
    beta[end] = 1.0
    least = alpha[frames, end]
    for t in range(frames, 0, -1):
        _retreat(beta, entered, first, split, to, w)
        shared = (alpha[t, :states] * beta[:states]).sum()
        least = min(least, shared)
        if shared == 0.0:
            break
        for s in range(states):
            gamma[t - 1, target[s]] += alpha[t, s] * beta[s] / shared
            entered[s] = beta[s] * likely[t - 1, target[s]]
        most = entered.max()
        if most == 0.0:
            return log_z, gamma, 0.0
        for s in range(states):
            entered[s] = entered[s] / most if entered[s] > most * TINY else 0.0
        beta[:] = 0.0
    return log_z, gamma, least

"""Expected state accuracy: what minimum Bayes risk training raises.

With A(π) the frames in which path π is in the reference's state, and P(π) its share of Z,

    Ā = Σ_π P(π) A(π) = Σ_t γ_t(r_t),    ∂Ā/∂l_t(s) = γ_t(s) (Ā_t(s) - Ā),

where Ā_t(s) is the expected accuracy of the paths that are in state s in frame t (Povey's
c_arc - c_avg; Gibson and Hain 2006, Kingsbury 2009). Each node carries a second number, the
expected accuracy of its beginnings or endings.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import njit

from harness.acoustics.decoder import EVERYTHING, check_scores, lattice
from harness.acoustics.forward_backward import LEAST, TINY, Arcs, flat
from harness.acoustics.graph import Graph
from harness.acoustics.lattice import Lattice, log_sums


class Accuracies(NamedTuple):
    """Log Z, expected accuracy in frames, γ [T, K] and ∂Ā/∂l [T, K]; no path: -inf and zeros."""

    log_z: float
    expected: float
    gamma: np.ndarray
    derivative: np.ndarray


def accuracies(graph: Graph, scores: np.ndarray, targets: np.ndarray) -> Accuracies:
    """Over all paths of a graph.

    Args:
        graph: from ``decoding_graph`` or ``transcript_graph``.
        scores: float [T, K], scaled acoustic scores.
        targets: int [T], the reference's target in every frame.

    Raises:
        ValueError: as ``forward_backward.occupancies``.
    """
    check_scores(scores)
    scores = np.ascontiguousarray(scores, np.float64)
    said = np.ascontiguousarray(targets, np.int64)
    ends = graph.start, graph.end, graph.nodes
    log_z, gamma, through, least = _expectations(scores, said, flat(graph), *ends)
    if least > LEAST:
        return _centred(log_z, gamma, through, said)
    return lattice_accuracies(lattice(graph, scores, EVERYTHING), targets, scores.shape[1])


def lattice_accuracies(found: Lattice, targets: np.ndarray, n_targets: int) -> Accuracies:
    """Over all paths of a lattice; see ``accuracies``."""
    shape = found.frames, n_targets
    if found.empty:
        return Accuracies(-math.inf, 0.0, np.zeros(shape), np.zeros(shape))
    alpha, beta = log_sums(found)
    state = found.node < found.graph.states
    target = found.graph.target[np.where(state, found.node, 0)]
    frame = np.maximum(found.layer.astype(np.int64) - 1, 0)
    hit = (state & (target == np.asarray(targets)[frame])).astype(np.float64)
    arcs = found.first, found.to, found.score
    before, after = _before(*arcs, alpha, hit), _after(*arcs, beta, hit)
    share = np.exp(alpha[state] + beta[state] - beta[0])
    cell = frame[state] * n_targets + target[state]
    size = found.frames * n_targets
    gamma = np.bincount(cell, share, size).reshape(shape)
    through = np.bincount(cell, share * (before + after)[state], size).reshape(shape)
    return _centred(float(beta[0]), gamma, through, targets)


def _centred(
    log_z: float, gamma: np.ndarray, through: np.ndarray, targets: np.ndarray
) -> Accuracies:
    expected = float(gamma[np.arange(len(gamma)), targets].sum())
    return Accuracies(log_z, expected, gamma, through - gamma * expected)


@njit(cache=True, nogil=True)
def _before(
    first: np.ndarray, to: np.ndarray, score: np.ndarray, alpha: np.ndarray, hit: np.ndarray
) -> np.ndarray:
    """Expected accuracy of the beginnings that end in each node, the node's own included."""
    expected = np.zeros(len(alpha))
    for i in range(len(alpha)):
        expected[i] += hit[i]
        for a in range(first[i], first[i + 1]):
            expected[to[a]] += np.exp(alpha[i] + score[a] - alpha[to[a]]) * expected[i]
    return expected


@njit(cache=True, nogil=True)
def _after(
    first: np.ndarray, to: np.ndarray, score: np.ndarray, beta: np.ndarray, hit: np.ndarray
) -> np.ndarray:
    """Expected accuracy of the endings that follow each node, the node's own left out."""
    expected = np.zeros(len(beta))
    for i in range(len(beta) - 1, -1, -1):
        for a in range(first[i], first[i + 1]):
            share = np.exp(score[a] + beta[to[a]] - beta[i])
            expected[i] += share * (hit[to[a]] + expected[to[a]])
    return expected


@njit(cache=True, nogil=True)
def _spread(
    value: np.ndarray,
    gain: np.ndarray,
    source: np.ndarray,
    to: np.ndarray,
    weight: np.ndarray,
    new_value: np.ndarray,
    new_gain: np.ndarray,
) -> None:
    """Along arcs in their order: sums of weights, and of weights times accuracy."""
    for i in range(len(to)):
        new_value[to[i]] += value[source[i]] * weight[i]
        new_gain[to[i]] += gain[source[i]] * weight[i]


@njit(cache=True, nogil=True)
def _beginnings(
    likely: np.ndarray, said: np.ndarray, arcs: Arcs, start: int, nodes: int
) -> tuple[np.ndarray, np.ndarray, float]:
    """α and α times accuracy of every layer, scaled; and the logarithm of the scales."""
    states, frames = len(arcs.target), len(likely)
    alpha, gain = np.zeros((frames + 1, nodes)), np.zeros((frames + 1, nodes))
    alpha[0, start] = 1.0
    log_scale = 0.0
    for t in range(frames + 1):
        b, g = alpha[t], gain[t]
        if t > 0:
            row = likely[t - 1]
            _spread(alpha[t - 1], gain[t - 1], *arcs.entering, b, g)
            most = 0.0
            for s in range(states):
                hit = 1.0 if arcs.target[s] == said[t - 1] else 0.0
                g[s] = (g[s] + hit * b[s]) * row[arcs.target[s]]
                b[s] *= row[arcs.target[s]]
                most = max(most, b[s])
            if most < TINY:
                return alpha, gain, -np.inf
            for s in range(states):
                keep = b[s] > most * TINY
                b[s] = b[s] / most if keep else 0.0
                g[s] = g[s] / most if keep else 0.0
            log_scale += np.log(most)
        _spread(b, g, *arcs.passing, b, g)
    return alpha, gain, log_scale


@njit(cache=True, nogil=True)
def _expectations(
    scores: np.ndarray, said: np.ndarray, arcs: Arcs, start: int, end: int, nodes: int
) -> tuple[float, np.ndarray, np.ndarray, float]:
    """Log Z, γ, γ times expected accuracy, and the least that α and β shared."""
    frames, states = len(scores), len(arcs.target)
    likely, log_scale = np.empty_like(scores), 0.0
    for t in range(frames):
        most = scores[t].max()
        likely[t] = np.exp(scores[t] - most)
        log_scale += most
    gamma, through = np.zeros_like(scores), np.zeros_like(scores)
    alpha, gain, grown = _beginnings(likely, said, arcs, start, nodes)
    if grown == -np.inf or alpha[frames, end] < TINY:
        return -np.inf, gamma, through, 0.0
    log_z = log_scale + grown + np.log(alpha[frames, end])
    least = alpha[frames, end]
    source, to, w = arcs.entering
    above, below, v = arcs.passing
    beta, reward = np.zeros(nodes), np.zeros(nodes)
    entered, earned = np.zeros(states), np.zeros(states)
    beta[end] = 1.0
    for t in range(frames, 0, -1):
        for i in range(len(to)):
            beta[source[i]] += w[i] * entered[to[i]]
            reward[source[i]] += w[i] * earned[to[i]]
        for i in range(len(below) - 1, -1, -1):
            beta[above[i]] += v[i] * beta[below[i]]
            reward[above[i]] += v[i] * reward[below[i]]
        a, g, row = alpha[t], gain[t], likely[t - 1]
        shared, most = 0.0, 0.0
        for s in range(states):
            shared += a[s] * beta[s]
            most = max(most, beta[s] * row[arcs.target[s]])
        least = min(least, shared)
        if shared == 0.0 or most < TINY:
            return log_z, gamma, through, 0.0
        for s in range(states):
            target = arcs.target[s]
            gamma[t - 1, target] += a[s] * beta[s] / shared
            through[t - 1, target] += (g[s] * beta[s] + a[s] * reward[s]) / shared
            hit = 1.0 if target == said[t - 1] else 0.0
            entered[s] = beta[s] * row[target] / most
            earned[s] = (reward[s] + hit * beta[s]) * row[target] / most
            if entered[s] <= TINY:
                entered[s], earned[s] = 0.0, 0.0
        beta[:] = 0.0
        reward[:] = 0.0
    return log_z, gamma, through, least

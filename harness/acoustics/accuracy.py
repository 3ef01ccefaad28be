"""Expected state accuracy, the objective of minimum Bayes risk training.

With A(π) the frames in which path π is in the reference's state, and P(π) its share of Z,

    Ā = Σ_π P(π) A(π) = Σ_t γ_t(r_t),    ∂Ā/∂l_t(s) = γ_t(s) (Ā_t(s) - Ā),

where Ā_t(s) is the expected accuracy of the paths that are in state s in frame t (Povey's
c_arc - c_avg; Gibson and Hain 2006, Kingsbury 2009). Beside α or β, each node carries the
expected accuracy of the path prefixes that end, or suffixes that begin, there.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from harness.acoustics.compiling import kernel, part, summing_part
from harness.acoustics.decoder import EVERYTHING, check_scores, lattice
from harness.acoustics.graph import Graph
from harness.acoustics.lattice import Lattice, log_sums
from harness.acoustics.sums import (
    LEAST,
    TINY,
    Arcs,
    advance,
    get_arcs,
    likelihoods,
    pass_on,
    retreat,
)


class Accuracies(NamedTuple):
    """Log Z, expected accuracy in frames, γ [T, K] and ∂Ā/∂l [T, K]; no path: -inf and zeros."""

    log_z: float
    expected: float
    gamma: np.ndarray
    derivative: np.ndarray


def accuracies(graph: Graph, scores: np.ndarray, targets: np.ndarray) -> Accuracies:
    """Expected accuracy and its derivative over all paths of a graph.

    Args:
        graph: from ``decoding_graph`` or ``transcript_graph``.
        scores: float [T, K], scaled acoustic scores.
        targets: int [T], the reference's target in every frame.

    Raises:
        ValueError: as ``sums.occupancies``.
    """
    check_scores(scores)
    scores = np.ascontiguousarray(scores, np.float64)
    said = np.ascontiguousarray(targets, np.int64)
    ends = graph.start, graph.end, graph.nodes
    log_z, gamma, through, least = _expectations(*likelihoods(scores), said, get_arcs(graph), *ends)
    # below LEAST the product of α and β may have lost paths to underflow: redo it on logarithms
    if least > LEAST:
        return _centre_accuracies(log_z, gamma, through, said)
    return lattice_accuracies(lattice(graph, scores, EVERYTHING), targets, scores.shape[1])


def lattice_accuracies(found: Lattice, targets: np.ndarray, n_targets: int) -> Accuracies:
    """Expected accuracy and its derivative over all paths of a lattice; see ``accuracies``."""
    shape = found.frames, n_targets
    if found.empty:
        return Accuracies(-math.inf, 0.0, np.zeros(shape), np.zeros(shape))
    alpha, beta = log_sums(found)
    state = found.node < found.graph.states
    target = found.graph.target[np.where(state, found.node, 0)]
    frame = np.maximum(found.layer.astype(np.int64) - 1, 0)
    hit = (state & (target == np.asarray(targets)[frame])).astype(np.float64)
    arcs = found.first, found.to, found.score
    before, after = _prefix_accuracy(*arcs, alpha, hit), _suffix_accuracy(*arcs, beta, hit)
    share = np.exp(alpha[state] + beta[state] - beta[0])
    cell = frame[state] * n_targets + target[state]
    size = found.frames * n_targets
    gamma = np.bincount(cell, share, size).reshape(shape)
    through = np.bincount(cell, share * (before + after)[state], size).reshape(shape)
    return _centre_accuracies(float(beta[0]), gamma, through, targets)


def _centre_accuracies(
    log_z: float, gamma: np.ndarray, through: np.ndarray, targets: np.ndarray
) -> Accuracies:
    expected = float(gamma[np.arange(len(gamma)), targets].sum())
    return Accuracies(log_z, expected, gamma, through - gamma * expected)


@kernel
def _prefix_accuracy(
    first: np.ndarray, to: np.ndarray, score: np.ndarray, alpha: np.ndarray, hit: np.ndarray
) -> np.ndarray:
    """Expected accuracy of the path prefixes up to each node, the node's own included."""
    expected = np.zeros(len(alpha))
    for i in range(len(alpha)):
        expected[i] += hit[i]
        for a in range(first[i], first[i + 1]):
            expected[to[a]] += np.exp(alpha[i] + score[a] - alpha[to[a]]) * expected[i]
    return expected


@kernel
def _suffix_accuracy(
    first: np.ndarray, to: np.ndarray, score: np.ndarray, beta: np.ndarray, hit: np.ndarray
) -> np.ndarray:
    """Expected accuracy of the path suffixes after each node, the node's own left out."""
    expected = np.zeros(len(beta))
    for i in range(len(beta) - 1, -1, -1):
        for a in range(first[i], first[i + 1]):
            share = np.exp(score[a] + beta[to[a]] - beta[i])
            expected[i] += share * (hit[to[a]] + expected[to[a]])
    return expected


@summing_part
def _observe(
    b: np.ndarray, g: np.ndarray, likely: np.ndarray, hit: np.ndarray, scale: float
) -> float:
    """Multiply ``b`` (weights) and ``g`` (weights times accuracy) by a frame; returns b's sum."""
    total = 0.0
    for s in range(len(likely)):
        factor = likely[s] * scale
        x = b[s] * factor
        # g reads the old b: the frame's own hit counts once for all its paths
        g[s] = (g[s] + hit[s] * b[s]) * factor if x > TINY else 0.0
        b[s] = x if x > TINY else 0.0
        total += b[s]
    return total


@part
def _frame(
    row: np.ndarray, said: int, target: np.ndarray, seen: np.ndarray, hit: np.ndarray
) -> None:
    """Fill ``seen`` with each state's likelihood, ``hit`` with 1 for states of target ``said``."""
    for s in range(len(target)):
        seen[s] = row[target[s]]
        hit[s] = 1.0 if target[s] == said else 0.0


@part
def _beginnings(
    likely: np.ndarray, said: np.ndarray, arcs: Arcs, start: int, nodes: int
) -> tuple[np.ndarray, np.ndarray, float]:
    """α, α times accuracy of every layer, both scaled, and the log of the product of scales."""
    seen, hit = np.empty(len(arcs.target)), np.empty(len(arcs.target))
    alpha, gain = np.empty((len(likely) + 1, nodes)), np.empty((len(likely) + 1, nodes))
    alpha[0], gain[0] = 0.0, 0.0
    alpha[0, start] = 1.0
    pass_on(alpha[0], arcs)
    log_scale, total = 0.0, 1.0
    for t in range(len(likely)):
        _frame(likely[t], said[t], arcs.target, seen, hit)
        advance(alpha[t], alpha[t + 1], arcs)
        advance(gain[t], gain[t + 1], arcs)
        log_scale += np.log(total)
        total = _observe(alpha[t + 1], gain[t + 1], seen, hit, 1.0 / total)
        if total < LEAST:
            return alpha, gain, -np.inf
        pass_on(alpha[t + 1], arcs)
        pass_on(gain[t + 1], arcs)
    return alpha, gain, log_scale


@kernel
def _expectations(
    likely: np.ndarray,
    log_scale: float,
    said: np.ndarray,
    arcs: Arcs,
    start: int,
    end: int,
    nodes: int,
) -> tuple[float, np.ndarray, np.ndarray, float]:
    """Log Z, γ, γ times expected accuracy, and the smallest Σ α β of any frame."""
    frames, states = len(likely), len(arcs.target)
    gamma, through = np.zeros_like(likely), np.zeros_like(likely)
    alpha, gain, grown = _beginnings(likely, said, arcs, start, nodes)
    if grown == -np.inf or alpha[frames, end] < TINY:
        return -np.inf, gamma, through, 0.0
    log_z = log_scale + grown + np.log(alpha[frames, end])
    beta, reward = np.zeros(nodes), np.zeros(nodes)
    entered, earned = np.zeros(states + 1), np.zeros(states + 1)
    seen, hit = np.empty(states), np.empty(states)
    beta[end] = 1.0
    least, total = alpha[frames, end], 1.0
    for t in range(frames, 0, -1):
        retreat(beta, entered, arcs)
        retreat(reward, earned, arcs)
        a, g = alpha[t], gain[t]
        shared = (a[:states] * beta[:states]).sum()
        least = min(least, shared)
        if shared < LEAST:
            return log_z, gamma, through, 0.0
        part = 1.0 / shared
        for s in range(states):
            target = arcs.target[s]
            gamma[t - 1, target] += a[s] * beta[s] * part
            through[t - 1, target] += (g[s] * beta[s] + a[s] * reward[s]) * part
        _frame(likely[t - 1], said[t - 1], arcs.target, seen, hit)
        entered[:states], earned[:states] = beta[:states], reward[:states]
        total = _observe(entered, earned, seen, hit, 1.0 / total)
        if total < LEAST:
            return log_z, gamma, through, 0.0
        beta[states:], reward[states:] = 0.0, 0.0
    return log_z, gamma, through, least

"""Forward-backward over a whole decoding graph: what an infinitely wide lattice would give.

Probabilities, not logarithms, with each frame's largest taken out: one multiplication and
one addition an arc. Junctions factor the graph, so a frame costs its arcs, about two a
state and one a word, where a graph without junctions would cost the square of the words.
"""

from __future__ import annotations

from typing import NamedTuple
from weakref import WeakKeyDictionary

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
    ends = graph.start, graph.end, graph.nodes
    log_z, gamma, least = _sums(np.ascontiguousarray(scores, np.float64), flat(graph), *ends)
    if least > LEAST:
        return log_z, gamma
    return posteriors(lattice(graph, scores, EVERYTHING), scores.shape[1])


class Arcs(NamedTuple):
    """A graph's arcs in two flat lists: those to states, and those to junctions by source.

    Attributes:
        target: the states' targets.
        entering, passing: (source, to, weight) of the arcs to states, and to junctions.
    """

    target: np.ndarray
    entering: tuple[np.ndarray, np.ndarray, np.ndarray]
    passing: tuple[np.ndarray, np.ndarray, np.ndarray]


_FLAT: WeakKeyDictionary[Graph, Arcs] = WeakKeyDictionary()


def flat(graph: Graph) -> Arcs:
    """A graph's arcs as the sums want them; made once for each graph."""
    if graph not in _FLAT:
        _FLAT[graph] = _flattened(graph)
    return _FLAT[graph]


def _flattened(graph: Graph) -> Arcs:
    # Unsigned, because numba counts a negative index from the end and asks every time.
    source = np.repeat(np.arange(graph.nodes, dtype=np.uint32), np.diff(graph.first))
    to, enters = graph.to.astype(np.uint32), graph.to < graph.states
    # Loops first, then steps to the next state, then the rest: in a row of arcs of which each
    # adds to where the last one added, a processor waits for every sum.
    step = to[enters].astype(np.int64) - source[enters]
    entering = np.flatnonzero(enters)[np.argsort(step, kind="stable")]
    lists = [(source[m], to[m], np.exp(graph.weight[m])) for m in (entering, ~enters)]
    return Arcs(graph.target.astype(np.uint32), lists[0], lists[1])


@njit(cache=True, nogil=True)
def _forward(likely: np.ndarray, arcs: Arcs, start: int, nodes: int) -> tuple[np.ndarray, float]:
    """α of every layer, its states' largest divided out; the sum of the divisors' logarithms."""
    states, frames = len(arcs.target), len(likely)
    source, to, w = arcs.entering
    above, below, v = arcs.passing
    alpha = np.zeros((frames + 1, nodes))
    alpha[0, start] = 1.0
    log_scale = 0.0
    for t in range(frames + 1):
        b = alpha[t]
        if t > 0:
            a, row = alpha[t - 1], likely[t - 1]
            for i in range(len(to)):
                b[to[i]] += a[source[i]] * w[i]
            most = 0.0
            for s in range(states):
                b[s] *= row[arcs.target[s]]
                most = max(most, b[s])
            if most < TINY:
                return alpha, -np.inf
            rescale = 1.0 / most
            for s in range(states):
                b[s] = b[s] * rescale if b[s] > most * TINY else 0.0
            log_scale += np.log(most)
        for i in range(len(below)):  # by source, so in topological order
            b[below[i]] += b[above[i]] * v[i]
    return alpha, log_scale


@njit(cache=True, nogil=True)
def _retreat(b: np.ndarray, entered: np.ndarray, arcs: Arcs) -> None:
    """β of a layer, from the next frame's states ``entered``; ``b`` holds what ends there."""
    source, to, w = arcs.entering
    above, below, v = arcs.passing
    for i in range(len(to)):
        b[source[i]] += w[i] * entered[to[i]]
    for i in range(len(below) - 1, -1, -1):
        b[above[i]] += v[i] * b[below[i]]


@njit(cache=True, nogil=True)
def _sums(
    scores: np.ndarray, arcs: Arcs, start: int, end: int, nodes: int
) -> tuple[float, np.ndarray, float]:
    """Log Z, γ, and the least that forward and backward shared in any frame."""
    frames, states = len(scores), len(arcs.target)
    likely, log_scale = np.empty_like(scores), 0.0
    for t in range(frames):
        most = scores[t].max()
        likely[t] = np.exp(scores[t] - most)
        log_scale += most
    gamma = np.zeros_like(scores)
    alpha, grown = _forward(likely, arcs, start, nodes)
    if grown == -np.inf or alpha[frames, end] < TINY:
        return -np.inf, gamma, 0.0
    log_z = log_scale + grown + np.log(alpha[frames, end])
    beta, entered = np.zeros(nodes), np.zeros(states)
    beta[end] = 1.0
    least = alpha[frames, end]
    for t in range(frames, 0, -1):
        _retreat(beta, entered, arcs)
        a, row = alpha[t], likely[t - 1]
        shared, most = 0.0, 0.0
        for s in range(states):
            shared += a[s] * beta[s]
            entered[s] = beta[s] * row[arcs.target[s]]
            most = max(most, entered[s])
        least = min(least, shared)
        if shared == 0.0 or most < TINY:
            return log_z, gamma, 0.0
        share, rescale = 1.0 / shared, 1.0 / most
        for s in range(states):
            gamma[t - 1, arcs.target[s]] += a[s] * beta[s] * share
            entered[s] = entered[s] * rescale if entered[s] > most * TINY else 0.0
        beta[:] = 0.0
    return log_z, gamma, least

"""Forward-backward over a decoding graph.

Sums run over the whole graph, the limit of an infinitely wide lattice. They use probabilities, not
logarithms, and divide by each frame's sum in the next frame: one multiplication and one addition
per arc. Junctions factor the graph, so a frame costs about two arcs per state and one per word;
without junctions it would cost the square of the number of words. Staying and stepping to the next
state need no index, so they are vectorised.
"""

from __future__ import annotations

from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from harness.acoustics.compiling import kernel, part, summing_part
from harness.acoustics.decoder import EVERYTHING, check_scores, lattice
from harness.acoustics.graph import Graph
from harness.acoustics.lattice import posteriors

TINY = 1e-290
"""Shares below this count as zero: arithmetic on subnormal numbers is many times slower."""

LEAST = 1e-250
"""Smallest Σ α β of a frame that is trusted: below it, underflow may have lost paths."""


Shares = tuple[np.ndarray, float]
"""Likelihoods [T, K] with each frame's best score divided out, and the sum of these scores."""


def likelihoods(scores: np.ndarray) -> Shares:
    """A frame's likelihoods as shares of its largest, so that none underflows."""
    best = scores.max(axis=1, keepdims=True)
    return np.exp(scores - best), float(best.sum())


def occupancies(
    graph: Graph, scores: np.ndarray, shares: Shares | None = None
) -> tuple[float, np.ndarray]:
    """Log Z and γ of all paths of a graph.

    With l_t(s) the scores: Z = Σ_paths exp(Σ_t l_t(s_t) + log weights of its arcs), and
    γ_t(s) is the share of Z of the paths that are in target s in frame t. Exact up to
    rounding: where sums leave a double's range, they are repeated on logarithms.

    Args:
        graph: from ``decoding_graph`` or ``transcript_graph``.
        scores: float [T, K], scaled acoustic scores.
        shares: their `likelihoods`, where sums over several graphs need them.

    Returns:
        log Z, and γ float64 [T, K], whose rows sum to 1. If no path has T frames, -inf and
        zeros.

    Raises:
        ValueError: there are no frames, a score is NaN or +inf, or every score of a frame
            is -inf.
    """
    check_scores(scores)
    ends = graph.start, graph.end, graph.nodes
    scores = np.ascontiguousarray(scores, np.float64)
    log_z, gamma, least = _sums(*(shares or likelihoods(scores)), _get_arcs(graph), *ends)
    if least > LEAST:
        return log_z, gamma
    return posteriors(lattice(graph, scores, EVERYTHING), scores.shape[1])


class Arcs(NamedTuple):
    """A graph's arcs in the layout of the sums.

    Attributes:
        target: uint32 [S], the states' targets.
        stay, step: float64 [S], weight of staying in a state, and of advancing to state s+1.
        entering: (source, to, weight) of all other arcs to states.
        passing: the same of the arcs to junctions, by source, so in topological order.
    """

    target: np.ndarray
    stay: np.ndarray
    step: np.ndarray
    entering: tuple[np.ndarray, np.ndarray, np.ndarray]
    passing: tuple[np.ndarray, np.ndarray, np.ndarray]


_FLAT: WeakKeyDictionary[Graph, Arcs] = WeakKeyDictionary()


def _get_arcs(graph: Graph) -> Arcs:
    """A graph's arcs in the layout of the sums; built once for each graph."""
    if graph not in _FLAT:
        _FLAT[graph] = _build_arcs(graph)
    return _FLAT[graph]


def _build_arcs(graph: Graph) -> Arcs:
    # Unsigned indices, because numba tests every signed one for wrap-around from the end.
    source = np.repeat(np.arange(graph.nodes), np.diff(graph.first))
    to, enters, weight = graph.to.astype(np.int64), graph.to < graph.states, np.exp(graph.weight)
    stays, steps = (enters & (to == source + ahead) for ahead in (0, 1))
    entering = enters & ~stays & ~steps
    lists = [
        (source[m].astype(np.uint32), to[m].astype(np.uint32), weight[m])
        for m in (entering, ~enters)
    ]
    stay, step = (np.bincount(source[m], weight[m], graph.states) for m in (stays, steps))
    return Arcs(graph.target.astype(np.uint32), stay, step, lists[0], lists[1])


@summing_part
def _advance(a: np.ndarray, b: np.ndarray, arcs: Arcs) -> None:
    """Fill ``b`` [N]: weights of the next layer's states, from the nodes ``a`` of this layer."""
    states = len(arcs.target)
    b[0] = a[0] * arcs.stay[0]
    for s in range(1, states):
        b[s] = a[s] * arcs.stay[s] + a[s - 1] * arcs.step[s - 1]
    b[states:] = 0.0
    source, to, weight = arcs.entering
    for i in range(len(to)):
        b[to[i]] += a[source[i]] * weight[i]


@part
def _pass_on(b: np.ndarray, arcs: Arcs) -> None:
    """Add to a layer's junctions the weights of the nodes that lead to them."""
    source, to, weight = arcs.passing
    for i in range(len(to)):
        b[to[i]] += b[source[i]] * weight[i]


@summing_part
def _retreat(b: np.ndarray, entered: np.ndarray, arcs: Arcs) -> None:
    """Fill ``b`` [N] with a layer's β, from the next frame's states ``entered`` [S+1].

    The last entry of ``entered`` is 0; ``b`` of the junctions holds the weight of ending there.
    """
    for s in range(len(arcs.target)):
        b[s] = entered[s] * arcs.stay[s] + entered[s + 1] * arcs.step[s]
    source, to, weight = arcs.entering
    for i in range(len(to)):
        b[source[i]] += weight[i] * entered[to[i]]
    above, below, v = arcs.passing
    for i in range(len(below) - 1, -1, -1):
        b[above[i]] += v[i] * b[below[i]]


@part
def _each(row: np.ndarray, target: np.ndarray, out: np.ndarray) -> None:
    """Gather a frame's likelihood of each state; apart, so that the products vectorise."""
    for s in range(len(target)):
        out[s] = row[target[s]]


@summing_part
def _observe(b: np.ndarray, likely: np.ndarray, scale: float) -> float:
    """Multiply a layer's states by their likelihoods and ``scale``; returns the sum."""
    total = 0.0
    for s in range(len(likely)):
        x = b[s] * (likely[s] * scale)
        b[s] = x if x > TINY else 0.0
        total += b[s]
    return total


@part
def _forward(likely: np.ndarray, arcs: Arcs, start: int, nodes: int) -> tuple[np.ndarray, float]:
    """α of every layer, divided by the sum of the previous one; the log of all divisors."""
    alpha = np.empty((len(likely) + 1, nodes))
    alpha[0] = 0.0
    alpha[0, start] = 1.0
    _pass_on(alpha[0], arcs)
    row = np.empty(len(arcs.target))
    log_scale, total = 0.0, 1.0
    for t in range(len(likely)):
        _each(likely[t], arcs.target, row)
        _advance(alpha[t], alpha[t + 1], arcs)
        log_scale += np.log(total)
        total = _observe(alpha[t + 1], row, 1.0 / total)
        if total < LEAST:
            return alpha, -np.inf
        _pass_on(alpha[t + 1], arcs)
    return alpha, log_scale


@summing_part
def _meet(a: np.ndarray, b: np.ndarray, share: np.ndarray) -> float:
    """Fill ``share`` with α β of every state; returns the sum."""
    total = 0.0
    for s in range(len(share)):
        share[s] = a[s] * b[s]
        total += share[s]
    return total


@kernel
def _sums(
    likely: np.ndarray, log_scale: float, arcs: Arcs, start: int, end: int, nodes: int
) -> tuple[float, np.ndarray, float]:
    """Log Z, γ, and the smallest Σ α β of any frame."""
    frames, states = len(likely), len(arcs.target)
    gamma = np.zeros_like(likely)
    alpha, grown = _forward(likely, arcs, start, nodes)
    if grown == -np.inf or alpha[frames, end] < TINY:
        return -np.inf, gamma, 0.0
    log_z = log_scale + grown + np.log(alpha[frames, end])
    beta, share, likes = np.zeros(nodes), np.empty(states), np.empty(states)
    entered = np.zeros(states + 1)
    beta[end] = 1.0
    least, total = alpha[frames, end], 1.0
    for t in range(frames, 0, -1):
        _retreat(beta, entered, arcs)
        shared = _meet(alpha[t], beta, share)
        least = min(least, shared)
        _each(likely[t - 1], arcs.target, likes)
        entered[:states] = beta[:states]
        total = _observe(entered, likes, 1.0 / total)
        if shared < LEAST or total < LEAST:
            return log_z, gamma, 0.0
        row, part, least_share = gamma[t - 1], 1.0 / shared, shared * 1e-20
        for s in range(states):
            if share[s] > least_share:
                row[arcs.target[s]] += share[s] * part
        beta[states:] = 0.0
    return log_z, gamma, least

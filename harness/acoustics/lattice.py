"""Lattices: the paths that a beam search kept, and sums and maxima over all of them.

A node is a graph node at a layer; layer k holds the states that consumed frame k-1 and the
junctions reached after it, so layer 0 holds junctions only. Nodes are in topological order.
Lattices are not determinised: with one alignment per word sequence, sums would not be the graph's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.acoustics.compiling import kernel, part
from harness.acoustics.graph import NO_WORD, Graph


@dataclass(frozen=True)
class BestPath:
    """The best path of a search.

    Attributes:
        words: recognised words.
        start, end: each word's first frame, and the frame after its last.
        targets: int32 [T], the target of each frame.
        score: log weight of the path, acoustic scores included.
        complete: False if no path reached the graph's end and this is the best partial path.
    """

    words: tuple[str, ...]
    start: tuple[int, ...]
    end: tuple[int, ...]
    targets: np.ndarray
    score: float
    complete: bool


@dataclass(frozen=True, eq=False)
class Lattice:
    """Paths from the first node to the last; empty if no path reached the graph's end.

    Attributes:
        graph: the graph that was searched.
        frames: number T of frames.
        layer: int32 [n], layer of each node, ascending.
        node: int32 [n], the graph's node.
        first: int64 [n+1], the arcs of node i are ``first[i] … first[i+1]-1``.
        to: int32 [a], node of the lattice that an arc leads to.
        arc: int32 [a], the graph's arc.
        score: float64 [a], the arc's weight in the graph plus the scaled acoustic score of the
            state it enters, if it enters one.
    """

    graph: Graph
    frames: int
    layer: np.ndarray
    node: np.ndarray
    first: np.ndarray
    to: np.ndarray
    arc: np.ndarray
    score: np.ndarray

    @property
    def empty(self) -> bool:
        """Whether no path reached the end."""
        return len(self.node) == 0


def prune_lattice(lattice: Lattice, beam: float = math.inf) -> Lattice:
    """Keep the arcs on paths within ``beam`` nats of the best; infinite keeps all whole paths."""
    if lattice.empty:
        return lattice
    forward = _best_forward(lattice.first, lattice.to, lattice.score)
    backward = _best_backward(lattice.first, lattice.to, lattice.score)
    source = np.repeat(np.arange(len(lattice.node)), np.diff(lattice.first))
    through = forward[source] + lattice.score + backward[lattice.to]
    # A rounding error must not cut the best path itself, or any path off an infinite beam.
    keep = through >= backward[0] - beam - 1e-9 * abs(backward[0])
    keep &= through > -math.inf
    to, arc, score = lattice.to[keep], lattice.arc[keep], lattice.score[keep]
    leaving = np.bincount(source[keep], minlength=len(lattice.node))
    within = leaving > 0
    within[to] = True
    nodes, number = np.flatnonzero(within), np.cumsum(within, dtype=np.int32) - 1
    return Lattice(
        lattice.graph,
        lattice.frames,
        lattice.layer[nodes],
        lattice.node[nodes],
        np.concatenate([[0], np.cumsum(leaving[nodes])]),
        number[to].astype(np.int32),
        arc,
        score,
    )


def posteriors(lattice: Lattice, n_targets: int) -> tuple[float, np.ndarray]:
    """Forward-backward in the log semiring.

    Args:
        lattice: from ``decoder.lattice``.
        n_targets: number K of targets.

    Returns:
        log Z, the log of the summed weights of all paths, and the occupancies γ [T, K], float64:
        the share of Z of the paths through each target in each frame. An empty lattice has
        log Z = -inf and γ = 0.
    """
    if lattice.empty:
        return -math.inf, np.zeros((lattice.frames, n_targets))
    arcs = lattice.first, lattice.to, lattice.score
    alpha, beta = _sum_forward(*arcs), _sum_backward(*arcs)
    state = lattice.node < lattice.graph.states
    target = lattice.graph.target[lattice.node[state]]
    with np.errstate(over="ignore"):  # a diverged network overflows; callers check γ is finite
        share = np.exp(alpha[state] + beta[state] - beta[0])
    cell = (lattice.layer[state].astype(np.int64) - 1) * n_targets + target
    gamma = np.bincount(cell, share, lattice.frames * n_targets)
    return float(beta[0]), gamma.reshape(lattice.frames, n_targets)


def reference_posteriors(
    lattice: Lattice, reference: Sequence[str], n_targets: int
) -> tuple[float, np.ndarray]:
    """Log Z and γ of the paths of a lattice with exactly the reference's words.

    Args:
        lattice: from ``decoder.lattice``.
        reference: words of the transcript.
        n_targets: number K of targets.

    Returns:
        As ``posteriors``: -inf and zeros if there is no such path.
    """
    gamma = np.zeros((lattice.frames, n_targets))
    if lattice.empty:
        return -math.inf, gamma
    number = {word: i for i, word in enumerate(lattice.graph.words)}
    labels = np.array([number.get(word, len(number)) for word in reference], np.int64)
    arcs = lattice.first, lattice.to, lattice.score, lattice.graph.label[lattice.arc]
    alpha = _reference_forward(*arcs, labels)
    log_z = float(alpha[-1, -1])
    if log_z == -math.inf:
        return log_z, gamma
    share = np.exp(alpha + _reference_backward(*arcs, labels, alpha) - log_z).sum(axis=1)
    state = lattice.node < lattice.graph.states
    frame = lattice.layer[state].astype(np.int64) - 1
    np.add.at(gamma, (frame, lattice.graph.target[lattice.node[state]]), share[state])
    return log_z, gamma


def read_path(graph: Graph, arcs: np.ndarray, score: float) -> BestPath:
    """Words, times and targets of a path given as the graph's arcs in order."""
    to, label = graph.to[arcs], graph.label[arcs]
    enters = to < graph.states
    after = np.cumsum(enters)  # frames consumed once each arc is taken
    begins = np.flatnonzero(label != NO_WORD)
    junctions = np.flatnonzero(~enters)
    # In a partial path the last word may lack its junction: it ends with the path.
    leaves = np.append(after[junctions], after[-1:])[np.searchsorted(junctions, begins)]
    return BestPath(
        tuple(graph.words[int(i)] for i in label[begins]),
        tuple((after[begins] - 1).tolist()),
        tuple(leaves.tolist()),
        graph.target[to[enters]],
        score,
        len(to) > 0 and int(to[-1]) == graph.end,
    )


@kernel
def _best_forward(first: np.ndarray, to: np.ndarray, score: np.ndarray) -> np.ndarray:
    best = np.full(len(first) - 1, -np.inf)
    best[0] = 0.0
    for i in range(len(best)):
        for a in range(first[i], first[i + 1]):
            best[to[a]] = max(best[to[a]], best[i] + score[a])
    return best


@kernel
def _best_backward(first: np.ndarray, to: np.ndarray, score: np.ndarray) -> np.ndarray:
    best = np.full(len(first) - 1, -np.inf)
    best[-1] = 0.0
    for i in range(len(best) - 1, -1, -1):
        for a in range(first[i], first[i + 1]):
            best[i] = max(best[i], score[a] + best[to[a]])
    return best


@part
def _log_add(x: Any, y: Any) -> Any:
    high, less = max(x, y), min(x, y)
    return high + np.log1p(np.exp(less - high)) if less > -np.inf else high


@kernel
def _sum_forward(first: np.ndarray, to: np.ndarray, score: np.ndarray) -> np.ndarray:
    """Log α [n]: summed weights of the path prefixes to a node."""
    alpha = np.full(len(first) - 1, -np.inf)
    alpha[0] = 0.0
    for i in range(len(alpha)):
        for a in range(first[i], first[i + 1]):
            alpha[to[a]] = _log_add(alpha[to[a]], alpha[i] + score[a])
    return alpha


@kernel
def _sum_backward(first: np.ndarray, to: np.ndarray, score: np.ndarray) -> np.ndarray:
    """Log β [n]: summed weights of the path suffixes from a node."""
    beta = np.full(len(first) - 1, -np.inf)
    beta[-1] = 0.0
    for i in range(len(beta) - 2, -1, -1):
        most = -np.inf
        for a in range(first[i], first[i + 1]):
            most = max(most, score[a] + beta[to[a]])
        if most > -np.inf:
            total = 0.0
            for a in range(first[i], first[i + 1]):
                total += np.exp(score[a] + beta[to[a]] - most)
            beta[i] = most + np.log(total)
    return beta


@kernel
def _reference_forward(
    first: np.ndarray, to: np.ndarray, score: np.ndarray, label: np.ndarray, words: np.ndarray
) -> np.ndarray:
    """Log α [n, words+1] of the path prefixes to a node with the first j reference words."""
    alpha = np.full((len(first) - 1, len(words) + 1), -np.inf)
    alpha[0, 0] = 0.0
    for i in range(len(alpha)):
        for j in range(len(words) + 1):
            if alpha[i, j] == -np.inf:
                continue
            for a in range(first[i], first[i + 1]):
                ahead = j
                if label[a] != NO_WORD:
                    if j == len(words) or label[a] != words[j]:
                        continue
                    ahead += 1
                alpha[to[a], ahead] = _log_add(alpha[to[a], ahead], alpha[i, j] + score[a])
    return alpha


@kernel
def _reference_backward(
    first: np.ndarray,
    to: np.ndarray,
    score: np.ndarray,
    label: np.ndarray,
    words: np.ndarray,
    alpha: np.ndarray,
) -> np.ndarray:
    """Log β [n, words+1] of the path suffixes with the remaining words, where α is finite."""
    beta = np.full_like(alpha, -np.inf)
    beta[-1, -1] = 0.0
    for i in range(len(beta) - 2, -1, -1):
        for j in range(len(words) + 1):
            if alpha[i, j] == -np.inf:
                continue
            for a in range(first[i], first[i + 1]):
                ahead = j
                if label[a] != NO_WORD:
                    if j == len(words) or label[a] != words[j]:
                        continue
                    ahead += 1
                beta[i, j] = _log_add(beta[i, j], score[a] + beta[to[a], ahead])
    return beta

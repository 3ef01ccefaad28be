"""Beam search over a decoding graph: token passing, frame by frame.

A layer's tokens are the states that survive the beam and the junctions reached from them.
Only tokens are expanded, so the cost of a frame grows with the tokens, not with the graph. A
junction's arcs are tried heaviest first, until none of the rest can enter the beam.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.acoustics.compiling import kernel, part
from harness.acoustics.graph import Graph
from harness.acoustics.lattice import BestPath, Lattice, prune_lattice, read_path
from harness.base.settings import setting

EXHAUSTIVE = 2**31 - 1
ROOM = 512
"""Tokens per frame in the first allocation; growing it copies them."""
BINS = 256
"""Bins of the histogram that finds the score of the last state to survive."""


@dataclass(frozen=True)
class Beam:
    """Limits of a beam search.

    Args:
        width: tokens more than this below the best of their frame are dropped, in nats.
        max_active: largest number of states that survive a frame (more if they tie).
        lattice: arcs on no path within this of the best one leave the lattice, in nats.
    """

    width: float = setting(14.0, above=0.0)
    max_active: int = setting(5000, at_least=1)
    lattice: float = setting(8.0, above=0.0)


EVERYTHING = Beam(math.inf, EXHAUSTIVE, math.inf)


def decode(graph: Graph, scores: np.ndarray, beam: Beam | None = None) -> BestPath:
    """Search for the best path.

    If no token reaches the graph's end, the partial path of the best last token is returned,
    marked as not complete.

    Args:
        graph: from ``decoding_graph``, perhaps ``with_insertion_penalty``.
        scores: float [T, K], scaled acoustic scores κ (log p(s|x_t) - log p(s)).
        beam: limits of the search; by default ``Beam()``.

    Raises:
        ValueError: there are no frames, a score is NaN or +inf, or every score of a frame
            is -inf.
    """
    tokens = _Tokens(*_search(*_arguments(graph, scores, beam or Beam())))
    layer = tokens.last_layer
    at = len(tokens.node) - 1
    if not tokens.has_complete_path(graph.end, len(scores)):
        at = int(layer[np.argmax(tokens.score[layer])])
    score, path = float(tokens.score[at]), list[int]()
    while tokens.came[at] >= 0:
        path.append(int(tokens.arc[at]))
        at = int(tokens.came[at])
    return read_path(graph, np.array(path[::-1], np.int64), score)


def lattice(graph: Graph, scores: np.ndarray, beam: Beam | None = None) -> Lattice:
    """Search for a lattice: the arcs between surviving tokens that lie within the lattice beam.

    Empty if no token reaches the graph's end.

    Args:
        graph: from ``decoding_graph`` or ``transcript_graph``.
        scores: float [T, K], scaled acoustic scores.
        beam: limits of the search; by default ``Beam()``.

    Raises:
        ValueError: there are no frames, a score is NaN or +inf, or every score of a frame
            is -inf.
    """
    beam = beam or Beam()
    arguments = _arguments(graph, scores, beam)
    tokens = _Tokens(*_search(*arguments))
    if not tokens.has_complete_path(graph.end, len(scores)):
        return _no_lattice(graph, len(scores))
    layer_first, node = tokens.layer_first, tokens.node
    links = _link(arguments[0], layer_first, node, *_arcs(graph), graph.states)
    layer = np.repeat(np.arange(len(layer_first) - 1, dtype=np.int32), np.diff(layer_first))
    return prune_lattice(Lattice(graph, len(scores), layer, node, *links), beam.lattice)


@dataclass(frozen=True)
class _Tokens:
    """Every surviving token: its node, score, best predecessor and the arc from there."""

    node: np.ndarray
    score: np.ndarray
    came: np.ndarray
    arc: np.ndarray
    layer_first: np.ndarray

    @property
    def last_layer(self) -> np.ndarray:
        """Indices of the tokens of the last layer that has any."""
        layer = int(np.flatnonzero(np.diff(self.layer_first))[-1])
        return np.arange(int(self.layer_first[layer]), len(self.node))

    def has_complete_path(self, end: int, frames: int) -> bool:
        """Whether a path ends after the last frame; the end, of the highest level, comes last."""
        return self.layer_first[frames] < len(self.node) and int(self.node[-1]) == end


def _arguments(graph: Graph, scores: np.ndarray, beam: Beam) -> tuple[Any, ...]:
    check_scores(scores)
    limits = graph.states, graph.level, graph.start, float(beam.width), beam.max_active
    return (np.ascontiguousarray(scores), *_arcs(graph), *limits)


def _arcs(graph: Graph) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    return graph.first, graph.split, graph.to, graph.weight, graph.consumed


def check_scores(scores: np.ndarray) -> None:
    """Reject scores that no search can use.

    Raises:
        ValueError: there are no frames, a score is NaN or +inf, or every score of a frame
            is -inf.
    """
    if scores.ndim != 2 or not len(scores):
        raise ValueError(f"scores of shape {scores.shape}; [frames, targets] is needed")
    if not np.isfinite(scores.max(axis=1)).all():  # NaN and +inf win a maximum
        raise ValueError("a frame's scores hold NaN or +inf, or nothing above -inf")


def _no_lattice(graph: Graph, frames: int) -> Lattice:
    none = np.zeros(0, np.int32)
    return Lattice(graph, frames, none, none, np.zeros(1, np.int64), none, none, np.zeros(0))


@part
def _longer(array: np.ndarray, size: int) -> np.ndarray:
    """The array, or a copy twice as long if ``size`` elements do not fit."""
    if size <= len(array):
        return array
    grown = np.empty(max(size, 2 * len(array)), array.dtype)
    grown[: len(array)] = array
    return grown


@part
def _threshold(values: np.ndarray, width: float, max_active: int) -> float:
    """Lowest score with which a state of the layer survives."""
    if len(values) == 0:
        return -np.inf
    lowest = values.max() - width
    within = values[values >= lowest]
    return lowest if len(within) <= max_active else _select(within, max_active)


@part
def _select(values: np.ndarray, count: int) -> float:
    """The ``count``-th largest value; partitions only its bin of a histogram, which is quicker."""
    low, high = values.min(), values.max()
    if low == high:
        return low
    bins = ((high - values) * (BINS / (high - low))).astype(np.int64)
    above = np.cumsum(np.bincount(bins))
    chosen = np.searchsorted(above, count)
    within = values[bins == chosen]
    rank = int(above[chosen]) - count
    return np.partition(within, rank)[rank]


@part
def _advance(
    row: np.ndarray,
    tokens: range,
    node: np.ndarray,
    score: np.ndarray,
    first: np.ndarray,
    split: np.ndarray,
    to: np.ndarray,
    weight: np.ndarray,
    consumed: np.ndarray,
    width: float,
    value: np.ndarray,
    came: np.ndarray,
    via: np.ndarray,
    found: np.ndarray,
) -> int:
    """Move tokens into the states of the next frame; returns the number of states reached."""
    # Numba wraps negative indices: unsigned ones spare that test in this inner loop.
    count, top = 0, row.max()
    beam = width < np.inf  # without a beam, infinite scores must not end the loop over arcs
    lowest = -np.inf
    for i in tokens:
        n, so_far = np.uint32(node[i]), score[i]
        for a in range(np.uint64(first[n]), np.uint64(split[n])):
            score_left = so_far + weight[a]
            if score_left + top < lowest:
                break  # the arcs after it weigh less
            d = np.uint32(to[a])
            entered, before = score_left + row[np.uint32(consumed[a])], value[d]
            if entered > before and entered >= lowest:
                if before == -np.inf:
                    found[count] = d
                    count += 1
                value[d], came[d], via[d] = entered, i, a
                lowest = max(lowest, entered - width) if beam else lowest
    return count


@kernel
def _search(
    scores: np.ndarray,
    first: np.ndarray,
    split: np.ndarray,
    to: np.ndarray,
    weight: np.ndarray,
    consumed: np.ndarray,
    states: int,
    level: np.ndarray,
    start: int,
    width: float,
    max_active: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Node, score, predecessor and arc of all tokens, and the first token of each layer."""
    frames, nodes = len(scores), len(split)
    value = np.full(nodes, -np.inf)  # the layer under construction, by node
    came, via = np.empty(nodes, np.int64), np.empty(nodes, np.int32)
    found = np.empty(nodes, np.int32)
    layer_first = np.zeros(frames + 2, np.int64)
    room = ROOM * (frames + 1)
    node, score = np.empty(room, np.int32), np.empty(room)
    origin, arc = np.empty(room, np.int64), np.empty(room, np.int32)
    levels = level.max() + 1
    value[start], came[start], via[start], found[0] = 0.0, -1, -1, start
    size, count = 0, 1
    for layer in range(frames + 1):
        lowest = -np.inf
        if layer > 0:
            tokens = range(layer_first[layer - 1], size)
            count = _advance(
                scores[layer - 1], tokens, node, score, first, split, to, weight, consumed, width,
                value, came, via, found,
            )  # fmt: skip
            lowest = _threshold(value[found[:count]], width, max_active)
        entered = count if layer > 0 else 0
        most = size + count + nodes - states
        node, score = _longer(node, most), _longer(score, most)
        origin, arc = _longer(origin, most), _longer(arc, most)
        # Junctions after the last frame are not pruned: a costly end may be the only one.
        floor = lowest if layer < frames else -np.inf
        for wave in range(-1, levels):  # states first, then junctions in topological order
            i = 0 if wave < 0 else entered
            while i < (entered if wave < 0 else count):
                n = np.uint32(found[i])
                i += 1
                if wave >= 0 and level[n] != wave:
                    continue
                value_here = value[n]
                if value_here < (lowest if wave < 0 else floor):
                    continue
                node[size], score[size], origin[size], arc[size] = n, value_here, came[n], via[n]
                for a in range(np.uint64(split[n]), np.uint64(first[n + np.uint32(1)])):
                    d = np.uint32(to[a])
                    if value_here + weight[a] > value[d]:
                        if value[d] == -np.inf:
                            found[count] = d
                            count += 1
                        value[d], came[d], via[d] = value_here + weight[a], size, a
                size += 1
        # clear only the entries that were set: a frame costs its tokens, not the graph's nodes
        for i in range(count):
            value[np.uint32(found[i])] = -np.inf
        layer_first[layer + 1] = size
    return node[:size], score[:size], origin[:size], arc[:size], layer_first


@kernel
def _link(
    scores: np.ndarray,
    layer_first: np.ndarray,
    node: np.ndarray,
    first: np.ndarray,
    split: np.ndarray,
    to: np.ndarray,
    weight: np.ndarray,
    consumed: np.ndarray,
    states: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Every arc of the graph between surviving tokens: first, to, arc, score of a lattice."""
    place = np.full(len(split), -1, np.int64)  # the token of a state one layer on, or a junction
    starts = np.zeros(len(node) + 1, np.int64)
    end, arc = np.empty(4096, np.int32), np.empty(4096, np.int32)
    gain = np.empty(4096)
    size, layers = 0, len(layer_first) - 1
    for layer in range(layers):
        layer_tokens = range(layer_first[layer], layer_first[layer + 1])
        ahead = range(layer_tokens.stop, layer_first[min(layer + 2, layers)])
        for i in layer_tokens:
            place[node[i]] = i if node[i] >= states else -1
        for i in ahead:
            if node[i] < states:
                place[node[i]] = i
        for i in layer_tokens:
            most = size + int(first[node[i] + 1] - first[node[i]])
            end, arc, gain = _longer(end, most), _longer(arc, most), _longer(gain, most)
            for a in range(first[node[i]], first[node[i] + 1]):
                token = place[to[a]]
                if token < 0:
                    continue
                end[size], arc[size], gain[size] = token, a, weight[a]
                if to[a] < states:
                    gain[size] += scores[layer, consumed[a]]
                size += 1
            starts[i + 1] = size
        for i in range(layer_tokens.start, ahead.stop):
            place[node[i]] = -1
    return starts, end[:size], arc[:size], gain[:size]

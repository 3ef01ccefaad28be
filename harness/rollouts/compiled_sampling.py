"""Sampling from a `Transformer` on a processor, compiled: one token after the other.

A small policy's weights stay in the processor's cache, where a product of a matrix and a vector
takes no longer than its share of a product of matrices, and nothing waits for the longest rollout
of a batch. Rollouts that begin with the same tokens read them once: members of a group share their
prompt, and the answers that they have in common.

Shape letters: N rollouts, C context, L layers, H heads, D width.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np

from harness.kernels import compiling
from harness.rollouts.policy import Transformer
from harness.rollouts.problems import END

_FAST = {"reassoc", "nsz", "contract"}
"""Flags that let sums be vectorised; values that are not finite stay what they are."""

_EPSILON = np.float32(1e-5)
"""Added to variances, as in `torch.nn.LayerNorm`."""


_kernel = partial(compiling.kernel, nogil=True)
# inlined, so that compiled and cached code add in the same order
_part = partial(compiling.part, nogil=True, forceinline=True, fastmath=_FAST)


class _Sizes(NamedTuple):
    """Sizes of a transformer."""

    vocabulary: int
    context: int
    width: int
    layers: int
    heads: int


class _Room(NamedTuple):
    """Buffers: keys and values ``[L, H, C, D / H]``, vectors of the parts, scores, logits."""

    keys: Any
    values: Any
    stream: Any
    normal: Any
    three: Any
    mixed: Any
    wide: Any
    scores: Any
    logits: Any


@_part
def _normalise(weights: Any, at: int, x: Any, out: Any) -> int:
    """Layer normalisation of ``x``; returns the place behind its parameters."""
    size = len(x)
    scales, biases = weights[at : at + size], weights[at + size : at + 2 * size]
    mean = np.float32(0.0)
    for k in range(size):
        mean += x[k]
    mean /= np.float32(size)
    variance = np.float32(0.0)
    for k in range(size):
        variance += (x[k] - mean) * (x[k] - mean)
    scale = np.float32(1.0) / np.sqrt(variance / np.float32(size) + _EPSILON)
    for k in range(size):
        out[k] = (x[k] - mean) * scale * scales[k] + biases[k]
    return at + 2 * size


@_part
def _multiply(weights: Any, at: int, x: Any, out: Any) -> int:
    """An affine layer from ``x`` to ``out``; returns the place behind its parameters."""
    rows, columns = len(out), len(x)
    behind = at + rows * columns
    matrix, biases = weights[at:behind].reshape(rows, columns), weights[behind : behind + rows]
    # Loops over shapes: only of such an index is known that it is not negative.
    for row in range(matrix.shape[0]):
        total = np.float32(0.0)
        for k in range(matrix.shape[1]):
            total += matrix[row, k] * x[k]
        out[row] = total + biases[row]
    return behind + rows


@_part
def _attend(room: _Room, layer: int, place: int) -> None:
    """Attention of the token at ``place`` to all up to it."""
    heads, size = room.keys.shape[1], room.keys.shape[3]
    three = room.three.reshape(3, heads, size)
    mixed = room.mixed.reshape(heads, size)
    root = np.float32(1.0) / np.sqrt(np.float32(size))
    for head in range(heads):
        query, out = three[0, head], mixed[head]
        keys, values = room.keys[layer, head, : place + 1], room.values[layer, head, : place + 1]
        scores = room.scores[: place + 1]
        for k in range(size):
            keys[place, k], values[place, k] = three[1, head, k], three[2, head, k]
            out[k] = np.float32(0.0)
        most = np.float32(-np.inf)
        for earlier in range(keys.shape[0]):
            score = np.float32(0.0)
            for k in range(keys.shape[1]):
                score += query[k] * keys[earlier, k]
            scores[earlier] = score * root
            most = max(most, scores[earlier])
        total = np.float32(0.0)
        for earlier in range(scores.shape[0]):
            scores[earlier] = np.exp(scores[earlier] - most)
            total += scores[earlier]
        for earlier in range(values.shape[0]):
            share = scores[earlier] / total
            for k in range(values.shape[1]):
                out[k] += share * values[earlier, k]


@_part
def _add(x: Any, y: Any) -> None:
    for k in range(len(x)):
        x[k] += y[k]


@_part
def _read(weights: Any, sizes: _Sizes, room: _Room, token: int, place: int) -> int:
    """Pass a token through all blocks; returns the place behind their parameters."""
    width = sizes.width
    at_token, at_place = token * width, (sizes.vocabulary + place) * width
    meaning, position = weights[at_token : at_token + width], weights[at_place : at_place + width]
    for k in range(width):
        room.stream[k] = meaning[k] + position[k]
    at = (sizes.vocabulary + sizes.context) * width
    for layer in range(sizes.layers):
        # both normalisations come before the affine layers, in the order of the module
        between = _normalise(weights, at, room.stream, room.normal)
        at = _multiply(weights, between + 2 * width, room.normal, room.three)
        _attend(room, layer, place)
        at = _multiply(weights, at, room.mixed, room.normal)
        _add(room.stream, room.normal)
        _normalise(weights, between, room.stream, room.normal)
        at = _multiply(weights, at, room.normal, room.wide)
        for k in range(len(room.wide)):
            room.wide[k] = max(room.wide[k], np.float32(0.0))
        at = _multiply(weights, at, room.wide, room.normal)
        _add(room.stream, room.normal)
    return at


@_part
def _choose(logits: Any, draw: float, temperature: float) -> tuple[int, float]:
    """A token, and the logarithm of its probability; the most probable one at temperature 0."""
    most, best = -np.inf, 0
    for token in range(len(logits)):
        if logits[token] > most:
            most, best = float(logits[token]), token
    if temperature == 0.0:
        return best, 0.0
    total = 0.0
    for token in range(len(logits)):
        total += np.exp((logits[token] - most) / temperature)
    # Logits that are not finite give token 0 without a probability, so that a rollout ends.
    chosen, below = 0, 0.0
    for token in range(len(logits)):
        below += np.exp((logits[token] - most) / temperature)
        if below <= draw * total and token + 1 < len(logits):
            chosen = token + 1
    return chosen, (logits[chosen] - most) / temperature - np.log(total)


@_part
def _split(
    tokens: Any, order: Any, begin: int, end: int, place: int, stack: Any, depth: int
) -> int:
    """Divide rows ``order[first:last]`` by their token at ``place``: a branch of the stack each."""
    while begin < end:
        behind, token = begin, tokens[order[begin], place]
        for number in range(begin, end):
            row = order[number]
            if tokens[row, place] == token:
                order[number], order[behind] = order[behind], row
                behind += 1
        stack[depth, 0], stack[depth, 1], stack[depth, 2] = begin, behind, place
        begin, depth = behind, depth + 1
    return depth


@_kernel
def _decode(
    weights: Any,
    sizes: _Sizes,
    room: _Room,
    temperature: float,
    draws: Any,
    begins: Any,
    tokens: Any,
    log_probs: Any,
    ends: Any,
) -> None:
    """Continue the rollouts ``tokens [N, C]`` from ``begins [N]``, and set where they end.

    Rollouts with the same tokens so far are a branch, whose last token is read once. Branches are
    followed to their ends one by one, so the keys and values at earlier places are their own.
    """
    order, stack = np.arange(len(tokens)), np.empty((len(tokens) + 1, 3), np.int64)
    depth = _split(tokens, order, 0, len(tokens), 0, stack, 0)
    while depth > 0:
        depth -= 1
        begin, end, place = stack[depth, 0], stack[depth, 1], stack[depth, 2]
        at = _read(weights, sizes, room, tokens[order[begin], place], place)
        place += 1
        is_drawn = False
        for number in range(begin, end):
            is_drawn = is_drawn or place >= begins[order[number]]
        if is_drawn:
            at = _normalise(weights, at, room.stream, room.normal)
            _multiply(weights, at, room.normal, room.logits)
        unfinished = begin
        for number in range(begin, end):
            row = order[number]
            if place >= begins[row]:
                token, log_prob = _choose(room.logits, draws[row, place], temperature)
                tokens[row, place], log_probs[row, place] = token, log_prob
                if token == END or place == sizes.context - 1:
                    ends[row] = place + 1
            if ends[row] == 0:
                order[number], order[unfinished] = order[unfinished], row
                unfinished += 1
        depth = _split(tokens, order, begin, unfinished, place, stack, depth)


def decode_all(
    policy: Transformer,
    tokens: np.ndarray,
    begins: np.ndarray,
    draws: np.ndarray,
    temperature: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Sample rollouts to their ends.

    Args:
        policy: the policy, with its parameters in one vector.
        tokens: int64 ``[N, C]``, prefixes; filled with what is sampled.
        begins: int64 ``[N]``, lengths of the prefixes.
        draws: ``[N, C]`` numbers in (0, 1).
        temperature: of the distribution; 0 takes the most probable token.

    Returns:
        ``log_probs [N, C]`` of the sampled tokens, and the rollouts' ends ``[N]``.
    """
    sizes = _Sizes(*policy.sizes)
    vector = np.concatenate([p.detach().numpy().reshape(-1) for p in policy.parameters()])
    context, width = sizes.context, sizes.width
    empty = np.empty
    room = _Room(
        keys=empty((sizes.layers, sizes.heads, context, width // sizes.heads), np.float32),
        values=empty((sizes.layers, sizes.heads, context, width // sizes.heads), np.float32),
        stream=empty(width, np.float32),
        normal=empty(width, np.float32),
        three=empty(3 * width, np.float32),
        mixed=empty(width, np.float32),
        wide=empty(4 * width, np.float32),
        scores=empty(context, np.float32),
        logits=empty(sizes.vocabulary, np.float32),
    )
    log_probs, ends = np.zeros(tokens.shape, np.float32), np.zeros(len(tokens), np.int64)
    _decode(vector, sizes, room, temperature, draws, begins, tokens, log_probs, ends)
    return log_probs, ends

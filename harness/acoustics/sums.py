"""Forward-backward over decoding graphs: one utterance, or many at once.

For one utterance, sums run over the whole decoding graph, the limit of an infinitely wide
lattice. They use probabilities, not logarithms, and divide by each frame's sum in the next frame:
one multiplication and one addition per arc. Junctions factor the graph, so a frame costs about
two arcs per state and one per word; without junctions it would cost the square of the number of
words. Staying and stepping to the next state need no index, so they are vectorised.

For many utterances at once, on any torch device, a machine has no junctions. Transitions through
them are either factored (one word loop for all utterances: two matrix products with a few
junctions per frame) or multiplied out (a small matrix for each reference). Letters: B utterances,
T frames of the longest, S states, J junctions, K targets. Everything is float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from harness.acoustics.compiling import kernel, part, summing_part
from harness.acoustics.decoder import EVERYTHING, check_scores, lattice
from harness.acoustics.graph import Graph
from harness.acoustics.lattice import posteriors

TINY = 1e-290
"""Shares below this count as zero: arithmetic on subnormal numbers is many times slower."""

LEAST = 1e-250
"""Smallest Σ α β of a frame that is trusted: below it, underflow may have lost paths."""

Shares = tuple[np.ndarray, float]
"""Result of ``likelihoods``: scores as shares [T, K], and the log of their common factor."""


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
        shares: their ``likelihoods``, if known from another graph's sums.

    Returns:
        log Z, and γ float64 [T, K], whose rows sum to 1. If no path has T frames, -inf and
        zeros.

    Raises:
        ValueError: there are no frames, a score is NaN or +inf, or every score of a frame
            is -inf.
    """
    check_scores(scores)
    ends = graph.start, graph.end, graph.nodes
    likely, log_scale = shares or likelihoods(np.ascontiguousarray(scores, np.float64))
    log_z, gamma, least = _sums(likely, log_scale, get_arcs(graph), *ends)
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


def get_arcs(graph: Graph) -> Arcs:
    """A graph's arcs in the layout of the sums; built once for each graph."""
    if graph not in _FLAT:
        _FLAT[graph] = _build_arcs(graph)
    return _FLAT[graph]


def _build_arcs(graph: Graph) -> Arcs:
    # Unsigned indices, because numba tests every signed one for wrap-around from the end.
    source = np.repeat(np.arange(graph.nodes), np.diff(graph.first))
    to, enters, weight = graph.to.astype(np.int64), graph.to < graph.states, np.exp(graph.weight)
    stays, steps = (enters & (to == source + ahead) for ahead in (0, 1))
    rest = enters & ~stays & ~steps
    lists = [
        (source[m].astype(np.uint32), to[m].astype(np.uint32), weight[m]) for m in (rest, ~enters)
    ]
    stay, step = (np.bincount(source[m], weight[m], graph.states) for m in (stays, steps))
    return Arcs(graph.target.astype(np.uint32), stay, step, lists[0], lists[1])


def likelihoods(scores: np.ndarray) -> Shares:
    """``exp(scores - best)`` [T, K] with each frame's best score, and the sum of these."""
    most = scores.max(axis=1, keepdims=True)
    likely = scores - most
    return np.exp(likely, out=likely), float(most.sum())


@summing_part
def advance(a: np.ndarray, b: np.ndarray, arcs: Arcs) -> None:
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
def pass_on(b: np.ndarray, arcs: Arcs) -> None:
    """Add to a layer's junctions the weights of the nodes that lead to them."""
    source, to, weight = arcs.passing
    for i in range(len(to)):
        b[to[i]] += b[source[i]] * weight[i]


@summing_part
def retreat(b: np.ndarray, entered: np.ndarray, arcs: Arcs) -> None:
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
    pass_on(alpha[0], arcs)
    seen = np.empty(len(arcs.target))
    log_scale, total = 0.0, 1.0
    for t in range(len(likely)):
        _each(likely[t], arcs.target, seen)
        advance(alpha[t], alpha[t + 1], arcs)
        log_scale += np.log(total)
        total = _observe(alpha[t + 1], seen, 1.0 / total)
        if total < LEAST:
            return alpha, -np.inf
        pass_on(alpha[t + 1], arcs)
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
    beta, share, seen = np.zeros(nodes), np.empty(states), np.empty(states)
    entered = np.zeros(states + 1)
    beta[end] = 1.0
    least, total = alpha[frames, end], 1.0
    for t in range(frames, 0, -1):
        retreat(beta, entered, arcs)
        shared = _meet(alpha[t], beta, share)
        least = min(least, shared)
        _each(likely[t - 1], arcs.target, seen)
        entered[:states] = beta[:states]
        total = _observe(entered, seen, 1.0 / total)
        if shared < LEAST or total < LEAST:
            return log_z, gamma, 0.0
        row, part, least_share = gamma[t - 1], 1.0 / shared, shared * 1e-20
        for s in range(states):
            if share[s] > least_share:
                row[arcs.target[s]] += share[s] * part
        beta[states:] = 0.0
    return log_z, gamma, least


class Factors(NamedTuple):
    """A graph as matrices of weights.

    Attributes:
        stay, step: [S], weight of staying, and of advancing to state s+1.
        leave: [S, J], weights from states to junctions.
        between: [J, J], summed weights of all junction paths, the empty one included.
        enter: [J, S], weights from junctions to states.
        start, end: first and last junction, as indices from 0 to J-1.
        target: [S], the states' targets.
    """

    stay: np.ndarray
    step: np.ndarray
    leave: np.ndarray
    between: np.ndarray
    enter: np.ndarray
    start: int
    end: int
    target: np.ndarray


def factors(graph: Graph) -> Factors:
    """Factor a graph's weights by the kinds of nodes that they join.

    Raises:
        ValueError: a state leads to a state that is neither itself nor the next.
    """
    states, source = graph.states, np.repeat(np.arange(graph.nodes), np.diff(graph.first))
    to, weight = graph.to.astype(np.int64), np.exp(graph.weight)

    def matrix(rows: slice, columns: slice) -> np.ndarray:
        found = np.zeros((rows.stop - rows.start, columns.stop - columns.start))
        inside = (source >= rows.start) & (source < rows.stop)
        inside &= (to >= columns.start) & (to < columns.stop)
        np.add.at(found, (source[inside] - rows.start, to[inside] - columns.start), weight[inside])
        return found

    def sum_diagonal(ahead: int) -> np.ndarray:
        chosen = (source < states) & (to < states) & (to == source + ahead)
        return np.bincount(source[chosen], weight[chosen], states)

    emitting, junctions = slice(0, states), slice(states, graph.nodes)
    direct = (source < states) & (to < states) & (to != source) & (to != source + 1)
    if direct.any():
        raise ValueError("a state leads to a state that is neither itself nor the next")
    passing = matrix(junctions, junctions)
    return Factors(
        sum_diagonal(0),
        sum_diagonal(1),
        matrix(emitting, junctions),
        np.linalg.inv(np.eye(len(passing)) - passing),  # 1 + A + A² + …: junctions have no cycle
        matrix(junctions, emitting),
        graph.start - states,
        graph.end - states,
        graph.target,
    )


class Machine(Protocol):
    """States that consume frames.

    Attributes:
        target: int64 [B or 1, S], the states' targets.
        first, last: [B or 1, S], weight of beginning and of ending in a state.
    """

    target: Tensor
    first: Tensor
    last: Tensor

    def step_forward(self, a: Tensor) -> Tensor:
        """Weights [B, S] of the next frame's states, before their likelihoods, from one frame's."""
        ...

    def step_backward(self, b: Tensor) -> Tensor:
        """The transpose of ``step_forward``."""
        ...


class Loop:
    """One graph for all utterances, with transitions factored through its junctions."""

    def __init__(self, parts: Factors, device: str) -> None:
        def tensor(x: np.ndarray) -> Tensor:
            return torch.as_tensor(x, dtype=torch.float64, device=device)

        self.stay, self.step = tensor(parts.stay), tensor(parts.step)[:-1]
        self.enter, self.leave = tensor(parts.enter), tensor(parts.leave @ parts.between)
        self.target = torch.as_tensor(parts.target, dtype=torch.int64, device=device)[None]
        self.first = tensor(parts.between[parts.start] @ parts.enter)[None]
        self.last = self.leave[:, parts.end][None]

    def step_forward(self, a: Tensor) -> Tensor:
        """See ``Machine``."""
        b = a * self.stay + (a @ self.leave) @ self.enter
        b[:, 1:] += a[:, :-1] * self.step
        return b

    def step_backward(self, b: Tensor) -> Tensor:
        """See ``Machine``."""
        a = b * self.stay + (b @ self.enter.T) @ self.leave.T
        a[:, :-1] += b[:, 1:] * self.step
        return a


class Chain(NamedTuple):
    """A reference's machine: transitions [S, S], first and last [S], target [S]."""

    moves: np.ndarray
    first: np.ndarray
    last: np.ndarray
    target: np.ndarray


def chain(graph: Graph) -> Chain:
    """A small graph with its junctions multiplied out."""
    f = factors(graph)
    moves = np.diag(f.stay) + np.diag(f.step[:-1], 1) + f.leave @ f.between @ f.enter
    first, last = f.between[f.start] @ f.enter, (f.leave @ f.between)[:, f.end]
    return Chain(moves, first, last, f.target)


class Chains:
    """The references' machines, one per utterance, padded to the largest."""

    def __init__(self, chains: Sequence[Chain], device: str) -> None:
        most = max(len(c.target) for c in chains)

        def pad(arrays: Sequence[np.ndarray]) -> Tensor:
            out = np.zeros((len(arrays), *[most] * arrays[0].ndim), arrays[0].dtype)
            for row, array in zip(out, arrays, strict=True):
                row[tuple(slice(n) for n in array.shape)] = array
            return torch.as_tensor(out, device=device)

        self.moves = pad([c.moves for c in chains])
        self.first, self.last = (pad([c[i] for c in chains]) for i in (1, 2))
        self.target = pad([c.target.astype(np.int64) for c in chains])

    def step_forward(self, a: Tensor) -> Tensor:
        """See ``Machine``."""
        return torch.bmm(a.unsqueeze(1), self.moves).squeeze(1)

    def step_backward(self, b: Tensor) -> Tensor:
        """See ``Machine``."""
        return torch.bmm(self.moves, b.unsqueeze(2)).squeeze(2)


@dataclass(frozen=True, eq=False)
class Sums:
    """Result of forward-backward.

    Attributes:
        log_z: [B], -inf where no path has the utterance's frames.
        gamma: [B, T, K], zero behind the utterance's end.
        exact: bool [B], False where no path was found or underflow may have lost paths.
        through: [B, T, K], γ times the expected accuracy of the paths through a target; None
            without reference targets.
    """

    log_z: Tensor
    gamma: Tensor
    exact: Tensor
    through: Tensor | None = None


def sums(machine: Machine, scores: Tensor, lengths: Tensor, said: Tensor | None = None) -> Sums:
    """Log Z and γ of every utterance.

    Args:
        machine: states and transitions of the paths.
        scores: [B, T, K], with a finite maximum in every frame of an utterance.
        lengths: int64 [B], frames of each utterance, at least 1.
        said: int64 [B, T], the reference's targets, to compute expected accuracies.
    """
    top = scores.amax(dim=2, keepdim=True)
    likely = torch.exp(scores - top)
    inside = torch.arange(scores.shape[1], device=scores.device) < lengths[:, None]
    walk = _Walk(machine, likely, inside, said)
    alpha, gain, grown, left = walk.forward()
    log_z = grown + (top.squeeze(2) * inside).sum(1)
    gamma, through, least = walk.backward(alpha, gain, lengths)
    reached = (left > 0) & torch.isfinite(log_z)
    exact = reached & (torch.minimum(least, left) > LEAST)
    keep = reached[:, None, None]
    return Sums(
        torch.where(reached, log_z, -torch.inf),
        torch.where(keep, gamma, 0.0),
        exact,
        None if through is None else torch.where(keep, through, 0.0),
    )


@dataclass
class _Walk:
    machine: Machine
    likely: Tensor
    inside: Tensor
    said: Tensor | None

    def frame_likelihoods(self, t: int) -> Tensor:
        """Likelihoods [B, S] of frame t."""
        return self.likely[:, t].gather(1, self.machine.target.expand(len(self.likely), -1))

    def hit(self, t: int) -> Tensor:
        """1 where a state is the reference's in frame t, [B, S]."""
        assert self.said is not None
        return (self.machine.target == self.said[:, t, None]).double()

    def forward(self) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
        """α [T, B, S], α times accuracy, log of α's divisors and of the end, the end's share."""
        frames, batch = self.inside.shape[1], len(self.inside)
        alpha = self.likely.new_empty(frames, batch, self.machine.target.shape[1])
        gain = None if self.said is None else torch.empty_like(alpha)
        a, g = self.machine.first.expand(batch, -1), torch.zeros_like(alpha[0])
        grown = self.likely.new_zeros(batch)
        for t in range(frames):
            if t:
                a = self.machine.step_forward(a)
            seen, inside = self.frame_likelihoods(t), self.inside[:, t, None]
            total = (b := a * seen).sum(1, keepdim=True)
            # Behind an utterance's end its last α is copied on, so that alpha[-1] holds it.
            a = torch.where(inside, b / total.clamp_min(LEAST), alpha[t - 1] if t else b)
            if gain is not None:
                g = self.machine.step_forward(g) if t else g
                moved = (g * seen + self.hit(t) * b) / total.clamp_min(LEAST)
                g = gain[t] = torch.where(inside, moved, gain[t - 1] if t else moved)
            alpha[t] = a
            grown += torch.where(inside, torch.log(total), 0.0).squeeze(1)
        left = (alpha[-1] * self.machine.last).sum(1)
        return alpha, gain, grown + torch.log(left), left

    def backward(
        self, alpha: Tensor, gain: Tensor | None, lengths: Tensor
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        """γ [B, T, K], γ times expected accuracy, and the smallest Σ α β of any frame [B]."""
        frames, batch, _ = alpha.shape
        last = self.machine.last.expand(batch, -1)
        b, r = last, torch.zeros_like(last)
        least = alpha.new_ones(batch)
        for t in range(frames - 1, -1, -1):
            ends, inside = (lengths == t + 1)[:, None], self.inside[:, t, None]
            if t + 1 < frames:
                seen = self.frame_likelihoods(t + 1)
                entered = b * seen
                total = entered.sum(1, keepdim=True).clamp_min(LEAST)
                if gain is not None:
                    earned = (r * seen + self.hit(t + 1) * entered) / total
                    r = torch.where(ends, torch.zeros_like(r), self.machine.step_backward(earned))
                b = torch.where(ends, last, self.machine.step_backward(entered / total))
            shared = (share := alpha[t] * b).sum(1, keepdim=True)
            least = torch.where(inside[:, 0], torch.minimum(least, shared[:, 0]), least)
            part = torch.where(inside, 1.0 / shared.clamp_min(LEAST), 0.0)
            if gain is not None:
                gain[t] = (gain[t] * b + alpha[t] * r) * part
            alpha[t] = share * part  # γ overwrites α: a frame's α is not read again
        gamma = self._sum_by_target(alpha)
        return gamma, None if gain is None else self._sum_by_target(gain), least

    def _sum_by_target(self, shares: Tensor) -> Tensor:
        """Sum [T, B, S] over the states of each target: [B, T, K]."""
        states, targets = shares.shape[2], self.likely.shape[2]
        # A product, not index_add, whose order of summation on a GPU is not fixed.
        which = torch.zeros(
            len(self.machine.target), states, targets, dtype=shares.dtype, device=shares.device
        )
        which.scatter_(2, self.machine.target[:, :, None], 1.0)
        return torch.matmul(shares.transpose(0, 1), which)


@dataclass(frozen=True, eq=False)
class Paths:
    """Best paths: targets int64 [B, T] and total log weights [B], -inf where none fits."""

    targets: Tensor
    score: Tensor


def best_paths(chains: Chains, scores: Tensor, lengths: Tensor) -> Paths:
    """Viterbi alignment of every utterance with its reference's machine.

    Args:
        chains: the references' machines.
        scores: [B, T, K].
        lengths: int64 [B].
    """
    moves, frames = torch.log(chains.moves), scores.shape[1]
    inside = torch.arange(frames, device=scores.device) < lengths[:, None]
    best, came = torch.log(chains.first), list[Tensor]()
    for t in range(frames):
        if t:
            through, source = (best.unsqueeze(2) + moves).max(1)
            best = torch.where(inside[:, t, None], through, best)
            came.append(source)
        best = best + torch.where(inside[:, t, None], scores[:, t].gather(1, chains.target), 0.0)
    score, at = (best + torch.log(chains.last)).max(1, keepdim=True)
    path = [at]
    for t in range(frames - 1, 0, -1):
        at = torch.where(inside[:, t, None], came[t - 1].gather(1, at), at)
        path.append(at)
    states = torch.cat(path[::-1], 1)
    return Paths(chains.target.gather(1, states), score.squeeze(1))

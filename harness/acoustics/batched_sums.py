"""Forward-backward for many utterances at once, on whatever device torch has.

A machine has no junctions: what leads from state to state through them is either factored
(one word loop for all utterances: two products of states with a few junctions a frame) or
multiplied out (a small matrix for each reference). Letters: B utterances, T frames of the
longest, S states, J junctions, K targets. Everything is float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from harness.acoustics.forward_backward import LEAST
from harness.acoustics.graph import Graph


class Factors(NamedTuple):
    """A graph as matrices of weights.

    Attributes:
        stay, step: [S], weight of staying, and of going on to state s+1.
        leave: [S, J], from states to junctions.
        between: [J, J], from junction to junction by any way, the empty one included.
        enter: [J, S], from junctions to states.
        start, end: junctions.
        target: [S].
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
    """A graph's weights by what they join.

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

    def along(ahead: int) -> np.ndarray:
        chosen = (source < states) & (to < states) & (to == source + ahead)
        return np.bincount(source[chosen], weight[chosen], states)

    emitting, junctions = slice(0, states), slice(states, graph.nodes)
    direct = (source < states) & (to < states) & (to != source) & (to != source + 1)
    if direct.any():
        raise ValueError("a state leads to a state that is neither itself nor the next")
    passing = matrix(junctions, junctions)
    return Factors(
        along(0),
        along(1),
        matrix(emitting, junctions),
        np.linalg.inv(np.eye(len(passing)) - passing),  # 1 + A + A² + …: junctions have no circle
        matrix(junctions, emitting),
        graph.start - states,
        graph.end - states,
        graph.target,
    )


class Machine(Protocol):
    """States that consume frames.

    Attributes:
        target: int64 [B or 1, S].
        first, last: [B or 1, S], weight of beginning and of ending in a state.
    """

    target: Tensor
    first: Tensor
    last: Tensor

    def ahead(self, a: Tensor) -> Tensor:
        """What weights [B, S] of one frame give to the states of the next."""
        ...

    def back(self, b: Tensor) -> Tensor:
        """The transposed of ``ahead``."""
        ...


class Loop:
    """One graph for all utterances, its junctions kept."""

    def __init__(self, parts: Factors, device: str) -> None:
        def tensor(x: np.ndarray) -> Tensor:
            return torch.as_tensor(x, dtype=torch.float64, device=device)

        self.stay, self.step = tensor(parts.stay), tensor(parts.step)[:-1]
        self.enter, self.leave = tensor(parts.enter), tensor(parts.leave @ parts.between)
        self.target = torch.as_tensor(parts.target, dtype=torch.int64, device=device)[None]
        self.first = tensor(parts.between[parts.start] @ parts.enter)[None]
        self.last = self.leave[:, parts.end][None]

    def ahead(self, a: Tensor) -> Tensor:
        """See ``Machine``."""
        b = a * self.stay + (a @ self.leave) @ self.enter
        b[:, 1:] += a[:, :-1] * self.step
        return b

    def back(self, b: Tensor) -> Tensor:
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
    """A reference's machine for each utterance, padded to the largest."""

    def __init__(self, chains: Sequence[Chain], device: str) -> None:
        most = max(len(c.target) for c in chains)

        def padded(arrays: Sequence[np.ndarray]) -> Tensor:
            out = np.zeros((len(arrays), *[most] * arrays[0].ndim), arrays[0].dtype)
            for row, array in zip(out, arrays, strict=True):
                row[tuple(slice(n) for n in array.shape)] = array
            return torch.as_tensor(out, device=device)

        self.moves = padded([c.moves for c in chains])
        self.first, self.last = (padded([c[i] for c in chains]) for i in (1, 2))
        self.target = padded([c.target.astype(np.int64) for c in chains])

    def ahead(self, a: Tensor) -> Tensor:
        """See ``Machine``."""
        return torch.bmm(a.unsqueeze(1), self.moves).squeeze(1)

    def back(self, b: Tensor) -> Tensor:
        """See ``Machine``."""
        return torch.bmm(self.moves, b.unsqueeze(2)).squeeze(2)


@dataclass(frozen=True, eq=False)
class Sums:
    """What forward-backward finds.

    Attributes:
        log_z: [B], -inf where no path has the utterance's frames.
        gamma: [B, T, K], zero behind the utterance's end.
        exact: bool [B], False where nothing was found or a double's range may have lost paths.
        through: [B, T, K], γ times the expected accuracy of the paths that pass; None unless
            asked for.
    """

    log_z: Tensor
    gamma: Tensor
    exact: Tensor
    through: Tensor | None = None


def sums(machine: Machine, scores: Tensor, lengths: Tensor, said: Tensor | None = None) -> Sums:
    """Log Z and γ of every utterance.

    Args:
        machine: what may be said.
        scores: [B, T, K], finite maxima in every frame of an utterance.
        lengths: int64 [B], frames of each utterance, at least 1.
        said: int64 [B, T], the reference's targets, where accuracy is asked for.
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

    def seen(self, t: int) -> Tensor:
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
                a = self.machine.ahead(a)
            seen, inside = self.seen(t), self.inside[:, t, None]
            total = (b := a * seen).sum(1, keepdim=True)
            # Behind its end an utterance stands still: its last α stays where it can be read.
            a = torch.where(inside, b / total.clamp_min(LEAST), alpha[t - 1] if t else b)
            if gain is not None:
                g = self.machine.ahead(g) if t else g
                moved = (g * seen + self.hit(t) * b) / total.clamp_min(LEAST)
                g = gain[t] = torch.where(inside, moved, gain[t - 1] if t else moved)
            alpha[t] = a
            grown += torch.where(inside, torch.log(total), 0.0).squeeze(1)
        left = (alpha[-1] * self.machine.last).sum(1)
        return alpha, gain, grown + torch.log(left), left

    def backward(
        self, alpha: Tensor, gain: Tensor | None, lengths: Tensor
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        """γ [B, T, K], γ times expected accuracy, and the least that α and β shared."""
        frames, batch, _ = alpha.shape
        last = self.machine.last.expand(batch, -1)
        b, r = last, torch.zeros_like(last)
        least = alpha.new_ones(batch)
        for t in range(frames - 1, -1, -1):
            ends, inside = (lengths == t + 1)[:, None], self.inside[:, t, None]
            if t + 1 < frames:
                seen = self.seen(t + 1)
                entered = b * seen
                total = entered.sum(1, keepdim=True).clamp_min(LEAST)
                if gain is not None:
                    earned = (r * seen + self.hit(t + 1) * entered) / total
                    r = torch.where(ends, torch.zeros_like(r), self.machine.back(earned))
                b = torch.where(ends, last, self.machine.back(entered / total))
            shared = (share := alpha[t] * b).sum(1, keepdim=True)
            least = torch.where(inside[:, 0], torch.minimum(least, shared[:, 0]), least)
            part = torch.where(inside, 1.0 / shared.clamp_min(LEAST), 0.0)
            if gain is not None:
                gain[t] = (gain[t] * b + alpha[t] * r) * part
            alpha[t] = share * part
        gamma = self._by_target(alpha)
        return gamma, None if gain is None else self._by_target(gain), least

    def _by_target(self, shares: Tensor) -> Tensor:
        """Sum [T, B, S] over the states of each target: [B, T, K]."""
        states, targets = shares.shape[2], self.likely.shape[2]
        # A product, not an index_add: on a GPU the order of that one's sums is not fixed.
        which = torch.zeros(
            len(self.machine.target), states, targets, dtype=shares.dtype, device=shares.device
        )
        which.scatter_(2, self.machine.target[:, :, None], 1.0)
        return torch.matmul(shares.transpose(0, 1), which)


@dataclass(frozen=True, eq=False)
class Paths:
    """Best paths: targets int64 [B, T] and their whole log weights [B]; -inf where none fits."""

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

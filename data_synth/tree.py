"""Decision trees that tie the states of phones in context, and their growth from data.

Every state of every phone has a tree of questions about its neighbours ("is the left
phone one of these?"); its leaves are targets (Young, Odell and Woodland, HLT 1994).
Neighbours are those within the word; at a word's edges the neighbour is silence, so a
word's targets do not depend on the words around it and a lexicon can list them.

Growth: a state's frames in all contexts share one Gaussian; a question about a neighbour splits
them in two, and the split that gains most log-likelihood is taken first, over all trees,
until there are as many leaves as wanted (section 3 there). Questions are found from data: they
are the clusters that form when the phones' monophone Gaussians are merged pairwise (as in
Kaldi's ``cluster-phones``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

SILENCE = "sil"

# A question: which neighbour ("left" or "right"), the phones that answer yes, and where
# yes and no lead: a node's number, or ~target at a leaf.
Node = tuple[str, tuple[str, ...], int, int]


@dataclass(frozen=True)
class Tree:
    """A map (left phone, phone, right phone, state) -> target, called with the four.

    Attributes:
        roots: phone -> for each of its states the first node, or ~target if it has no question.
        nodes: the questions.

    Example:
        The one state of "a" has target 1 after "b" and else 2; that of "b" has target 3:

        >>> tree = Tree({"a": (0,), "b": (~3,)}, (("left", ("b",), ~1, ~2),))
        >>> tree.targets(("b", "a", "a"))
        (3, 1, 2)
    """

    roots: Mapping[str, tuple[int, ...]]
    nodes: tuple[Node, ...] = ()

    def __call__(self, left: str, phone: str, right: str, state: int) -> int:
        """The target of ``state`` (0, 1, ...) of ``phone`` between ``left`` and ``right``."""
        at = self.roots[phone][state]
        while at >= 0:
            side, phones, yes, no = self.nodes[at]
            at = yes if (left if side == "left" else right) in phones else no
        return ~at

    @property
    def n_targets(self) -> int:
        """One more than the largest target at any leaf."""
        roots = [at for states in self.roots.values() for at in states]
        return 1 + max(~at for at in [*roots, *(b for n in self.nodes for b in n[2:])] if at < 0)

    def targets(self, phones: Sequence[str]) -> tuple[int, ...]:
        """The targets of a word from left to right."""
        around = (SILENCE, *phones, SILENCE)
        return tuple(
            self(around[i], phone, around[i + 2], state)
            for i, phone in enumerate(phones)
            for state in range(len(self.roots[phone]))
        )


def tree_from(plain: Mapping[str, Any]) -> Tree:
    """A tree from its JSON form, which is ``dataclasses.asdict`` of it."""
    roots = {phone: tuple(states) for phone, states in plain["roots"].items()}
    nodes = tuple((side, tuple(phones), yes, no) for side, phones, yes, no in plain["nodes"])
    return Tree(roots, nodes)


def monophone_tree(phones: Mapping[str, int], first: int = 0) -> Tree:
    """Context-independent targets, numbered from ``first``; ``phones`` has each one's states."""
    roots: dict[str, tuple[int, ...]] = {}
    for phone, states in phones.items():
        roots[phone] = tuple(~(first + s) for s in range(states))
        first += states
    return Tree(roots)


def expand_lexicon(
    pronunciations: Mapping[str, Sequence[str]], tree: Tree
) -> dict[str, tuple[int, ...]]:
    """The lexicon of targets that follows from a pronunciation lexicon and a tree."""
    return {entry: tree.targets(phones) for entry, phones in pronunciations.items()}


VARIANCE_FLOOR = 0.01


@dataclass
class Counts:
    """Sufficient statistics of a Gaussian: number of frames, their sum, the sum of squares."""

    frames: float
    first: np.ndarray
    second: np.ndarray

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.frames + other.frames, self.first + other.first, self.second + other.second
        )

    @property
    def loglik(self) -> float:
        """Log-likelihood of the frames under their own Gaussian: −(n/2) Σ_d [1 + log 2πσ²_d]."""
        if self.frames <= 0:
            return 0.0
        mean = self.first / self.frames
        variance = np.maximum(self.second / self.frames - mean * mean, VARIANCE_FLOOR)
        return float(-0.5 * self.frames * (1.0 + np.log(2 * np.pi * variance)).sum())


Context = tuple[str, str]  # left and right phone

Statistics = Mapping[tuple[str, int], Mapping[Context, Counts]]


def counts_of(features: np.ndarray) -> Counts:
    """Statistics of some frames, float [frames, dim]."""
    x = np.asarray(features, np.float64)
    return Counts(len(x), x.sum(0), (x * x).sum(0))


def questions(means: Mapping[str, np.ndarray]) -> list[tuple[str, ...]]:
    """Sets of phones worth asking for: every phone, every cluster of phones, and silence.

    Args:
        means: phone -> float [dim], mean features; silence is not among them.
    """
    names = sorted(means)
    sets = [(SILENCE,), *((name,) for name in names)]
    if len(names) > 2:
        points = np.stack([means[name] for name in names])
        sets += [tuple(names[i] for i in sorted(cluster)) for cluster in _clusters(points)]
    return sets


def _clusters(points: np.ndarray) -> list[list[int]]:
    """All clusters of Ward's pairwise merging, without single points and the whole."""
    members = [[i] for i in range(len(points))]
    # A slow import that monophone trees do without.
    from scipy.cluster.hierarchy import (  # pyright: ignore[reportMissingTypeStubs]
        linkage,  # pyright: ignore[reportUnknownVariableType]
    )

    merges = np.asarray(linkage(points, "ward"), np.float64)  # [phones - 1, 4]
    for low, right in merges[:, :2].astype(int):
        members.append(members[int(low)] + members[int(right)])
    return members[len(points) : -1]


Split = tuple[float, str, tuple[str, ...]]
"""Gain in log-likelihood, and the question: the side, and the phones that answer yes."""


def _answers(context: Context, side: str, phones: tuple[str, ...]) -> bool:
    return context[0 if side == "left" else 1] in phones


def _best_split(
    leaf: Mapping[Context, Counts], asked: Sequence[tuple[str, ...]], least_frames: float
) -> Split:
    """The question that gains most and leaves ``least_frames`` on either side."""
    frames = np.array([counts.frames for counts in leaf.values()])
    first = np.stack([counts.first for counts in leaf.values()])
    second = np.stack([counts.second for counts in leaf.values()])
    total = Counts(frames.sum(), first.sum(0), second.sum(0))
    best: Split = (0.0, "", ())
    for side in ("left", "right"):
        for phones in asked:
            yes = np.array([_answers(context, side, phones) for context in leaf])
            n = frames[yes].sum()
            if not least_frames <= n <= total.frames - least_frames:
                continue
            part = Counts(n, first[yes].sum(0), second[yes].sum(0))
            remainder = Counts(
                total.frames - n, total.first - part.first, total.second - part.second
            )
            gain = part.loglik + remainder.loglik - total.loglik
            if gain > best[0] + 1e-9:
                best = gain, side, phones
    return best


def grow(
    statistics: Statistics,
    asked: Sequence[tuple[str, ...]],
    states: Mapping[str, int],
    leaves: int,
    least_frames: float = 100,
) -> Tree:
    """Ties states by splitting where it helps most.

    Args:
        statistics: (phone, state) -> context -> Counts.
        asked: sets of phones, from ``questions``.
        states: phone -> number of states; silence is among them, comes first and is not split.
        leaves: targets to stop at, silence's included.
        least_frames: frames that each side of a split must keep.

    Returns:
        The tree; silence has the first targets.
    """
    roots = {phone: [0] * count for phone, count in states.items()}
    nodes: list[list[Any]] = []  # as `Node`
    # A leaf: its contexts, its best split, and the place in its parent that leads to it.
    open_: list[tuple[dict[Context, Counts], Split, tuple[list[Any], int]]] = []
    for phone, count in states.items():
        for state in range(count):
            leaf, split = dict(statistics.get((phone, state), {})), (0.0, "", ())
            if phone != SILENCE and len(leaf) > 1:
                split = _best_split(leaf, asked, least_frames)
            open_.append((leaf, split, (roots[phone], state)))
    while len(open_) < leaves:
        at = max(range(len(open_)), key=lambda i: open_[i][1][0])
        leaf, (gain, side, phones), (parent, place) = open_[at]
        if gain <= 0:
            break
        parent[place] = len(nodes)
        nodes.append([side, phones, 0, 0])
        halves = [
            {c: n for c, n in leaf.items() if _answers(c, side, phones) == answer}
            for answer in (True, False)
        ]
        open_[at : at + 1] = [
            (half, _best_split(half, asked, least_frames), (nodes[-1], branch))
            for branch, half in enumerate(halves, 2)
        ]
    for target, (*_, (parent, place)) in enumerate(open_):
        parent[place] = ~target
    tied = {phone: tuple(targets) for phone, targets in roots.items()}
    return Tree(tied, tuple((side, phones, yes, no) for side, phones, yes, no in nodes))


def statistics_of(
    features: np.ndarray, runs: Sequence[tuple[int, int, str, str, str, int]]
) -> dict[tuple[str, int], dict[Context, Counts]]:
    """Statistics of aligned frames by state and context.

    Args:
        features: float [frames, dim].
        runs: (first row, row after last, left, phone, right, state).
    """
    table: dict[tuple[str, int], dict[Context, Counts]] = {}
    for first, end, before, phone, right, state in runs:
        part = table.setdefault((phone, state), {})
        new = counts_of(features[first:end])
        part[before, right] = part[before, right] + new if (before, right) in part else new
    return table

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


def sum_counts(counts: Sequence[Counts], dim: int) -> Counts:
    """The sum of statistics; of none, zeros."""
    total = Counts(0, np.zeros(dim), np.zeros(dim))
    for each in counts:
        total = total + each
    return total


def questions(means: Mapping[str, np.ndarray]) -> list[tuple[str, ...]]:
    """Sets of phones worth asking for: every phone, every cluster of phones, and silence.

    Args:
        means: phone -> float [dim], mean features; silence is not among them.
    """
    names = sorted(means)
    sets = [(SILENCE,), *((name,) for name in names)]
    if len(names) > 2:
        points = np.stack([means[name] for name in names])
        sets += [tuple(names[i] for i in sorted(each)) for each in _clusters(points)]
    return sets


def _clusters(points: np.ndarray) -> list[list[int]]:
    """All clusters of Ward's pairwise merging, without single points and the whole."""
    members = [[i] for i in range(len(points))]
    # A slow import that monophone trees do without.
    from scipy.cluster.hierarchy import (  # pyright: ignore[reportMissingTypeStubs]
        linkage,  # pyright: ignore[reportUnknownVariableType]
    )

    merges = np.asarray(linkage(points, "ward"), np.float64)  # [phones - 1, 4]
    for left, right in merges[:, :2].astype(int):
        members.append(members[int(left)] + members[int(right)])
    return members[len(points) : -1]


@dataclass
class _Leaf:
    """A leaf that may be split: its contexts, and the best question."""

    contexts: dict[Context, Counts]
    gain: float = 0.0
    split: tuple[str, tuple[str, ...]] = ("", ())
    hangs: tuple[tuple[str, int], int, str] = (("", 0), -1, "")


@dataclass
class _Question:
    """A node of the growing tree; ``yes`` and ``no`` are coded as in `Tree`."""

    side: str
    phones: tuple[str, ...]
    yes: int = 0
    no: int = 0


def _answers(context: Context, side: str, phones: tuple[str, ...]) -> bool:
    return context[0 if side == "left" else 1] in phones


def _best_split(leaf: _Leaf, asked: Sequence[tuple[str, ...]], least_frames: float) -> None:
    """Finds the question that gains most and leaves ``least_frames`` on either side."""
    contexts = list(leaf.contexts)
    frames = np.array([leaf.contexts[c].frames for c in contexts])
    first = np.stack([leaf.contexts[c].first for c in contexts])
    second = np.stack([leaf.contexts[c].second for c in contexts])
    whole = Counts(frames.sum(), first.sum(0), second.sum(0))
    leaf.gain = 0.0
    for side in ("left", "right"):
        for phones in asked:
            yes = np.array([_answers(c, side, phones) for c in contexts])
            n = frames[yes].sum()
            if not least_frames <= n <= whole.frames - least_frames:
                continue
            part = Counts(n, first[yes].sum(0), second[yes].sum(0))
            rest = Counts(whole.frames - n, whole.first - part.first, whole.second - part.second)
            gain = part.loglik + rest.loglik - whole.loglik
            if gain > leaf.gain + 1e-9:
                leaf.gain, leaf.split = gain, (side, phones)


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
    nodes: list[_Question] = []
    heads = [(phone, s) for phone in states for s in range(states[phone])]
    roots: dict[tuple[str, int], int] = {}
    open_: list[_Leaf] = []
    for head in heads:
        leaf = _Leaf(dict(statistics.get(head, {})), hangs=(head, -1, ""))
        if head[0] != SILENCE and len(leaf.contexts) > 1:
            _best_split(leaf, asked, least_frames)
        open_.append(leaf)
    while len(open_) < leaves:
        at = max(range(len(open_)), key=lambda i: open_[i].gain)
        leaf = open_[at]
        if leaf.gain <= 0:
            break
        side, phones = leaf.split
        nodes.append(_Question(side, phones))
        _hang(leaf, len(nodes) - 1, roots, nodes)
        open_[at : at + 1] = _halves(leaf, len(nodes) - 1, asked, least_frames)
    for target, leaf in enumerate(open_):
        _hang(leaf, ~target, roots, nodes)
    tied = {phone: tuple(roots[phone, s] for s in range(states[phone])) for phone in states}
    return Tree(tied, tuple((n.side, n.phones, n.yes, n.no) for n in nodes))


def _halves(
    leaf: _Leaf, node: int, asked: Sequence[tuple[str, ...]], least_frames: float
) -> list[_Leaf]:
    """The two leaves that a split makes, yes first, with their own best questions."""
    halves: list[_Leaf] = []
    for answer in (True, False):
        own = {c: n for c, n in leaf.contexts.items() if _answers(c, *leaf.split) == answer}
        half = _Leaf(own, hangs=(leaf.hangs[0], node, "yes" if answer else "no"))
        _best_split(half, asked, least_frames)
        halves.append(half)
    return halves


def _hang(
    leaf: _Leaf, what: int, roots: dict[tuple[str, int], int], nodes: list[_Question]
) -> None:
    """Replaces a leaf by a node or a target in its parent."""
    head, parent, branch = leaf.hangs
    if parent < 0:
        roots[head] = what
    elif branch == "yes":
        nodes[parent].yes = what
    else:
        nodes[parent].no = what


def statistics_of(
    features: np.ndarray, runs: Sequence[tuple[int, int, str, str, str, int]]
) -> dict[tuple[str, int], dict[Context, Counts]]:
    """Statistics of aligned frames by state and context.

    Args:
        features: float [frames, dim].
        runs: (first row, row after last, left, phone, right, state).
    """
    found: dict[tuple[str, int], dict[Context, Counts]] = {}
    for first, end, left, phone, right, state in runs:
        own = found.setdefault((phone, state), {})
        new = counts_of(features[first:end])
        own[left, right] = own[left, right] + new if (left, right) in own else new
    return found

"""Context-dependent targets: a decision tree ties the states of phones in context.

Every state of every phone has a tree of questions about its neighbours ("is the left
phone one of these?") whose leaves are targets (Young, Odell and Woodland, HLT 1994).
Neighbours are those within the word; at a word's edges the neighbour is silence, so a
word's targets do not depend on the words around it and a lexicon can list them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SILENCE = "sil"

# A question: which neighbour ("left" or "right"), the phones that answer yes, and where
# yes and no lead: a node's number, or ~target at a leaf.
Node = tuple[str, tuple[str, ...], int, int]


@dataclass(frozen=True)
class Tree:
    """Which target a phone's state has between two neighbours; called with the four.

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


def untied(phones: Mapping[str, int], first: int = 0) -> Tree:
    """Context-independent targets, numbered from ``first``: phone -> how many states."""
    roots: dict[str, tuple[int, ...]] = {}
    for phone, states in phones.items():
        roots[phone] = tuple(~(first + s) for s in range(states))
        first += states
    return Tree(roots)


def expanded(pronunciations: Mapping[str, Sequence[str]], tree: Tree) -> dict[str, tuple[int, ...]]:
    """The lexicon of targets that follows from a pronunciation lexicon and a tree."""
    return {entry: tree.targets(phones) for entry, phones in pronunciations.items()}

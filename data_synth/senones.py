"""Tied states of the continuous synthetic corpus: each phone's ends depend on its neighbours.

Phones fall into families of neighbours (k-means of their places; silence is one of its
own). A phone's first state has a target for each family to the left, its last state one
for each family to the right, its middle one target: 2 (families + 1) + 1 a phone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from data_synth.invented import STATES_A_PHONE, Recipe, phone_name
from data_synth.tree import SILENCE, Node, Tree
from harness.base.seeds import stream

KMEANS_ROUNDS = 20


@dataclass(frozen=True)
class Senones:
    """The tied states of an invented language.

    Attributes:
        tree: what decides them; targets start after the silence's.
        places: float64 [targets, dims], where each is aimed at, the silence's first.
    """

    tree: Tree
    places: np.ndarray


def families(places: np.ndarray, count: int) -> np.ndarray:
    """Groups of phones that are close, by k-means from spread-out starts: int64 [phones]."""
    centres = places[:1]
    while len(centres) < min(count, len(places)):
        gap = ((places[:, None] - centres) ** 2).sum(2).min(1)
        centres = np.concatenate([centres, places[gap.argmax()][None]])
    label = np.zeros(len(places), np.int64)
    for _ in range(KMEANS_ROUNDS):
        label = ((places[:, None] - centres) ** 2).sum(2).argmin(1)
        alive = [
            places[label == k].mean(0) if (label == k).any() else c for k, c in enumerate(centres)
        ]
        centres = np.stack(alive)
    return np.unique(label, return_inverse=True)[1]


def tie(recipe: Recipe, places: np.ndarray, count: int, pull: float) -> Senones:
    """Makes the tree, and the places of its leaves.

    Args:
        recipe: seed and number of phones.
        places: float64 [3 + 3 * phones, dims], the untied places of ``invent_language``.
        count: families of neighbours; 0 leaves the states untied from context.
        pull: distance of a leaf from its untied place.
    """
    silence, states = places[:STATES_A_PHONE], places[STATES_A_PHONE:]
    states = states.reshape(recipe.phones, STATES_A_PHONE, -1)
    label = families(states.mean(axis=1), count) if count else np.zeros(0, np.int64)
    groups = [
        tuple(phone_name(int(p)) for p in np.flatnonzero(label == k))
        for k in range(label.max(initial=-1) + 1)
    ]
    rng = stream(recipe.seed, "senones")
    nodes: list[Node] = []
    roots: dict[str, tuple[int, ...]] = {}
    leaves = [*silence]

    def leaf(place: np.ndarray) -> int:
        leaves.append(place + pull * rng.normal(size=place.shape) if groups else place)
        return ~(len(leaves) - 1)

    def asked(side: str, place: np.ndarray) -> int:
        """A chain of questions, one a family; who answers none of them is silence."""
        if not groups:
            return leaf(place)
        first = len(nodes)
        answers = [leaf(place) for _ in groups]
        last = leaf(place)
        for k, (group, yes) in enumerate(zip(groups, answers, strict=True)):
            no = last if k + 1 == len(groups) else first + k + 1
            nodes.append((side, group, yes, no))
        return first

    for phone in range(recipe.phones):
        left, middle, right = states[phone]
        roots[phone_name(phone)] = (asked("left", left), leaf(middle), asked("right", right))
    silence_roots = {SILENCE: tuple(~s for s in range(STATES_A_PHONE))}
    return Senones(Tree({**silence_roots, **roots}, tuple(nodes)), np.stack(leaves))

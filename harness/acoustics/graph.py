"""Decoding graphs: hidden Markov models, lexicon and n-gram model as one set of arrays.

Two kinds of nodes. A *state* belongs to a target and consumes a frame when it is entered. A
*junction* consumes nothing: all words that end in one history of the language model meet
there, and those that may follow leave from there, so arcs grow with the words, not with
their square. Each history has two junctions, one before and one after the silence that may
stand between words. A word that leads to a history has one copy there, whatever came before.

Backing off is an epsilon arc, as in Kaldi's graphs: a word that was seen after a history
can also be reached through the shorter history, at the backed-off price. With a unigram
model there is no backing off, and a path's weight is exactly log P(W).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from harness.acoustics.language_model import BEGIN, END, LanguageModel, Lexicon, Ngram
from harness.base.errors import UserError

NO_WORD = -1


@dataclass(frozen=True, eq=False)
class Graph:
    """Nodes 0 … S-1 are states; S … N-1 are junctions, each before those it leads to.

    The arcs of node n are ``first[n] … first[n+1]-1``: up to ``split[n]`` those to states, the
    heaviest first, then those to junctions.

    Attributes:
        target: int32 [S], the target whose score a state consumes.
        level: int32 [N], junctions only lead to junctions of a higher level; states have 0.
        first: int64 [N+1].
        split: int64 [N].
        to: int32 [A], where an arc leads.
        weight: float64 [A], log weight of an arc.
        label: int32 [A], the word that begins with this arc, an index into ``words``, or -1.
        words: the vocabulary.
        start, end: the junctions where every path begins and ends; no other has the
            level of the end, the highest.
    """

    target: np.ndarray
    level: np.ndarray
    first: np.ndarray
    split: np.ndarray
    to: np.ndarray
    weight: np.ndarray
    label: np.ndarray
    words: tuple[str, ...]
    start: int
    end: int

    @property
    def states(self) -> int:
        """S, how many nodes consume a frame."""
        return len(self.target)

    @property
    def nodes(self) -> int:
        """N, states and junctions."""
        return len(self.split)

    @cached_property
    def consumed(self) -> np.ndarray:
        """int32 [A], the target of the state an arc leads to; 0 where it leads to a junction."""
        state = np.minimum(self.to, self.states - 1)
        return np.where(self.to < self.states, self.target[state], 0).astype(np.int32)

    def with_insertion_penalty(self, insertion: float) -> Graph:
        """The same graph with ``insertion`` nats taken from every word's weight."""
        return replace(self, weight=self.weight - insertion * (self.label != NO_WORD))


def decoding_graph(model: LanguageModel, lexicon: Lexicon) -> Graph:
    """The graph of everything that can be said.

    Words that only one of model and lexicon has cannot be said, and are left out.

    Raises:
        UserError: model and lexicon have no word in common.
    """
    words = tuple(w for w in model.words if w in lexicon.words)
    if not words:
        raise UserError("language model and lexicon have no word in common")
    draft = _Draft(lexicon, words)
    sayable = {BEGIN, *words}
    histories = [h for h in {(), *model.followers} if sayable.issuperset(h)]
    histories.sort(key=lambda h: (-len(h), h))
    ends = draft.histories(histories)
    end = draft.junction()
    for history in histories:
        leave = draft.leaves[ends[history]]
        for word, weight in sorted(model.followers.get(history, {}).items()):
            if word == END:
                draft.arc(leave, end, weight)
            elif word in draft.number and weight > -math.inf:
                goal = _longest_suffix((*history, word), ends, model.order - 1)
                draft.say(word, leave, ends[goal], weight)
        if history:
            shorter = _longest_suffix(history[1:], ends, model.order - 1)
            draft.arc(leave, draft.leaves[ends[shorter]], _backoff(model, history, shorter))
    return draft.graph(ends[_longest_suffix((BEGIN,), ends, model.order - 1)], end)


def transcript_graph(words: Sequence[str], model: LanguageModel, lexicon: Lexicon) -> Graph:
    """The graph of one sentence: its words with their language model weights, in order.

    With a unigram model its paths are among those of ``decoding_graph``, weight for weight.

    Raises:
        UserError: a word is not in the lexicon.
    """
    missing = [w for w in words if w not in lexicon.words]
    if missing:
        raise UserError(f"word {missing[0]!r} is not in the lexicon")
    draft = _Draft(lexicon, tuple(dict.fromkeys(words)))
    places = [(str(i),) for i in range(len(words) + 1)]
    ends = draft.histories(places)
    end = draft.junction()
    said = (BEGIN, *words, END)
    for i, word in enumerate(words):
        weight = model.log_prob(word, said[: i + 1])
        draft.say(word, draft.leaves[ends[places[i]]], ends[places[i + 1]], weight)
    draft.arc(draft.leaves[ends[places[-1]]], end, model.log_prob(END, said[:-1]))
    return draft.graph(ends[places[0]], end)


def _longest_suffix(words: Ngram, known: Mapping[Ngram, int], longest: int) -> Ngram:
    """The longest of the last words that is a history; the empty one always is."""
    suffix = words[max(0, len(words) - longest) :]
    while suffix not in known:
        suffix = suffix[1:]
    return suffix


def _backoff(model: LanguageModel, history: Ngram, shorter: Ngram) -> float:
    """Log weight of backing off, through histories that have no junction if need be."""
    steps = range(len(history) - len(shorter))
    return sum(model.backoffs.get(history[i:], 0.0) for i in steps)


@dataclass
class _Draft:
    """A graph being drawn: states are numbered 0, 1, …; junctions -1, -2, … until it is done."""

    lexicon: Lexicon
    words: tuple[str, ...]
    targets: list[int] = field(default_factory=list[int])
    arcs: list[tuple[int, int, float, int]] = field(
        default_factory=list[tuple[int, int, float, int]]
    )
    leaves: dict[int, int] = field(default_factory=dict[int, int])
    copies: dict[tuple[str, int], list[int]] = field(
        default_factory=dict[tuple[str, int], list[int]]
    )
    junctions: int = 0

    def __post_init__(self) -> None:
        self.number = {word: i for i, word in enumerate(self.words)}

    def junction(self) -> int:
        self.junctions += 1
        return -self.junctions

    def arc(self, source: int, to: int, weight: float, label: int = NO_WORD) -> None:
        if weight > -math.inf:
            self.arcs.append((source, to, weight, label))

    def histories(self, names: Iterable[Ngram]) -> dict[Ngram, int]:
        """Two junctions a history with silence between; where words of each history end."""
        ends = {name: self.junction() for name in names}
        for end in ends.values():
            # Without silence the two are one.
            leave = self.leaves[end] = self.junction() if self.lexicon.silence else end
            if self.lexicon.silence:
                p = self.lexicon.silence_prob
                self.arc(end, leave, math.log1p(-p))
                self.arc(end, self.chain(self.lexicon.silence, leave), math.log(p))
        return ends

    def chain(self, targets: Sequence[int], goal: int) -> int:
        """A row of states that leads to ``goal``; returns its first."""
        first = len(self.targets)
        last = first + len(targets) - 1
        for state, target in enumerate(targets, first):
            stay, leave = self.lexicon.staying(target)
            self.targets.append(target)
            self.arc(state, state, stay)
            self.arc(state, state + 1 if state < last else goal, leave)
        return first

    def say(self, word: str, source: int, goal: int, weight: float) -> None:
        """Let ``word`` be said between two junctions."""
        said = self.lexicon.words[word]
        if (word, goal) not in self.copies:
            self.copies[word, goal] = [self.chain(targets, goal) for targets in said]
        for state in self.copies[word, goal]:
            self.arc(source, state, weight - math.log(len(said)), self.number[word])

    def graph(self, start: int, end: int) -> Graph:
        """The finished arrays; junctions come after the states, in the order they were made."""
        states = len(self.targets)
        table = np.array(self.arcs, np.float64).reshape(-1, 4)
        source, to, label = (table[:, i].astype(np.int64) for i in (0, 1, 3))
        source, to = (np.where(x < 0, states - 1 - x, x) for x in (source, to))
        order = np.lexsort((to, -table[:, 2], to >= states, source))
        source, to, label = source[order], to[order], label[order]
        nodes = np.arange(states + self.junctions + 1)
        emitting = np.bincount(source[to < states], minlength=len(nodes))[:-1]
        first = np.searchsorted(source, nodes)
        return Graph(
            target=np.array(self.targets, np.int32),
            level=_levels(source, to, states, len(nodes) - 1),
            first=first,
            split=first[:-1] + emitting,
            to=to.astype(np.int32),
            weight=table[order, 2],
            label=label.astype(np.int32),
            words=self.words,
            start=states - 1 - start,
            end=states - 1 - end,
        )


def _levels(source: np.ndarray, to: np.ndarray, states: int, nodes: int) -> np.ndarray:
    """The longest row of junctions that leads to each junction."""
    level = np.zeros(nodes, np.int32)
    between = (source >= states) & (to >= states)
    for a, b in zip(source[between].tolist(), to[between].tolist(), strict=True):
        level[b] = max(level[b], level[a] + 1)
    return level

"""Decoding graphs: hidden Markov models, lexicon and n-gram model as one set of arrays.

There are two kinds of nodes. A *state* belongs to a target and consumes a frame when it is
entered. A *junction* consumes nothing: all words that end in one history of the language model
lead to it, and all words that may follow leave from it, so the number of arcs is linear in the
number of words, not quadratic. Each history has two junctions, before and after the optional
silence between words. A word that leads to a history has one copy there, for all predecessors.

Backing off is an epsilon arc, as in Kaldi's graphs: a word that was seen after a history
can also be reached through the shorter history, with the backed-off weight. With a unigram
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
    """A decoding graph in compressed rows of arcs.

    Nodes 0 … S-1 are states; S … N-1 are junctions, each before those it leads to. The arcs of
    node n are ``first[n] … first[n+1]-1``: first those to states, in order of falling weight,
    then from ``split[n]`` on those to junctions.

    Attributes:
        target: int32 [S], target of a state, as an index into the scores of a frame.
        level: int32 [N], junctions only lead to junctions of a higher level; states have 0.
        first: int64 [N+1], first arc of each node.
        split: int64 [N], first arc of each node that leads to a junction.
        to: int32 [A], node that an arc leads to.
        weight: float64 [A], log weight of an arc.
        label: int32 [A], the word that begins with this arc, an index into ``words``, or -1.
        words: the vocabulary.
        start, end: first and last junction of every path; only ``end`` has the highest level.
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
        """Number S of nodes that consume a frame."""
        return len(self.target)

    @property
    def nodes(self) -> int:
        """Number N of states and junctions."""
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
    """Build the graph of all word sequences that the model and the lexicon allow.

    Words that are missing from the model or the lexicon are left out.

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
    """Build the graph of one sentence: its words in order, with their language model weights.

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
    sentence = (BEGIN, *words, END)
    for i, word in enumerate(words):
        weight = model.log_prob(word, sentence[: i + 1])
        draft.say(word, draft.leaves[ends[places[i]]], ends[places[i + 1]], weight)
    draft.arc(draft.leaves[ends[places[-1]]], end, model.log_prob(END, sentence[:-1]))
    return draft.graph(ends[places[0]], end)


def _longest_suffix(words: Ngram, histories: Mapping[Ngram, int], longest: int) -> Ngram:
    """The longest suffix of at most ``longest`` words that is in ``histories``; () always is."""
    suffix = words[max(0, len(words) - longest) :]
    while suffix not in histories:
        suffix = suffix[1:]
    return suffix


def _backoff(model: LanguageModel, history: Ngram, shorter: Ngram) -> float:
    """Log weight of backing off to a shorter history, summed over skipped histories."""
    steps = range(len(history) - len(shorter))
    return sum(model.backoffs.get(history[i:], 0.0) for i in steps)


@dataclass
class _Draft:
    """A graph under construction: states are numbered 0, 1, …, junctions -1, -2, …."""

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
        """Add two junctions per history with silence between; returns the first of each."""
        ends = {name: self.junction() for name in names}
        for end in ends.values():
            # Without silence one junction serves as both.
            leave = self.leaves[end] = self.junction() if self.lexicon.silence else end
            if self.lexicon.silence:
                p = self.lexicon.silence_prob
                self.arc(end, leave, math.log1p(-p))
                self.arc(end, self.chain(self.lexicon.silence, leave), math.log(p))
        return ends

    def chain(self, targets: Sequence[int], goal: int) -> int:
        """Add a left-to-right chain of states that leads to ``goal``; returns its first state."""
        start = len(self.targets)
        end = start + len(targets) - 1
        for state, target in enumerate(targets, start):
            stay, leave = self.lexicon.staying(target)
            self.targets.append(target)
            self.arc(state, state, stay)
            self.arc(state, state + 1 if state < end else goal, leave)
        return start

    def say(self, word: str, source: int, goal: int, weight: float) -> None:
        """Add arcs from ``source`` to the word's pronunciations, which lead to ``goal``."""
        pronunciations = self.lexicon.words[word]
        if (word, goal) not in self.copies:
            self.copies[word, goal] = [self.chain(targets, goal) for targets in pronunciations]
        for state in self.copies[word, goal]:
            self.arc(source, state, weight - math.log(len(pronunciations)), self.number[word])

    def graph(self, start: int, end: int) -> Graph:
        """Build the arrays; junctions are numbered after the states, in order of creation."""
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
    """Length of the longest chain of junctions that leads to each junction."""
    # arcs come by source, and junctions before those they lead to: one pass suffices
    level = np.zeros(nodes, np.int32)
    between = (source >= states) & (to >= states)
    for a, b in zip(source[between].tolist(), to[between].tolist(), strict=True):
        level[b] = max(level[b], level[a] + 1)
    return level

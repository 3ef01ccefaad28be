"""How words are said: pronunciations, each a sequence of targets.

In a lexicon ``"word"``, ``"word(2)"``, ... are entries of one word, said differently.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.base.errors import UserError


def word_of(entry: str) -> str:
    """The word of a lexicon entry, which may be a second or third pronunciation of it.

    Example:
        >>> word_of("either"), word_of("either(2)"), word_of("f(x)")
        ('either', 'either', 'f(x)')
    """
    stem, bracket, number = entry.removesuffix(")").rpartition("(")
    return stem if bracket and stem and entry.endswith(")") and number.isdigit() else entry


def variants(pronunciations: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Word -> its lexicon entries, in the lexicon's order.

    Example:
        >>> variants({"a": (1,), "the": (2,), "the(2)": (3,)})
        {'a': ('a',), 'the': ('the', 'the(2)')}
    """
    found: dict[str, tuple[str, ...]] = {}
    for entry in pronunciations:
        found[word_of(entry)] = (*found.get(word_of(entry), ()), entry)
    return found


@dataclass(frozen=True, eq=False)
class Lexicon:
    """How words are said, and what may stand between them.

    Args:
        words: word -> its pronunciations, each a left-to-right sequence of targets; they
            share the word's probability equally.
        silence: the targets of the silence that may stand between words and at both ends.
        silence_prob: how likely silence is at each of these places.
        stay: probability [K] that a target's state is followed by itself, in (0, 1); if
            left out, staying and advancing weigh nothing.
    """

    words: Mapping[str, Sequence[Sequence[int]]]
    silence: Sequence[int] = ()
    silence_prob: float = 0.5
    stay: np.ndarray | None = None

    def __post_init__(self) -> None:
        if not 0 < self.silence_prob < 1:
            raise UserError(f"silence_prob: {self.silence_prob}; allowed: between 0 and 1")
        empty = [w for w, said in self.words.items() if not said or not all(map(len, said))]
        if empty:
            raise UserError(f"lexicon: word {empty[0]!r} has a pronunciation without targets")

    @classmethod
    def of(
        cls,
        entries: Mapping[str, Sequence[int]],
        silence: Sequence[int] = (),
        stay: np.ndarray | None = None,
    ) -> Lexicon:
        """From a corpus's lexicon, where ``"word(2)"`` is another way to say ``"word"``."""
        said = {w: tuple(entries[e] for e in found) for w, found in variants(entries).items()}
        return cls(said, silence, stay=stay)

    def staying(self, target: int) -> tuple[float, float]:
        """Log weights of staying in and of leaving a state of ``target``."""
        if self.stay is None:
            return 0.0, 0.0
        p = float(self.stay[target])
        return math.log(p), math.log1p(-p)

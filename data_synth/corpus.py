"""The type of every corpus: frames, their HMM states, and a table of utterances."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import numpy as np

from data_synth.tree import Tree
from harness.base.errors import name_error

COLUMNS = ("id", "speaker", "split", "start", "frames")


@dataclass(frozen=True, eq=False)
class Utterances:
    """A table of utterances, column by column; all columns have one length.

    Attributes:
        id: unique names, str.
        speaker: name of the speaker, str.
        split: ``"train"``, ``"dev"`` or the name of a test set, str.
        start: int64, the utterance's first row in ``Corpus.features``.
        frames: int64, number of rows of the utterance.
        words: transcripts, a tuple of words for each utterance.
    """

    id: np.ndarray
    speaker: np.ndarray
    split: np.ndarray
    start: np.ndarray
    frames: np.ndarray
    words: tuple[tuple[str, ...], ...]

    def __len__(self) -> int:
        return len(self.words)

    def take(self, index: np.ndarray) -> Utterances:
        """The utterances at ``index`` (integers or a boolean mask), in that order."""
        rows = np.arange(len(self))[index]
        columns = {name: getattr(self, name)[rows] for name in COLUMNS}
        return Utterances(**columns, words=tuple(self.words[int(i)] for i in rows))

    def shifted(self, frames: int) -> Utterances:
        """The same utterances, every start moved by ``frames`` rows."""
        return replace(self, start=self.start + frames)

    def plain(self) -> dict[str, list[Any]]:
        """The columns as JSON values."""
        columns = {name: getattr(self, name).tolist() for name in COLUMNS}
        return {**columns, "words": [list(words) for words in self.words]}

    @property
    def total_frames(self) -> int:
        """Frames of all these utterances together."""
        return int(self.frames.sum())


def join(tables: list[Utterances]) -> Utterances:
    """The utterances of several tables, one after another; starts are left as they are.

    Args:
        tables: at least one.
    """
    columns = {name: np.concatenate([getattr(t, name) for t in tables]) for name in COLUMNS}
    return Utterances(**columns, words=tuple(words for t in tables for words in t.words))


@dataclass(frozen=True)
class Card:
    """All of a corpus but its frames and utterances; see ``Corpus`` for the fields."""

    name: str
    lexicon: dict[str, tuple[int, ...]]
    silence: tuple[int, ...] = ()
    context: int = 5
    frame_shift_s: float = 0.01
    tests: tuple[str, ...] = ("clean", "noise")
    pronunciations: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    tree: Tree | None = None
    lm_text: tuple[tuple[str, ...], ...] = ()

    def plain(self) -> dict[str, Any]:
        """All fields but the text, as JSON values; empty optional fields are left out."""
        values = {key: value for key, value in asdict(self).items() if key != "lm_text"}
        return {k: v for k, v in values.items() if v or k not in ("pronunciations", "tree")}


def digest(card: Card, utterances: Utterances, features: str, targets: str) -> str:
    """The fingerprint of a corpus; equal content has the same, on disk or in memory.

    Args:
        card: all fields but frames and utterances.
        utterances: the whole table.
        features: SHA-256 (hex) of all frames, little-endian float32.
        targets: SHA-256 (hex) of all targets, little-endian int32.

    Returns:
        SHA-256, hex.
    """
    content: dict[str, Any] = {
        "card": card.plain(),
        "features": features,
        "targets": targets,
        "utterances": utterances.plain(),
    }
    if card.lm_text:
        lines = "\n".join(" ".join(words) for words in card.lm_text)
        content["lm_text"] = hashlib.sha256(lines.encode()).hexdigest()
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


MakesSpeech = Callable[[np.ndarray], np.ndarray]
"""Function from numbers of training utterances, int64 [U], to their features, float32 [N, dim]."""


@dataclass(frozen=True, eq=False)
class Corpus:
    """Speech, ready to train on.

    Attributes:
        name: which corpus, e.g. ``"fsdd"``.
        features: float32 [frames, dim], normalised per utterance, not spliced; usually
            a read-only memory map. With ``speech``, of the first rows only.
        targets: int32 [frames], the HMM state of every frame, 0..n_targets-1.
        utterances: the table of utterances; each split is stored in one piece.
        lexicon: word -> its left-to-right sequence of targets.
        silence: the left-to-right sequence of targets of the silence that may stand
            before and after a word; empty if the corpus has none.
        context: frames to splice on either side (5 makes 11).
        frame_shift_s: seconds from one frame to the next.
        tests: the names of the test sets.
        pronunciations: lexicon entry -> its phones; empty where words are not made of phones.
        tree: (left phone, phone, right phone, state) -> target, where targets are tied
            states of phones in context; the silence is ``tree.SILENCE``.
        lm_text: sentences to train a language model on; no test transcript is among them.
        speech: generator of the training utterances, which then are the last rows and are
            not among ``features``; None where all speech is stored.

    A word with several pronunciations has the lexicon entries ``"word"``, ``"word(2)"``, ...
    (``tree.word_of``).
    """

    name: str
    features: np.ndarray
    targets: np.ndarray
    utterances: Utterances
    lexicon: Mapping[str, tuple[int, ...]]
    silence: tuple[int, ...] = ()
    context: int = 5
    frame_shift_s: float = 0.01
    tests: tuple[str, ...] = ("clean", "noise")
    pronunciations: Mapping[str, tuple[str, ...]] = field(
        default_factory=dict[str, tuple[str, ...]]
    )
    tree: Tree | None = None
    lm_text: tuple[tuple[str, ...], ...] = field(default=(), repr=False)
    stored_fingerprint: str | None = field(default=None, repr=False)
    speech: MakesSpeech | None = field(default=None, repr=False)

    @property
    def dim(self) -> int:
        """Numbers in one unspliced frame."""
        return self.features.shape[1]

    @property
    def n_targets(self) -> int:
        """Number of HMM states."""
        used = (t for states in self.lexicon.values() for t in states)
        return max(1 + max((*self.silence, *used)), self.tree.n_targets if self.tree else 0)

    def layers(self, hidden: Sequence[int]) -> tuple[int, ...]:
        """Units of every layer of a network on this corpus: spliced frames in, targets out."""
        return (self.dim * (2 * self.context + 1), *hidden, self.n_targets)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 (hex) over content and metadata; stored with a saved corpus, so cheap."""
        return self.stored_fingerprint or self.computed_fingerprint()

    def computed_fingerprint(self) -> str:
        """The fingerprint of the arrays' present content; a stored one is ignored."""
        features = hashlib.sha256(np.ascontiguousarray(self.features, np.float32).data)
        targets = hashlib.sha256(np.ascontiguousarray(self.targets, np.int32).data)
        return digest(self.card, self.utterances, features.hexdigest(), targets.hexdigest())

    @property
    def card(self) -> Card:
        """All but the frames and utterances."""
        shared: dict[str, Any] = {entry.name: getattr(self, entry.name) for entry in fields(Card)}
        shared |= {name: dict(shared[name]) for name in ("lexicon", "pronunciations")}
        return Card(**shared)

    def split(self, name: str) -> Utterances:
        """The utterances of ``"train"``, ``"dev"`` or a test set.

        Raises:
            UserError: there is no such split.
        """
        names = ("train", "dev", *self.tests)
        if name not in names:
            raise name_error(f"corpus {self.name}: split", name, names)
        return self.utterances.take(self.utterances.split == name)

    def frames_of(self, name: str) -> int:
        """Number of frames of a split."""
        return self.split(name).total_frames


def frame_edges(utterances: Utterances) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For every frame: its own row, and its utterance's first and last row.

    Args:
        utterances: table of the utterances.

    Returns:
        Three int64 arrays [frames], in utterance order.
    """
    starts = np.repeat(utterances.start, utterances.frames)
    ends = np.cumsum(utterances.frames)
    position = np.arange(utterances.total_frames) - np.repeat(
        ends - utterances.frames, utterances.frames
    )
    return starts + position, starts, starts + np.repeat(utterances.frames, utterances.frames) - 1


def splice_index(utterances: Utterances, context: int) -> np.ndarray:
    """Indices of the rows of ``features`` that form the spliced input of every frame.

    At an utterance's edges the first or last frame is repeated, so
    ``features[splice_index(u, c)].reshape(len, -1)`` is the network's input.

    Args:
        utterances: table of the utterances.
        context: frames on either side.

    Returns:
        [frames, 2 * context + 1]: int32 where rows fit it, else int64.
    """
    row, starts, ends = frame_edges(utterances)
    # Rows are moved by up to `context` before they are clipped, which must not overflow.
    dtype = np.int32 if len(row) == 0 or int(ends.max()) < 2**31 - context else np.int64
    offsets = np.arange(-context, context + 1, dtype=dtype)
    row, starts, ends = (x.astype(dtype)[:, None] for x in (row, starts, ends))
    return np.clip(row + offsets, starts, ends)

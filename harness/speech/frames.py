"""Frames of a corpus on a device.

A corpus may generate its training speech on demand, in blocks of consecutive utterances. The
blocks used last are kept on the device, as many as fit. Utterances have the same distribution
whatever their numbers, so frames that are shuffled within blocks are mixed as well as in a corpus
of a block's size, and each block is generated once per pass, or once in all if everything fits.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from data_synth import CAN_SKIP, load_corpus
from data_synth.corpus import Corpus, MakesSpeech, Utterances
from harness.base.errors import UserError
from harness.networks.contract import Minibatch, upload
from harness.tasks.order import Shuffling, row_numbers

BLOCK = 500
"""Utterances in a block: generated together, and their frames shuffled together."""

ROOM = 2 << 30
"""Bytes of features kept in a CPU's memory; on a GPU half of its memory is used."""


@dataclass(frozen=True, eq=False)
class Blocks:
    """First row and length of every block of training utterances; see `Pieces`."""

    start: np.ndarray
    frames: np.ndarray

    @classmethod
    def from_utterances(cls, train: Utterances) -> Blocks:
        """Group consecutive utterances into blocks of consecutive rows."""
        starts = np.arange(0, len(train), BLOCK)
        return cls(train.start[starts], np.add.reduceat(train.frames, starts))


def frames_of(
    corpus: Corpus, device: str, shuffling: Shuffling = "full"
) -> FramesOnDevice | MadeFrames:
    """Copy a corpus to a device: all of it, or its stored part if it generates the rest.

    Raises:
        UserError: generated speech does not fit on the device, and is not shuffled in blocks.
    """
    if corpus.speech is None:
        return FramesOnDevice.from_corpus(corpus, device)
    frames = MadeFrames(corpus, corpus.speech, device)
    if shuffling != "in blocks" and not frames.holds_all:
        raise UserError(
            f"shuffling: {shuffling!r} needs all of {corpus.name} on the device,"
            f" {frames.bytes_of_all / 2**30:.0f} GiB; allowed: 'in blocks'"
        )
    return frames


def shuffling_of(corpus: Corpus) -> Shuffling:
    """Default shuffling of a corpus's frames."""
    return "full" if corpus.speech is None else "in blocks"


class MadeFrames:
    """Frames of a corpus that generates its training speech block by block; see `FramesOnDevice`.

    Args:
        corpus: the corpus.
        speech: generator of its training utterances.
        device: ``"cpu"`` or ``"cuda"``.
        room: bytes of features to keep; at least one block is kept.
    """

    def __init__(
        self, corpus: Corpus, speech: MakesSpeech, device: str, room: int | None = None
    ) -> None:
        self._stored, self._speech = FramesOnDevice.from_corpus(corpus, device), speech.on(device)
        self._train, self._context = corpus.split("train"), corpus.context
        self._targets = corpus.targets[len(corpus.features) :]
        self._blocks = Blocks.from_utterances(self._train)
        self._row_bytes = corpus.dim * self._stored.features.element_size()
        blocks = (room_on(device) if room is None else room) // (self._longest * self._row_bytes)
        self._kept = min(max(1, blocks), len(self._blocks.start))
        self._slots: OrderedDict[int, int] = OrderedDict()
        self.made = 0

    @property
    def device(self) -> torch.device:
        """Device of the frames."""
        return self._stored.device

    @property
    def bytes_of_all(self) -> int:
        """Bytes of all training features together."""
        return len(self._blocks.start) * self._longest * self._row_bytes

    @property
    def holds_all(self) -> bool:
        """Whether there is room for every block."""
        return self._kept == len(self._blocks.start)

    def gather(self, rows: Tensor) -> Minibatch:
        """See `FramesOnDevice`; generates the blocks of ``rows [W, B]`` that are not kept."""
        flat = rows.cpu().numpy().ravel()
        if not len(flat) or flat.max() < self._first:
            return self._stored.gather(rows)
        frames = self._gather(flat)
        return Minibatch(frames.x.view(*rows.shape, -1), frames.targets.view(rows.shape))

    def _gather(self, flat: np.ndarray) -> Minibatch:
        """Gather rows ``[N]``, halved while they mix stored rows or need too many blocks."""
        block = np.searchsorted(self._blocks.start, flat, side="right") - 1
        needed = np.unique(block).tolist()
        if needed[0] < 0 or len(needed) > self._kept:
            halves = [self._part(part) for part in np.array_split(flat, 2)]
            return Minibatch(*(torch.cat(column) for column in zip(*halves, strict=True)))
        slots = self._ensure(needed)
        place = np.zeros(len(self._blocks.start), np.int64)
        place[needed] = np.array(slots) * self._most - self._blocks.start[needed]
        frames = self._ring.gather(torch.as_tensor(place[block] + flat)[None])
        return Minibatch(frames.x[0], frames.targets[0])

    def _part(self, flat: np.ndarray) -> Minibatch:
        frames = self.gather(torch.as_tensor(flat)[None])
        return Minibatch(frames.x[0], frames.targets[0])

    def _ensure(self, needed: list[int]) -> list[int]:
        """Slots of the blocks; missing ones are generated, replacing the least recently used."""
        # first mark the present ones as used: a missing block must not replace a needed one
        for block in needed:
            if block in self._slots:
                self._slots.move_to_end(block)
        for block in needed:
            if block not in self._slots:
                free = len(self._slots)
                slot = free if free < self._kept else self._slots.popitem(last=False)[1]
                self._fill(block, slot)
                self._slots[block] = slot
        return [self._slots[block] for block in needed]

    def _fill(self, block: int, slot: int) -> None:
        start = block * BLOCK
        numbers = np.arange(start, min(start + BLOCK, len(self._train)))
        frames, ring = self._train.frames[numbers], self._ring
        made = self._speech.make(numbers).features
        longer = longer_rows(np.cumsum(frames) - frames, frames, self._context)
        at, row, begin = slot * self._longest, slot * self._most, self._blocks.start[block]
        rows = int(frames.sum())
        ring.features[at : at + len(longer)] = made[upload(torch.as_tensor(longer), self.device)]
        before = torch.as_tensor(at + splice_offsets(frames, self._context))
        ring.before[row : row + rows] = upload(before, self.device)
        targets = self._targets[begin - self._first :][:rows].astype(np.int64)
        ring.targets[row : row + rows] = upload(torch.as_tensor(targets), self.device)
        self.made += 1

    @cached_property
    def _ring(self) -> FramesOnDevice:
        """The kept blocks, each in a slot as long as the longest block."""
        features = self._stored.features
        zeros = features.new_zeros(self._kept * self._most, dtype=torch.int64)
        rows = features.new_zeros(self._kept * self._longest, features.shape[1])
        return FramesOnDevice(rows, zeros, zeros.clone(), self._context)

    @cached_property
    def _first(self) -> int:
        """First row that is generated."""
        return int(self._blocks.start[0])

    @cached_property
    def _most(self) -> int:
        """Frames of the longest block."""
        return int(self._blocks.frames.max())

    @property
    def _longest(self) -> int:
        """Rows of the longest block, with the ends of its utterances repeated."""
        return self._most + 2 * self._context * BLOCK


def room_on(device: str) -> int:
    """Bytes of features that may be kept on a device."""
    if device == "cpu":
        return ROOM
    return torch.cuda.mem_get_info(device)[1] // 2


class NamesCorpus(Protocol):
    """A configuration that names a corpus, with the SHA-256 of its content."""

    @property
    def corpus(self) -> str:
        """Name of the corpus, or its folder."""
        ...

    @property
    def scale(self) -> str:
        """Size of the corpus."""
        ...

    @property
    def corpus_seed(self) -> int:
        """Seed of a generated corpus."""
        ...

    @property
    def fingerprint(self) -> str:
        """SHA-256 of its content."""
        ...


def corpus_of(config: NamesCorpus, say: Callable[[str], None] = lambda line: None) -> Corpus:
    """Load the corpus of a configuration.

    The last two corpora are cached, so that objects derived from one are built once per process.

    Args:
        config: the configuration.
        say: callback for lines of progress if the corpus is generated.

    Raises:
        UserError: it cannot be generated, or its content has another fingerprint.
    """
    corpus = _load_cached(config.corpus, config.scale, config.corpus_seed, say)
    if corpus.fingerprint != config.fingerprint:
        raise UserError(f"corpus {config.corpus}: not the one that the run was configured with")
    return corpus


@lru_cache(maxsize=2)
def _load_cached(name: str, scale: str, seed: int, say: Callable[[str], None]) -> Corpus:
    return load_corpus(name, scale=scale, seed=seed, skip=name in CAN_SKIP, progress=say)


@dataclass(frozen=True)
class FramesOnDevice:
    """A corpus on one device, with the ends of every utterance repeated for splicing.

    A spliced frame is then a contiguous piece of memory, copied at once. If all frames were
    spliced in advance, the eleven-frame inputs of paper 1 would take eleven times the memory.

    Args:
        features: ``[N + 2 context U, dim]`` of N frames in U utterances.
        before: row in ``features`` of the first frame of each frame's window, ``[N]``.
        targets: target of each frame, ``[N]``.
        context: frames that are spliced on either side.
    """

    features: Tensor
    before: Tensor
    targets: Tensor
    context: int

    @classmethod
    def from_corpus(cls, corpus: Corpus, device: str) -> FramesOnDevice:
        """Copy the stored part of a corpus to ``device`` (``"cpu"`` or ``"cuda"``)."""
        stored, table = len(corpus.features), corpus.utterances
        mask = table.start < stored
        parts = corpus.features, corpus.targets[:stored], table.start[mask], table.frames[mask]
        return cls.from_arrays(*parts, corpus.context, device)

    @classmethod
    def from_arrays(
        cls,
        features: np.ndarray,
        targets: np.ndarray,
        start: np.ndarray,
        frames: np.ndarray,
        context: int,
        device: str,
    ) -> FramesOnDevice:
        """Copy frames ``[N, dim]`` and targets ``[N]`` of utterances to a device.

        Args:
            features: features of every frame.
            targets: target of every frame.
            start: first row of each utterance.
            frames: number of frames of each utterance.
            context: frames that are spliced on either side.
            device: ``"cpu"`` or ``"cuda"``.
        """
        before = np.zeros(len(targets), np.int64)
        before[row_numbers(start, frames)] = splice_offsets(frames, context)
        parts = features[longer_rows(start, frames, context)], before, targets.astype(np.int64)
        longer_features, first_spliced, labels = (torch.as_tensor(p).to(device) for p in parts)
        return cls(longer_features, first_spliced, labels, context)

    @property
    def device(self) -> torch.device:
        """Device of the frames."""
        return self.features.device

    def gather(self, rows: Tensor) -> Minibatch:
        """Spliced frames ``[W, B, (2c+1) dim]`` and targets ``[W, B]`` of rows ``[W, B]``."""
        rows = upload(rows, self.device)
        spliced = self._spliced.index_select(0, self.before[rows].flatten())
        return Minibatch(spliced.view(*rows.shape, -1), self.targets[rows])

    @cached_property
    def _spliced(self) -> Tensor:
        """View of all windows of consecutive frames, as rows that overlap in memory."""
        length, dim = self.features.shape
        window = 2 * self.context + 1
        return self.features.as_strided((length - window + 1, window * dim), (dim, 1))


def longer_rows(start: np.ndarray, frames: np.ndarray, context: int) -> np.ndarray:
    """Row numbers of utterances, with first and last frames repeated ``context`` times more."""
    longer = frames + 2 * context
    low, high = np.repeat(start, longer), np.repeat(start + frames - 1, longer)
    return np.clip(row_numbers(start - context, longer), low, high)


def splice_offsets(frames: np.ndarray, context: int) -> np.ndarray:
    """Index among the rows of ``longer_rows`` of the first row of each frame's window."""
    longer = frames + 2 * context
    return row_numbers(np.cumsum(longer) - longer, frames)

"""Frames of a corpus on a device.

A corpus may generate its training speech on demand, in blocks of consecutive utterances. The
blocks used last are kept on the device, as many as fit. Utterances have the same distribution
whatever their numbers, so frames that are shuffled within blocks are mixed as well as in a corpus
of a block's size, and each block is generated once per pass, or once in all if everything fits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

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
        self._stored, self._speech = FramesOnDevice.from_corpus(corpus, device), speech
        self._train, self._context = corpus.split("train"), corpus.context
        self._targets, self._blocks = corpus.targets, Blocks.from_utterances(self._train)
        # the ends of a block's utterances are repeated
        longest = int(self._blocks.frames.max()) + 2 * self._context * BLOCK
        block_bytes = longest * corpus.dim * self._stored.features.element_size()
        count = len(self._blocks.start)
        self.bytes_of_all = count * block_bytes
        capacity = max(1, (room_on(device) if room is None else room) // block_bytes)
        self.holds_all = capacity >= count
        self.block = lru_cache(capacity)(self._make_block)

    @property
    def device(self) -> torch.device:
        """Device of the frames."""
        return self._stored.device

    def gather(self, rows: Tensor) -> Minibatch:
        """See `FramesOnDevice`; generates the blocks of ``rows [W, B]`` that are not kept."""
        flat = rows.cpu().numpy().ravel()
        if not len(flat) or flat.max() < self._blocks.start[0]:
            return self._stored.gather(rows)
        number_of = np.searchsorted(self._blocks.start, flat, side="right") - 1
        parts, places = list[Minibatch](), list[np.ndarray]()
        # in the order of the rows: the last block of a minibatch is the first of the next
        for number in dict.fromkeys(number_of.tolist()):
            places.append(np.flatnonzero(number_of == number))
            at = flat[places[-1]]
            if number < 0:  # of a stored set
                parts.append(self._stored.gather(torch.as_tensor(at)))
            else:
                at = torch.as_tensor(at - self._blocks.start[number])
                parts.append(self.block(number).gather(at))
        order = upload(torch.as_tensor(np.argsort(np.concatenate(places))), self.device)
        x, targets = (torch.cat(column)[order] for column in zip(*parts, strict=True))
        return Minibatch(x.view(*rows.shape, -1), targets.view(rows.shape))

    def _make_block(self, number: int) -> FramesOnDevice:
        """The frames of a block, generated; rows count from its first."""
        begin = number * BLOCK
        numbers = np.arange(begin, min(begin + BLOCK, len(self._train)))
        frames, row = self._train.frames[numbers], self._blocks.start[number]
        targets, start = self._targets[row : row + frames.sum()], np.cumsum(frames) - frames
        parts = self._speech(numbers), targets, start, frames
        return FramesOnDevice.from_arrays(*parts, self._context, str(self.device))


def room_on(device: str) -> int:
    """Bytes of features that may be kept on a device."""
    if device == "cpu":
        return ROOM
    return torch.cuda.mem_get_info(device)[1] // 2


def corpus_of(task: Any, say: Callable[[str], None] = lambda line: None) -> Corpus:
    """Load the corpus of a task.

    The last two corpora are cached, so that objects derived from one are built once per process.

    Args:
        task: has ``corpus``, ``scale``, ``corpus_seed``, and the content's ``fingerprint``.
        say: callback for lines of progress if the corpus is generated.

    Raises:
        UserError: it cannot be generated, or its content has another fingerprint.
    """
    corpus = _load_cached(task.corpus, task.scale, task.corpus_seed, say)
    if corpus.fingerprint != task.fingerprint:
        raise UserError(f"corpus {task.corpus}: not the one that the run was configured with")
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

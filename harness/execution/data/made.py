"""Frames of a corpus whose training speech is made as it is asked for, block by block.

A block is so many consecutive utterances. Those asked for last are kept on the device, as many
as there is room for. Utterances are alike in distribution whatever their numbers, so frames that
are shuffled within blocks go past as well mixed as in a corpus of a block's size, and each block
is made once a pass, or once in all if there is room.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from data_synth.corpus import Corpus, MakesSpeech, Utterances
from harness.base.errors import UserError
from harness.execution.data.frames import Frames, Shuffling, longer_rows, spliced_from
from harness.networks.contract import Minibatch, uploaded

BLOCK = 500
"""Utterances made together, and whose frames are shuffled together."""
ROOM = 2 << 30
"""Bytes of features kept by a processor; a GPU keeps half of what it has."""


@dataclass(frozen=True, eq=False)
class Blocks:
    """First row and length of every block of training utterances; see `Pieces`."""

    start: np.ndarray
    frames: np.ndarray

    @classmethod
    def of(cls, train: Utterances) -> Blocks:
        """Consecutive utterances, whose rows follow each other."""
        first = np.arange(0, len(train), BLOCK)
        return cls(train.start[first], np.add.reduceat(train.frames, first))


def frames_of(corpus: Corpus, device: str, shuffling: Shuffling = "full") -> Frames | MadeFrames:
    """A corpus on a device: all of it, or its stored part and what makes the rest.

    Raises:
        UserError: speech that is made does not fit, and is asked for in any order.
    """
    if corpus.speech is None:
        return Frames.of(corpus, device)
    made = MadeFrames(corpus, corpus.speech, device)
    if shuffling != "in blocks" and not made.holds_all:
        raise UserError(
            f"shuffling: {shuffling!r} needs all of {corpus.name} on the device,"
            f" {made.bytes_of_all / 2**30:.0f} GiB; allowed: 'in blocks'"
        )
    return made


def shuffling_of(corpus: Corpus) -> Shuffling:
    """How the frames of a corpus are shuffled where nobody asks for anything else."""
    return "full" if corpus.speech is None else "in blocks"


class MadeFrames:
    """See `Frames`.

    Args:
        corpus: whose frames.
        speech: what makes its training utterances.
        device: ``"cpu"`` or ``"cuda"``.
        room: bytes of features to keep, at least a block's.
    """

    def __init__(
        self, corpus: Corpus, speech: MakesSpeech, device: str, room: int | None = None
    ) -> None:
        self._stored, self._speech = Frames.of(corpus, device), speech.on(device)
        self._train, self._context = corpus.split("train"), corpus.context
        self._targets = corpus.targets[len(corpus.features) :]
        self._blocks = Blocks.of(self._train)
        self._row_bytes = corpus.dim * self._stored.features.element_size()
        kept = (room_on(device) if room is None else room) // (self._longest * self._row_bytes)
        self._kept = min(max(1, kept), len(self._blocks.start))
        self._slots: OrderedDict[int, int] = OrderedDict()
        self.made = 0

    @property
    def device(self) -> torch.device:
        """Where they are."""
        return self._stored.device

    @property
    def bytes_of_all(self) -> int:
        """Of all training features together."""
        return len(self._blocks.start) * self._longest * self._row_bytes

    @property
    def holds_all(self) -> bool:
        """Whether there is room for every block."""
        return self._kept == len(self._blocks.start)

    def gather(self, rows: Tensor) -> Minibatch:
        """See `Frames`; makes the blocks that ``rows [W, B]`` lie in, unless they are kept."""
        flat = rows.cpu().numpy().ravel()
        if not len(flat) or flat.max() < self._first:
            return self._stored.gather(rows)
        found = self._gather(flat)
        return Minibatch(found.x.view(*rows.shape, -1), found.targets.view(rows.shape))

    def _gather(self, flat: np.ndarray) -> Minibatch:
        """Of rows ``[N]``: made, or stored, or in more blocks than are kept at a time."""
        block = np.searchsorted(self._blocks.start, flat, side="right") - 1
        needed = np.unique(block).tolist()
        if needed[0] < 0 or len(needed) > self._kept:
            halves = [self._part(part) for part in np.array_split(flat, 2)]
            return Minibatch(*(torch.cat(column) for column in zip(*halves, strict=True)))
        slots = self._ensure(needed)
        place = np.zeros(len(self._blocks.start), np.int64)
        place[needed] = np.array(slots) * self._most - self._blocks.start[needed]
        found = self._ring.gather(torch.as_tensor(place[block] + flat)[None])
        return Minibatch(found.x[0], found.targets[0])

    def _part(self, flat: np.ndarray) -> Minibatch:
        found = self.gather(torch.as_tensor(flat)[None])
        return Minibatch(found.x[0], found.targets[0])

    def _ensure(self, needed: list[int]) -> list[int]:
        """Where the blocks lie, all of them kept from now on; those not used longest give way."""
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
        first = block * BLOCK
        numbers = np.arange(first, min(first + BLOCK, len(self._train)))
        frames, ring = self._train.frames[numbers], self._ring
        made = self._speech.make(numbers).features
        longer = longer_rows(np.cumsum(frames) - frames, frames, self._context)
        at, row, begin = slot * self._longest, slot * self._most, self._blocks.start[block]
        rows = int(frames.sum())
        ring.features[at : at + len(longer)] = made[uploaded(torch.as_tensor(longer), self.device)]
        before = torch.as_tensor(at + spliced_from(frames, self._context))
        ring.before[row : row + rows] = uploaded(before, self.device)
        wanted = self._targets[begin - self._first :][:rows].astype(np.int64)
        ring.targets[row : row + rows] = uploaded(torch.as_tensor(wanted), self.device)
        self.made += 1

    @cached_property
    def _ring(self) -> Frames:
        """The kept blocks, each in a slot as long as the longest block."""
        features = self._stored.features
        zeros = features.new_zeros(self._kept * self._most, dtype=torch.int64)
        kept = features.new_zeros(self._kept * self._longest, features.shape[1])
        return Frames(kept, zeros, zeros.clone(), self._context)

    @cached_property
    def _first(self) -> int:
        """The first row that is made."""
        return int(self._blocks.start[0])

    @cached_property
    def _most(self) -> int:
        """Frames of the longest block."""
        return int(self._blocks.frames.max())

    @property
    def _longest(self) -> int:
        """The same with the ends of its utterances repeated."""
        return self._most + 2 * self._context * BLOCK


def room_on(device: str) -> int:
    """Bytes that speech may take on a device."""
    if device == "cpu":
        return ROOM
    return torch.cuda.mem_get_info(device)[1] // 2

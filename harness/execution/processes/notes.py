"""Messages of sequence training between a server, trainers and their decoders.

A message is a note of fixed size, and for some words one tensor after it: parameters, a gradient,
or the kept frames of an utterance, whose number the note gives. A note says how large its tensor
is, and one of another size is not received: gloo ends a process whose buffer is too small, and
fills a part of one that is too large. Whoever may hear from somebody at any time listens to him in
a thread of its own.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, fields, replace
from enum import IntEnum
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from harness.acoustics.mmi import TROUBLES
from harness.execution.data.decoding import Seen
from harness.execution.processes.messages import BODY, HEAD, GarbageReceived

MAGIC = 7_105_683.0
"""First word of every note: a peer that speaks something else is found out at once."""

CLOSED = "is gone: its connection closed"


class Word(IntEnum):
    """What a note says, and who says it to whom."""

    START = 1
    """Server to all: the model that training starts from (with it)."""
    ASK = 2
    """Decoder to server: the next utterance, please."""
    DECODE = 3
    """Server to decoder: this one, with this model (with it)."""
    PAUSE = 4
    """Server to decoder to trainer: there is none for now."""
    DECODED = 5
    """Decoder to trainer: an utterance, and what was kept of it (with it, unless nothing was)."""
    ROOM = 6
    """Trainer to decoder: one utterance fewer waits."""
    TAKEN = 7
    """Trainer to server: an utterance enters a slot, or nothing of it was kept."""
    READ = 8
    """Trainer to server: the model, please, for so many frames."""
    MODEL = 9
    """Server to trainer: here it is (with it)."""
    GRADIENT = 10
    """Trainer to server: a contribution (with it)."""
    STOP = 11
    """Server to decoder to trainer: go home."""
    AGAIN = 12
    """Server to decoder: this one, with the model of the last one."""

    @property
    def has_body(self) -> bool:
        """Whether a tensor follows; after DECODED, unless nothing enters."""
        return self in (Word.START, Word.DECODE, Word.DECODED, Word.MODEL, Word.GRADIENT)


@dataclass(frozen=True)
class Note:
    """The fixed part of a message.

    Args:
        word: what it says.
        number: of an utterance's decoding, or of a minibatch; each counted over all replicas.
        utterance: which training utterance.
        version: of the model that is sent or was used; of a minibatch, the oldest one that its
            frames were decoded with.
        slot: of the minibatch that an utterance enters.
        frames: of an utterance, or of a minibatch.
        entering: frames of an utterance that enter minibatches.
        kept, rejected, cancelled: frames of an utterance.
        trouble: 0, or 1 more than its place in `TROUBLES`.
        body_bytes: size of the tensor that follows; `send` sets it.
        value: the criterion; of an utterance with a trouble it may be no number.
        read_s: when the model was read, on the server's clock.
        began_s, ended_s: when the sender began and ended its work, on its own clock.
    """

    word: Word
    number: int = 0
    utterance: int = 0
    version: int = 0
    slot: int = 0
    frames: int = 0
    entering: int = 0
    kept: int = 0
    rejected: int = 0
    cancelled: int = 0
    trouble: int = 0
    body_bytes: int = 0
    value: float = 0.0
    read_s: float = 0.0
    began_s: float = 0.0
    ended_s: float = 0.0

    @property
    def has_body(self) -> bool:
        """Whether a tensor follows."""
        return self.word.has_body and (self.word is not Word.DECODED or self.entering > 0)

    def seen(self) -> Seen:
        """How the decoding went."""
        trouble = TROUBLES[self.trouble - 1] if self.trouble else None
        counts = (self.kept, self.rejected, self.cancelled)
        return Seen(self.utterance, self.frames, self.value, *counts, trouble)


COUNTS = 11
"""Fields of a note that are whole numbers, after its word."""
WORDS = 1 + len(fields(Note))


def trouble_of(seen: Seen) -> int:
    """What ``Note.trouble`` has for a decoding."""
    return 1 + TROUBLES.index(seen.trouble) if seen.trouble in TROUBLES else 0


def packed(note: Note) -> Tensor:
    """A note as ``[WORDS]`` float64, in which every count up to 2⁵³ is exact."""
    return torch.tensor([MAGIC, *map(float, astuple(note))], dtype=torch.float64)


def unpacked(words: Tensor) -> Note:
    """The note that `packed` made these words of.

    Raises:
        GarbageReceived: they are no note.
    """
    magic, word, *values = words.tolist()
    counts, rest = values[:COUNTS], values[COUNTS:]
    known = word in {float(w) for w in Word}
    if magic != MAGIC or not known or not all(map(_is_count, counts)):
        raise GarbageReceived("not a message of lagbench")
    note = Note(Word(int(word)), *map(int, counts), *rest)
    if note.trouble > len(TROUBLES):
        raise GarbageReceived("a trouble nobody knows")
    value, *times = rest
    if not all(map(math.isfinite, times)) or not (note.trouble or math.isfinite(value)):
        raise GarbageReceived("a time or a value that is no number")
    return note


def _is_count(value: float) -> bool:
    return math.isfinite(value) and value >= 0.0 and value == math.floor(value)


def send(note: Note, rank: int, body: Tensor | None = None) -> None:
    """Send a message; returns once it is on its way.

    Raises:
        RuntimeError: the peer is gone.
    """
    note = replace(note, body_bytes=0 if body is None else body.nbytes)
    dist.send(packed(note), dst=rank, tag=HEAD)
    if body is not None:
        dist.send(body.contiguous(), dst=rank, tag=BODY)


def wait_until(moment: float) -> None:
    """Sleep until the monotonic clock shows so much."""
    time.sleep(max(0.0, moment - time.monotonic()))


BodyOf = Callable[[Note], Tensor]
"""Where the tensor after a note lands."""


def receive(rank: int, body_of: BodyOf) -> tuple[Note, Tensor]:
    """Wait for a message.

    Raises:
        RuntimeError: the peer is gone.
        GarbageReceived: what came is no message, or its tensor is of another size.
    """
    words = torch.empty(WORDS, dtype=torch.float64)
    dist.recv(words, src=rank, tag=HEAD)
    note = unpacked(words)
    body = body_of(note) if note.has_body else torch.empty(0)
    if body.nbytes != note.body_bytes:
        raise GarbageReceived(f"a tensor of {note.body_bytes} bytes; needed: {body.nbytes}")
    if note.has_body:
        dist.recv(body, src=rank, tag=BODY)
    return note, body


def vectors(size: int) -> BodyOf:
    """Fresh vectors of parameters."""
    return lambda note: torch.empty(size)


def frames_of(longest: int, width: int) -> BodyOf:
    """Fresh rows for kept frames ``[F, width]`` of an utterance, which has ``longest`` at most."""

    def rows(note: Note) -> Tensor:
        if note.entering > longest:
            raise GarbageReceived(f"{note.entering} frames of an utterance; allowed: {longest}")
        return torch.empty(note.entering, width)

    return rows


def why_silent(error: Exception) -> str:
    """Why nothing more is heard from a peer."""
    if isinstance(error, GarbageReceived):
        return f"sent garbage: {error}"
    return CLOSED if isinstance(error, RuntimeError) else f"cannot be heard: {error!r}"


class Arrival(NamedTuple):
    """What came from a rank: a message with its body, or why nothing more will."""

    rank: int
    note: Note | None
    body: Tensor
    trouble: str


class Post:
    """Messages of several ranks in the order of their arrival.

    Args:
        ranks: whom to listen to.
        body_of: where tensors land; called in the listening thread.
    """

    def __init__(self, ranks: Sequence[int], body_of: BodyOf) -> None:
        self._arrivals: queue.SimpleQueue[Arrival] = queue.SimpleQueue()
        self._body_of = body_of
        for rank in ranks:
            threading.Thread(
                target=self._listen, args=(rank,), daemon=True, name=f"rank {rank}"
            ).start()

    def get(self) -> Arrival:
        """The next arrival; waits for it."""
        return self._arrivals.get()

    def at_once(self) -> Arrival | None:
        """The next arrival; None if there is none yet."""
        try:
            return self._arrivals.get_nowait()
        except queue.Empty:
            return None

    def _listen(self, rank: int) -> None:
        try:
            while True:
                self._arrivals.put(Arrival(rank, *receive(rank, self._body_of), ""))
        except Exception as error:  # a thread that ends unheard is waited for for ever
            self._arrivals.put(Arrival(rank, None, torch.empty(0), why_silent(error)))

"""What messages between processes say: their kinds, and their headers of a fixed size.

A header is a frozen dataclass that declares its fields; `messages` sends whole numbers as int64
and others as float64, in the order in which they are declared.
"""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass, fields
from enum import IntEnum
from functools import cache
from typing import ClassVar

from harness.acoustics.mmi import TROUBLES
from harness.execution.data.decoding import Seen


class GarbageReceived(Exception):  # noqa: N818 (what happened)
    """A peer sent what is no message of ours."""


class Kind(IntEnum):
    """What a message says, and who says it to whom."""

    CLOCK = 1  # Server: what time is it? Everybody: ``began_s`` on my clock
    RUN = 2  # Server to all: the run that begins, by its identity
    STOP = 3  # Server to all, and decoder to trainer: the run is over

    WORK = 10  # Server to worker: a minibatch, and the model
    DONE = 11  # Worker to server: a contribution
    ROUNDS = 12  # Server to worker: train so many rounds
    TIMES = 13  # Worker to server: when each of the rounds happened
    TASK = 14  # First shard to worker: a minibatch; the model is at the shards
    FETCH = 15  # Worker to shard: your slice, please
    SLICE = 16  # Shard to worker: the slice
    PIECE = 17  # Worker to shard: its piece of a contribution
    PUSHED = 18  # Worker to first shard: all pieces are sent
    FOLDED = 19  # Shard to first shard: a piece is folded
    GONE = 20  # First shard to shard: give this worker up. Shard to first shard: it is given up
    GATHER = 21  # First shard to shard: your state, please
    STATE = 22  # One of a server's vectors
    NUMBERS = 23  # A server's numbers, after its vectors
    BACK = 24  # First shard to a worker that comes back: come in. Also in its own mailbox then
    HELD = 25  # Shard to first shard: it holds the state, or the numbers, that were sent
    RECALL = 26  # Server to worker: what do you remember?
    MEMORY = 27  # Worker to server: that. Server to worker, when a run goes on: remember this

    START = 30  # Server to all: the model that sequence training starts from
    ASK = 31  # Decoder to server: the next utterance, please
    DECODE = 32  # Server to decoder: an utterance, and the model to decode it with
    AGAIN = 33  # Server to decoder: an utterance, to decode with the model of the last one
    PAUSE = 34  # Server to decoder to trainer: there is no utterance for now
    DECODED = 35  # Decoder to trainer: an utterance, and what was kept of it
    ROOM = 36  # Trainer to decoder: one utterance fewer waits
    TAKEN = 37  # Trainer to server: an utterance enters a slot, or nothing of it was kept
    READ = 38  # Trainer to server: the model, please, for so many frames
    MODEL = 39  # Server to trainer: the model
    GRADIENT = 40  # Trainer to server: a contribution


WITH_BODY = frozenset(
    {
        Kind.RUN, Kind.WORK, Kind.DONE, Kind.TIMES, Kind.SLICE, Kind.PIECE, Kind.STATE,
        Kind.NUMBERS, Kind.START, Kind.DECODE, Kind.DECODED, Kind.MODEL, Kind.GRADIENT,
        Kind.MEMORY,
    }
)  # fmt: skip
"""Kinds that a tensor follows; `Kind.DECODED` only if frames enter minibatches."""


@dataclass(frozen=True)
class Header:
    """What every header has.

    Args:
        kind: what the message says.
        version: of the model that is sent, or that a contribution was made from.
        began_s, ended_s: when the sender began and ended what it reports, on its own clock.
    """

    magic: ClassVar[int]
    """First word on the wire: a peer that speaks something else is found out at once."""
    any_value: ClassVar[str]
    """The field that need not be finite."""
    kind: Kind
    _: KW_ONLY
    version: int = 0
    began_s: float = 0.0
    ended_s: float = 0.0

    @property
    def has_body(self) -> bool:
        """Whether a tensor follows."""
        return self.kind in WITH_BODY

    def check(self) -> None:
        """Whether all numbers can be what they say.

        Raises:
            GarbageReceived: one is negative or not finite.
        """
        for name, whole in _limits(type(self)):
            number = getattr(self, name)
            if (whole and number < 0) or (not whole and not math.isfinite(number)):
                raise GarbageReceived("not a message of lagbench")


@cache
def _limits(of: type[Header]) -> tuple[tuple[str, bool], ...]:
    """The fields that have limits, and whether they are whole numbers."""
    named = ((each.name, is_whole(each.type)) for each in fields(of))
    return tuple((name, whole) for name, whole in named if name != of.any_value)


def is_whole(declared: object) -> bool:
    """Whether a header's field of a declared type is a whole number."""
    return declared != "float"


@dataclass(frozen=True)
class FrameHeader(Header):
    """Of training on frames: asynchronous, in shards, or in rounds.

    Args:
        step, steps: first minibatch of a contribution and how many; of a state, which vector; of
            what a worker remembers, how many bytes.
        stage, before: the run's stage, and the steps of all stages before it.
        rounds: how many are asked for, where workers train in rounds.
        worker, read_version: whose contribution a shard speaks of, and what it was made from.
        rate: for local steps.
        loss: summed over the contribution's frames, in nats; that of a run that diverges is
            not finite.
    """

    magic = 7_105_641
    any_value = "loss"
    step: int = 0
    steps: int = 0
    stage: int = 0
    before: int = 0
    rounds: int = 0
    worker: int = 0
    read_version: int = 0
    rate: float = 0.0
    loss: float = 0.0


@dataclass(frozen=True)
class SequenceHeader(Header):
    """Of sequence training; the version of a minibatch is the oldest its frames are decoded with.

    Args:
        number: of an utterance's decoding, or of a minibatch; each counted over all replicas.
        utterance: which training utterance.
        slot: of the minibatch that an utterance enters.
        frames: of an utterance, or of a minibatch.
        entering: frames of an utterance that enter minibatches.
        kept, rejected, cancelled: frames of an utterance.
        trouble: 0, or 1 more than its place in `TROUBLES`.
        value: the criterion; of an utterance with a trouble it may be no number.
        read_s: when the model was read, on the server's clock.
    """

    magic = 7_105_683
    any_value = "value"
    number: int = 0
    utterance: int = 0
    slot: int = 0
    frames: int = 0
    entering: int = 0
    kept: int = 0
    rejected: int = 0
    cancelled: int = 0
    trouble: int = 0
    value: float = 0.0
    read_s: float = 0.0

    @property
    def has_body(self) -> bool:
        """Whether a tensor follows."""
        return super().has_body and (self.kind is not Kind.DECODED or self.entering > 0)

    def check(self) -> None:
        """See `Header`."""
        super().check()
        if self.trouble > len(TROUBLES):
            raise GarbageReceived("a trouble nobody knows")
        if not self.trouble and not math.isfinite(self.value):
            raise GarbageReceived("a value that is no number")

    def seen(self) -> Seen:
        """How the decoding went."""
        trouble = TROUBLES[self.trouble - 1] if self.trouble else None
        counts = (self.kept, self.rejected, self.cancelled)
        return Seen(self.utterance, self.frames, self.value, *counts, trouble)


def trouble_of(seen: Seen) -> int:
    """What ``SequenceHeader.trouble`` has for a decoding."""
    return 1 + TROUBLES.index(seen.trouble) if seen.trouble in TROUBLES else 0

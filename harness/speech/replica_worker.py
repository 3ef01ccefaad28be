"""Sequence training on real processes: a replica's trainer, decoder and messages.

A replica is two processes, a decoder and a trainer. Between them is a queue of bounded length:
when it is full, the decoder waits. Each reads the model from the server: the decoder for each
utterance (or once per interval), the trainer for each minibatch.

Rank 0 is the server; replica r has two ranks, the trainer 1 + 2r and its decoder 2 + 2r. The
server keeps a `Replica` for the two.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from data_synth.corpus import Corpus
from harness.acoustics.mmi import TROUBLES
from harness.algorithms.contract import LocalWork, Memory
from harness.processes.messages import (
    NOTHING,
    SERVER_RANK,
    Address,
    Arrival,
    BodyOf,
    Header,
    Kind,
    Mailbox,
    ServerGone,
    disconnect_reason,
    like,
    receive_order,
    reuse_buffer,
    send,
    talking,
)
from harness.processes.recorder import Work
from harness.processes.transport import MalformedMessage, now_s, sleep_until
from harness.processes.worker import Pacing
from harness.speech.decoding import DecodeResult, DecodeStats, Halves
from harness.speech.sequence import SequenceConfig, Setup, inner_loss
from harness.speech.streams import Batcher, Frame, KeptFrames, pad_minibatches

TO_DECODERS = (Kind.DECODE, Kind.AGAIN, Kind.PAUSE, Kind.STOP)
"""Kinds of the server's answers to a decoder's request."""


class PartnerGone(Exception):  # noqa: N818 (what happened)
    """The other process of this replica has failed, which ends the replica; has the reason."""


def contribute(config: SequenceConfig, corpus: Corpus, rank: int, pace: Pacing) -> None:
    """Run a trainer or a decoder, by its rank, until the server stops it.

    Raises:
        ServerGone: the connection to the server closed.
        PartnerGone: the other process of the replica failed.
    """
    size = config.start.network(corpus).layout.parameters
    replica = (rank - 1) // 2
    _, initial = _hear(reuse_buffer(torch.empty(size)), Kind.START)
    if rank == trainer_rank(replica):
        Trainer(config, corpus, initial, replica, pace).train()
    else:
        decode(config, Setup.from_config(config, corpus, initial), replica, pace)


def decode(config: SequenceConfig, setup: Setup, replica: int, pace: Pacing) -> None:
    """Decode the utterances that the server assigns, and send them to the trainer.

    Raises:
        ServerGone: the connection to the server closed.
        PartnerGone: the connection to the trainer closed.
    """
    trainer, room = trainer_rank(replica), Room(config.waiting, trainer_rank(replica))
    received, model = reuse_buffer(like(setup.part)), setup.part
    while True:
        _say(SequenceHeader(Kind.ASK))
        header, body = _hear(received, *TO_DECODERS)
        while header.kind is Kind.PAUSE:
            _pass_on(header, trainer)
            header, body = _hear(received, *TO_DECODERS)
        if header.kind is Kind.STOP:
            _pass_on(header, trainer)
            return
        if header.utterance >= len(setup.train):
            raise ServerGone(f"sent garbage: utterance {header.utterance} of {len(setup.train)}")
        model = body if header.kind is Kind.DECODE else model
        began = now_s()
        (found,) = setup.decoder.decode([model], [header.utterance])
        frames = found.seen.frames * config.decode_cost
        sleep_until(began + pace.plain_s(replica, frames / config.slots))
        told = _build_report(header, found, began)
        # an utterance without frames takes no place in the queue: the trainer only reports it
        if told.entering:
            room.take()
        _pass_on(told, trainer, torch.cat([found.x, found.outer], 1) if told.entering else None)


def _build_report(asked: SequenceHeader, found: DecodeResult, began: float) -> SequenceHeader:
    """Header of a decoded utterance for the trainer."""
    seen = found.seen
    return replace(
        asked,
        kind=Kind.DECODED,
        frames=seen.frames,
        entering=len(found.x),
        kept=seen.kept,
        rejected=seen.rejected,
        cancelled=seen.cancelled,
        trouble=trouble_of(seen),
        value=seen.value,
        began_s=began,
        ended_s=now_s(),
    )


class Room:
    """Free places in the trainer's queue, counted by its decoder.

    Args:
        places: length of the queue.
        trainer: address of the trainer, which reports each place that becomes free.
    """

    def __init__(self, places: int, trainer: Address) -> None:
        self._free, self._mailbox = places, Mailbox(SequenceHeader)
        self._mailbox.listen(0, trainer, reuse_buffer(NOTHING))

    def take(self) -> None:
        """Wait for a free place.

        Raises:
            PartnerGone: the trainer failed while the queue was full.
        """
        while not self._free:
            _partner(self._mailbox.get(), Kind.ROOM)
            self._free += 1
        self._free -= 1


class Trainer:
    """The trainer of a replica.

    Args:
        config: configuration of the run.
        corpus: the corpus it names.
        initial: initial parameters ``[P]`` of the whole network.
        replica: index of the replica.
        pace: throttle of the computation.
    """

    def __init__(
        self,
        config: SequenceConfig,
        corpus: Corpus,
        initial: Tensor,
        replica: int,
        pace: Pacing,
    ) -> None:
        halves, part = Halves.split(config.start.network(corpus), initial, config.layers)
        self._loss = inner_loss(config, corpus, halves)
        self._algorithm = config.algorithm.on(self._loss)
        self._inputs, outputs = halves.net.layout.sizes[0], halves.net.layout.sizes[-1]
        self._out, self._received = torch.zeros(1, part.numel()), reuse_buffer(like(part))
        self._slots, self._replica, self._pace = config.slots, replica, pace
        self._batcher = Batcher(config.slots, config.shuffling == "on the fly")
        width = self._inputs + outputs
        longest = int(corpus.split("train").frames.max())
        decoder = decoder_rank(replica)
        self._decoded = Mailbox(SequenceHeader)
        self._decoded.listen(decoder, decoder, frames_of(longest, width))
        self._versions: dict[int, int] = {}
        self._paused = self._stopped = False

    def train(self) -> None:
        """Contribute one minibatch after another.

        Raises:
            ServerGone: the connection to the server closed.
            PartnerGone: the connection to the decoder closed.
        """
        count = 0
        while frames := self._gather_minibatch():
            oldest = min(self._versions[kept.utterance] for kept, _ in frames)
            _say(SequenceHeader(Kind.READ, version=oldest, frames=len(frames)))
            header, model = _hear(self._received, Kind.MODEL, Kind.STOP)
            if header.kind is Kind.STOP:  # the server has given up this replica
                raise PartnerGone
            self._contribute(header.number, model, frames, count)
            count += 1

    def _contribute(self, number: int, model: Tensor, frames: list[Frame], count: int) -> None:
        began, minibatch = now_s(), pad_minibatches([frames])
        with torch.no_grad():
            self._algorithm.contribute(
                LocalWork(self._loss, model.unsqueeze(0), [minibatch], self._out, 0.0, Memory())
            )
        share = len(frames) / self._slots
        sleep_until(began + self._pace.compute_s(self._replica, count) * share)
        done = SequenceHeader(Kind.GRADIENT, number, began_s=began, ended_s=now_s())
        _say(done, self._out[0])

    def _gather_minibatch(self) -> list[Frame]:
        """A full minibatch; a partial one while the decoder is paused; none at the end."""
        while (slot := self._batcher.slot_to_fill(0)) is not None and not self._stopped:
            arrival = self._decoded.get_before(0.0)
            if arrival is None:
                if self._paused and (frames := self._batcher.take(0)):
                    return frames
                arrival = self._decoded.get()
            self._take_in(arrival, slot)
        return self._batcher.take(0)

    def _take_in(self, arrival: Arrival[SequenceHeader], slot: int) -> None:
        """Process a message of the decoder.

        Raises:
            PartnerGone: its connection closed, or the message is unexpected.
        """
        header = _partner(arrival, Kind.DECODED, Kind.PAUSE, Kind.STOP)
        self._paused, self._stopped = header.kind is Kind.PAUSE, header.kind is Kind.STOP
        if header.kind is not Kind.DECODED:
            return
        _say(replace(header, kind=Kind.TAKEN, slot=slot))
        if header.entering:
            _pass_on(SequenceHeader(Kind.ROOM), decoder_rank(self._replica))
            widths = [self._inputs, arrival.body.shape[1] - self._inputs]
            x, outer = torch.split(arrival.body, widths, 1)
            self._batcher.enter(0, slot, KeptFrames(header.number, x, outer))
            self._versions[header.number] = header.version


def frames_of(longest: int, width: int) -> BodyOf[SequenceHeader]:
    """Allocator of kept frames ``[F, width]`` of an utterance, with F at most ``longest``."""

    def rows(header: SequenceHeader) -> Tensor:
        if header.entering > longest:  # checked before the allocation: the size is the sender's
            raise MalformedMessage(f"{header.entering} frames of an utterance; allowed: {longest}")
        return torch.empty(header.entering, width)

    return rows


def _hear(body_of: BodyOf[SequenceHeader], *expected: Kind) -> tuple[SequenceHeader, Tensor]:
    """Receive the server's next order, which must be of an ``expected`` kind."""
    header, body = receive_order(SERVER_RANK, SequenceHeader, body_of)
    if header.kind not in expected:
        raise ServerGone(f"sent garbage: {header.kind.name} at the wrong time")
    return header, body


def _say(header: SequenceHeader, body: Tensor | None = None) -> None:
    with talking():
        send(header, SERVER_RANK, body)


def _pass_on(header: SequenceHeader, rank: int, body: Tensor | None = None) -> None:
    """Send to the other process of this replica."""
    try:
        send(header, rank, body)
    except RuntimeError as error:
        raise PartnerGone(disconnect_reason(error)) from error


def _partner(arrival: Arrival[SequenceHeader], *expected: Kind) -> SequenceHeader:
    """Header from the other process of this replica, which must be of an ``expected`` kind.

    Raises:
        PartnerGone: its connection closed, or the kind is another.
    """
    if arrival.header is None:
        raise PartnerGone(arrival.trouble)
    if arrival.header.kind not in expected:
        raise PartnerGone(f"sent garbage: {arrival.header.kind.name} at the wrong time")
    return arrival.header


@dataclass(frozen=True)
class SequenceHeader(Header):
    """Header of sequence training; a minibatch has the oldest version of its frames' decoding.

    Args:
        number: number of a decoding, or of a minibatch, each counted over all replicas.
        utterance: index of the training utterance.
        slot: slot of the minibatch that an utterance enters.
        frames: number of frames of an utterance, or of a minibatch.
        entering: frames of an utterance that enter minibatches.
        kept, rejected, cancelled: numbers of frames of an utterance.
        trouble: 0 for none, or 1 more than its index in `TROUBLES`.
        value: criterion of the utterance; may be NaN with a trouble.
        read_s: time of the model's read, in seconds of the server's clock.
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
            raise MalformedMessage(f"unknown trouble {self.trouble}")
        if not self.trouble and not math.isfinite(self.value):
            raise MalformedMessage("a value that is not finite")

    def decode_stats(self) -> DecodeStats:
        """Decoding statistics of the utterance."""
        trouble = TROUBLES[self.trouble - 1] if self.trouble else None
        counts = (self.kept, self.rejected, self.cancelled)
        return DecodeStats(self.utterance, self.frames, self.value, *counts, trouble)


def trouble_of(seen: DecodeStats) -> int:
    """Code of a decoding's trouble in ``SequenceHeader.trouble``."""
    return 1 + TROUBLES.index(seen.trouble) if seen.trouble in TROUBLES else 0


def trainer_rank(replica: int) -> int:
    """Rank of a replica's trainer."""
    return 1 + 2 * replica


def decoder_rank(replica: int) -> int:
    """Rank of a replica's decoder."""
    return 2 + 2 * replica


class Assignment(NamedTuple):
    """An utterance assigned to a decoder, the model's version, and the time of its read."""

    utterance: int
    version: int
    read_s: float


@dataclass
class Replica:
    """The server's state of a trainer and its decoder.

    Attributes:
        todo: training utterances that are not assigned yet.
        handed: assigned utterances that have not entered a minibatch, by number of decoding.
        taken: headers of those of them that enter the next minibatch.
        version, read_s: version of the decoder's model, and the time of its read.
        left: frames in the trainer's slots.
        under_way: frames in the contribution in flight.
        work: contribution in flight, or None.
        reads, folds: numbers of reads and folds.
        waits: whether the decoder's last request was answered with a pause.
        gone: whether the replica has failed.
    """

    todo: deque[int]
    handed: dict[int, Assignment] = field(default_factory=dict[int, Assignment])
    taken: list[SequenceHeader] = field(default_factory=list[SequenceHeader])
    version: int = 0
    read_s: float = float("-inf")
    left: int = 0
    under_way: int = 0
    work: Work | None = None
    reads: int = 0
    folds: int = 0
    waits: bool = False
    gone: bool = False

    @property
    def done(self) -> bool:
        """Whether all its utterances have been trained on."""
        return not (self.todo or self.handed or self.left or self.work)

    def give_up(self) -> tuple[list[int], int]:
        """Clear its work; returns utterances for other replicas, and the number of frames lost."""
        utterances = [*(each.utterance for each in self.handed.values()), *self.todo]
        lost = self.left + self.under_way
        self.todo, self.handed, self.taken = deque(), {}, []
        self.left = self.under_way = 0
        self.work = None
        return utterances, lost

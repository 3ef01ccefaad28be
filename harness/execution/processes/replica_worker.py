"""Sequence training on real processes: what a replica's trainer and its decoder do.

Between the two is a bounded queue: so many decoded utterances may wait for a slot, then the decoder
waits. Each has a model of its own from the server: the decoder one for each utterance (or once an
interval), the trainer one for each minibatch.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor

from data_synth.corpus import Corpus
from harness.algorithms.async_sgd import AsyncSgd
from harness.algorithms.contract import Memory
from harness.errors import UserError
from harness.execution.data.decoding import Decoded, Halves
from harness.execution.data.slots import Batcher, Frame, Kept, filled
from harness.execution.processes.messages import SERVER_RANK, GarbageReceived, Head, Kind
from harness.execution.processes.messages import receive as hear
from harness.execution.processes.messages import send as answer
from harness.execution.processes.notes import (
    Arrival,
    BodyOf,
    Note,
    Post,
    Word,
    frames_of,
    receive,
    send,
    trouble_of,
    vectors,
    wait_until,
    why_silent,
)
from harness.execution.processes.replica import decoder_rank, sign_of, trainer_rank
from harness.execution.processes.server import CLOCK_ROUNDS, Pace, ServerGone
from harness.execution.runs.sequence import SequenceConfig
from harness.execution.training.setup import Setup, inner_loss

TO_DECODERS = (Word.DECODE, Word.AGAIN, Word.PAUSE, Word.STOP)
"""What a server says to a decoder that has asked."""


class PartnerGone(Exception):  # noqa: N818 (what happened)
    """The other process of this replica is dead, and the replica with it; says why."""


def contribute(config: SequenceConfig, corpus: Corpus, rank: int, pace: Pace | None) -> None:
    """Be a trainer or a decoder until the server says stop: what ranks from 1 do.

    Raises:
        ServerGone: its connection closed.
        PartnerGone: the other process of the replica is dead.
        UserError: the server executes another configuration.
    """
    if not _clock_is_set():
        return
    size = config.start.network(corpus).layout.parameters
    replica, sign = (rank - 1) // 2, sign_of(config, paced=pace is not None)

    def same(note: Note) -> Tensor:
        if note.number != sign:
            raise UserError(
                f"replica {replica}: the server executes something else; needed: the same run file,"
                " --seed and --paced everywhere"
            )
        return torch.empty(size)

    _, initial = _hear(same, Word.START)
    if rank == trainer_rank(replica):
        Trainer(config, corpus, initial, replica, pace).train()
    else:
        decode(config, Setup.of(config, corpus, initial), replica, pace)


def decode(config: SequenceConfig, setup: Setup, replica: int, pace: Pace | None) -> None:
    """Decode what the server hands out, for a trainer.

    Raises:
        ServerGone: its connection closed.
        PartnerGone: so did the trainer's.
    """
    trainer, room = trainer_rank(replica), Room(config.waiting, trainer_rank(replica))
    into, model = vectors(setup.part.numel()), setup.part
    while True:
        _say(Note(Word.ASK))
        note, body = _hear(into, *TO_DECODERS)
        while note.word is Word.PAUSE:
            _pass_on(note, trainer)
            note, body = _hear(into, *TO_DECODERS)
        if note.word is Word.STOP:
            _pass_on(note, trainer)
            return
        if note.utterance >= len(setup.train):
            raise ServerGone(f"sent garbage: utterance {note.utterance} of {len(setup.train)}")
        model = body if note.word is Word.DECODE else model
        began = time.monotonic()
        (found,) = setup.decoder.decode([model], [note.utterance])
        if pace:
            frame_s = float(pace.costs.compute_s[replica]) / config.slots
            wait_until(began + found.seen.frames * config.decode_cost * frame_s)
        told = _told(note, found, began)
        if told.entering:
            room.take()
        _pass_on(told, trainer, torch.cat([found.x, found.outer], 1) if told.entering else None)


def _told(asked: Note, found: Decoded, began: float) -> Note:
    """What a trainer is told of a decoded utterance."""
    seen = found.seen
    return replace(
        asked,
        word=Word.DECODED,
        frames=seen.frames,
        entering=len(found.x),
        kept=seen.kept,
        rejected=seen.rejected,
        cancelled=seen.cancelled,
        trouble=trouble_of(seen),
        value=seen.value,
        began_s=began,
        ended_s=time.monotonic(),
    )


class Room:
    """Places in the trainer's queue, as its decoder knows them.

    Args:
        places: how many there are.
        trainer: the trainer's rank, which says when one is free again.
    """

    def __init__(self, places: int, trainer: int) -> None:
        self._free, self._trouble = threading.Semaphore(places), ""
        threading.Thread(target=self._listen, args=(trainer,), daemon=True, name="room").start()

    def take(self) -> None:
        """Wait for a free place.

        Raises:
            PartnerGone: there will be none.
        """
        self._free.acquire()
        if self._trouble:
            raise PartnerGone(self._trouble)

    def _listen(self, trainer: int) -> None:
        try:
            while True:
                note, _ = receive(trainer, vectors(0))
                _expect(note, Word.ROOM)
                self._free.release()
        except Exception as error:  # else the decoder may wait for ever
            self._trouble = why_silent(error)
            self._free.release()


class Trainer:
    """A trainer at work.

    Args:
        config: what is run.
        corpus: the corpus it names.
        initial: the parameters ``[P]`` it starts from.
        replica: its number.
        pace: slows it; None for as fast as it goes.
    """

    def __init__(
        self,
        config: SequenceConfig,
        corpus: Corpus,
        initial: Tensor,
        replica: int,
        pace: Pace | None,
    ) -> None:
        halves, part = Halves.of(config.start.network(corpus), initial, config.layers)
        self._loss = inner_loss(config, corpus, halves)
        self._inputs, outputs = halves.net.layout.sizes[0], halves.net.layout.sizes[-1]
        self._out, self._into = torch.zeros(1, part.numel()), vectors(part.numel())
        self._slots, self._replica, self._pace = config.slots, replica, pace
        self._batcher = Batcher(config.slots, config.shuffling == "on the fly")
        width = self._inputs + outputs
        longest = int(corpus.split("train").frames.max())
        self._decoded = Post([decoder_rank(replica)], frames_of(longest, width))
        self._versions: dict[int, int] = {}
        self._paused = self._stopped = False

    def train(self) -> None:
        """Contribute one minibatch after another.

        Raises:
            ServerGone: its connection closed.
            PartnerGone: so did the decoder's.
        """
        count = 0
        while frames := self._gathered():
            oldest = min(self._versions[kept.utterance] for kept, _ in frames)
            _say(Note(Word.READ, version=oldest, frames=len(frames)))
            note, model = _hear(self._into, Word.MODEL, Word.STOP)
            if note.word is Word.STOP:
                raise PartnerGone
            self._contribute(note, model, frames, count)
            count += 1

    def _contribute(self, note: Note, model: Tensor, frames: list[Frame], count: int) -> None:
        began, minibatch = time.monotonic(), filled([frames])
        with torch.no_grad():
            AsyncSgd().contribute(
                self._loss, model.unsqueeze(0), [minibatch], self._out, 0.0, Memory()
            )
        if self._pace:
            share = len(frames) / self._slots
            wait_until(began + self._pace.compute_s(self._replica, count) * share)
        done = Note(Word.GRADIENT, note.number, began_s=began, ended_s=time.monotonic())
        _say(done, self._out[0])

    def _gathered(self) -> list[Frame]:
        """A full minibatch; the rest, while the decoder has nothing; none at the end."""
        while (slot := self._batcher.wanting(0)) is not None and not self._stopped:
            arrival = self._decoded.at_once()
            if arrival is None:
                if self._paused and (frames := self._batcher.take(0)):
                    return frames
                arrival = self._decoded.get()
            self._take_in(arrival, slot)
        return self._batcher.take(0)

    def _take_in(self, arrival: Arrival, slot: int) -> None:
        """Hear what the decoder has to say.

        Raises:
            PartnerGone: nothing any more.
        """
        note = arrival.note
        if note is None:
            raise PartnerGone(arrival.trouble)
        if note.word not in (Word.DECODED, Word.PAUSE, Word.STOP):
            raise PartnerGone(f"sent garbage: {note.word.name} at the wrong time")
        self._paused, self._stopped = note.word is Word.PAUSE, note.word is Word.STOP
        if note.word is not Word.DECODED:
            return
        _say(replace(note, word=Word.TAKEN, slot=slot))
        if note.entering:
            _pass_on(Note(Word.ROOM), decoder_rank(self._replica))
            x, outer = arrival.body.split([self._inputs, arrival.body.shape[1] - self._inputs], 1)
            self._batcher.enter(0, slot, Kept(note.number, x, outer))
            self._versions[note.number] = note.version


def _clock_is_set() -> bool:
    """Tell the server the time as often as it asks; False if there is nothing to do."""
    with _of_server():
        answers = 0
        while answers < CLOCK_ROUNDS:
            asked = hear(SERVER_RANK, torch.zeros(0))
            if asked.kind is Kind.STOP:
                return False
            if not asked.rounds:  # else a sign of life: it is not ready yet
                answer(Head(Kind.CLOCK, began_s=time.monotonic()), SERVER_RANK)
                answers += 1
    return True


def _hear(body_of: BodyOf, *expected: Word) -> tuple[Note, Tensor]:
    with _of_server():
        note, body = receive(SERVER_RANK, body_of)
        _expect(note, *expected)
        return note, body


def _say(note: Note, body: Tensor | None = None) -> None:
    with _of_server():
        send(note, SERVER_RANK, body)


def _pass_on(note: Note, rank: int, body: Tensor | None = None) -> None:
    """Send to the other process of this replica."""
    try:
        send(note, rank, body)
    except RuntimeError as error:
        raise PartnerGone(why_silent(error)) from error


def _expect(note: Note, *words: Word) -> None:
    """Refuse a message that means nothing here.

    Raises:
        GarbageReceived: it is none of these.
    """
    if note.word not in words:
        raise GarbageReceived(f"{note.word.name} at the wrong time")


@contextmanager
def _of_server() -> Generator[None]:
    """The server's end and its garbage are one: there is nobody to work for."""
    try:
        yield
    except (RuntimeError, GarbageReceived) as error:
        raise ServerGone(why_silent(error)) from error

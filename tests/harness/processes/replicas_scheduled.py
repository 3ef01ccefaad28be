"""Sequence training on replicas under a seeded adversary; decoding and gradients are stand-ins."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import greenlet
import numpy as np
import pytest
import torch
from torch import Tensor

from harness.algorithms.async_sgd import AsyncSgd
from harness.algorithms.contract import Fold, LocalWork
from harness.algorithms.stale import DelayCompensated, StalenessAware
from harness.processes import worker
from harness.processes.messages import Mailbox, ServerGone, like, reuse_buffer
from harness.processes.server import NoWorkersLeft
from harness.processes.transport import start_heartbeats
from harness.processes.worker import Pacing
from harness.speech import replica_worker
from harness.speech.decoding import DecodeResult, DecodeStats
from harness.speech.replica_worker import (
    PartnerGone,
    SequenceHeader,
    contribute,
    decoder_rank,
    frames_of,
    trainer_rank,
)
from harness.speech.sequence_server import SequenceServerExecutor
from harness.speech.streams import Batcher, Frame
from tests.harness.processes.schedules import RATE, SIZE, Kept, Schedule
from tests.harness.processes.town import Place

FRAMES = np.array([3, 5, 2, 4, 1, 6, 3])
"""Of each training utterance; one in three is not kept, and of one nothing is."""
SLOTS, WAITING, PASSES = 4, 2, 2
A_SEGMENT = Fraction(1, 2)


def entering(utterance: int) -> int:
    """How many frames of an utterance enter minibatches."""
    return int(FRAMES[utterance]) - (utterance + 1) // 3 if utterance != 4 else 0


class Utterances:
    """The training utterances, as far as anybody looks at them."""

    frames = FRAMES

    def __len__(self) -> int:
        return len(FRAMES)


class Decodes:
    """In place of a decoder: what it finds says of which model and utterance it is."""

    def __init__(self, seconds: Callable[[], float]) -> None:
        self._seconds = seconds

    def decode(self, models: list[Tensor], utterances: list[int]) -> tuple[DecodeResult]:
        _here().sleep(self._seconds() / 4)
        (utterance,) = utterances
        count = entering(utterance)
        outer = torch.full((count, 1), float(models[0].sum()))
        x = torch.arange(float(count)).unsqueeze(1) + utterance
        seen = DecodeStats(utterance, int(FRAMES[utterance]), 1.0, count, 0, 0, None)
        return (DecodeResult(x, outer, seen),)


class Contributed:
    """A gradient of the model that was read and the sum of a minibatch."""

    def contribute(self, work: LocalWork) -> Tensor:
        network: Any = work.network
        _here().sleep(network())
        torch.mul(work.replicas, 0.25, out=work.out)
        work.out.add_(summed(work.minibatches[0]))
        return torch.zeros(len(work.out))


class StandIn(Contributed, AsyncSgd):
    """Folded as it comes."""


class Divided(Contributed, StalenessAware):
    """Folded as it is stale."""


class Compensated(Contributed, DelayCompensated):
    """Folded by a server that keeps more than its model."""


ALGORITHMS = StandIn(), Divided(), Compensated(0.01, 64)


def summed(minibatch: Any) -> Tensor:
    """A minibatch as a number."""
    return (minibatch.x.sum() + minibatch.targets.sum()) / 64.0


class Trainer(replica_worker.Trainer):
    """A trainer whose network is a stand-in, and whose minibatches are noted by number."""

    def __init__(
        self, config: Any, corpus: None, initial: Tensor, replica: int, pace: Pacing
    ) -> None:
        self._loss, self._inputs, self._algorithm = config.seconds, 1, config.algorithm
        self._out, self._received = torch.zeros(1, SIZE), reuse_buffer(like(initial))
        self._slots, self._replica, self._pace = config.slots, replica, pace
        self._batcher, self._decoded = Batcher(config.slots, True), Mailbox(SequenceHeader)
        decoder = decoder_rank(replica)
        self._decoded.listen(decoder, decoder, frames_of(int(FRAMES.max()), 2))
        self._versions, self._paused, self._stopped = {}, False, False
        self._noted = config.noted

    def _contribute(self, number: int, model: Tensor, frames: list[Frame], count: int) -> None:
        self._noted[number] = summed(replica_worker.pad_minibatches([frames])), len(frames)
        super()._contribute(number, model, frames, count)


class OnReplicas(Schedule):
    """A run of sequence training with its deaths, to its end."""

    def __init__(self, seed: int, disturb: Callable[[Schedule], None] | None = None) -> None:
        super().__init__(seed, disturb=disturb)
        network = SimpleNamespace(layout=SimpleNamespace(parameters=SIZE))
        self.noted = dict[int, tuple[Tensor, int]]()
        self.config = SimpleNamespace(
            seed=seed, replicas=self.workers, passes=PASSES, slots=SLOTS, waiting=WAITING,
            fetch_s=self._draw.choice([None, 1.0]), decode_cost=0.0, shuffling="on the fly",
            start=SimpleNamespace(network=lambda corpus: network),
            seconds=lambda: self._seconds(), noted=self.noted,
            algorithm=ALGORITHMS[seed % len(ALGORITHMS)],
        )  # fmt: skip
        self.record: Any = None

    def _ranks(self) -> int:
        return 1 + 2 * self.workers

    def _pairs(self, ranks: int) -> Iterator[tuple[int, int]]:
        yield from ((0, rank) for rank in range(1, ranks))
        yield from ((trainer_rank(each), decoder_rank(each)) for each in range(self.workers))

    def _comings(self, draw: object) -> None:
        """Nobody comes back to a replica."""

    def _setup(self) -> Any:
        decoder = Decodes(lambda: self._seconds())
        parts = {"part": torch.zeros(SIZE), "train": Utterances(), "decoder": decoder}
        return SimpleNamespace(**parts, loss=None)

    def _program(self, rank: int, place: Place, *, late: bool = False) -> Callable[[], None]:
        def serve() -> None:
            start_heartbeats()
            try:
                self._serve()
            except NoWorkersLeft as error:
                self.outcome.told.append(repr(error))

        def take_part() -> None:
            start_heartbeats()
            with suppress(ServerGone, PartnerGone):
                contribute(self.config, None, rank, Pacing())  # type: ignore[arg-type]

        return serve if rank == 0 else take_part

    def _serve(self) -> None:
        parts: Any = self.config, self._setup(), torch.zeros(SIZE), Pacing()
        server = SequenceServerExecutor(*parts, self.outcome.told.append)
        if self.kept.state is not None:
            server.reinstate(*self.kept.state)
        segments, ended = list(self.kept.segments), False
        while not ended:
            until = Fraction(len(server.record.rows), len(FRAMES)) + A_SEGMENT
            step = server.advance(RATE, until)
            segments, ended = segments + step.happened, step.ended
            self.kept = Kept(server.capture(), 0, list(segments))
            self.places[0].sleep(0.5)  # an evaluation
            self._check_mailbox(server._mailbox)
        server.close()
        self.finished, self.record = server.server, server.record

    @contextmanager
    def _reached(self) -> Iterator[None]:
        """Replicas compute with stand-ins."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(replica_worker, "Trainer", Trainer)
            setup = SimpleNamespace(from_config=lambda config, corpus, initial: self._setup())
            patch.setattr(replica_worker, "Setup", setup)
            patch.setattr(worker, "QUESTIONS", 2)
            yield

    def _check_steps(self) -> None:
        """Every utterance is told of once a pass; its frames are folded, or counted as lost."""
        told = sorted(row.utterance for row in self.record.rows)
        assert told == sorted([*range(len(FRAMES))] * PASSES), f"told of: {told}"
        steps = [int(step) for each in self.kept.segments for step in each.folded().first_step]
        assert len(set(steps)) == len(steps), f"folded: {sorted(steps)}"
        frames, lost = sum(self.noted[step][1] for step in steps), self.record.lost_frames
        entered = sum(row.entering for row in self.record.rows)
        assert entered == frames + lost, f"{entered} frames, {frames} folded, {lost} lost"

    def _check_replay(self) -> None:
        """The record gives the same bits."""
        assert self.finished is not None
        algorithm = self.config.algorithm
        server = algorithm.start(torch.zeros(SIZE))
        models = [server.model.clone()]
        for segment in self.kept.segments:
            rows = segment.folded()
            for step, version in zip(rows.first_step, rows.read_version, strict=True):
                gradient = torch.mul(models[int(version)], 0.25) + self.noted[int(step)][0]
                staleness = server.version - int(version)
                fold = Fold(gradient.unsqueeze(0), [staleness], RATE, [0], [1.0])
                algorithm.fold(server, fold)
                models.append(server.model.clone())
        assert torch.equal(server.model, self.finished.model), "the replay is another model"


def _here() -> Place:
    current: Any = greenlet.getcurrent()
    return current.place

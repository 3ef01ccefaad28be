"""Rounds of model averaging under a seeded adversary; the all-reduce is a stand-in for gloo's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import greenlet
import pytest
import torch
from torch import Tensor

from harness.algorithms.averaging import ModelAveraging
from harness.algorithms.contract import Fold, Memory
from harness.algorithms.share_schedules import STEADY
from harness.base.errors import UserError
from harness.processes import rounds
from harness.processes import worker as pace
from harness.processes.messages import FrameHeader, ServerGone
from harness.processes.rounds import Rounds, work_in_rounds
from harness.processes.server import NoWorkersLeft
from harness.processes.transport import start_heartbeats
from harness.processes.worker import Pacing
from harness.simulator import Averaging
from tests.harness.processes.schedules import (
    A_SEGMENT,
    FOLDS,
    RATE,
    SIZE,
    Kept,
    Schedule,
    minibatch_of,
)
from tests.harness.processes.town import Place

EVERY = 2
LOOKED_EVERY_S = 0.2


def descended(model: Tensor, velocity: Tensor, worker: int, step: int) -> tuple[Tensor, Tensor]:
    """A model and a velocity after a worker's steps of a round, the first of this number."""
    for each in range(step, step + EVERY):
        velocity = 0.5 * velocity + 0.25 * model + minibatch_of([(worker, each)])[0]
        model = model - RATE * velocity
    return model, velocity


class Descends:
    """In place of what a worker in rounds computes with; it remembers a velocity."""

    def __init__(self, config: Any, corpus: None, worker: int, pace: Pacing) -> None:
        self.out, self._worker, self._seconds = torch.zeros(1, SIZE), worker, config.seconds
        self.rates = config.rates(None)
        self._memory = Memory({"velocity": torch.zeros(SIZE)})

    def contribute(self, header: FrameHeader, model: Tensor) -> Any:
        place = _here()
        began = place.now_s()
        place.sleep(self._seconds())
        known = self._memory.tensors
        self.out[0], known["velocity"] = descended(
            model, known["velocity"], self._worker, header.step
        )
        return SimpleNamespace(began_s=began, ended_s=place.now_s(), loss=1.0)

    def export_memory(self) -> Memory:
        return self._memory

    def restore_memory(self, memory: Memory, stage: int, before: int) -> None:
        self._memory = memory


class AllReduce:
    """Sums of all workers: each ends when all have come to it, and fails when one is dead.

    Args:
        places: of the workers.
    """

    def __init__(self, places: list[Place]) -> None:
        self.places, self._come = places, Counter[int]()
        self.parts = dict[int, dict[int, Tensor]]()

    def __call__(self, summed: Tensor, group: int, async_op: bool) -> Adding:
        self._come[group] += 1
        parts = self.parts.setdefault(self._come[group], {})
        parts[group] = summed.clone()
        return Adding(self, parts, summed)


class Adding:
    """One worker's part of such a sum."""

    def __init__(self, among: AllReduce, parts: dict[int, Tensor], summed: Tensor) -> None:
        self._among, self._parts, self._summed = among, parts, summed
        self._failed = False

    def wait(self, timeout: timedelta) -> None:
        place = _here()
        end = place.now_s() + timeout.total_seconds()
        while len(self._parts) < len(self._among.places):
            self._failed = not all(each.alive for each in self._among.places)
            if self._failed or place.now_s() >= end:
                raise RuntimeError("somebody is gone" if self._failed else "not yet")
            place.sleep(LOOKED_EVERY_S)
        self._summed.copy_(sum(self._parts[worker] for worker in sorted(self._parts)))

    def is_completed(self) -> bool:
        return self._failed


class InRounds(Schedule):
    """A run in rounds with its deaths, to its end; nobody comes back but all."""

    def __init__(self, seed: int, disturb: Callable[[Schedule], None] | None = None) -> None:
        super().__init__(seed, disturb=disturb)
        self.config = SimpleNamespace(
            zeros=lambda data: torch.zeros(SIZE), rates=lambda minibatches: STEADY,
            algorithm=ModelAveraging(), workers=self.workers, device="cpu",
            handing=Averaging(EVERY).handing(self.workers),
            seconds=lambda: self._seconds(),
        )  # fmt: skip

    def _comings(self, draw: object) -> None:
        """A round needs everybody: the run is begun again instead."""

    def _program(self, rank: int, place: Place, *, late: bool = False) -> Callable[[], None]:
        def serve() -> None:
            start_heartbeats()
            try:
                self._serve()
            except NoWorkersLeft as error:
                self.outcome.told.append(repr(error))

        def take_part() -> None:
            start_heartbeats()
            with suppress(ServerGone, UserError):
                work_in_rounds(self.config, None, rank, Pacing())  # type: ignore[arg-type]

        return serve if rank == 0 else take_part

    def _serve(self) -> None:
        minibatches: Any = SimpleNamespace(stage=0, before=0)
        server = Rounds(self.config, torch.zeros(SIZE), minibatches, say=self.outcome.told.append)
        if self.kept.state is not None:
            server.reinstate(*self.kept.state)
        segments = list(self.kept.segments)
        while (left := FOLDS - server.server.version) > 0:
            count = min(left, A_SEGMENT)
            segments.append(server.advance(count, drain=False, handing_out=None, rate=RATE))
            self.kept = Kept(server.capture(), 0, list(segments))
            self.places[0].sleep(0.5)  # an evaluation
            self._check_mailbox(server._mailbox)
        server.close()
        self.finished = server.server

    @contextmanager
    def _reached(self) -> Iterator[None]:
        """Workers compute and average with stand-ins."""
        adds = AllReduce(self.places[1:])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(rounds, "Contributor", Descends)
            patch.setattr(rounds, "workers_group", lambda rank, workers, backend: rank - 1)
            patch.setattr(rounds, "dist", SimpleNamespace(all_reduce=adds, Work=None))
            patch.setattr(pace, "QUESTIONS", 2)
            yield

    def _check_steps(self) -> None:
        """Every worker's part of every round is folded once, and nothing is lost between."""
        rows = [segment.folded() for segment in self.kept.segments]
        done = [
            (int(fold), int(worker), int(step))
            for each in rows
            for fold, worker, step in zip(each.fold, each.worker, each.first_step, strict=True)
        ]
        expected = [(k, worker, k * EVERY) for k in range(FOLDS) for worker in range(self.workers)]
        assert sorted(done) == expected, f"folded: {sorted(done)}"

    def _check_replay(self) -> None:
        """The record gives the same bits."""
        assert self.finished is not None
        server = self.config.algorithm.start(torch.zeros(SIZE))
        known = [torch.zeros(SIZE) for _ in range(self.workers)]
        for fold in range(FOLDS):
            parts = list[Tensor]()
            for worker, velocity in enumerate(known):
                part, known[worker] = descended(server.model, velocity, worker, fold * EVERY)
                parts.append(part)
            mean = sum(parts, torch.zeros(SIZE)).unsqueeze(0)
            mean /= self.workers
            self.config.algorithm.fold(server, Fold(mean, [0], RATE))
        assert torch.equal(server.model, self.finished.model), "the replay is another model"


def _here() -> Place:
    current: Any = greenlet.getcurrent()
    return current.place

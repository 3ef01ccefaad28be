"""Runs on real workers' own code under a seeded adversary, and what must hold of each.

``python -m tests.harness.processes.schedules 10000`` tries so many schedules, of each
kind as many, and prints the seeds that fail; ``… 10000 --from 5000`` begins elsewhere. Only what is
computed is a stand-in, and the sockets.
"""

from __future__ import annotations

import argparse
import gc
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from harness.algorithms.async_sgd import AsyncSgd
from harness.algorithms.averaging import ModelAveraging
from harness.algorithms.contract import Algorithm, Fold, LocalWork, Memory, Server
from harness.algorithms.saved import pack, unpack
from harness.algorithms.schedules import STEADY
from harness.base.errors import UserError
from harness.processes import worker as worker_module
from harness.processes.rounds import Rounds
from harness.processes.server import NoWorkersLeft, ServerExecutor
from harness.processes.transport import LAYOUT, Header, Kind, ServerGone
from harness.processes.worker import Pacing, clock_offset_s, work
from harness.replay.fold_replay import StaleReplay
from harness.simulator.protocols.averaging import Averaging
from harness.simulator.timeline import Timeline
from tests.harness.processes.town import Frames, Place, Town, TownHub, TownLink, Wire

SIZE, FOLDS, A_SEGMENT, RATE, EVERY = 6, 9, 3, 0.5, 2
ENDS_WITHIN_S = 6000.0
"""Virtual seconds after which whoever still waits, waits for ever."""
ATTEMPTS = 4
"""A run that ends early is gone on with; the last attempts are left alone."""


@dataclass(frozen=True)
class StandIn(AsyncSgd):
    """A gradient that says of which model and minibatch it is, in place of a network's."""

    def contribute(self, work: LocalWork) -> Tensor:
        minibatch: Any = work.minibatches[0]
        torch.mul(work.replicas, 0.25, out=work.out)
        work.out.add_(minibatch)
        return torch.zeros(len(work.out))


def minibatch_of(keys: Sequence[tuple[int, int]]) -> Tensor:
    """A minibatch as a number: of its step and its worker."""
    return torch.tensor([[1.0 / (3 + step) + worker] for worker, step in keys])


def descended(model: Tensor, velocity: Tensor, worker: int, step: int) -> tuple[Tensor, Tensor]:
    """A model and a velocity after a worker's steps of a round, the first of this number."""
    for each in range(step, step + EVERY):
        velocity = 0.5 * velocity + 0.25 * model + minibatch_of([(worker, each)])[0]
        model = model - RATE * velocity
    return model, velocity


class Contributor:
    """What a worker of a schedule computes with; in rounds it remembers a velocity."""

    def __init__(
        self, worker: int, place: Place, seconds: Callable[[], float], rounds: bool
    ) -> None:
        self.received, self.out = torch.zeros(SIZE), torch.zeros(1, SIZE)
        self.memory = Memory({"velocity": torch.zeros(SIZE)} if rounds else {})
        self._worker, self._place, self._seconds = worker, place, seconds

    def contribute(self, header: Header) -> Header:
        began = self._place.now_s()
        self._place.sleep(self._seconds())
        if velocity := self.memory.tensors:
            self.out[0], velocity["velocity"] = descended(
                self.received, velocity["velocity"], self._worker, header.step
            )
        else:
            self._descend(header)
        done = header._replace(kind=Kind.DONE, loss=1.0)
        return done._replace(began_s=began, ended_s=self._place.now_s())

    def _descend(self, header: Header) -> None:
        minibatches: Any = [minibatch_of([(self._worker, header.step)])]
        network: Any = None
        read = self.received.clone().unsqueeze(0)
        work = LocalWork(network, read, minibatches, self.out, header.rate, Memory())
        StandIn().contribute(work)

    def restore(self, memory: Memory, stage: int, before: int) -> None:
        self.memory = memory


MISCHIEF = (
    "drop", "twice", "another", "short", "cut", "delay", "kill sender", "kill receiver",
    "stop sender", "stop receiver",
)  # fmt: skip
"""What the adversary does to a message, or to those at its ends."""


class Adversary:
    """Meddles with a few messages of many.

    Args:
        draw: decides.
        acts: how often at most.
    """

    def __init__(self, draw: Random, acts: int) -> None:
        self._draw, self._count = draw, 0
        self._plan = {
            int(2.0 ** draw.uniform(0.0, 8.0)): draw.choice(MISCHIEF) for _ in range(acts)
        }
        self.done = list[str]()

    def __call__(self, wire: Wire, source: Place, frames: Frames) -> list[Frames]:
        self._count += 1
        what = self._plan.get(self._count)
        if what is None:
            return [frames]
        kind = Kind(LAYOUT.unpack(frames[0])[0]).name
        self.done.append(f"{what}: message {self._count}, {kind} of {source.name}")
        return self._do(what, wire, source, frames)

    def _do(self, what: str, wire: Wire, source: Place, frames: Frames) -> list[Frames]:
        target = wire.worker if source is wire.server else wire.server
        if what == "drop":  # of a peer that says nothing, but gives signs of life
            return [] if source is wire.worker else [frames]
        if what == "twice":
            return [frames, frames]
        if what == "another":
            kind, step, *rest = LAYOUT.unpack(frames[0])
            return [(LAYOUT.pack(kind, step + 1, *rest), frames[1])]
        if what == "short":
            place = self._draw.randrange(2)
            part = frames[place][: self._draw.randrange(len(frames[place]) or 1)]
            return [(part, frames[1]) if place == 0 else (frames[0], part)]
        if what == "cut":
            wire.end_at(source.now_s())
            return []
        if what == "delay":
            wire.stall(target, self._draw.choice([0.1, 3.0, 15.0, 60.0]))
        else:
            self._strike(source if what.endswith("sender") else target, what)
        return [frames]

    def _strike(self, place: Place, what: str) -> None:
        if what.startswith("kill"):
            place.end()
        else:
            place.stop(self._draw.choice([1.0, 15.0, 40.0, math.inf]))
        place.end_if_killed()


@dataclass
class Kept:
    """A checkpoint, the timeline up to it, and how many contributions were asked for by then."""

    state: tuple[Any, Any] | None = None
    handed: int = 0
    segments: list[Timeline] = field(default_factory=list[Timeline])


@dataclass
class Outcome:
    """How a schedule went.

    Attributes:
        did: what the adversary did.
        told: what servers told.
        attempts: how often the run was begun.
    """

    did: list[str] = field(default_factory=list[str])
    told: list[str] = field(default_factory=list[str])
    attempts: int = 0


class Schedule:
    """A run with its deaths, to its end.

    Args:
        seed: of everything that happens.
        disturb: in place of the adversary, once it has begun.
    """

    kind: type[ServerExecutor | Rounds] = ServerExecutor
    algorithm: Algorithm = StandIn()

    def __init__(self, seed: int, disturb: Callable[[Schedule], None] | None = None) -> None:
        self._draw, self._disturb = Random(seed), disturb
        self.workers = self._draw.randint(1, 3)
        self.kept, self.outcome, self.handed = Kept(), Outcome(), 0
        self.finished: Server | None = None
        self.rounds = self.kind is Rounds
        handing = Averaging(EVERY).handing(self.workers) if self.rounds else None
        self.config: Any = SimpleNamespace(
            algorithm=self.algorithm, workers=self.workers,
            handing=handing or SimpleNamespace(a_fold=1), rates=lambda minibatches: STEADY,
        )  # fmt: skip

    def play(self) -> Outcome:
        """Run to the end, and check all that must hold.

        Raises:
            AssertionError: it does not.
        """
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(worker_module, "QUESTIONS", 2)
            while self.finished is None:
                self.outcome.attempts += 1
                assert self.outcome.attempts <= ATTEMPTS, "it never ends"
                acts = self._draw.randint(0, 4) if self.outcome.attempts < ATTEMPTS - 1 else 0
                self._attempt(0 if self._disturb else acts)
        self.check_steps()
        self.check_replay()
        return self.outcome

    # -- one attempt ----------------------------------------------------------------------

    def _attempt(self, acts: int) -> None:
        draw = Random(self._draw.random())
        adversary = Adversary(draw, acts)
        town = self.town = Town(adversary, lambda: draw.uniform(0.001, 0.05))
        self._seconds = lambda: draw.uniform(0.3, 2.0)
        self.places = [Place(town, f"rank {rank}") for rank in range(1 + self.workers)]
        self.all = list(self.places)
        self.hub = TownHub(self.places[0], 1 + self.workers)
        self.places[0].begin(self._serve)
        for rank, place in enumerate(self.places[1:], 1):
            place.begin(self._program(rank - 1, place))
        if self._disturb:
            self._disturb(self)
        elif not self.rounds:
            self._restart_workers(draw)
        town.run(ENDS_WITHIN_S, lambda: not self._waiting())
        self.outcome.did += adversary.done
        assert not self._waiting(), f"{', '.join(self._waiting())} for ever"

    def _waiting(self) -> list[str]:
        """Who goes on."""
        return [each.name for each in self.all if each.alive and each.asleep_until < math.inf]

    def _program(self, worker: int, place: Place) -> Callable[[], None]:
        def take_part() -> None:
            try:
                server = TownLink(place, self.hub, worker)
                server.send(Header(Kind.HELLO, 1 + self.workers))
                if server.receive()[0].kind is not Kind.RUN:
                    return
                if clock_offset_s(server, place.now_s) is not None:
                    server.send(Header(Kind.READY))
                    computes: Any = Contributor(worker, place, self._seconds, self.rounds)
                    work(computes, server)
            except (ServerGone, UserError):
                pass

        return take_part

    def _serve(self) -> None:
        try:
            self._train()
        except NoWorkersLeft as error:
            self.outcome.told.append(repr(error))

    def _train(self) -> None:
        hub, told = self.hub, self.outcome.told
        for worker in hub.meet():
            told.append(f"worker {worker} has not connected")
        hub.late = not self.rounds
        hub.announce("a run")
        minibatches: Any = SimpleNamespace(stage=0, before=0)
        server = self.kind(self.config, torch.zeros(SIZE), minibatches, hub, Pacing(), told.append)
        if self.kept.state is not None:
            server.restore(unpack(*self.kept.state, "cpu"))
        segments, self.handed = list(self.kept.segments), self.kept.handed
        self._count_handed(server)
        while (left := FOLDS - server.server.version) > 0:
            count = min(left, A_SEGMENT)
            goes_on = None if left <= A_SEGMENT else A_SEGMENT + self.workers
            segments.append(server.advance(count, handing_out=goes_on, rate=RATE))
            self.kept = Kept(pack(server), self.handed, list(segments))
            self.places[0].sleep(0.5)  # an evaluation
        server.close()
        self.finished = server.server

    def _count_handed(self, server: Any) -> None:
        """Count what a server hands out from now on."""
        hand_out = server._hand_out

        def counted(*told: Any) -> None:
            self.handed += 1
            hand_out(*told)

        server._hand_out = counted

    # -- who comes back -------------------------------------------------------------------

    def _restart_workers(self, draw: Random) -> None:
        """Start workers again that have ended too early, now and then."""
        left = draw.randint(0, 3)

        def look() -> None:
            nonlocal left
            for rank in range(1, 1 + self.workers):
                if left and self.places[0].alive and not self.places[rank].alive:
                    left -= 1
                    self.places[rank] = place = Place(self.town, f"rank {rank} again")
                    self.all.append(place)
                    place.begin(self._program(rank - 1, place))
            if self.places[0].alive and self.places[0].asleep_until < math.inf:
                self.town.at(self.town.now + draw.uniform(0.5, 10.0), look)

        self.town.at(draw.uniform(0.5, 10.0), look)

    # -- what must hold -------------------------------------------------------------------

    def check_steps(self) -> None:
        """Every minibatch is folded once; what was lost is on record, and was handed out again."""
        done = [step for segment in self.kept.segments for step in segment.folded().first_step]
        assert sorted(done) == list(range(FOLDS)), f"folded: {sorted(done)}"
        lost = sum(len(segment.lost()) for segment in self.kept.segments)
        handed = self.kept.handed
        assert handed == FOLDS + lost, f"{handed} handed out, {FOLDS} folded, {lost} lost"

    def check_replay(self) -> None:
        """The record gives the same bits."""
        assert self.finished is not None
        server = Server(torch.zeros(SIZE))
        parts: Any = self.algorithm, None, server, minibatch_of
        replay = StaleReplay(*parts, self.workers, alone=True)
        for segment in self.kept.segments:
            replay.run(segment, RATE)
        assert torch.equal(server.model, self.finished.model), "the replay is another model"


class InRounds(Schedule):
    """A run in rounds with its deaths, to its end; nobody comes back but all."""

    kind, algorithm = Rounds, ModelAveraging()

    def check_steps(self) -> None:
        """Every worker's part of every round is folded once, and nothing is lost between."""
        rows = [segment.folded() for segment in self.kept.segments]
        done = [
            (int(fold), int(worker), int(step))
            for each in rows
            for fold, worker, step in zip(each.fold, each.worker, each.first_step, strict=True)
        ]
        expected = [(k, worker, k * EVERY) for k in range(FOLDS) for worker in range(self.workers)]
        assert sorted(done) == expected, f"folded: {sorted(done)}"

    def check_replay(self) -> None:
        """The record gives the same bits."""
        assert self.finished is not None
        server = self.algorithm.start(torch.zeros(SIZE))
        known = [torch.zeros(SIZE) for _ in range(self.workers)]
        workers = range(self.workers)
        for fold in range(FOLDS):
            parts = list[Tensor]()
            for worker in workers:
                part, known[worker] = descended(server.model, known[worker], worker, fold * EVERY)
                parts.append(part)
            weights = [float(EVERY)] * len(parts)
            rows = torch.stack(parts)
            self.algorithm.fold(server, Fold(rows, [0] * len(parts), RATE, workers, weights))
        assert torch.equal(server.model, self.finished.model), "the replay is another model"


KINDS: dict[str, type[Schedule]] = {"a server": Schedule, "rounds": InRounds}


def play(kind: str, seed: int) -> Outcome:
    """The schedule of a seed, to its end."""
    return KINDS[kind](seed).play()


def main(arguments: Sequence[str] | None = None) -> int:
    """Try many schedules; returns how many failed."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("schedules", type=int)
    asked.add_argument("--from", type=int, default=0, dest="first")
    options = asked.parse_args(arguments)
    each = -(-options.schedules // len(KINDS))
    gc.freeze()  # torch and numba, which would be looked through again and again
    failed = 0
    for kind in KINDS:
        failed += _try(kind, range(options.first, options.first + each))
    return failed


def _try(kind: str, seeds: range) -> int:
    """Try the schedules of a kind, and tell how they went; returns how many failed."""
    began, failed, did = time.process_time(), list[int](), Counter[str]()
    for seed in seeds:
        if (tried := seed - seeds[0]) % 500 == 0 and tried:
            print(f"{kind}: {tried}, {len(failed)} failed", file=sys.stderr, flush=True)
        try:
            did.update(each.split(":")[0] for each in play(kind, seed).did)
        except Exception as error:
            failed.append(seed)
            print(f"{kind}, seed {seed}: {error!r}", flush=True)
    ms = 1000 * (time.process_time() - began) / len(seeds)
    acts = ", ".join(f"{what} {times}" for what, times in sorted(did.items()))
    print(f"{kind}: {len(seeds)} schedules, {ms:.2f} ms of processor time each; {did.total()} acts")
    print(f"    {acts}; failed: {failed or 'none'}", flush=True)
    return len(failed)


if __name__ == "__main__":
    sys.exit(min(1, main()))

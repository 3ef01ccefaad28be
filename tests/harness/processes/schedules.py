"""Runs on real workers' own code under a seeded adversary, and what must hold of each.

``python -m tests.harness.processes.schedules 10000`` tries so many schedules, of each
kind as many, and prints the seeds that fail; ``… 10000 --from 5000`` begins elsewhere. Only what is
computed is a stand-in, and the all-reduce of rounds.
"""

from __future__ import annotations

import argparse
import gc
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from random import Random
from types import SimpleNamespace
from typing import Any

import greenlet
import torch
from torch import Tensor

from harness.algorithms.async_sgd import AsyncSgd
from harness.algorithms.contract import LocalWork, Memory, Server
from harness.algorithms.share_schedules import STEADY
from harness.base.errors import UserError
from harness.processes import rendezvous
from harness.processes import worker as pace
from harness.processes.messages import UNREAD, FrameHeader, Mailbox, ServerGone
from harness.processes.rendezvous import Admission, come_back
from harness.processes.server import NoWorkersLeft, ServerExecutor
from harness.processes.transport import PeerConnection, PeerInfo, start_heartbeats, use_runtime
from harness.processes.worker import Pacing, work
from harness.replay.fold_replay import StaleReplay
from harness.simulator import Timeline
from tests.harness.processes.town import Here, Pipe, Place, Town, connect, in_process

SIZE, FOLDS, A_SEGMENT, RATE = 6, 9, 3, 0.5
ENDS_WITHIN_S = 600.0
"""Virtual seconds after which whoever still waits, waits for ever."""
ON_THE_WAY = 16_384
"""Bytes that wait in one connection at most."""
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


class Contributor:
    """What a worker of a schedule computes with."""

    def __init__(self, worker: int, place: Place, seconds: Callable[[], float]) -> None:
        self.received, self.out = torch.zeros(SIZE), torch.zeros(1, SIZE)
        self._worker, self._place, self._seconds = worker, place, seconds

    def contribute(self, header: FrameHeader, model: Tensor) -> FrameHeader:
        began = self._place.now_s()
        self._place.sleep(self._seconds())
        minibatch = minibatch_of([(self._worker, header.step)])
        read = model.clone().unsqueeze(0)
        network: Any = None
        minibatches: Any = [minibatch]
        work = LocalWork(network, read, minibatches, self.out, header.rate, Memory())
        StandIn().contribute(work)
        return replace(header, began_s=began, ended_s=self._place.now_s(), loss=1.0)


MISCHIEF = (
    "drop", "twice", "swap", "short", "cut", "delay", "kill sender", "kill receiver",
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
            int(2.0 ** draw.uniform(0.0, 9.0)): draw.choice(MISCHIEF) for _ in range(acts)
        }
        self.done = list[str]()

    def __call__(self, pipe: Pipe, message: bytes) -> list[bytes]:
        self._count += 1
        held, pipe.held = pipe.held, []
        what = self._plan.get(self._count)
        if what is None:
            return [message, *held]
        self.done.append(f"{what}: message {self._count}, {pipe.source.name} to {pipe.target.name}")
        return self._do(what, pipe, message) + held

    def _do(self, what: str, pipe: Pipe, message: bytes) -> list[bytes]:
        if what == "drop":
            return []
        if what == "twice":
            return [message, message]
        if what == "swap":
            pipe.held = [message]
            return []
        if what in ("short", "cut"):
            if what == "cut":
                pipe.close()
            return [message[: self._draw.randrange(len(message))]]
        if what == "delay":
            pipe.stall(self._draw.choice([0.1, 3.0, 15.0, 60.0]))
        else:
            self._strike(pipe.source if what.endswith("sender") else pipe.target, what)
        return [message]

    def _strike(self, place: Place, what: str) -> None:
        if what.startswith("kill"):
            place.end()
        else:
            place.town.changed = True
            until = place.now_s() + self._draw.choice([1.0, 15.0, 40.0, math.inf])
            place.asleep_until = max(place.asleep_until, until)
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
        shards: of the server.
        disturb: in place of the adversary, once it has begun.
    """

    def __init__(
        self, seed: int, shards: int = 1, disturb: Callable[[Schedule], None] | None = None
    ) -> None:
        self._draw, self.shards, self._disturb = Random(seed * 2 + shards), shards, disturb
        self.workers = self._draw.randint(1, 3)
        self.kept, self.outcome = Kept(), Outcome()
        self.finished: Server | None = None
        self.config: Any = SimpleNamespace(
            algorithm=StandIn(), workers=self.workers, shards=shards, device="cpu",
            handing=SimpleNamespace(a_fold=1), zeros=lambda data: torch.zeros(SIZE),
            rates=lambda minibatches: STEADY,
        )  # fmt: skip

    def play(self) -> Outcome:
        """Run to the end, and check all that must hold.

        Raises:
            AssertionError: it does not.
        """
        while self.finished is None:
            self.outcome.attempts += 1
            assert self.outcome.attempts <= ATTEMPTS, "it never ends"
            acts = self._draw.randint(0, 4) if self.outcome.attempts < ATTEMPTS - 1 else 0
            acts = 0 if self._disturb else acts
            self._attempt(acts)
        self._check_steps()
        self._check_replay()
        return self.outcome

    def _ranks(self) -> int:
        return self.shards + self.workers

    def _pairs(self, ranks: int) -> Iterator[tuple[int, int]]:
        """Who has a line to whom, the lower rank first."""
        return ((low, high) for low in range(self.shards) for high in range(low + 1, ranks))

    # -- one attempt ----------------------------------------------------------------------

    def _attempt(self, acts: int) -> None:
        draw = Random(self._draw.random())
        adversary = Adversary(draw, acts)
        town = self.town = Town(adversary, lambda: draw.uniform(0.001, 0.05))
        self._seconds = lambda: draw.uniform(0.3, 2.0)
        ranks = self._ranks()
        self.places = [Place(town, f"rank {rank}") for rank in range(ranks)]
        for low, high in self._pairs(ranks):
            ours, theirs = connect(self.places[low], self.places[high])
            self.places[low].lines[high], self.places[high].lines[low] = ours, theirs
        self.all = list(self.places)
        for rank, place in enumerate(self.places):
            in_process(place, self._program(rank, place))
        if self._disturb:
            self._disturb(self)
        else:
            self._comings(draw)
        with use_runtime(Here()), self._reached():
            town.run(ENDS_WITHIN_S, self._over)
        self.outcome.did += adversary.done
        waiting = [place.name for place in self.all if not self._is_over(place)]
        assert not waiting, f"{', '.join(waiting)} for ever"
        assert town.most_on_the_way <= ON_THE_WAY, f"{town.most_on_the_way} bytes on the way"

    def _over(self) -> bool:
        return all(self._is_over(place) for place in self.all)

    def _is_over(self, place: Place) -> bool:
        return not place.alive or place.asleep_until == math.inf

    def _program(self, rank: int, place: Place, *, late: bool = False) -> Callable[[], None]:
        worker = rank - self.shards

        def serve() -> None:
            start_heartbeats()
            try:
                self._serve()
            except NoWorkersLeft as error:
                self.outcome.told.append(repr(error))

        def take_part() -> None:
            try:
                if late:
                    come_back(rank, self.shards)
                else:
                    start_heartbeats()
                work(Contributor(worker, place, self._seconds))
            except (ServerGone, UserError):
                pass

        return serve if rank == 0 else take_part

    def _serve(self) -> None:
        minibatches: Any = SimpleNamespace(stage=0, before=0)
        admission = Admission(self.shards)
        parts = self.config, torch.zeros(SIZE), minibatches, Pacing(), self.outcome.told.append
        server = ServerExecutor(*parts, admission)
        if self.kept.state is not None:
            server.reinstate(*self.kept.state)
        segments, handed = list(self.kept.segments), self._count_from(server, self.kept.handed)
        while (left := FOLDS - server.server.version) > 0:
            goes_on = None if left <= A_SEGMENT else A_SEGMENT + self.workers
            segments.append(
                server.advance(A_SEGMENT, drain=goes_on is None, handing_out=goes_on, rate=RATE)
            )
            self.kept = Kept(server.capture(), handed(), list(segments))
            self.places[0].sleep(0.5)  # an evaluation
            self._check_mailbox(server.members.mailbox)
        server.close()
        self.finished = server.server

    def _count_from(self, server: Any, handed: int) -> Callable[[], int]:
        """Count what a server hands out from now on."""
        hand_out, numbers = server.members.hand_out, [handed]

        def counted(version: int) -> Any:
            numbers.append(1)
            return hand_out(version)

        server.members.hand_out = counted
        return lambda: sum(numbers)

    # -- who comes back -------------------------------------------------------------------

    def _comings(self, draw: Random) -> None:
        """Start workers again that have ended too early, now and then."""
        left = draw.randint(0, 3)

        def look() -> None:
            nonlocal left
            for rank in range(self.shards, self.shards + self.workers):
                if left and self.places[0].alive and not self.places[rank].alive:
                    left -= 1
                    self.places[rank] = place = Place(self.town, f"rank {rank} again")
                    self.all.append(place)
                    in_process(place, self._program(rank, place, late=True))
            if self.places[0].alive and self.places[0].asleep_until < math.inf:
                self.town.at(self.town.now + draw.uniform(0.5, 10.0), look)

        self.town.at(draw.uniform(0.5, 10.0), look)

    @contextmanager
    def _reached(self) -> Iterator[None]:
        """Who comes back finds the shards in this town."""

        def reach(store: None, who: PeerInfo) -> PeerConnection:
            here: Any = greenlet.getcurrent()
            wanted = self.places[who.wants]
            if not wanted.alive:
                raise ConnectionError
            ours, theirs = connect(here.place, wanted)
            wanted.late.append((who.rank, theirs))
            wanted.late_arrivals().notify_all()
            return ours

        before = rendezvous.reach, rendezvous.connect_to_store, pace.QUESTIONS
        rendezvous.reach, rendezvous.connect_to_store, pace.QUESTIONS = reach, lambda: None, 2  # type: ignore[assignment]
        try:
            yield
        finally:
            rendezvous.reach, rendezvous.connect_to_store, pace.QUESTIONS = before

    # -- what must hold -------------------------------------------------------------------

    def _check_mailbox(self, mailbox: Mailbox[FrameHeader]) -> None:
        assert max(mailbox._unread.values(), default=0) <= UNREAD + 1

    def _check_steps(self) -> None:
        """Every minibatch is folded once; what was lost is on record, and was handed out again."""
        done = [step for segment in self.kept.segments for step in segment.folded().first_step]
        assert sorted(done) == list(range(FOLDS)), f"folded: {sorted(done)}"
        lost = sum(len(segment.lost()) for segment in self.kept.segments)
        handed = self.kept.handed
        assert handed == FOLDS + lost, f"{handed} handed out, {FOLDS} folded, {lost} lost"

    def _check_replay(self) -> None:
        """The record gives the same bits."""
        assert self.finished is not None
        server, algorithm = Server(torch.zeros(SIZE)), StandIn()
        parts: Any = algorithm, None, server, minibatch_of
        replay = StaleReplay(*parts, self.workers, alone=True)
        for segment in self.kept.segments:
            replay.run(segment, RATE)
        assert torch.equal(server.model, self.finished.model), "the replay is another model"


def kinds() -> dict[str, Callable[[int], Schedule]]:
    """What schedules there are, by whom the workers work with."""
    from tests.harness.processes.rounds_scheduled import InRounds

    return {
        "a server": Schedule,
        "rounds": InRounds,
    }


def play(kind: str, seed: int) -> Outcome:
    """The schedule of a seed, to its end."""
    return kinds()[kind](seed).play()


def main(arguments: Sequence[str] | None = None) -> int:
    """Try many schedules; returns how many failed."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("schedules", type=int)
    asked.add_argument("--from", type=int, default=0, dest="first")
    options = asked.parse_args(arguments)
    names, each = list(kinds()), -(-options.schedules // len(kinds()))
    gc.freeze()  # torch and numba, which would be looked through again and again
    failed = 0
    for kind in names:
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

"""The asynchronous server in shards on real processes, and one shard of it.

The asynchronous server in shards on real processes. Ranks from 0 are the shards, the others
workers. The first shard is also the executor: it hands out minibatches and decides when a
contribution is complete. Models and pieces go between workers and shards directly. A worker asks
all shards at once for their slices, computes, and sends each its piece, one after the other,
beginning with shard (worker mod shards), as the simulator has it. Every shard folds in the order
of arrival, and reads find what they find.

When `advance` returns, nothing is in flight. So the slices that it has gathered are of one
instant, and a checkpoint of the first shard is one of all.

A worker that dies is dropped by every shard. A contribution of which no shard has folded a piece
is lost, and its minibatch handed out again. One of which some shards have is kept: the record says
which of them folded their piece.

One shard of the server: it answers reads, and folds pieces one after the other as they come. It
knows nothing of the other shards. What it folds, and which workers it has lost, it tells the first
of them, who says when a contribution is complete.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor

from harness.algorithms.contract import Algorithm, Fold, Server
from harness.processes.group import Admission
from harness.processes.messages import (
    NOTHING,
    SERVER_RANK,
    Address,
    Arrival,
    FrameHeader,
    Kind,
    Mailbox,
    ServerGone,
    bodies,
    line_to,
    send,
    send_numbers,
    send_state,
    take_state,
    talking,
)
from harness.processes.recorder import Piece
from harness.processes.server import Asynchronous, Membership
from harness.processes.transport import MalformedMessage, PeerGone, now_s
from harness.processes.worker import Pacing
from harness.replay.sharded import ShardedServer, edges
from harness.replay.stale import Arrays, Facts
from harness.runs.config import TrainingConfig
from harness.simulator import LOST, Timeline
from harness.tasks.order import Minibatches

OF_A_STATE = (Kind.STATE, Kind.NUMBERS, Kind.HELD)
"""What another shard says of its state."""


class ShardGone(Exception):  # noqa: N818 (what happened)
    """The connection of a server shard closed; its argument is which."""


@dataclass
class _Progress:
    """What is known of a contribution that was handed out.

    Args:
        pieces: what each shard has folded.
        moments_s: when the fetch, the computation and the push ended, once the worker has said.
        loss: as it says.
    """

    pieces: dict[int, Piece] = field(default_factory=dict[int, Piece])
    moments_s: tuple[float, ...] = ()
    loss: float = 0.0


class ShardedServerExecutor(Asynchronous):
    """An executor on the workers and shards of a process group, as its first shard.

    Args:
        config: what is run; its shards have the first ranks, its workers those after.
        model: initial parameters ``[P]``.
        minibatches: the data.
        pace: slows the folds.
        say: told what happens to workers.
        admission: lets workers in that died and come back; None for none.

    Raises:
        ShardGone: a shard died before it began.
    """

    def __init__(
        self,
        config: TrainingConfig[Any],
        model: Tensor,
        minibatches: Minibatches,
        pace: Pacing,
        say: Callable[[str], None],
        admission: Admission | None = None,
    ) -> None:
        self._say, self._shards, self._workers = say, config.shards, config.workers
        self._sharded = ShardedServer(config.algorithm.start(model), config.shards)
        own, *others = self._sharded.parts
        ranks = range(config.shards, config.shards + config.workers)
        members = Membership(ranks, own, say, config.handing.a_fold)
        super().__init__(self._sharded.whole, members, minibatches)
        for shard, part in enumerate(others, 1):
            peer = self._workers + shard
            with _raise_if_shard_gone(shard):
                # It may have lost a worker already, and says so only once.
                self.clock.ask(peer, shard, partial(members.mailbox.put, peer))
            self.members.mailbox.listen(peer, shard, bodies(part))
        self._shard = Shard(config.algorithm, own, self._on_first_shard_report, pace, config.shards)
        self._progress: dict[int, _Progress] = {}
        self._given_up: dict[int, dict[int, FrameHeader]] = {}
        self._scattered = False
        if admission is not None:
            admission.open(self.members.enter, self.members.is_gone)

    def advance(self, folds: int, *, drain: bool, handing_out: int | None, rate: float) -> Timeline:
        """See `Executor`; afterwards nothing is ever in flight.

        Raises:
            NoWorkersLeft: nobody is there to contribute.
            ShardGone: a part of the model is not there any more.
        """
        del drain, handing_out
        self.recorder.go_on(self.now_s)
        self._scatter()
        self._fold_all(folds, folds, rate)
        self.recorder.leave(self.now_s)
        self._gather()
        return self.recorder.segment(())

    def close(self) -> None:
        """Send workers and shards home."""
        self.members.stop_idle_workers()
        for shard in range(1, self._shards):
            with suppress(RuntimeError):  # it is gone, and needed no more
                send(FrameHeader(Kind.STOP), shard)

    # -- the state of all shards -------------------------------------------------------

    def _scatter(self) -> None:
        """Give every shard its slice at first, and later what training has changed.

        A worker's read may overtake them on its own connection: so all wait until they are there.
        """
        changed = self._sharded.begin()
        if self._scattered and not changed:
            return
        for shard, part in enumerate(self._sharded.parts[1:], 1):
            with _raise_if_shard_gone(shard):
                (send_numbers if self._scattered else send_state)(part, shard)
        self._scattered = True
        self._wait_for_all(Kind.HELD)

    def _gather(self) -> None:
        """Take in every shard's slice."""
        for shard in range(1, self._shards):
            self._order(shard, FrameHeader(Kind.GATHER))
        self._wait_for_all(Kind.NUMBERS)  # the last of a state
        self._sharded.end(self.server.version)

    def _wait_for_all(self, last: Kind) -> None:
        """Take in what comes, until every other shard has said the last of what is waited for."""
        missing = set(range(1, self._shards))
        while missing:
            arrival = self.members.mailbox.get()
            shard, header = arrival.sender - self._workers, arrival.header
            if shard not in missing or header is None or header.kind not in OF_A_STATE:
                self._take_in(arrival)
                continue
            if header.kind is not Kind.HELD:
                with _raise_if_shard_gone(shard):
                    take_state(self._sharded.parts[shard], header, arrival.body)
            if header.kind is last:
                missing.remove(shard)

    def _order(self, shard: int, header: FrameHeader) -> None:
        with _raise_if_shard_gone(shard):
            send(header, shard)

    # -- contributions -----------------------------------------------------------------

    def _hand_out(self, rate: float) -> None:
        """Send a worker the number of a minibatch; the model it gets from the shards."""
        worker, header = self._assign_work(Kind.TASK, rate)
        self._progress[worker] = _Progress()
        self.members.tell(header, worker)

    def _go_on(self, rate: float) -> None:
        """Fold the next piece here, or take in what comes before; a piece brings its rate."""
        del rate
        arrival = self.members.mailbox.get_before(self._shard.due_s)
        if arrival is None:
            self._shard.go_on()
        else:
            self._take_in(arrival)

    def _take_in(self, arrival: Arrival[FrameHeader]) -> None:
        worker, header, body, trouble = arrival
        if worker >= self._workers:
            self._on_shard_report(worker - self._workers, header)
        elif header is not None and header.kind is Kind.PUSHED:
            self._on_pushed(worker, header)
        elif header is not None and header.kind is Kind.BACK:
            self._take_back(worker)
        else:
            if "garbage" in trouble:
                self._say(f"worker {worker} {trouble}")
            self._shard.hear(worker, header, body, self.members.addresses[worker])

    def _on_pushed(self, worker: int, header: FrameHeader) -> None:
        """A worker has sent all pieces."""
        if self._is_at(worker, header.step):
            found, ours = self._progress[worker], self.clock.peer_to_run_time
            fetched, computed = ours(worker, header.began_s), ours(worker, header.ended_s)
            found.moments_s, found.loss = (fetched, computed, self.now_s), header.loss
            self._settle(worker)

    def _is_at(self, worker: int, step: int) -> bool:
        """Whether a worker was given this minibatch, and its contribution is not complete."""
        work = self.members.out.get(worker)
        return work is not None and work.step == step

    def _on_first_shard_report(self, header: FrameHeader) -> None:
        began, ended = (
            self.clock.to_run_time(header.began_s),
            self.clock.to_run_time(header.ended_s),
        )
        self._note(0, replace(header, began_s=began, ended_s=ended))

    def _on_shard_report(self, shard: int, header: FrameHeader | None) -> None:
        """Another shard speaks."""
        if header is None:
            raise ShardGone(shard)
        peer, ours = self._workers + shard, self.clock.peer_to_run_time
        began, ended = ours(peer, header.began_s), ours(peer, header.ended_s)
        self._note(shard, replace(header, began_s=began, ended_s=ended))

    def _note(self, shard: int, header: FrameHeader) -> None:
        """A shard has folded a piece, or given up a worker."""
        worker = header.worker
        if header.kind is Kind.FOLDED:
            if not self._is_at(worker, header.step):
                raise ShardGone(shard)  # it has folded what nobody asked for
            self._progress[worker].pieces[shard] = _piece(header, header.version)
        elif header.kind is Kind.GONE:
            if worker not in self._given_up:
                self._dismiss(worker)
            self._given_up[worker][shard] = header
        self._settle(worker)

    def _dismiss(self, worker: int) -> None:
        """Let every shard give a worker up."""
        self.members.leave(worker)
        self._given_up[worker] = {}
        self._shard.drop(worker)
        for shard in range(1, self._shards):
            self._order(shard, FrameHeader(Kind.GONE, worker=worker))

    def _settle(self, worker: int) -> None:
        """See whether all that will come of a worker's contribution has come."""
        found, given_up = self._progress.get(worker), self._given_up.get(worker)
        if given_up is not None:
            if len(given_up) == self._shards:
                self._lose(worker)
        elif found and found.moments_s and len(found.pieces) == self._shards:
            self._complete(worker)
            self.members.free.append(worker)

    def _complete(self, worker: int) -> None:
        """A contribution is folded wherever it will be."""
        work, found = self.members.out.pop(worker), self._progress.pop(worker)
        pieces = [found.pieces[shard] for shard in range(self._shards)]
        self.recorder.record_fold_in_pieces(
            self.server.version, work, pieces, found.moments_s, self.now_s
        )
        self.server.version += 1
        self.loss += found.loss

    def _lose(self, worker: int) -> None:
        """Every shard has given a worker up: its contribution is lost, whole or in part."""
        found, given_up, what = self._progress.get(worker), self._given_up[worker], "is gone"
        if found and found.pieces:
            if len(found.pieces) < self._shards:
                what += f" with its contribution at {len(found.pieces)} of {self._shards} shards"
            for shard in given_up.keys() - found.pieces.keys():
                found.pieces[shard] = _piece(given_up[shard], LOST)
            self._complete(worker)
        self._progress.pop(worker, None)
        if lost := self.members.lose(worker, what):
            self.recorder.record_loss(lost)

    def _take_back(self, worker: int) -> None:
        """Give a worker that has come back work like the others."""
        if self.members.take_back(worker):
            del self._given_up[worker]
            self._shard.take_back(worker)

    def capture(self) -> tuple[Arrays, Facts]:
        """See `Executor`."""
        arrays, facts = self._sharded.capture()
        return arrays, {**facts, **self.members.capture(), "loss": self.loss}

    def reinstate(self, arrays: Arrays, facts: Facts) -> None:
        """See `Executor`."""
        self._sharded.reinstate(arrays, facts)
        self.members.reinstate(facts)
        self.loss = facts["loss"]


@contextmanager
def _raise_if_shard_gone(shard: int) -> Generator[None]:
    """A shard with which talking fails is gone."""
    try:
        yield
    except (RuntimeError, MalformedMessage) as error:
        raise ShardGone(shard) from error


def _piece(header: FrameHeader, version: int) -> Piece:
    return Piece(header.read_version, version, header.began_s, header.ended_s)


class _Waiting(NamedTuple):
    """A piece in the queue; or, without a header, that its worker is given up."""

    worker: int
    header: FrameHeader | None
    body: Tensor
    begun_s: float
    ends_s: float


class Shard:
    """Folds the pieces of its slice of the model.

    Args:
        algorithm: folds.
        server: the slice.
        tell: how the first shard hears of folds and losses; moments are on this process's clock.
        pace: slows the folds.
        shards: how many there are; a piece takes this part of a whole fold's time.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        server: Server,
        tell: Callable[[FrameHeader], None],
        pace: Pacing,
        shards: int,
    ) -> None:
        self.server = server
        self._algorithm, self._tell = algorithm, tell
        self._pace, self._shards = pace, shards
        self._waiting: deque[_Waiting] = deque()
        self._read: dict[int, tuple[int, int]] = {}
        self._reading: set[int] = set()
        self._gone: set[int] = set()
        self._queued = Counter[int]()
        self._busy_until_s = self._folded_at_s = 0.0

    @property
    def due_s(self) -> float:
        """When, by the monotonic clock, `go_on` has something to do; infinite if nothing waits."""
        return self._waiting[0].ends_s if self._waiting else math.inf

    def hear(self, worker: int, header: FrameHeader | None, body: Tensor, address: Address) -> None:
        """A message of a worker, or none any more."""
        if worker in self._gone:
            return
        if header is None or header.kind not in (Kind.FETCH, Kind.PIECE):
            self.drop(worker)
        elif header.kind is Kind.FETCH:
            self._read[worker] = header.step, self.server.version
            self._reading.add(worker)
            answer = FrameHeader(Kind.SLICE, header.step, version=self.server.version)
            with suppress(RuntimeError):  # that it is gone will be heard
                send(answer, address, self.server.model)
        elif worker not in self._reading or header.step != self._read[worker][0]:
            self.drop(worker)  # a piece of what it has not read
        else:
            self._reading.discard(worker)
            seconds = self._pace.fold_s(worker, self._queued[worker]) / self._shards
            self._queued[worker] += 1
            self._wait(worker, header, body, seconds)

    def drop(self, worker: int) -> None:
        """Hear nothing more of a worker, and say so when what it sent is folded."""
        if worker not in self._gone:
            self._gone.add(worker)
            self._reading.discard(worker)
            self._wait(worker, None, NOTHING, 0.0)

    def take_back(self, worker: int) -> None:
        """Hear again what a worker says that was given up."""
        self._gone.discard(worker)

    def _wait(self, worker: int, header: FrameHeader | None, body: Tensor, seconds: float) -> None:
        begun = max(now_s(), self._busy_until_s)
        self._busy_until_s = begun + seconds
        self._waiting.append(_Waiting(worker, header, body, begun, self._busy_until_s))

    def go_on(self) -> None:
        """Fold the first piece that waits."""
        worker, header, body, begun, _ = self._waiting.popleft()
        step, read = self._read.get(worker, (0, 0))
        if header is None:
            now = now_s()
            lost = FrameHeader(Kind.GONE, step, began_s=now, ended_s=now)
            self._tell(replace(lost, worker=worker, read_version=read))
            return
        begun, version = max(begun, self._folded_at_s), self.server.version
        piece = body.to(self.server.model.device).unsqueeze(0)
        fold = Fold(piece, [version - read], header.rate, [worker], [float(header.steps)])
        self._algorithm.fold(self.server, fold)
        self._folded_at_s = now_s()
        folded = FrameHeader(Kind.FOLDED, step, version=version, worker=worker, read_version=read)
        self._tell(replace(folded, began_s=begun, ended_s=self._folded_at_s))


def serve(
    config: TrainingConfig[Any],
    data: Any,
    rank: int,
    pace: Pacing,
    say: Callable[[str], None],
    admission: Admission | None = None,
) -> None:
    """Be a shard other than the first until told to stop.

    Args:
        config: what is run.
        data: what it is trained on.
        rank: which shard.
        pace: slows the folds.
        say: told what happens to workers.
        admission: lets workers in that died and come back; None for none.

    Raises:
        ServerGone: the first shard is gone.
    """
    serving = _Serving(config, data, rank, pace, say)
    if admission is not None:
        admission.open(serving.enter, range(config.workers).__contains__)
    serving.run()


class _Serving:
    """A shard that the first one asks for its state, and tells when to stop."""

    def __init__(
        self,
        config: TrainingConfig[Any],
        data: Any,
        rank: int,
        pace: Pacing,
        say: Callable[[str], None],
    ) -> None:
        whole = config.zeros(data).to(config.device)
        begin, end = edges(len(whole), config.shards)[rank]
        self._say, self._rank, self._first = say, rank, config.workers
        self._server = config.algorithm.start(whole[begin:end].clone())
        self._shard = Shard(config.algorithm, self._server, self._answer, pace, config.shards)
        self._mailbox = Mailbox(FrameHeader)
        self._workers: list[Address] = [config.shards + w for w in range(config.workers)]
        for sender, address in enumerate([*self._workers, SERVER_RANK]):
            self._mailbox.listen(sender, address, bodies(self._server))

    def enter(self, worker: int, address: Address) -> None:
        """A worker has come back; on the thread of the admission."""
        self._workers[worker] = address
        self._mailbox.put(worker, FrameHeader(Kind.BACK))
        self._mailbox.listen(worker, address, bodies(self._server))

    def run(self) -> None:
        """Answer until told to stop."""
        while True:
            arrival = self._mailbox.get_before(self._shard.due_s)
            if arrival is None:
                self._shard.go_on()
            elif arrival.sender != self._first:
                self._hear(arrival)
            elif not self._execute_order(arrival):
                return

    def _hear(self, arrival: Arrival[FrameHeader]) -> None:
        """A worker speaks, or does so no more."""
        worker, header, body, trouble = arrival
        if header is not None and header.kind is Kind.BACK:
            self._shard.take_back(worker)
            return
        if "garbage" in trouble:
            self._say(f"server shard {self._rank}: worker {worker} {trouble}")
        self._shard.hear(worker, header, body, self._workers[worker])

    def _execute_order(self, arrival: Arrival[FrameHeader]) -> bool:
        """Do what the first shard says; whether to go on."""
        header = arrival.header
        if header is None:
            raise ServerGone
        if header.kind is Kind.CLOCK:
            self._answer(replace(header, began_s=now_s()))
        elif header.kind is Kind.GONE:
            self._shard.drop(header.worker)
        elif header.kind is Kind.GATHER:
            with talking():
                send_state(self._server, SERVER_RANK)
        elif header.kind is not Kind.STOP:
            with talking():
                take_state(self._server, header, arrival.body)
            if header.kind is Kind.NUMBERS:  # the last of a state
                self._answer(FrameHeader(Kind.HELD))
        return header.kind is not Kind.STOP

    def _answer(self, header: FrameHeader) -> None:
        if header.kind is Kind.GONE:  # should it live, it notices
            with suppress(PeerGone):
                line_to(self._workers[header.worker]).end()
        with talking():
            send(header, SERVER_RANK)

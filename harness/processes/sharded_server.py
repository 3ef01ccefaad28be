"""The asynchronous server in shards on real processes, and one shard of it.

Ranks from 0 are the shards, the others workers. The first shard is also the executor: it hands out
minibatches and decides when a contribution is complete. Models and pieces travel directly between
workers and shards. A worker requests the slices of all shards at once, computes, and sends each
shard its piece, one after the other, beginning with shard (worker mod shards), as in the simulator.
Each shard folds in its own order of arrival, so a read may find different versions at the shards.

When `advance` returns, nothing is in flight. The slices that it has gathered therefore belong to
one instant, and a checkpoint of the first shard covers all.

When a worker dies, every shard drops it. If no shard has folded a piece of its contribution, the
contribution is lost, and its minibatch handed out again. If some have, these pieces stay folded,
and the record marks the others as lost.

A single shard answers reads and folds pieces. It has no knowledge of the other shards, and reports
its folds and the workers that it has dropped to the first shard.
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
from harness.processes.rendezvous import Admission
from harness.processes.server import Asynchronous, Membership
from harness.processes.transport import MalformedMessage, PeerGone, now_s
from harness.processes.worker import Pacing
from harness.replay.fold_replay import Arrays, Facts
from harness.replay.sharded_replay import ShardedServer, edges
from harness.runs.config import TrainingConfig
from harness.simulator import LOST, Timeline
from harness.tasks.order import Minibatches

OF_A_STATE = (Kind.STATE, Kind.NUMBERS, Kind.HELD)
"""Kinds of messages by which another shard reports its state."""


class ShardGone(Exception):  # noqa: N818 (what happened)
    """The connection to a server shard closed; the argument is its index."""


@dataclass
class _Progress:
    """Progress of a contribution in flight.

    Args:
        pieces: folded pieces, by shard.
        moments_s: ends of the fetch, the computation and the push; empty until the worker's report.
        loss: summed loss in nats, as the worker reports it.
    """

    pieces: dict[int, Piece] = field(default_factory=dict[int, Piece])
    moments_s: tuple[float, ...] = ()
    loss: float = 0.0


class ShardedServerExecutor(Asynchronous):
    """An executor on the workers and shards of a process group, as its first shard.

    Args:
        config: configuration of the run; its shards have the first ranks, its workers the next.
        model: initial parameters ``[P]``.
        minibatches: order of the training data.
        pace: minimal durations of the folds.
        say: prints a line about workers.
        admission: admits restarted workers; None if none may rejoin.

    Raises:
        ShardGone: a shard died before the run began.
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
            peer = self._workers + shard  # senders in the mailbox: workers first, then shards
            with _raise_if_shard_gone(shard):
                # The shard may have lost a worker already, which it reports only once.
                self.clock.ask(peer, shard, partial(members.mailbox.put, peer))
            self.members.mailbox.listen(peer, shard, bodies(part))
        self._shard = Shard(config.algorithm, own, self._on_first_shard_report, pace, config.shards)
        self._progress: dict[int, _Progress] = {}
        self._given_up: dict[int, dict[int, FrameHeader]] = {}
        self._scattered = False
        if admission is not None:
            admission.open(self.members.enter, self.members.is_gone)

    def advance(self, folds: int, *, drain: bool, handing_out: int | None, rate: float) -> Timeline:
        """See `Executor`; afterwards nothing is in flight, whatever ``drain``.

        Raises:
            NoWorkersLeft: no worker is left.
            ShardGone: a shard died, and its part of the model with it.
        """
        del drain, handing_out
        self.recorder.go_on(self.now_s)
        self._scatter()
        self._fold_all(folds, folds, rate)
        self.recorder.leave(self.now_s)
        self._gather()
        return self.recorder.segment(())

    def close(self) -> None:
        """Stop all workers and the other shards."""
        self.members.stop_idle_workers()
        for shard in range(1, self._shards):
            with suppress(RuntimeError):  # a shard that has died needs no stop
                send(FrameHeader(Kind.STOP), shard)

    # -- the state of all shards -------------------------------------------------------

    def _scatter(self) -> None:
        """Send every shard its slice at first, and later the numbers that training has changed.

        A worker's read travels on another connection and could overtake them, so no work is handed
        out until every shard has confirmed.
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
        """Receive the slices of all shards."""
        for shard in range(1, self._shards):
            self._order(shard, FrameHeader(Kind.GATHER))
        self._wait_for_all(Kind.NUMBERS)  # the last of a state
        self._sharded.end(self.server.version)

    def _wait_for_all(self, last: Kind) -> None:
        """Handle arrivals until every other shard has sent a message of the kind ``last``."""
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
        """Send a worker the number of a minibatch; it reads the model from the shards."""
        worker, header = self._assign_work(Kind.TASK, rate)
        self._progress[worker] = _Progress()
        self.members.tell(header, worker)

    def _go_on(self, rate: float) -> None:
        """Fold the next piece of the first shard, or handle an arrival that comes before."""
        del rate  # the header of a piece has the rate
        arrival = self.members.mailbox.get_before(self._shard.due_s)
        if arrival is None:
            self._shard.go_on()
        else:
            self._take_in(arrival)

    def _take_in(self, arrival: Arrival[FrameHeader]) -> None:
        # The first shard's process serves three roles: executor, shard, and peer of the others.
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
        """Note a worker's report that it has sent all pieces."""
        if self._is_at(worker, header.step):
            found, ours = self._progress[worker], self.clock.peer_to_run_time
            fetched, computed = ours(worker, header.began_s), ours(worker, header.ended_s)
            found.moments_s, found.loss = (fetched, computed, self.now_s), header.loss
            self._settle(worker)

    def _is_at(self, worker: int, step: int) -> bool:
        """Whether a worker's contribution in flight is that of minibatch ``step``."""
        work = self.members.out.get(worker)
        return work is not None and work.step == step

    def _on_first_shard_report(self, header: FrameHeader) -> None:
        began, ended = (
            self.clock.to_run_time(header.began_s),
            self.clock.to_run_time(header.ended_s),
        )
        self._note(0, replace(header, began_s=began, ended_s=ended))

    def _on_shard_report(self, shard: int, header: FrameHeader | None) -> None:
        """Handle the report of another shard, or the end of its connection."""
        if header is None:
            raise ShardGone(shard)
        peer, ours = self._workers + shard, self.clock.peer_to_run_time
        began, ended = ours(peer, header.began_s), ours(peer, header.ended_s)
        self._note(shard, replace(header, began_s=began, ended_s=ended))

    def _note(self, shard: int, header: FrameHeader) -> None:
        """Note that a shard has folded a piece, or dropped a worker; times are the run's."""
        worker = header.worker
        if header.kind is Kind.FOLDED:
            if not self._is_at(worker, header.step):
                raise ShardGone(shard)  # it has folded a piece that was not assigned
            self._progress[worker].pieces[shard] = _piece(header, header.version)
        elif header.kind is Kind.GONE:
            if worker not in self._given_up:  # the first report: the others drop it too
                self._dismiss(worker)
            self._given_up[worker][shard] = header
        self._settle(worker)

    def _dismiss(self, worker: int) -> None:
        """Have every shard drop a worker."""
        self.members.leave(worker)
        self._given_up[worker] = {}
        self._shard.drop(worker)
        for shard in range(1, self._shards):
            self._order(shard, FrameHeader(Kind.GONE, worker=worker))

    def _settle(self, worker: int) -> None:
        """Complete a contribution that all shards have folded; remove a worker that all dropped."""
        found, given_up = self._progress.get(worker), self._given_up.get(worker)
        if given_up is not None:
            if len(given_up) == self._shards:
                self._lose(worker)
        elif found and found.moments_s and len(found.pieces) == self._shards:
            self._complete(worker)
            self.members.free.append(worker)

    def _complete(self, worker: int) -> None:
        """Record a contribution as folded; its pieces may be marked as lost."""
        work, found = self.members.out.pop(worker), self._progress.pop(worker)
        pieces = [found.pieces[shard] for shard in range(self._shards)]
        self.recorder.record_fold_in_pieces(
            self.server.version, work, pieces, found.moments_s, self.now_s
        )
        self.server.version += 1
        self.loss += found.loss

    def _lose(self, worker: int) -> None:
        """Remove a worker that all shards have dropped; pieces that were folded stay folded."""
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
        """Let a worker that has rejoined receive work like the others."""
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
    """Raise errors of an exchange with a shard as `ShardGone`."""
    try:
        yield
    except (RuntimeError, MalformedMessage) as error:
        raise ShardGone(shard) from error


def _piece(header: FrameHeader, version: int) -> Piece:
    return Piece(header.read_version, version, header.began_s, header.ended_s)


class _Waiting(NamedTuple):
    """A piece in the queue of a shard.

    Attributes:
        worker: index of the worker.
        header: header of the piece; None for the removal of the worker.
        body: the piece.
        begun_s, ends_s: start and paced end of its fold, on this process's clock.
    """

    worker: int
    header: FrameHeader | None
    body: Tensor
    begun_s: float
    ends_s: float


class Shard:
    """One shard: answers reads of its slice of the model, and folds pieces in order of arrival.

    Args:
        algorithm: folds the pieces.
        server: state of the slice.
        tell: sends a report to the first shard; its times are on this process's clock.
        pace: minimal durations of the folds.
        shards: number of shards; a piece takes one ``shards``-th of a fold's time.
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
        # By worker: minibatch and version of its last read; workers with a piece still to send.
        self._read: dict[int, tuple[int, int]] = {}
        self._reading: set[int] = set()
        self._gone: set[int] = set()
        self._queued = Counter[int]()
        self._busy_until_s = self._folded_at_s = 0.0

    @property
    def due_s(self) -> float:
        """Time of the next `go_on`, on this process's clock; infinite if the queue is empty."""
        return self._waiting[0].ends_s if self._waiting else math.inf

    def hear(self, worker: int, header: FrameHeader | None, body: Tensor, address: Address) -> None:
        """Handle a message of a worker, or the end of its connection (no header)."""
        if worker in self._gone:
            return
        if header is None or header.kind not in (Kind.FETCH, Kind.PIECE):
            self.drop(worker)
        elif header.kind is Kind.FETCH:
            self._read[worker] = header.step, self.server.version
            self._reading.add(worker)
            answer = FrameHeader(Kind.SLICE, header.step, version=self.server.version)
            with suppress(RuntimeError):  # the mailbox reports its end
                send(answer, address, self.server.model)
        elif worker not in self._reading or header.step != self._read[worker][0]:
            self.drop(worker)  # a piece of a minibatch that it has not read
        else:
            self._reading.discard(worker)
            seconds = self._pace.fold_s(worker, self._queued[worker]) / self._shards
            self._queued[worker] += 1
            self._wait(worker, header, body, seconds)

    def drop(self, worker: int) -> None:
        """Ignore a worker from now on, and report so once its pieces in the queue are folded."""
        if worker not in self._gone:
            self._gone.add(worker)
            self._reading.discard(worker)
            # In the queue, behind its pieces: after the report no fold of the worker follows.
            self._wait(worker, None, NOTHING, 0.0)

    def take_back(self, worker: int) -> None:
        """Handle messages of a dropped worker again, after it has rejoined."""
        self._gone.discard(worker)

    def _wait(self, worker: int, header: FrameHeader | None, body: Tensor, seconds: float) -> None:
        # Pieces are folded one after the other: this one ends after all that wait.
        begun = max(now_s(), self._busy_until_s)
        self._busy_until_s = begun + seconds
        self._waiting.append(_Waiting(worker, header, body, begun, self._busy_until_s))

    def go_on(self) -> None:
        """Fold the first piece of the queue, or report the removal of its worker."""
        worker, header, body, begun, _ = self._waiting.popleft()
        step, read = self._read.get(worker, (0, 0))
        if header is None:
            now = now_s()
            lost = FrameHeader(Kind.GONE, step, began_s=now, ended_s=now)
            self._tell(replace(lost, worker=worker, read_version=read))
            return
        # An unpaced fold takes longer than its planned 0 s: the next begins when it has ended.
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
    """Run a shard other than the first until the first one stops it.

    Args:
        config: configuration of the run.
        data: training data of its task.
        rank: index of the shard, which is its rank.
        pace: minimal durations of the folds.
        say: prints a line about workers.
        admission: admits restarted workers; None if none may rejoin.

    Raises:
        ServerGone: the first shard is gone.
    """
    serving = _Serving(config, data, rank, pace, say)
    if admission is not None:
        admission.open(serving.enter, range(config.workers).__contains__)
    serving.run()


class _Serving:
    """The process of a shard other than the first: its mailbox, and the orders of the first."""

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
        """Register a worker that rejoins; called on the thread of the admission."""
        self._workers[worker] = address
        self._mailbox.put(worker, FrameHeader(Kind.BACK))
        self._mailbox.listen(worker, address, bodies(self._server))

    def run(self) -> None:
        """Handle arrivals and fold pieces until the first shard sends `Kind.STOP`."""
        while True:
            arrival = self._mailbox.get_before(self._shard.due_s)
            if arrival is None:
                self._shard.go_on()
            elif arrival.sender != self._first:
                self._hear(arrival)
            elif not self._execute_order(arrival):
                return

    def _hear(self, arrival: Arrival[FrameHeader]) -> None:
        """Handle a message of a worker, its return or the end of its connection."""
        worker, header, body, trouble = arrival
        if header is not None and header.kind is Kind.BACK:
            self._shard.take_back(worker)
            return
        if "garbage" in trouble:
            self._say(f"server shard {self._rank}: worker {worker} {trouble}")
        self._shard.hear(worker, header, body, self._workers[worker])

    def _execute_order(self, arrival: Arrival[FrameHeader]) -> bool:
        """Execute an order of the first shard; False for `Kind.STOP`."""
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
        if header.kind is Kind.GONE:  # closes its connection: a worker that still runs then exits
            with suppress(PeerGone):
                line_to(self._workers[header.worker]).end()
        with talking():
            send(header, SERVER_RANK)

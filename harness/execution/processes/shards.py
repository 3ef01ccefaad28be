"""The asynchronous server in shards on real processes.

Ranks from 0 are the shards, the others workers. The first shard is also the executor: it hands
out minibatches and says when a contribution is complete, but models and pieces go between
workers and shards directly. A worker asks all shards at once for their slices, computes, and
sends each its piece, one after the other, beginning with shard (worker mod shards), as the
simulator has it. Every shard folds in the order of arrival, and reads find what they find.

At the end of every stretch of folds nothing is in flight, so the slices that are then gathered
are of one instant, and a checkpoint of the first shard is one of all.

A worker that dies is dropped by every shard. What no shard has of its contribution is lost and
handed out again; what some have and others never will is folded by those that have it, and the
record says which.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from harness.execution.data.minibatches import Minibatches
from harness.execution.processes.membership import Door
from harness.execution.processes.messages import (
    CLOSED,
    Address,
    Arrival,
    GarbageReceived,
    Head,
    Inbox,
    Kind,
    Peer,
    send,
)
from harness.execution.processes.recorder import Piece, Recorder, Work
from harness.execution.processes.server import (
    NoWorkersLeft,
    Pace,
    Returned,
    clock_offset,
)
from harness.execution.processes.shard import (
    Shard,
    State,
    next_arrival,
    piece_s,
    tell_numbers,
    tell_state,
)
from harness.execution.replay.shards import ShardedServer
from harness.execution.replay.state import Arrays, Facts
from harness.execution.runs.config import RunConfig
from harness.simulator import LOST, Timeline


class ShardGone(Exception):  # noqa: N818 (what happened)
    """The connection of a server shard closed; its argument is which."""


@dataclass
class _UnderWay:
    """A contribution that was handed out.

    Args:
        work: what was asked for.
        pieces: what each shard has folded.
        moments_s: when the fetch, the computation and the push ended, once the worker has said.
        loss: as it says.
    """

    work: Work
    pieces: dict[int, Piece] = field(default_factory=dict[int, Piece])
    moments_s: tuple[float, ...] = ()
    loss: float = 0.0


class Sharded:
    """An executor on the workers and shards of a process group, as its first shard.

    Args:
        config: what is run; its shards have the first ranks, its workers those after.
        model: initial parameters ``[P]``.
        minibatches: the data.
        pace: slows the folds; None for as fast as they go.
        say: told what happens to workers.
        door: where workers that died come back; None for nowhere.
    """

    def __init__(
        self,
        config: RunConfig,
        model: Tensor,
        minibatches: Minibatches,
        pace: Pace | None,
        say: Callable[[str], None],
        door: Door | None = None,
    ) -> None:
        self._minibatches, self._say = minibatches, say
        self._shards, self._workers = config.shards, config.workers
        self._sharded = ShardedServer(config.algorithm.start(model), config.shards)
        self.server = self._sharded.whole
        self._began = time.monotonic()
        self._offset = dict.fromkeys(range(1, config.shards + config.workers), 0.0)
        self._address: list[Address] = [config.shards + w for w in range(config.workers)]
        self._inbox = self._listening()
        self._shard = Shard(
            config.algorithm, self._sharded.parts[0], self._told_by_first, self._inbox.release,
            piece_s(pace, config.shards),
        )  # fmt: skip
        self._free = deque(range(config.workers))
        self._out: dict[int, _UnderWay] = {}
        self._gone: dict[int, dict[int, Head]] = {}
        self._absent: set[int] = set()
        self._back: dict[int, Returned] = {}
        self._next, self._again = 0, deque[int]()
        self._loss, self._left_s = 0.0, None
        self._recorder, self._scattered = Recorder(), False
        if door is not None:
            door.open(self._enters, self._is_absent)

    def _listening(self) -> Inbox:
        """Workers by their numbers, and after them the other shards.

        Raises:
            ShardGone: a shard died before it began; a worker that did is given up.
        """
        parts = [torch.zeros_like(part.model, device="cpu") for part in self._sharded.parts]
        inbox = Inbox([], 0, parts[0].dtype)
        for shard in range(1, self._shards):
            try:
                self._offset[shard] = clock_offset(shard, lambda: self.now_s)
            except (RuntimeError, GarbageReceived) as error:
                raise ShardGone(shard) from error
            inbox.listen(self._workers + shard, shard, parts[shard])
        for worker, address in enumerate(self._address):
            body = torch.zeros_like(parts[0])
            try:
                self._offset[self._shards + worker] = clock_offset(address, lambda: self.now_s)
            except (RuntimeError, GarbageReceived):
                inbox.put(Arrival(worker, None, body, CLOSED))
            else:
                inbox.listen(worker, address, body)
        return inbox

    def _is_absent(self, worker: int) -> bool:
        """Whether a worker is gone and has not come back; on the thread of the door."""
        return worker in self._absent and worker not in self._back

    @property
    def now_s(self) -> float:
        """Seconds since the run began, on the first shard's clock."""
        return time.monotonic() - self._began

    @property
    def loss(self) -> float:
        """See `Executor`; of what workers have handed in whole."""
        return self._loss

    def advance(self, folds: int, *, drain: bool, handing_out: int | None, rate: float) -> Timeline:
        """See `Executor`; afterwards nothing is ever in flight.

        Raises:
            NoWorkersLeft: nobody is there to contribute.
            ShardGone: a part of the model is not there any more.
        """
        del drain, handing_out
        if self._left_s is not None:
            self._recorder.paused(self._left_s, self.now_s)
        self._scatter()
        goal = self.server.version + folds
        while self.server.version < goal:
            while self._free and self.server.version + len(self._out) < goal:
                self._hand_out(self._free.popleft(), rate)
            if not self._out:
                raise NoWorkersLeft
            self._go_on()
        self._left_s = self.now_s
        self._gather()
        return self._recorder.segment(())

    def pause(self, seconds: float, kind: str) -> Timeline:
        """Nothing: what takes the server's time is on record when it goes on."""
        del seconds, kind
        return Timeline()

    def begin_stage(self) -> None:
        """See `Executor`; workers are told with their next work."""

    def close(self) -> None:
        """Send workers and shards home."""
        workers = [self._address[worker] for worker in self._free]
        workers += [returned.address for returned in self._back.values()]
        for address in [*workers, *range(1, self._shards)]:
            with suppress(RuntimeError):
                send(Head(Kind.STOP), address)

    # -- the state of all shards -------------------------------------------------------

    def _scatter(self) -> None:
        """Give every shard its slice at first, and later what training has changed."""
        changed = self._sharded.begin()
        for shard, part in enumerate(self._sharded.parts[1:], 1):
            try:
                if not self._scattered:
                    tell_state(part, shard)
                elif changed:
                    tell_numbers(part, shard)
            except RuntimeError as error:
                raise ShardGone(shard) from error
        self._scattered = True

    def _gather(self) -> None:
        """Take in every shard's slice."""
        states = {k: State(self._sharded.parts[k]) for k in range(1, self._shards)}
        for shard in states:
            self._order(shard, Head(Kind.GATHER))
        while not all(state.whole for state in states.values()):
            arrival = self._inbox.get()
            shard, head = arrival.worker - self._workers, arrival.head
            if shard in states and head and head.kind in (Kind.STATE, Kind.NUMBER):
                states[shard].hear(head, arrival.body)
                if head.kind.has_body:
                    self._inbox.release(arrival.worker)
            else:
                self._take_in(arrival)
        self._sharded.end(self.server.version)

    def _order(self, shard: int, head: Head) -> None:
        try:
            send(head, shard)
        except RuntimeError as error:
            raise ShardGone(shard) from error

    # -- contributions -----------------------------------------------------------------

    def _hand_out(self, worker: int, rate: float) -> None:
        """Send a worker the number of a minibatch; the model it gets from the shards."""
        step = self._again.popleft() if self._again else self._next
        self._next = max(self._next, step + 1)
        minibatches, version = self._minibatches, self.server.version
        self._out[worker] = _UnderWay(Work(worker, step, 1, version, self.now_s))
        head = Head(Kind.TASK, step, 1, minibatches.stage, minibatches.before, version, rate=rate)
        with suppress(RuntimeError):  # that it is gone will be heard
            send(head, self._address[worker])

    def _go_on(self) -> None:
        """Fold the next piece here, or take in what comes before."""
        arrival = next_arrival(self._inbox, self._shard)
        if arrival is None:
            self._shard.go_on()
        else:
            self._take_in(arrival)

    def _take_in(self, arrival: Arrival) -> None:
        worker, head, body, trouble = arrival
        if worker >= self._workers:
            self._told(worker - self._workers, head)
        elif head is not None and head.kind is Kind.PUSHED:
            self._pushed(worker, head)
        elif head is not None and head.kind is Kind.BACK:
            self._take_back(worker)
        else:
            if head is None and "garbage" in trouble:
                self._say(f"worker {worker} {trouble}")
            self._shard.hear(worker, head, body, self._address[worker])

    def _pushed(self, worker: int, head: Head) -> None:
        """A worker has sent all pieces."""
        found, offset = self._out.get(worker), self._offset[self._shards + worker]
        if found is not None and found.work.step == head.step:
            found.moments_s = (head.began_s + offset, head.ended_s + offset, self.now_s)
            found.loss = head.loss
            self._settle(worker)

    def _told_by_first(self, head: Head) -> None:
        began, ended = head.began_s - self._began, head.ended_s - self._began
        self._note(0, replace(head, began_s=began, ended_s=ended))

    def _told(self, shard: int, head: Head | None) -> None:
        """Another shard speaks."""
        if head is None:
            raise ShardGone(shard)
        offset = self._offset[shard]
        moments = {"began_s": head.began_s + offset, "ended_s": head.ended_s + offset}
        self._note(shard, replace(head, **moments))

    def _note(self, shard: int, head: Head) -> None:
        """A shard has folded a piece, or given up a worker."""
        worker = head.worker
        if head.kind is Kind.FOLDED:
            found = self._out.get(worker)
            if found is None or found.work.step != head.step:
                raise ShardGone(shard)  # it has folded what nobody asked for
            piece = Piece(head.read_version, head.version, head.began_s, head.ended_s)
            found.pieces[shard] = piece
        elif head.kind is Kind.GONE:
            if worker not in self._gone:
                self._dismiss(worker)
            self._gone[worker][shard] = head
        self._settle(worker)

    def _dismiss(self, worker: int) -> None:
        """Let every shard give a worker up."""
        self._gone[worker] = {}
        self._shard.drop(worker)
        for shard in range(1, self._shards):
            self._order(shard, Head(Kind.GONE, worker=worker))

    def _settle(self, worker: int) -> None:
        """See whether all that will come of a worker's contribution has come."""
        found, gone = self._out.get(worker), self._gone.get(worker)
        if gone is not None:
            if len(gone) == self._shards:
                self._lose(worker)
        elif found and found.moments_s and len(found.pieces) == self._shards:
            self._complete(worker, found)
            self._free.append(worker)

    def _complete(self, worker: int, found: _UnderWay) -> None:
        """A contribution is folded wherever it will be."""
        del self._out[worker]
        pieces = [found.pieces[shard] for shard in range(self._shards)]
        self._recorder.folded_in_pieces(
            self.server.version, found.work, pieces, found.moments_s, self.now_s
        )
        self.server.version += 1
        self._loss += found.loss

    def _lose(self, worker: int) -> None:
        """Every shard has given a worker up: its contribution is lost, whole or in part."""
        found, gone = self._out.get(worker), self._gone[worker]
        if worker in self._free:
            self._free.remove(worker)
        what = "is gone"
        if found and found.pieces:
            if len(found.pieces) < self._shards:
                what += f" with its contribution at {len(found.pieces)} of {self._shards} shards"
            for shard in gone.keys() - found.pieces.keys():
                head = gone[shard]
                never = Piece(head.read_version, LOST, head.began_s, head.ended_s)
                found.pieces[shard] = never
            self._complete(worker, found)
        elif found:
            del self._out[worker]
            self._recorder.lost(found.work)
            self._again.append(found.work.step)
        self._absent.add(worker)
        self._say(f"worker {worker} {what}; {self._workers - len(self._gone)} left")

    def _enters(self, worker: int, address: Peer) -> None:
        """A worker has come back; on the thread of the door."""
        offset = clock_offset(address, time.monotonic)
        body = torch.zeros_like(self._sharded.parts[0].model, device="cpu")
        self._back[worker] = Returned(address, offset)
        self._inbox.put(Arrival(worker, Head(Kind.BACK), body, ""))
        self._inbox.listen(worker, address, body)

    def _take_back(self, worker: int) -> None:
        """Give a worker that has come back work like the others."""
        if worker not in self._back:
            return
        returned = self._back[worker]
        self._address[worker] = returned.address
        self._offset[self._shards + worker] = returned.offset_s - self._began
        # In this order: in between, the door must not take it for one that is gone.
        self._absent.discard(worker)
        del self._back[worker]
        del self._gone[worker]
        self._shard.take_back(worker)
        self._free.append(worker)
        self._say(f"worker {worker} is back; {self._workers - len(self._gone)} at work")

    def capture(self) -> tuple[Arrays, Facts]:
        """See `Executor`."""
        arrays, facts = self._sharded.capture()
        own = {"next": self._next, "again": list(self._again), "loss": self._loss}
        return arrays, {**facts, **own, "now_s": self.now_s}

    def reinstate(self, arrays: Arrays, facts: Facts) -> None:
        """See `Executor`."""
        self._sharded.reinstate(arrays, facts)
        self._next, self._again = facts["next"], deque(facts["again"])
        self._loss = facts["loss"]
        # The clock goes on where the checkpoint stopped it: what came after never happened.
        shift = self.now_s - facts["now_s"]
        self._began += shift
        self._offset = {rank: offset - shift for rank, offset in self._offset.items()}

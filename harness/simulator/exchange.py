"""A collective carried out message by message on a network.

Each worker goes through its rounds in order. A round is over when its own message has
departed and the one it waits for has arrived and, where that is to be added, been added. A
message starts when its sender has entered the round and, where the network says so, its
receiver too. So a straggler delays those who wait for it, those who wait for them, and no one
else.

What goes round a ring needs no table of its messages (`harness.simulator.ring`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from harness.simulator.collectives import Schedule, schedule
from harness.simulator.events import Heap, new_heap, push
from harness.simulator.jit import kernel
from harness.simulator.network import Traffic, new_traffic, next_event, reserve, start
from harness.simulator.ring import Rounds, ends_by_events_s, ends_by_rounds_s
from harness.simulator.topology import Wiring

__all__ = ["ROUND", "AllReduce", "Messages"]

NONE = -1


class Messages(NamedTuple):
    """What was sent when.

    Attributes:
        rows: [M] of `harness.simulator.collectives.MESSAGE`.
        size_bytes: [M].
        sent_s: [M] when it began to move.
        departed_s: [M] when its last byte left.
        arrived_s: [M] when its last byte arrived.
    """

    rows: Any
    size_bytes: Any
    sent_s: Any
    departed_s: Any
    arrived_s: Any


class Program(NamedTuple):
    """The rounds of each worker.

    Attributes:
        first: [N + 1] where each worker's rounds begin among all E of them.
        sends, receives: [E] number of the message, or `NONE`.
    """

    first: Any
    sends: Any
    receives: Any


class Desk(NamedTuple):
    """Where the workers stand.

    Attributes:
        heap: when each worker enters its next round.
        place: [N] the round each is in or about to enter.
        entered_s: [N] when each entered its latest round.
        waiting: [N] whether each is in that round, and its end not known yet.
        sending: [N] the message each has under way.
        agreed: [M] how many of its two ends have entered a message's round.
    """

    heap: Heap
    place: Any
    entered_s: Any
    waiting: Any
    sending: Any
    agreed: Any


def _ring(workers: int, size_bytes: float, add_s_per_byte: float) -> Rounds:
    part = size_bytes / workers
    return Rounds(2 * (workers - 1), workers - 1, part, part * add_s_per_byte)


def _gather(workers: int, size_bytes: float, add_s_per_byte: float) -> Rounds:
    return Rounds(workers - 1, workers - 1, size_bytes, size_bytes * add_s_per_byte)


ROUND: dict[str, Callable[[int, float, float], Rounds]] = {"ring": _ring, "gather": _gather}
"""What goes round a ring, and how."""


class AllReduce:
    """One algorithm on one network, to be run as often as needed.

    Args:
        algorithm: a name among `harness.simulator.collectives.ALGORITHMS`.
        wiring: the network, idle whenever a run begins.
        group: for ``hierarchical``, how many workers are near each other.
        members: numbers of the M workers that take part, rising; all if not given.

    Raises:
        UserError: no such algorithm.
    """

    def __init__(self, algorithm: str, wiring: Wiring, group: int = 1, members: Any = None) -> None:
        self.algorithm = algorithm
        self.wiring = wiring
        self.members = np.arange(wiring.workers) if members is None else members
        self._group = group
        self._plan: tuple[Schedule, Program] | None = None
        self._smaller: AllReduce | None = None
        if algorithm not in ROUND:
            self._planned()

    def among(self, members: Any) -> AllReduce:
        """The same algorithm among these workers only."""
        if np.array_equal(members, self.members):
            return self
        if self._smaller is None or not np.array_equal(members, self._smaller.members):
            self._smaller = AllReduce(self.algorithm, self.wiring, self._group, members)
        return self._smaller

    def ends_s(self, ready_s: Any, size_bytes: float, add_s_per_byte: float = 0.0) -> Any:
        """When each worker has the sum.

        Args:
            ready_s: [M] when each member takes part.
            size_bytes: of the model.
            add_s_per_byte: time it takes to add what has been received.

        Returns:
            [M] seconds.
        """
        ready = np.asarray(ready_s, np.float64)
        if self.algorithm not in ROUND:
            return self._run(ready, size_bytes, add_s_per_byte)[0]
        rounds = ROUND[self.algorithm](len(self.members), size_bytes, add_s_per_byte)
        meet_nowhere = self.algorithm == "ring" and self.wiring.full_duplex
        ends = ends_by_rounds_s if meet_nowhere else ends_by_events_s
        return ends(self.wiring, self.members, ready, rounds)

    def messages(self, ready_s: Any, size_bytes: float, add_s_per_byte: float = 0.0) -> Messages:
        """Every message of one run; the arguments are those of `ends_s`."""
        return self._run(np.asarray(ready_s, np.float64), size_bytes, add_s_per_byte)[1]

    def _planned(self) -> tuple[Schedule, Program]:
        if self._plan is None:
            plan = schedule(self.algorithm, self.wiring.workers, self._group, self.members)
            self._plan = plan, program(plan)
        return self._plan

    def _run(self, ready: Any, size_bytes: float, add_s_per_byte: float) -> tuple[Any, Messages]:
        plan, rounds = self._planned()
        workers, count = plan.workers, len(plan.messages)
        desk = Desk(
            heap=new_heap(workers),
            place=rounds.first[:-1].copy(),
            entered_s=np.zeros(workers),
            waiting=np.zeros(workers, np.bool_),
            sending=np.full(workers, NONE, np.int64),
            agreed=np.zeros(count, np.int8),
        )
        times = np.full((3, count), np.inf)
        messages = Messages(plan.messages, size_bytes * plan.messages["count"] / plan.parts, *times)
        end_s, enters_s = np.zeros(workers), np.full(workers, np.inf)
        enters_s[self.members] = ready
        traffic = new_traffic(self.wiring, workers)
        carry_out(traffic, rounds, desk, messages, enters_s, add_s_per_byte, end_s)
        return end_s[self.members], messages


def program(plan: Schedule) -> Program:
    """Each worker's rounds, in order."""
    rows = plan.messages
    rounds = int(rows["round"].max(initial=0)) + 1
    keys = [rows[end].astype(np.int64) * rounds + rows["round"] for end in ("source", "target")]
    entries, place = np.unique(np.concatenate(keys), return_inverse=True)
    numbers = np.arange(len(rows))
    sends, receives = (np.full(len(entries), NONE, np.int64) for _ in range(2))
    sends[place[: len(rows)]] = numbers
    receives[place[len(rows) :]] = numbers
    first = np.searchsorted(entries, np.arange(plan.workers + 1) * rounds)
    return Program(first.astype(np.int64), sends, receives)


@kernel
def carry_out(
    traffic: Traffic,
    rounds: Program,
    desk: Desk,
    messages: Messages,
    ready_s: Any,
    add_s_per_byte: float,
    end_s: Any,
) -> None:
    """Run the whole collective; fills the times of ``messages`` and ``end_s``."""
    for who in range(len(ready_s)):
        push(desk.heap, ready_s[who], 0, who)
    now_s, who, departs = next_event(traffic, desk.heap, -np.inf)
    while now_s < np.inf:
        if departs:
            arrived_s = now_s + traffic.flows[who].latency_s
            sent(rounds, desk, messages, who, now_s, arrived_s, add_s_per_byte)
        else:
            enter(traffic, rounds, desk, messages, who, now_s, add_s_per_byte, end_s)
        now_s, who, departs = next_event(traffic, desk.heap, now_s)


@kernel
def enter(
    traffic: Traffic,
    rounds: Program,
    desk: Desk,
    messages: Messages,
    who: int,
    now_s: float,
    add_s_per_byte: float,
    end_s: Any,
) -> None:
    """A worker enters its next round, or has been through all of them."""
    place = desk.place[who]
    if place == rounds.first[who + 1]:
        end_s[who] = now_s
        return
    desk.entered_s[who] = now_s
    desk.waiting[who] = True
    out, into = rounds.sends[place], rounds.receives[place]
    if out != NONE:
        agree(traffic, rounds, desk, messages, out, now_s, add_s_per_byte)
    if into != NONE and traffic.wiring.rendezvous:
        agree(traffic, rounds, desk, messages, into, now_s, add_s_per_byte)
    if desk.waiting[who] and desk.place[who] == place:
        settle(rounds, desk, messages, who, add_s_per_byte)


@kernel
def agree(
    traffic: Traffic,
    rounds: Program,
    desk: Desk,
    messages: Messages,
    message: int,
    now_s: float,
    add_s_per_byte: float,
) -> None:
    """One end of a message is there; the message starts if that was the last one needed."""
    desk.agreed[message] += 1
    if traffic.wiring.rendezvous and desk.agreed[message] < 2:
        return
    who, target = messages.rows[message].source, messages.rows[message].target
    size = messages.size_bytes[message]
    desk.sending[who] = message
    if traffic.wiring.fair:
        messages.sent_s[message] = now_s
        start(traffic, who, who, target, size, now_s)
    else:
        times = reserve(traffic, who, who, target, size, now_s)
        messages.sent_s[message] = times[0]
        sent(rounds, desk, messages, who, times[1], times[2], add_s_per_byte)


@kernel
def sent(
    rounds: Program,
    desk: Desk,
    messages: Messages,
    who: int,
    departed_s: float,
    arrived_s: float,
    add_s_per_byte: float,
) -> None:
    """It is known when a worker's message departs and arrives: tell both ends."""
    message = desk.sending[who]
    messages.departed_s[message] = departed_s
    messages.arrived_s[message] = arrived_s
    target = messages.rows[message].target
    if desk.waiting[who] and rounds.sends[desk.place[who]] == message:
        settle(rounds, desk, messages, who, add_s_per_byte)
    if desk.waiting[target] and rounds.receives[desk.place[target]] == message:
        settle(rounds, desk, messages, target, add_s_per_byte)


@kernel
def settle(
    rounds: Program, desk: Desk, messages: Messages, who: int, add_s_per_byte: float
) -> None:
    """If it is known when a worker's round ends, note when it enters the next one."""
    place = desk.place[who]
    out, into = rounds.sends[place], rounds.receives[place]
    over_s = desk.entered_s[who]  # a buffered message may have been there before
    if out != NONE:
        over_s = max(over_s, messages.departed_s[out])
    if into != NONE:
        over_s = max(over_s, messages.arrived_s[into])
        if messages.rows[into].adds:
            over_s += messages.size_bytes[into] * add_s_per_byte
    if over_s < np.inf:
        desk.place[who] += 1
        desk.waiting[who] = False
        push(desk.heap, over_s, 0, who)

"""Collectives: tables of messages by algorithm, carried out on a network.

All-reduce algorithms as tables of messages: who sends which part to whom, round by round. A model
of equal parts is summed over all workers, and everyone gets the sum. In a round a worker sends at
most one message and receives at most one. Sources: Thakur, Rabenseifner and Gropp, "Optimization
of collective communication operations in MPICH" (2005) for recursive doubling, Rabenseifner's
algorithm, the binomial tree and worker counts that are not powers of two; Patarasuk and Yuan,
"Bandwidth optimal all-reduce algorithms" (2009) for the ring; Jia et al., "Highly scalable deep
learning training system with mixed-precision" (2018) for two levels.

With N workers, latency α, m bytes and β = 1 / bandwidth, an all-reduce on idle links takes,
where a message waits for its receiver,

- ring: 2 (N − 1) (α + β m / N);
- recursive doubling (the butterfly): log₂ N (α + β m);
- Rabenseifner: 2 log₂ N · α + 2 (N − 1) / N · β m;
- binomial tree: 2 log₂ N (α + β m);
- naive gather and broadcast: N α + 2 (N − 1) β m;

- two levels, g workers in each of G groups, α', β' between groups:
  2 (g − 1) (α + β m / g) + 2 (G − 1) (α' + β' m / (g G));
- gather: (N − 1) (α + β m), whatever cannot be added up on its way;

for the second to fourth with N a power of two; the second and third take 2 (α + β m) more
if it is not, with the next lower power in the place of N.

A collective carried out message by message on a network. Each worker goes through its rounds in
order. A round is over when its own message has departed and the one it waits for has arrived and,
where that is to be added, been added. A message starts when its sender has entered the round and,
where the network says so, its receiver too. So a straggler delays those who wait for it, those who
wait for them, and no one else.

What goes round a ring needs no table of its messages (`harness.simulator.ring`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import gcd
from typing import Any, NamedTuple

import numpy as np

from harness.base.errors import name_error
from harness.simulator.events import Heap, kernel, new_heap, push
from harness.simulator.network import Traffic, Wiring, new_traffic, next_event, reserve, start
from harness.simulator.ring import Rounds as ring_Rounds
from harness.simulator.ring import ends_by_events_s, ends_by_rounds_s

__all__ = ["ALGORITHMS", "EXCHANGES", "ROUND", "AllReduce", "Messages", "Schedule", "schedule"]

Ints = Any

Rounds = list[Any]

MESSAGE = np.dtype(
    [(name, np.int32) for name in ("round", "source", "target", "first", "count")]
    + [("adds", np.bool_)]
)


class Schedule(NamedTuple):
    """The messages of one all-reduce.

    Attributes:
        workers: N.
        parts: equal parts the model is divided into.
        messages: [M] of `MESSAGE`, by round: the parts from ``first`` on, ``count`` of them,
            go from ``source`` to ``target``, which adds them to its own or puts them in
            their place.
    """

    workers: int
    parts: int
    messages: Any


def schedule(algorithm: str, workers: int, group: int = 1, members: Ints | None = None) -> Schedule:
    """The messages of an algorithm.

    Args:
        algorithm: a key of `EXCHANGES`.
        workers: how many there are.
        group: for those of `GROUPED`, how many workers are near each other.
        members: numbers of those that take part, rising; all if not given.

    Raises:
        UserError: there is no such algorithm.
    """
    if algorithm not in EXCHANGES:
        raise name_error("collective", algorithm, EXCHANGES)
    nearby = group if algorithm in GROUPED else 1
    if members is None or len(members) == workers:
        return _schedule(algorithm, workers, nearby)
    return _schedule_among(algorithm, workers, nearby, np.array(members))


@lru_cache(maxsize=8)
def _schedule(algorithm: str, workers: int, group: int) -> Schedule:
    parts, rounds = EXCHANGES[algorithm](workers, group)
    return _build_schedule(workers, parts, rounds)


def _schedule_among(algorithm: str, workers: int, group: int, members: Ints) -> Schedule:
    if algorithm == "hierarchical":
        return _build_schedule(workers, *_tree_over_groups(_group_members(members, group)))
    parts, rounds = EXCHANGES[algorithm](len(members), group)
    for messages in rounds:
        messages["source"] = members[messages["source"]]
        messages["target"] = members[messages["target"]]
    return _build_schedule(workers, parts, rounds)


def _build_schedule(workers: int, parts: int, rounds: Rounds) -> Schedule:
    for number, messages in enumerate(rounds):
        messages["round"] = number
    rows = np.concatenate(rounds) if rounds else np.zeros(0, MESSAGE)
    return Schedule(workers, parts, rows[np.lexsort((rows["source"], rows["round"]))])


def _round(source: Ints, target: Ints, first: Ints, count: int, adds: bool) -> Any:
    """[n] messages of one round."""
    messages = np.zeros(len(source), MESSAGE)
    messages["source"], messages["target"] = source, target
    messages["first"], messages["count"], messages["adds"] = first, count, adds
    return messages


def ring(workers: int, group: int) -> tuple[int, Rounds]:
    """Everyone sends to the next: N − 1 rounds add a part up, N − 1 hand the sums round."""
    who = np.arange(workers)
    after = (who + 1) % workers
    steps = range(workers - 1)
    up = [_round(who, after, (who - step) % workers, 1, True) for step in steps]
    around = [_round(who, after, (who + 1 - step) % workers, 1, False) for step in steps]
    return workers, up + around


def doubling(workers: int, group: int) -> tuple[int, Rounds]:
    """Pairs at distance 1, 2, 4 … exchange everything they have summed so far."""
    power, rank, before, after = _power_of_two(workers, 1)
    who = np.arange(power)
    distances = [1 << k for k in range(power.bit_length() - 1)]
    rounds = [_round(rank, rank[who ^ d], 0, 1, True) for d in distances]
    return 1, before + rounds + after


def rabenseifner(workers: int, group: int) -> tuple[int, Rounds]:
    """Pairs exchange halves, quarters … of the sum, then gather them in the opposite order."""
    power, _, _, _ = _power_of_two(workers, 1)
    _, rank, before, after = _power_of_two(workers, power)
    who = np.arange(power)
    distances = [1 << k for k in range(power.bit_length() - 1)]
    halve = [_round(rank, rank[who ^ d], (who ^ d) // d * d, d, True) for d in reversed(distances)]
    gather = [_round(rank, rank[who ^ d], who // d * d, d, False) for d in distances]
    return power, before + halve + gather + after


def _power_of_two(workers: int, parts: int) -> tuple[int, Any, Rounds, Rounds]:
    """The largest power of two P ≤ N; who takes part; what the N − P others do before and after.

    Of the first 2 (N − P) workers the even ones hand their part to the odd ones, and get the
    sum back at the end.
    """
    power = 1 << (workers.bit_length() - 1)
    extra = workers - power
    even = np.arange(0, 2 * extra, 2)
    who = np.arange(power)
    rank = np.where(who < extra, 2 * who + 1, who + extra)
    if extra == 0:
        return power, rank, [], []
    before = [_round(even, even + 1, 0, parts, True)]
    after = [_round(even + 1, even, 0, parts, False)]
    return power, rank, before, after


def tree(workers: int, group: int) -> tuple[int, Rounds]:
    """A binomial tree: everything is summed towards worker 0, then handed down again."""
    return 1, _tree_up(np.arange(workers)[None], 1) + _tree_down(np.arange(workers)[None], 1)


def _tree_up(groups: Any, parts: int) -> Rounds:
    """Reduce within each row of ``groups`` [G, n] to its first entry; −1 marks no worker."""
    rounds: Rounds = []
    for distance in _distances(groups.shape[1]):
        source = groups[:, distance :: 2 * distance]
        target = groups[:, :: 2 * distance][:, : source.shape[1]]
        there = source >= 0
        rounds.append(_round(source[there], target[there], 0, parts, True))
    return rounds


def _tree_down(groups: Any, parts: int) -> Rounds:
    """Broadcast within each row of ``groups``: the way up, backwards."""
    rounds = _tree_up(groups, parts)[::-1]
    return [_round(m["target"], m["source"], 0, parts, False) for m in rounds]


def _distances(count: int) -> Sequence[int]:
    return [1 << k for k in range((count - 1).bit_length())]


def naive(workers: int, group: int) -> tuple[int, Rounds]:
    """Everyone sends to worker 0, which adds up and sends the sum to one after the other."""
    others = [np.array([who]) for who in range(1, workers)]
    root = np.array([0])
    gather = [_round(who, root, 0, 1, True) for who in others]
    return 1, gather + [_round(root, who, 0, 1, False) for who in others]


def hierarchical(workers: int, group: int) -> tuple[int, Rounds]:
    """Trees within groups, Rabenseifner's algorithm between their first workers."""
    return _tree_over_groups(_group_members(np.arange(workers), group))


def _group_members(members: Ints, group: int) -> Ints:
    """[G, n] members of each group that has any, filled up with −1."""
    nearby, place, counts = np.unique(members // group, return_inverse=True, return_counts=True)
    rows = np.full((len(nearby), counts.max()), -1)
    rows[place, np.arange(len(members)) - np.repeat(np.cumsum(counts) - counts, counts)] = members
    return rows


def _tree_over_groups(groups: Ints) -> tuple[int, Rounds]:
    """Within each group to its first, between the firsts, and back."""
    parts, between = rabenseifner(len(groups), 1)
    for messages in between:
        messages["source"] = groups[messages["source"], 0]
        messages["target"] = groups[messages["target"], 0]
    return parts, _tree_up(groups, parts) + between + _tree_down(groups, parts)


def two_level(workers: int, group: int) -> tuple[int, Rounds]:
    """Rings within groups leave each worker a block of the sum; rings of those with one block.

    The blocks are summed up within each group, then each between the groups, and handed round
    within each group. A group is the largest that divides both what is near and all.
    """
    near = gcd(workers, group)
    groups = workers // near
    rank = np.arange(workers)
    place, home = rank % near, rank // near
    after, across = home * near + (place + 1) % near, (rank + near) % workers

    def rounds_within(shift: int, adds: bool) -> Rounds:
        first = [(place + shift - step) % near * groups for step in range(near - 1)]
        return [_round(rank, after, each, groups, adds) for each in first]

    def rounds_between(shift: int, adds: bool) -> Rounds:
        block = (place + 1) % near * groups
        first = [block + (home + shift - step) % groups for step in range(groups - 1)]
        return [_round(rank, across, each, 1, adds) for each in first]

    rounds = (
        rounds_within(0, True)
        + rounds_between(0, True)
        + rounds_between(1, False)
        + rounds_within(1, False)
    )
    return workers, rounds


def gather(workers: int, group: int) -> tuple[int, Rounds]:
    """Everyone's whole contribution goes round the ring, and each adds it to its own.

    As a table it says when what is sent, and not which: a worker passes on what it got last.
    """
    who = np.arange(workers)
    return 1, [_round(who, (who + 1) % workers, 0, 1, True) for _ in range(workers - 1)]


ALGORITHMS: dict[str, Callable[[int, int], tuple[int, Rounds]]] = {
    "ring": ring,
    "recursive-doubling": doubling,
    "rabenseifner": rabenseifner,
    "binomial-tree": tree,
    "naive": naive,
    "hierarchical": hierarchical,
    "two-level": two_level,
}
"""Every algorithm that adds up on the way, by its name."""

EXCHANGES = {**ALGORITHMS, "gather": gather}
"""Every algorithm by its name."""

GROUPED = ("hierarchical", "two-level")

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


def _ring(workers: int, size_bytes: float, add_s_per_byte: float) -> ring_Rounds:
    part = size_bytes / workers
    return ring_Rounds(2 * (workers - 1), workers - 1, part, part * add_s_per_byte)


def _gather(workers: int, size_bytes: float, add_s_per_byte: float) -> ring_Rounds:
    return ring_Rounds(workers - 1, workers - 1, size_bytes, size_bytes * add_s_per_byte)


ROUND: dict[str, Callable[[int, float, float], ring_Rounds]] = {"ring": _ring, "gather": _gather}
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
            self._get_plan()

    def restrict(self, members: Any) -> AllReduce:
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

    def _get_plan(self) -> tuple[Schedule, Program]:
        if self._plan is None:
            plan = schedule(self.algorithm, self.wiring.workers, self._group, self.members)
            self._plan = plan, program(plan)
        return self._plan

    def _run(self, ready: Any, size_bytes: float, add_s_per_byte: float) -> tuple[Any, Messages]:
        plan, rounds = self._get_plan()
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
            on_sent(rounds, desk, messages, who, now_s, arrived_s, add_s_per_byte)
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
        on_sent(rounds, desk, messages, who, times[1], times[2], add_s_per_byte)


@kernel
def on_sent(
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

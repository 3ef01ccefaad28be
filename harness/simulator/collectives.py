"""Collectives: all-reduce algorithms as tables of messages, simulated on a network.

A table lists the messages of every round: source, target and parts of the model. A model of equal
parts is summed over all workers, and every worker receives the sum. In a round a worker sends at
most one message and receives at most one. Sources: Thakur, Rabenseifner and Gropp, "Optimization
of collective communication operations in MPICH" (2005) for recursive doubling, Rabenseifner's
algorithm and worker counts that are not powers of two; Patarasuk and Yuan,
"Bandwidth optimal all-reduce algorithms" (2009) for the ring; Jia et al., "Highly scalable deep
learning training system with mixed-precision" (2018) for two levels.

With N workers, latency α, m bytes and β = 1 / bandwidth, an all-reduce on idle links takes,
where a message waits for its receiver,

- ring: 2 (N − 1) (α + β m / N);
- recursive doubling (the butterfly): log₂ N (α + β m);
- Rabenseifner: 2 log₂ N · α + 2 (N − 1) / N · β m;
- two levels, g workers in each of G groups, α', β' between groups:
  2 (g − 1) (α + β m / g) + 2 (G − 1) (α' + β' m / (g G));
- gather: (N − 1) (α + β m), for contributions that cannot be added up on their way;

for the second and third with N a power of two; they take 2 (α + β m) more
if it is not, with the next lower power in the place of N.

A collective is simulated message by message. Each worker goes through its rounds in order. A
worker's round ends when its own message has departed and the message for it has arrived and, where
needed, been added. A message starts when its sender has entered the round and, with rendezvous, its
receiver too. So a straggler delays the workers that depend on its messages, directly or through
others, and no others.

On a ring of full-duplex links no two messages ever share a link, so no table is needed: the
times T follow from a recurrence over rounds (`follow`). The message of worker i starts at
S[i] = T[i], or max(T[i], T[i+1]) if it waits for its receiver, and
T′[i] = max(S[i] + c, S[i−1] + c + α) + a.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import gcd
from typing import Any, NamedTuple

import numpy as np

from harness.base.errors import name_error
from harness.simulator.events import Agenda, kernel, new_agenda, set_event
from harness.simulator.network import (
    Traffic,
    Wiring,
    bottleneck,
    new_traffic,
    next_event,
    route,
    send,
)

Rounds = list[Any]

MESSAGE = np.dtype(
    [(name, np.float64) for name in ("size_bytes", "sent_s", "departed_s", "arrived_s")]
    + [(name, np.int32) for name in ("round", "source", "target", "first", "count", "agreed")]
    + [("adds", np.bool_)]
)
"""A message: in a round ``source`` sends ``count`` parts, from ``first`` on, to ``target``, which
adds them to its own or overwrites its own with them. Of one run: its size, the start of its
transmission, departure and arrival of its last byte, and how many of its ends have entered the
round."""

WORKER = np.dtype(
    [(name, np.int64) for name in ("place", "sending")]
    + [("entered_s", np.float64), ("waiting", np.bool_)]
)
"""A worker: the index of the round that it is in or about to enter, the number of its message in
flight, the instant at which it entered its latest round, and whether it is in that round with an
end that is not known yet."""


class Plan(NamedTuple):
    """The messages of one all-reduce, and the rounds of each worker.

    Attributes:
        workers: N.
        parts: number of equal parts of the model.
        messages: [M] of `MESSAGE`, by round.
        begins: [N + 1] index of each worker's first round among all E of them.
        sends, receives: [E] number of the message, or `NONE`.
    """

    workers: int
    parts: int
    messages: Any
    begins: Any
    sends: Any
    receives: Any


NONE = -1


@lru_cache(maxsize=8)
def schedule(
    algorithm: str, workers: int, group: int = 1, members: tuple[int, ...] | None = None
) -> Plan:
    """The messages of an algorithm.

    Args:
        algorithm: a key of `EXCHANGES`.
        workers: number of workers.
        group: for two levels, number of workers in a group.
        members: numbers of participating workers, ascending; all if not given.
    """
    numbers = np.arange(workers) if members is None else np.array(members)
    parts, rounds = EXCHANGES[algorithm](len(numbers), group)
    for number, messages in enumerate(rounds):
        messages["round"] = number
        messages["source"] = numbers[messages["source"]]
        messages["target"] = numbers[messages["target"]]
    rows = np.concatenate(rounds) if rounds else np.zeros(0, MESSAGE)
    rows = rows[np.lexsort((rows["source"], rows["round"]))]
    count = max(len(rounds), 1)
    keys = [rows[end].astype(np.int64) * count + rows["round"] for end in ("source", "target")]
    # In one round a worker sends one message at most, and receives one.
    entries, place = np.unique(np.concatenate(keys), return_inverse=True)
    sends, receives = np.full((2, len(entries)), NONE)
    sends[place[: len(rows)]] = receives[place[len(rows) :]] = np.arange(len(rows))
    begins = np.searchsorted(entries, np.arange(workers + 1) * count).astype(np.int64)
    return Plan(workers, parts, rows, begins, sends, receives)


def _round(source: Any, target: Any, begin: Any, count: int, adds: bool) -> Any:
    """[n] messages of one round."""
    messages = np.zeros(len(source), MESSAGE)
    messages["source"], messages["target"] = source, target
    messages["first"], messages["count"], messages["adds"] = begin, count, adds
    return messages


def ring(workers: int, group: int) -> tuple[int, Rounds]:
    """Every worker sends to the next: N − 1 rounds add up the parts, N − 1 distribute the sums."""
    senders = np.arange(workers)
    after = (senders + 1) % workers
    steps = range(workers - 1)
    up = [_round(senders, after, (senders - step) % workers, 1, True) for step in steps]
    # Worker w has the sum of part w + 1 by now, and passes that on first.
    around = [_round(senders, after, (senders + 1 - step) % workers, 1, False) for step in steps]
    return workers, up + around


def doubling(workers: int, group: int) -> tuple[int, Rounds]:
    """Pairs at distance 1, 2, 4 … exchange their partial sums of the whole model."""
    power, rank, before, after = _power_of_two(workers, 1)
    ids = np.arange(power)
    distances = [1 << k for k in range(power.bit_length() - 1)]
    rounds = [_round(rank, rank[ids ^ d], 0, 1, True) for d in distances]
    return 1, before + rounds + after


def rabenseifner(workers: int, group: int) -> tuple[int, Rounds]:
    """Pairs exchange halves, quarters … of the sum, then gather them in the opposite order."""
    power, rank, before, after = _power_of_two(workers, 1 << (workers.bit_length() - 1))
    ids = np.arange(power)
    distances = [1 << k for k in range(power.bit_length() - 1)]
    halve = [_round(rank, rank[ids ^ d], (ids ^ d) // d * d, d, True) for d in reversed(distances)]
    gather = [_round(rank, rank[ids ^ d], ids // d * d, d, False) for d in distances]
    return power, before + halve + gather + after


def _power_of_two(workers: int, parts: int) -> tuple[int, Any, Rounds, Rounds]:
    """The largest power of two P ≤ N, its P participants, and extra rounds before and after.

    Of the first 2 (N − P) workers the even ones send their contribution to the odd ones, and
    receive the sum at the end.
    """
    power = 1 << (workers.bit_length() - 1)
    extra = workers - power
    even = np.arange(0, 2 * extra, 2)
    ids = np.arange(power)
    rank = np.where(ids < extra, 2 * ids + 1, ids + extra)
    if extra == 0:
        return power, rank, [], []
    before = [_round(even, even + 1, 0, parts, True)]
    after = [_round(even + 1, even, 0, parts, False)]
    return power, rank, before, after


def two_level(workers: int, group: int) -> tuple[int, Rounds]:
    """Rings within groups, then rings across groups for each block, then rings within groups.

    Blocks are summed within each group, then each block across the groups, and then distributed
    within each group. The group's size is the greatest common divisor of ``group`` and N.
    """
    size = gcd(workers, group)
    groups = workers // size
    rank = np.arange(workers)
    place, home = rank % size, rank // size
    after, across = home * size + (place + 1) % size, (rank + size) % workers

    def rounds_within(shift: int, adds: bool) -> Rounds:
        starts = [(place + shift - step) % size * groups for step in range(size - 1)]
        return [_round(rank, after, start, groups, adds) for start in starts]

    def rounds_between(shift: int, adds: bool) -> Rounds:
        # The first rings leave its group's sum of block p + 1 with the worker at place p.
        block = (place + 1) % size * groups
        starts = [block + (home + shift - step) % groups for step in range(groups - 1)]
        return [_round(rank, across, start, 1, adds) for start in starts]

    up = rounds_within(0, True) + rounds_between(0, True)
    return workers, up + rounds_between(1, False) + rounds_within(1, False)


def gather(workers: int, group: int) -> tuple[int, Rounds]:
    """Every worker's whole contribution travels round the ring; each worker adds it to its own.

    The table has the times and sizes of messages but not their content: a worker passes on the
    contribution that it received last.
    """
    senders = np.arange(workers)
    return 1, [_round(senders, (senders + 1) % workers, 0, 1, True) for _ in range(workers - 1)]


ALGORITHMS: dict[str, Callable[[int, int], tuple[int, Rounds]]] = {
    "ring": ring,
    "recursive-doubling": doubling,
    "rabenseifner": rabenseifner,
    "two-level": two_level,
}
"""Algorithms that add up on the way, by name."""

EXCHANGES = {**ALGORITHMS, "gather": gather}
"""All algorithms by name."""

RINGS = {"ring": 2, "gather": 1}
"""Algorithms in which every worker sends to the next: how often parts or wholes go round."""


class Desk(NamedTuple):
    """Progress of the workers through their rounds.

    Attributes:
        plan: the messages, and the rounds of each worker.
        messages: [M] of `MESSAGE`, with their times as far as they are known.
        traffic: the messages in flight, by sender.
        add_s_per_byte: time to add a received byte.
        agenda: instants at which workers enter their next rounds.
        workers: [N] of `WORKER`.
    """

    plan: Plan
    messages: Any
    traffic: Traffic
    add_s_per_byte: float
    agenda: Agenda
    workers: Any


class Ring(NamedTuple):
    """A ring of M members on which no two messages share a link; see `follow`.

    Attributes:
        now_s: [M] instants at which members join, then those at which they have the sum.
        departed_s: [M] departures of one round.
        copy_s, latency_s: [M] seconds of the copy to the next member, and its latency.
        add_s: seconds to add what has been received, in the first turn.
        turns: how often parts or wholes go round.
        waits: whether a message waits for its receiver.
    """

    now_s: Any
    departed_s: Any
    copy_s: Any
    latency_s: Any
    add_s: float
    turns: int
    waits: bool


class AllReduce:
    """One algorithm on one network, to be run as often as needed.

    Args:
        algorithm: a key of `EXCHANGES`.
        wiring: the network, idle at the beginning of a run.
        group: for two levels, number of workers in a group.
        members: numbers of the M participating workers, ascending; all if not given.

    Raises:
        UserError: no such algorithm.
    """

    def __init__(self, algorithm: str, wiring: Wiring, group: int = 1, members: Any = None) -> None:
        if algorithm not in EXCHANGES:
            raise name_error("collective", algorithm, EXCHANGES)
        self.algorithm = algorithm
        self.wiring = wiring
        self.members = np.arange(wiring.workers) if members is None else members
        self._group = group

    def restrict(self, members: Any) -> AllReduce:
        """The same algorithm among ``members`` only."""
        return AllReduce(self.algorithm, self.wiring, self._group, members)

    def ends_s(self, ready_s: Any, size_bytes: float, add_s_per_byte: float = 0.0) -> Any:
        """Instants at which members have the sum.

        Args:
            ready_s: [M] instants at which members join.
            size_bytes: size of the model.
            add_s_per_byte: time to add a received byte.

        Returns:
            [M] seconds.
        """
        ring = self.ring(size_bytes, add_s_per_byte)
        if ring is None:
            return self._run(np.asarray(ready_s, np.float64), size_bytes, add_s_per_byte)[0]
        ring.now_s[:] = ready_s
        follow(ring)
        return ring.now_s

    def messages(self, ready_s: Any, size_bytes: float) -> Any:
        """[M] of `MESSAGE` of a run in which adding takes no time; arguments as for `ends_s`."""
        return self._run(np.asarray(ready_s, np.float64), size_bytes, 0.0)[1]

    def ring(self, size_bytes: float, add_s_per_byte: float) -> Ring | None:
        """The ring of these members for messages of a size; None if it needs a table."""
        count, is_ring = len(self.members), self.algorithm in RINGS
        # Elsewhere two messages may share a link.
        if count > 1 and not (is_ring and self.wiring.full_duplex):
            return None
        part = size_bytes / count if self.algorithm == "ring" else size_bytes
        now_s, departed_s, copy_s, latency_s = np.zeros((4, count))
        way = np.zeros(self.wiring.longest, np.int64)
        ring_links(self.wiring, self.members, part, copy_s, latency_s, way)
        turns, wait = RINGS.get(self.algorithm, 0), self.wiring.rendezvous
        return Ring(now_s, departed_s, copy_s, latency_s, part * add_s_per_byte, turns, wait)

    def _run(self, ready: Any, size_bytes: float, add_s_per_byte: float) -> tuple[Any, Any]:
        members = tuple(self.members.tolist())
        plan = schedule(self.algorithm, self.wiring.workers, self._group, members)
        messages, people = plan.messages.copy(), np.zeros(plan.workers, WORKER)
        messages["size_bytes"] = size_bytes * messages["count"] / plan.parts
        for name in ("sent_s", "departed_s", "arrived_s"):
            messages[name] = np.inf
        people["place"], people["sending"] = plan.begins[:-1], NONE
        traffic, agenda = new_traffic(self.wiring, plan.workers), new_agenda(plan.workers)
        desk = Desk(plan, messages, traffic, add_s_per_byte, agenda, people)
        end_s, enters_s = np.zeros(plan.workers), np.full(plan.workers, np.inf)
        # The others never enter their first round, which has no message for them.
        enters_s[self.members] = ready
        carry_out(desk, enters_s, end_s)
        return end_s[self.members], messages


@kernel
def ring_links(
    wiring: Wiring, members: Any, part: float, copy_s: Any, latency_s: Any, way: Any
) -> None:
    """Seconds of the copy of one part from each member to the next, and its latency."""
    workers = len(copy_s)
    for member in range(workers):
        after = members[(member + 1) % workers]
        latency_s[member], links = route(wiring, members[member], after, way)
        copy_s[member] = part / bottleneck(wiring, way[:links])


@kernel
def follow(ring: Ring) -> None:
    """Follow all rounds of a ring: M − 1 a turn, and in the first turn time to add after each."""
    now_s, departed_s, latency_s = ring.now_s, ring.departed_s, ring.latency_s
    end = len(now_s) - 1
    for number in range(ring.turns * end):
        extra_s = ring.add_s if number < end else 0.0
        for member in range(len(now_s)):
            departed_s[member] = now_s[member]
        if ring.waits:
            for member in range(end):
                departed_s[member] = max(now_s[member], now_s[member + 1])
            departed_s[end] = max(now_s[end], now_s[0])
        for member in range(len(now_s)):
            departed_s[member] += ring.copy_s[member]
        # The last member's message closes the ring.
        now_s[0] = max(departed_s[0], departed_s[end] + latency_s[end]) + extra_s
        for member in range(1, len(now_s)):
            arrived_s = departed_s[member - 1] + latency_s[member - 1]
            now_s[member] = max(departed_s[member], arrived_s) + extra_s


@kernel
def carry_out(desk: Desk, ready_s: Any, end_s: Any) -> None:
    """Simulate the whole collective; fills the times of the messages and ``end_s``."""
    for worker in range(len(ready_s)):
        set_event(desk.agenda, worker, ready_s[worker])
    now_s, worker, arrives_s = next_event(desk.traffic, desk.agenda, -np.inf)
    while now_s < np.inf:
        if arrives_s < np.inf:
            on_sent(desk, worker, now_s, arrives_s)
        else:
            enter(desk, worker, now_s, end_s)
        now_s, worker, arrives_s = next_event(desk.traffic, desk.agenda, now_s)


@kernel
def enter(desk: Desk, worker: int, now_s: float, end_s: Any) -> None:
    """Let a worker enter its next round, or finish after its last."""
    row = desk.workers[worker]
    place = row.place
    if place == desk.plan.begins[worker + 1]:
        end_s[worker] = now_s
        return
    row.entered_s = now_s
    row.waiting = True
    out, into = desk.plan.sends[place], desk.plan.receives[place]
    if out != NONE:
        agree(desk, out, now_s)
    if into != NONE and desk.traffic.wiring.rendezvous:
        agree(desk, into, now_s)
    # First come, first served, `agree` may have settled the round already.
    if row.waiting and row.place == place:
        settle(desk, worker)


@kernel
def agree(desk: Desk, message: int, now_s: float) -> None:
    """Count one end of a message as present; start the message once all needed ends are."""
    row = desk.messages[message]
    row.agreed += 1
    if desk.traffic.wiring.rendezvous and row.agreed < 2:
        return
    worker = row.source
    desk.workers[worker].sending = message
    row.sent_s, departs_s, arrives_s = send(
        desk.traffic, worker, worker, row.target, row.size_bytes, now_s
    )
    if departs_s < np.inf:
        on_sent(desk, worker, departs_s, arrives_s)


@kernel
def on_sent(desk: Desk, worker: int, departed_s: float, arrived_s: float) -> None:
    """Record departure and arrival of a worker's message, and settle both ends' rounds."""
    sender, plan = desk.workers[worker], desk.plan
    message = sender.sending
    row = desk.messages[message]
    row.departed_s = departed_s
    row.arrived_s = arrived_s
    receiver = desk.workers[row.target]
    if sender.waiting and plan.sends[sender.place] == message:
        settle(desk, worker)
    if receiver.waiting and plan.receives[receiver.place] == message:
        settle(desk, row.target)


@kernel
def settle(desk: Desk, worker: int) -> None:
    """Schedule a worker's next round if the end of its present one is known."""
    row, messages = desk.workers[worker], desk.messages
    out, into = desk.plan.sends[row.place], desk.plan.receives[row.place]
    over_s = row.entered_s  # a buffered message may have arrived earlier
    if out != NONE:
        over_s = max(over_s, messages[out].departed_s)
    if into != NONE:
        over_s = max(over_s, messages[into].arrived_s)
        if messages[into].adds:
            over_s += messages[into].size_bytes * desk.add_s_per_byte
    if over_s < np.inf:
        row.place += 1
        row.waiting = False
        set_event(desk.agenda, worker, over_s)

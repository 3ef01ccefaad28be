"""The state of the asynchronous kernel: workers, slots, shards, messages, records.

Each contribution occupies a slot of its worker. The leaves of one tournament are the slots, with
faults also workers and fault processes, and on a network the arrivals at each of several shards.
Each leaf has at most one pending event, so the event of a contribution that a failure destroys can
be removed, and no stale event is left.

Two kinds of event arise in order of time and wait in queues: the folds of one server, which folds
one contribution after another, and reads, which come last at their instant.

`Shards`: each shard of the server has a queue and folds its own piece of every contribution. A
worker sends a contribution as one piece for each shard, one after the other; neighbouring workers
begin with different shards. So pieces reach shards at different instants, and at a read some shards
have folded more contributions than others. A shard folds in the order of arrival, so the instant of
a piece's fold is known once it is queued. A shard's version is counted only when a worker reads.

`Record` has the events that the kernel records; `timeline` makes a timeline of it.

`Roads`: contributions as messages on a network with the server's shards. A fetch is a message from
every shard, a push one to every shard, each with its part of the parameters. A contribution has one
message in flight at a time: the next is sent when the previous one has departed, beginning with
shard (worker mod S). If buffers are pageable, parameters are copied once more after a fetch, and
before a push. With links first come, first served, a message's departure is known when it is sent.
On fair links it is an event of the traffic, like the end of a copy on a fair
`harness.simulator.link`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from harness.simulator import link, network, star
from harness.simulator.cluster import Cluster
from harness.simulator.costs import own_links
from harness.simulator.events import (
    Queue,
    append,
    from_a_line,
    kernel,
    new_queue,
    new_tournament,
    part,
    scratch,
    set_leaf,
)
from harness.simulator.network import Traffic, new_traffic, reserve, wire
from harness.simulator.protocols.contract import CLOCK_FIELDS
from harness.simulator.star import Star, new_star
from harness.simulator.timeline import (
    LOST,
    SERVER,
    Contributions,
    Folds,
    Pieces,
    Restarts,
    Spans,
    Timeline,
)

__all__ = [
    "PIECE",
    "Record",
    "Roads",
    "Rules",
    "Shards",
    "State",
    "begin",
    "fold_end_s",
    "initial_state",
    "is_networked",
    "leave",
    "look",
    "new_roads",
    "new_shards",
    "next_to_leave_s",
    "queue",
    "send_next",
    "space",
    "staging_s",
    "timeline",
    "wake",
    "write_row",
]

FOLDED, PUSHED, SEND, COMPUTED, FETCHED, FAULT, RETURNED, READ = range(8)
"""Kinds of events; the number is the priority at equal times."""

PARKED, ABOUT_TO_READ, HELD, ENGAGED, AWAY = range(5)
"""States of a worker: idle because the limits allow no read, about to read, held by the staleness
bound, computing or waiting for a fold, absent."""

FREE, WORKING, GATED, PUSHING, AT_SERVER, ABANDONED = range(6)
"""States of a slot: empty, being fetched or computed, waiting for room at the server, on its way
there, at the server, lost with its copy still on a fair link."""

UNDER_WAY = WORKING, AT_SERVER
"""The first and the last phase of a contribution that is read and not folded."""

# A key of the tournament: 3 bits of kind, 36 of sequence, 24 of leaf, below the sign bit.
PRIORITY, SEQUENCE, LEAF = 60, 24, (1 << 24) - 1

MOST_LEAVES = 1 << 24

MOST_EVENTS = 1 << 36

CLOCK = np.dtype(
    [
        *CLOCK_FIELDS,
        *((name, np.int64) for name in ("standing", "sequence", "under_way", "begun", "places")),
        *((name, np.int64) for name in ("parked", "least", "at_least", "checkpoint", "restored")),
        *((name, np.float64) for name in ("server_free_s", "server_up_s")),
    ]
)
"""Besides the common fields: events in a row at one instant, events ever, contributions in
flight, whether faults are scheduled, places taken at the server, parked workers, the fewest folds
of a present worker and the number of workers with so few, checkpoints so far, the version of the
last checkpoint, and the instants at which the server is free and up again."""

INTEGERS = ("worker", "phase", "on_link", "first_step", "read_version")

COSTS = ("copy_s", "compute_s", "fold_s")

INSTANTS = (
    *("read_at_s", "fetch_start_s", "fetch_end_s", "compute_end_s"),
    *("push_start_s", "push_end_s", "fold_start_s", "fold_end_s"),
)

SLOT = np.dtype(
    [(name, np.int64) for name in INTEGERS] + [(name, np.float64) for name in COSTS + INSTANTS]
)
"""A contribution, its costs, and the instants of its stages; after a loss the fold's end is
the instant of the loss. Two cache lines."""

WORKER = np.dtype(
    [(name, np.int16) for name in ("status", "computing")]
    + [(name, np.int32) for name in ("mine", "since_fetch", "messages")]
    + [(name, np.int64) for name in ("step", "folds", "read_version")]
    + [(name, np.float64) for name in ("read_at_s", "uplink_free_s", "leave_s")]
)
"""A worker, one cache line: whether it computes, contributions in flight, contributions begun
since its fetch (−1: no parameters), messages sent, minibatches begun, folds, version and instant
of its read, instant at which its own link to the server is free, and duration of an absence due
before its next read."""


class Rules(NamedTuple):
    """The protocol's settings; a bound or limit of -1 is none.

    Attributes:
        push_every: minibatches per contribution.
        fetch_every: contributions per fetch.
        bound: number of folds by which a worker may be ahead of the slowest.
        queue: places at the server.
        depth: contributions that a worker may have in flight.
        shards: parts of the model with a queue of their own.
    """

    push_every: int
    fetch_every: int
    bound: int
    queue: int
    depth: int
    shards: int


class State(NamedTuple):
    """The state of the kernel.

    Attributes:
        clock: [1] of `CLOCK`.
        events: tournament of slots, then workers and fault processes by worker, or arrivals.
        folds: slots that the server folds, one after another.
        readers: workers that read at the present instant.
        held: [2N] tournament of workers held by the bound, by their folds; [2] without a bound.
        gate: [2C] tournament of slots that wait for room at the server; [2] without a limit.
        channels: the link.
        slots: [C] of `SLOT`, ``depth`` per worker.
        workers: [N] of `WORKER`.
        occurrences: [P, N] number of occurrences of each process at each worker.
        shards: the shards of the server, empty for one shard.
        roads: the messages on a network between workers and server; None without one.
    """

    clock: Any
    events: Any
    folds: Queue
    readers: Queue
    held: Any
    gate: Any
    channels: link.Channels
    slots: Any
    workers: Any
    occurrences: Any
    shards: Shards
    roads: Roads | None


def leaves(cluster: Cluster, workers: int, rules: Rules) -> int:
    """Number of leaves of the tournament of events."""
    # With several shards a contribution may have several messages that have not arrived yet.
    timed, arrivals = _count_timed_faults(cluster), 0
    if is_networked(cluster) and rules.shards > 1:
        arrivals = workers * rules.depth * rules.shards
    return workers * rules.depth + (workers * (1 + timed) if timed else 0) + arrivals


def _count_timed_faults(cluster: Cluster) -> int:
    return sum(fault.kind != "message" for fault in cluster.faults)


def initial_state(cluster: Cluster, workers: int, rules: Rules) -> State:
    """All workers idle at time 0, version 0."""
    count = workers * rules.depth
    slots, people = from_a_line(count, SLOT), from_a_line(workers, WORKER)
    slots["worker"] = np.repeat(np.arange(workers), rules.depth)
    people["since_fetch"] = -1  # no worker has parameters yet
    clock = np.zeros(1, CLOCK)
    clock["parked"] = clock["at_least"] = workers  # all have 0 folds, the least
    channels = link.new_channels(cluster.link, count)
    if is_networked(cluster):
        channels = channels._replace(sharing=link.NETWORK)
    return State(
        clock=clock,
        events=new_tournament(leaves(cluster, workers, rules)),
        folds=new_queue(count if rules.shards == 1 else 0),
        readers=new_queue(workers),
        # Without a bound or limit, one empty leaf: kernels always look at the first event.
        held=new_tournament(workers if rules.bound >= 0 else 1),
        gate=new_tournament(count if rules.queue >= 0 else 1),
        channels=channels,
        slots=slots,
        workers=people,
        occurrences=np.zeros(
            (_count_timed_faults(cluster), workers if _count_timed_faults(cluster) else 0), np.int64
        ),
        shards=new_shards(rules.shards, workers, count),
        roads=new_roads(cluster, workers, rules.depth, rules.shards),
    )


@kernel
def plan(state: State, leaf: int, time_s: float, kind: int) -> None:
    """Schedule a leaf's event; of equal time and kind, the event scheduled first comes first."""
    clock = state.clock[0]
    # Without the sequence, the leaf would decide, and low worker numbers would come first.
    set_leaf(state.events, leaf, time_s, (kind << PRIORITY) | (clock.sequence << SEQUENCE) | leaf)
    clock.sequence += 1


@kernel
def wake(state: State) -> None:
    """Let idle workers read next, in order of their numbers."""
    for number in range(len(state.workers)):
        if state.workers[number].status == PARKED:
            schedule_read(state, number)


@kernel
def become(state: State, number: int, status: int) -> None:
    """Change a worker's status, and the clock's counts of parked and busy workers."""
    clock, worker = state.clock[0], state.workers[number]
    clock.parked += (status == PARKED) - (worker.status == PARKED)
    clock.busy += (status in (ABOUT_TO_READ, ENGAGED)) - (worker.status in (ABOUT_TO_READ, ENGAGED))
    worker.status = status


@kernel
def schedule_read(state: State, number: int) -> None:
    """Let a worker read at this instant, after all other events of it."""
    become(state, number, ABOUT_TO_READ)
    # A queue of their own makes reads last at their instant, whatever is scheduled meanwhile.
    append(state.readers, state.clock[0].now_s, number)


@kernel
def leave_least(state: State, rules: Rules) -> None:
    """Remove a worker from those with the fewest folds, because it has more now, or left."""
    # Only when the last of them is gone must all workers be searched.
    state.clock[0].at_least -= 1
    if state.clock[0].at_least == 0:
        find_least(state, rules)


@kernel
def find_least(state: State, rules: Rules) -> None:
    """Find the fewest folds of any present worker; workers that the bound allows read now."""
    clock = state.clock[0]
    clock.at_least = 0
    for number in range(len(state.workers)):
        worker = state.workers[number]
        if worker.status != AWAY:
            if clock.at_least == 0 or worker.folds < clock.least:
                clock.least = worker.folds
                clock.at_least = 0
            clock.at_least += worker.folds == clock.least
    # Held workers are ordered by their folds, which include contributions in flight (`read`).
    while state.held[1].time_s <= clock.least + rules.bound:
        head = state.held[1].key & LEAF
        scratch(state.held, head)
        schedule_read(state, head)


SHARD = np.dtype([("queued", np.int64), ("version", np.int64), ("free_s", np.float64)])
"""Pieces ever queued, pieces folded as of the last count, instant at which it is free."""

PIECE = np.dtype(
    [(name, np.int64) for name in ("read_version", "version")]
    + [(name, np.float64) for name in ("start_s", "end_s")]
)
"""The shard's version that was read, its version before the fold, and the interval of the fold."""


class Shards(NamedTuple):
    """State of several shards; arrays are empty for one shard.

    Attributes:
        queues: [S] of `SHARD`.
        ends_s: [S, C] rings of the ends of queued pieces' folds.
        seen: [N, S] version of each shard at a worker's last fetch.
        sent: [C] number of each slot's pieces that are queued or folded.
        pieces: [C, S] of `PIECE`.
    """

    queues: Any
    ends_s: Any
    seen: Any
    sent: Any
    pieces: Any


def new_shards(shards: int, workers: int, slots: int) -> Shards:
    """Shards of version 0 with empty queues."""
    if shards == 1:
        shards = workers = slots = 0
    return Shards(
        queues=np.zeros(shards, SHARD),
        ends_s=np.zeros((shards, slots)),
        seen=np.zeros((workers, shards), np.int64),
        sent=np.zeros(slots, np.int64),
        pieces=np.zeros((slots, shards), PIECE),
    )


@kernel
def settle(shards: Shards, index: int, now_s: float) -> None:
    """Count a shard's folds up to this instant."""
    # Ends rise along the ring, so counting stops at the first piece that is not yet folded.
    shard, ring = shards.queues[index], shards.ends_s.shape[1]
    while shard.version < shard.queued and shards.ends_s[index, shard.version % ring] <= now_s:
        shard.version += 1


@kernel
def look(shards: Shards, worker: int, now_s: float) -> None:
    """Let a worker read every shard at this instant."""
    for index in range(len(shards.queues)):
        settle(shards, index, now_s)
        shards.seen[worker, index] = shards.queues[index].version


@kernel
def begin(shards: Shards, worker: int, place: int) -> None:
    """Begin a contribution at the versions that its worker read last."""
    shards.sent[place] = 0
    for index in range(len(shards.queues)):
        shards.pieces[place, index].read_version = shards.seen[worker, index]


@kernel
def queue(
    shards: Shards, worker: int, place: int, now_s: float, arrival_s: float, fold_s: float
) -> bool:
    """Queue the next piece at its shard, with a part of ``fold_s``; whether it was the last.

    A piece that is not yet folded keeps its slot taken, so C entries in a ring are enough.
    """
    count, ring = shards.ends_s.shape
    # Neighbouring workers begin with different shards, which spreads the load.
    index = (worker + shards.sent[place]) % count
    settle(shards, index, now_s)
    shard, piece = shards.queues[index], shards.pieces[place, index]
    piece.version = shard.queued
    piece.start_s = max(arrival_s, shard.free_s)
    piece.end_s = piece.start_s + fold_s / count
    shards.ends_s[index, shard.queued % ring] = shard.free_s = piece.end_s
    shard.queued += 1
    shards.sent[place] += 1
    return shards.sent[place] == count


@kernel
def fold_end_s(shards: Shards, place: int) -> float:
    """Instant at which the last shard has folded its piece."""
    end_s = shards.pieces[place, 0].end_s
    for index in range(1, len(shards.queues)):
        end_s = max(end_s, shards.pieces[place, index].end_s)
    return end_s


SPANNED = np.dtype(
    [(name, np.float64) for name in ("fetch_start_s", "fetch_end_s", "compute_end_s")]
    + [(name, np.float64) for name in ("push_start_s", "push_end_s", "fold_start_s")]
)
"""The instants of a contribution from which spans are made, besides the fold's end."""

RESTART = np.dtype([("time_s", np.float64), ("version", np.int64), ("restored_version", np.int64)])


class Record(NamedTuple):
    """Recorded events: [M] columns of folded contributions, lost slots, restarts, their counts.

    ``instants`` is empty without spans. With several shards, [M, S] ``pieces`` of folded
    contributions.
    """

    fold_end_s: Any
    worker: Any
    read_version: Any
    read_at_s: Any
    first_step: Any
    instants: Any
    lost: Any
    restarts: Any
    counts: Any
    pieces: Any


def space(folds: int, under_way: int, shards: int, spans: bool, losses: bool) -> Record:
    """An empty record, with space for the contributions in flight behind its folds.

    Args:
        folds: largest number of folds, and of restarts.
        under_way: largest number of contributions in flight.
        shards: number of shards that record pieces; 0 for one shard.
        spans: whether to record spans.
        losses: whether contributions may be lost.
    """
    kinds = (np.float64, np.int32, np.int64, np.float64, np.int64)
    return Record(
        *(np.empty(folds + under_way, kind) for kind in kinds),
        instants=np.empty(folds if spans else 0, SPANNED),
        lost=np.empty(folds + under_way if losses else 0, SLOT),
        restarts=np.empty(folds, RESTART),
        counts=np.zeros(3, np.int64),
        pieces=np.empty((folds, shards), PIECE),
    )


@part
def write_row(record: Record, row: int, slot: Any) -> None:
    """Write a folded contribution to the columns."""
    record.fold_end_s[row] = slot.fold_end_s
    record.worker[row] = slot.worker
    record.read_version[row] = slot.read_version
    record.read_at_s[row] = slot.read_at_s
    record.first_step[row] = slot.first_step
    if len(record.instants) > 0:
        instants = record.instants[row]
        instants.fetch_start_s = slot.fetch_start_s
        instants.fetch_end_s = slot.fetch_end_s
        instants.compute_end_s = slot.compute_end_s
        instants.push_start_s = slot.push_start_s
        instants.push_end_s = slot.push_end_s
        instants.fold_start_s = slot.fold_start_s


def timeline(record: Record, start: int, steps: int, under_way: int) -> Timeline:
    """The timeline of a record.

    Args:
        record: of `asynchronous.run`.
        start: number of the first fold.
        steps: minibatches of each contribution.
        under_way: space behind the folds.
    """
    count, lost, restarts = record.counts.tolist()
    pieces = record.pieces[:count]
    numbers = np.arange(start, start + count + under_way, dtype=np.int64)[:count]
    rows = _build_contributions(record, numbers, steps, under_way)
    struck = record.restarts[:restarts]
    return Timeline(
        folds=Folds(numbers, record.fold_end_s[:count]),
        contributions=_append_lost(rows, _rows(record.lost, np.arange(lost), LOST, steps)),
        spans=_spans(record, pieces) if len(record.instants) else Spans(),
        restarts=Restarts(*(struck[name].copy() for name in RESTART.names or ())),
        pieces=_pieces(numbers, pieces),
    )


def _build_contributions(record: Record, numbers: Any, steps: int, under_way: int) -> Contributions:
    """Columns as views with room behind them, or as copies."""
    # A view keeps its whole array alive, so mostly empty arrays are copied instead.
    count = len(numbers)
    size = count + under_way
    columns = [record.worker, record.read_version, record.read_at_s, record.first_step]
    if size < len(record.worker) // 2:
        columns = [column[:size].copy() for column in columns]
    worker, read_version, read_at_s, first_step = (column[:count] for column in columns)
    counts = np.full(size, steps, np.int32)[:count]
    return Contributions(numbers, worker, read_version, read_at_s, first_step, counts)


def _append_lost(rows: Contributions, lost: Contributions) -> Contributions:
    if len(lost) == 0:
        return rows
    tail = lost.columns()
    joined = {name: np.concatenate([column, tail[name]]) for name, column in rows.columns().items()}
    return Contributions(**joined)


def _rows(slots: Any, places: Any, fate: int, steps: int) -> Contributions:
    """Contributions of some slots."""
    # Column by column: for many workers the slots themselves are most of the memory.
    return Contributions(
        fold=np.full(len(places), fate, np.int64),
        worker=slots["worker"][places].astype(np.int32),
        read_version=slots["read_version"][places],
        read_time_s=slots["read_at_s"][places],
        first_step=slots["first_step"][places],
        steps=np.full(len(places), steps, np.int32),
    )


def _pieces(folds: Any, rows: Any) -> Pieces:
    """One row for each shard of each fold; none for one shard."""
    count = rows.shape[1]
    return Pieces(
        fold=np.repeat(folds, count),
        worker=np.tile(SERVER - np.arange(count, dtype=np.int32), len(rows)),
        read_version=rows["read_version"].reshape(-1),
        version=rows["version"].reshape(-1),
        time_s=rows["end_s"].reshape(-1),
    )


def _spans(record: Record, pieces: Any) -> Spans:
    """Fetch, compute, push of each contribution and folds of its pieces, if they take time."""
    folds, count = pieces.shape
    rows, in_shards = record.instants[:folds], count > 0
    count = max(count, 1)
    fold_start_s = pieces["start_s"] if in_shards else rows["fold_start_s"][:, None]
    fold_end_s = pieces["end_s"] if in_shards else record.fold_end_s[:folds, None]
    starts = (rows[name] for name in ("fetch_start_s", "fetch_end_s", "push_start_s"))
    ends = (rows[name] for name in ("fetch_end_s", "compute_end_s", "push_end_s"))
    start_s = np.column_stack([*starts, fold_start_s]).reshape(-1)
    end_s = np.column_stack([*ends, fold_end_s]).reshape(-1)
    worker = np.empty((folds, 3 + count), np.int32)
    worker[:, :3] = record.worker[:folds, None]
    worker[:, 3:] = SERVER - np.arange(count)
    kind = np.tile(np.array([0, 1, 2, *[3] * count], np.int32), folds)
    busy = end_s > start_s
    return Spans(worker.reshape(-1)[busy], kind[busy], start_s[busy], end_s[busy])


class Roads(NamedTuple):
    """State of the messages on a network.

    Attributes:
        traffic: messages in flight, by slot of their contributions.
        star: the same for fair links with one level of them between workers' own links and the
            link of a single shard.
        size_bytes: [C] size of each slot's parameters.
        sent: [C] number of messages sent in a slot's present fetch or push.
        staging_bytes_per_s: bandwidth of the copy to or from a pinned buffer.
    """

    traffic: Traffic
    star: Star
    size_bytes: Any
    sent: Any
    staging_bytes_per_s: float


def is_networked(cluster: Cluster) -> bool:
    """Whether the server is on the cluster's network, and not behind its link."""
    return cluster.network is not None and cluster.network.server is not None


def new_roads(cluster: Cluster, workers: int, depth: int, shards: int) -> Roads | None:
    """An idle network between workers and shards; None if the cluster has none.

    With None, kernels are compiled without their code for a network.
    """
    if cluster.network is None or cluster.network.server is None:
        return None
    rate = cluster.host.staging_bytes_per_s if cluster.host.staging == "pageable" else None
    slots, link_rates = workers * depth, own_links(cluster, workers)
    return Roads(
        traffic=new_traffic(wire(cluster.network, workers, shards, link_rates), slots),
        star=new_star(cluster.network, workers, shards, depth, link_rates),
        size_bytes=np.zeros(slots),
        sent=np.zeros(slots, np.int64),
        staging_bytes_per_s=rate if rate is not None else np.inf,
    )


@kernel
def staging_s(roads: Roads | None, place: int) -> float:
    """Seconds to copy a slot's parameters to or from a pinned buffer."""
    if roads is None:
        return 0.0
    return roads.size_bytes[place] / roads.staging_bytes_per_s


@kernel
def send_next(
    roads: Roads, place: int, worker: int, shards: int, up: bool, now_s: float
) -> tuple[float, float, float]:
    """Send the next message of a slot, to its shard or (not ``up``) from it.

    Returns:
        Start, departure and arrival; the latter two are infinite on fair links, where they are
        not known yet.
    """
    wiring = roads.traffic.wiring
    # In the order of `queue`: a message and its piece must meet at one shard.
    shard = wiring.workers + (worker + roads.sent[place]) % shards
    source, target = (worker, shard) if up else (shard, worker)
    size = roads.size_bytes[place] / shards
    roads.sent[place] += 1
    if len(roads.star.channels) > 0:  # the same rates at a lower cost
        star.join(roads.star, place, worker, up, size, now_s)
        return now_s, np.inf, np.inf
    if wiring.fair:
        network.start(roads.traffic, place, source, target, size, now_s)
        return now_s, np.inf, np.inf
    return reserve(roads.traffic, place, source, target, size, now_s)


@kernel
def next_to_leave_s(roads: Roads | None, now_s: float) -> float:
    """Next departure from fair links, infinity if no message is in flight there."""
    if roads is None or not roads.traffic.wiring.fair:
        return np.inf
    if len(roads.star.channels) > 0:
        return star.next_departure_s(roads.star)
    return network.next_departure_s(roads.traffic, now_s)


@kernel
def leave(roads: Roads) -> tuple[int, float]:
    """Remove the next departing message from fair links; returns its slot and its latency."""
    if len(roads.star.channels) > 0:
        return star.depart(roads.star), roads.star.latency_s
    place = network.depart(roads.traffic)
    return place, roads.traffic.flows[place].latency_s

"""The state of a parameter server: its workers, and the slots of contributions in flight.

Each contribution occupies a slot of its worker. The leaves of one tournament are the slots, and
with faults also workers and fault processes. Each leaf has at most one pending event, so the event
of a contribution that a failure destroys can be removed, and no stale event is left. Departures
from fair links are events of the links, and reads, which come last at their instant, wait in a
queue of their own. So do the ends of folds: the server folds in the order of arrival, so an end is
known once a contribution is queued, and comes before no earlier one's.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from harness.base.errors import UserError
from harness.simulator.cluster import Cluster
from harness.simulator.events import (
    WHO,
    WHO_BITS,
    Queue,
    append,
    kernel,
    new_queue,
    new_tournament,
    scratch,
    set_leaf,
)
from harness.simulator.links import Links, new_links
from harness.simulator.protocols.contract import CLOCK_FIELDS

PUSHED, SEND, COMPUTED, FETCHED, FAULT, RETURNED, READ = range(7)
"""Kinds of events of a leaf; the number is the priority at equal times."""

PARKED, ABOUT_TO_READ, HELD, ENGAGED, AWAY = range(5)
"""States of a worker: idle because the limits allow no read, about to read, held by the staleness
bound, computing or waiting for a fold, absent."""

FREE, WORKING, GATED, PUSHING, AT_SERVER, ABANDONED = range(6)
"""States of a slot: empty, being fetched or computed, waiting for room at the server, on its way
there, at the server, lost with its copy still on a fair link."""

# A key of the tournament: 3 bits of kind, 36 of sequence, 24 of leaf, below the sign bit.
PRIORITY, SEQUENCE = 60, WHO_BITS

MOST_LEAVES = 1 << WHO_BITS

MOST_EVENTS = 1 << 36

CLOCK = np.dtype(
    [
        *CLOCK_FIELDS,
        *((name, np.int64) for name in ("standing", "sequence", "under_way", "begun", "places")),
        *((name, np.int64) for name in ("parked", "least", "at_least", "checkpoint", "restored")),
        *((name, np.int64) for name in ("taken", "coming")),
        *((name, np.float64) for name in ("server_free_s", "server_up_s", "round_s")),
    ]
)
"""Besides the common fields: events in a row at one instant, events ever, contributions in
flight, whether faults are scheduled, places taken at the server, parked workers, the fewest folds
of a present worker and the number of workers with so few, checkpoints so far, the version of the
last checkpoint, contributions taken for the present round and those of its version on their way,
and the instants at which the server is free and up again and the round ends, infinite until it has
all that it needs."""

SLOT = np.dtype(
    [(name, np.int32) for name in ("worker", "phase")]
    + [(name, np.int64) for name in ("on_link", "sent", "first_step", "read_version")]
    + [(name, np.float64) for name in ("load", "compute_s", "fold_s", "read_at_s")]
    + [(name, np.float64) for name in ("fetch_start_s", "fetch_end_s", "compute_end_s")]
    + [(name, np.float64) for name in ("push_start_s", "push_end_s", "fold_start_s", "fold_end_s")]
)
"""A contribution: messages sent of its present fetch or push, its costs, and the instants of its
stages; after a loss the fold's end is the instant of the loss. Two cache lines."""

WORKER = np.dtype(
    [("status", np.int16), ("computing", np.int16)]
    + [(name, np.int32) for name in ("mine", "since_fetch", "messages")]
    + [(name, np.int64) for name in ("step", "folds", "read_version")]
    + [(name, np.float64) for name in ("jitter", "read_at_s", "leave_s")]
)
"""A worker, one cache line: whether it computes, contributions in flight, contributions begun
since its fetch (−1: no parameters), messages sent, minibatches begun, folds, version of its read,
jitter of its next computation, instant of its read, and duration of an absence due before its next
read."""


SHARD = np.dtype([("queued", np.int64), ("version", np.int64), ("free_s", np.float64)])
"""Pieces ever queued, pieces folded as of the last count, instant at which it is free."""

PIECE = np.dtype(
    [(name, np.int64) for name in ("read_version", "version")]
    + [(name, np.float64) for name in ("start_s", "end_s")]
)
"""The shard's version that was read, its version before the fold, and the interval of the fold."""


class Shards(NamedTuple):
    """The S shards of a server, each of which folds its own piece of every contribution.

    Arrays are empty for one shard. A piece that is not yet folded keeps its slot taken, so rings of
    C entries are enough.

    Attributes:
        queues: [S] of `SHARD`.
        ends_s: [S, C] rings of the ends of queued pieces' folds.
        seen: [N, S] version of each shard at a worker's last fetch.
        pieces: [C, S] of `PIECE`.
    """

    queues: Any
    ends_s: Any
    seen: Any
    pieces: Any


class Rules(NamedTuple):
    """The protocol's settings; a bound or limit of -1 is none.

    Attributes:
        push_every: minibatches per contribution.
        fetch_every: contributions per fetch.
        bound: number of folds by which a worker may be ahead of the slowest.
        queue: places at the server.
        depth: contributions that a worker may have in flight.
        shards: parts of the model with a queue of their own.
        backups: of rounds, number of slowest contributions that each drops; −1 without rounds.
        asks: whether `run` returns before reads, so that a rule of Python allows them (`answer`).
    """

    push_every: int
    fetch_every: int
    bound: int
    queue: int
    depth: int
    shards: int
    backups: int = -1
    asks: bool = False


class State(NamedTuple):
    """The state of the kernel.

    Attributes:
        clock: [1] of `CLOCK`.
        events: tournament of slots, then workers and fault processes by worker.
        folds: slots of queued contributions, by the ends of their folds.
        readers: workers that read at the present instant.
        late: workers that wait for the end of a round without a contribution in it, or that a rule
            has kept waiting.
        held: [2N] tournament of workers held by the bound, by their folds; [2] without a bound.
        gate: [2C] tournament of slots that wait for room at the server; [2] without a limit.
        links: between workers and server.
        slots: [C] of `SLOT`, ``depth`` per worker.
        workers: [N] of `WORKER`.
        occurrences: [P, N] number of occurrences of each process at each worker.
        shards: the shards of the server.
    """

    clock: Any
    events: Any
    folds: Queue
    readers: Queue
    late: Queue
    held: Any
    gate: Any
    links: Links
    slots: Any
    workers: Any
    occurrences: Any
    shards: Shards


def leaves(cluster: Cluster, workers: int, depth: int) -> int:
    """Number of leaves of the tournament of events."""
    timed = sum(fault.kind != "message" for fault in cluster.faults)
    return workers * depth + (workers * (1 + timed) if timed else 0)


def initial_state(cluster: Cluster, workers: int, rules: Rules) -> State:
    """All workers idle at time 0, version 0.

    Raises:
        UserError: more workers than the tournament has leaves for.
    """
    if leaves(cluster, workers, rules.depth) > MOST_LEAVES:
        allowed = f"at most {MOST_LEAVES // leaves(cluster, 1, rules.depth)}"
        allowed += " with these faults and depth"
        raise UserError(f"workers: {workers} is not allowed; allowed: {allowed}")
    count = workers * rules.depth
    timed = sum(fault.kind != "message" for fault in cluster.faults)
    slots, people = np.zeros(count, SLOT), np.zeros(workers, WORKER)
    slots["worker"] = np.repeat(np.arange(workers), rules.depth)
    people["since_fetch"] = -1  # no worker has parameters yet
    clock = np.zeros(1, CLOCK)
    clock["parked"] = clock["at_least"] = workers  # all have 0 folds, the least
    clock["round_s"] = np.inf
    shards, readers, entries = (rules.shards, workers, count) if rules.shards > 1 else (0, 0, 0)
    return State(
        clock=clock,
        events=new_tournament(leaves(cluster, workers, rules.depth)),
        folds=new_queue(count),
        readers=new_queue(workers),
        late=new_queue(workers),
        # Without a bound or limit, one empty leaf: kernels always look at the first event.
        held=new_tournament(workers if rules.bound >= 0 else 1),
        gate=new_tournament(count if rules.queue >= 0 else 1),
        links=new_links(cluster, workers, rules.depth, rules.shards),
        slots=slots,
        workers=people,
        occurrences=np.zeros((timed, workers if timed else 0), np.int64),
        shards=Shards(
            queues=np.zeros(shards, SHARD),
            ends_s=np.zeros((shards, entries)),
            seen=np.zeros((readers, shards), np.int64),
            pieces=np.zeros((entries, shards), PIECE),
        ),
    )


def returns_s(state: State) -> Any:
    """[N] instants at which absent workers return, infinity for those present or gone for good."""
    returns_s = np.full(len(state.workers), np.inf)
    # Without faults the tournament has leaves for slots only, and no worker is absent.
    away = np.flatnonzero(state.workers["status"] == AWAY)
    returns_s[away] = state.events["time_s"][len(state.events) // 2 + len(state.slots) + away]
    return returns_s


@kernel
def rows_of_fold(rules: Rules, workers: int) -> int:
    """Number of contributions that complete a fold."""
    return 1 if rules.backups < 0 else max(1, workers - rules.backups)


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
    if state.clock[0].parked > 0:
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
def resume(state: State, number: int) -> None:
    """Let a worker read that neither computes nor is kept from it."""
    worker = state.workers[number]
    if worker.status == ENGAGED and worker.computing == 0:
        schedule_read(state, number)


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
        head = state.held[1].key & WHO
        scratch(state.held, head)
        schedule_read(state, head)

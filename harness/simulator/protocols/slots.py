"""Workers and the slots of their contributions: the state of the asynchronous kernel.

Each contribution lives in a slot of its worker. Slots, and where there are faults workers and
fault processes, and on a network the arrivals at each of several shards, are the leaves of one
tournament and have at most one pending event each, so whatever a failure cuts
off is taken out of the order, and no orphan of it can count later.

Two kinds of event come in order of time by themselves and wait in queues: the folds of one server,
which folds one contribution after another, and reads, which happen at the present instant when all
else at it has.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from harness.simulator import link
from harness.simulator.cluster import Cluster
from harness.simulator.events import (
    Queue,
    append,
    from_a_line,
    new_queue,
    new_tournament,
    scratch,
    set_leaf,
    withdraw,
)
from harness.simulator.jit import kernel
from harness.simulator.protocols.contract import CLOCK_FIELDS
from harness.simulator.protocols.roads import Roads, is_networked, new_roads
from harness.simulator.protocols.shards import Shards, new_shards

__all__ = ["Rules", "State", "start", "wake"]

FOLDED, PUSHED, SEND, COMPUTED, FETCHED, FAULT, RETURNED, READ = range(8)
"""Event kinds; the number is the priority at equal times."""

PARKED, ABOUT_TO_READ, HELD, ENGAGED, AWAY = range(5)
"""A worker: idle for want of work, about to read, held by the staleness bound, at work or
waiting for a fold, not there."""

FREE, WORKING, GATED, PUSHING, AT_SERVER, ABANDONED = range(6)
"""A slot: empty, fetched or computed for, waiting for room at the server, on its way there,
there, lost with its copy still on a fair link."""

UNDER_WAY = WORKING, AT_SERVER
"""The first and the last phase of a contribution that is read and not folded."""

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
"""Beside the common fields: events in a row at one instant, events ever, contributions under
way, whether faults are scheduled, places taken at the server, parked workers, the fewest folds
of a worker that is there and how many have so few, checkpoints so far, the version a restart
goes back to, and until when the server is busy and down."""

INTEGERS = ("worker", "phase", "on_link", "first_step", "read_version")
COSTS = ("copy_s", "compute_s", "fold_s")
INSTANTS = (
    *("read_at_s", "fetch_start_s", "fetch_end_s", "compute_end_s"),
    *("push_start_s", "push_end_s", "fold_start_s", "fold_end_s"),
)
SLOT = np.dtype(
    [(name, np.int64) for name in INTEGERS] + [(name, np.float64) for name in COSTS + INSTANTS]
)
"""A contribution, what it costs, and the instants of its life; at its loss the fold's end is
the instant of the loss. Two lines of a cache."""

WORKER = np.dtype(
    [(name, np.int16) for name in ("status", "computing")]
    + [(name, np.int32) for name in ("mine", "since_fetch", "messages")]
    + [(name, np.int64) for name in ("step", "folds", "read_version")]
    + [(name, np.float64) for name in ("read_at_s", "uplink_free_s", "leave_s")]
)
"""A worker, one line of a cache: whether it computes, contributions under way, those begun since
it fetched (-1: it holds nothing), messages sent, minibatches begun, folds, what it read and when,
when its own link to the server is free, and how long it will be away before its next read."""


class Rules(NamedTuple):
    """The protocol's settings; a bound or limit of -1 is none.

    Attributes:
        push_every: minibatches in a contribution.
        fetch_every: contributions from one fetch.
        bound: how many folds a worker may be ahead of the slowest.
        queue: places at the server.
        depth: contributions a worker may have under way.
        shards: parts of the model with a queue of their own.
    """

    push_every: int
    fetch_every: int
    bound: int
    queue: int
    depth: int
    shards: int


class State(NamedTuple):
    """Everything that moves.

    Attributes:
        clock: [1] of `CLOCK`.
        events: tournament of slots, then workers and fault processes by worker, or arrivals.
        folds: slots that the server folds, one after another.
        readers: workers that read at the present instant.
        held: [2N] tournament of workers held by the bound, by their folds; [2] without a bound.
        gate: [2C] tournament of slots that wait for room at the server; [2] without a limit.
        channels: the link.
        slots: [C] of `SLOT`, ``depth`` a worker.
        workers: [N] of `WORKER`.
        occurrences: [P, N] how often each process happened to each worker.
        shards: the shards of the server, where there are several.
        roads: the messages on a network, where that joins workers and server.
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
    """How many may have an event pending at once."""
    timed, arrivals = _timed(cluster), 0
    if is_networked(cluster) and rules.shards > 1:
        arrivals = workers * rules.depth * rules.shards
    return workers * rules.depth + (workers * (1 + timed) if timed else 0) + arrivals


def _timed(cluster: Cluster) -> int:
    return sum(fault.kind != "message" for fault in cluster.faults)


def start(cluster: Cluster, workers: int, rules: Rules) -> State:
    """All workers idle at time 0, version 0; nobody waits where the rules hold nobody up."""
    count = workers * rules.depth
    slots, people = from_a_line(count, SLOT), from_a_line(workers, WORKER)
    slots["worker"] = np.repeat(np.arange(workers), rules.depth)
    people["since_fetch"] = -1
    clock = np.zeros(1, CLOCK)
    clock["parked"] = clock["at_least"] = workers
    channels = link.new_channels(cluster.link, count)
    if is_networked(cluster):
        channels = channels._replace(sharing=link.NETWORK)
    return State(
        clock=clock,
        events=new_tournament(leaves(cluster, workers, rules)),
        folds=new_queue(count if rules.shards == 1 else 0),
        readers=new_queue(workers),
        held=new_tournament(workers if rules.bound >= 0 else 1),
        gate=new_tournament(count if rules.queue >= 0 else 1),
        channels=channels,
        slots=slots,
        workers=people,
        occurrences=np.zeros((_timed(cluster), workers if _timed(cluster) else 0), np.int64),
        shards=new_shards(rules.shards, workers, count),
        roads=new_roads(cluster, workers, rules.depth, rules.shards),
    )


@kernel
def plan(state: State, leaf: int, time_s: float, kind: int) -> None:
    """The next event of a leaf; of equal time and kind, the one planned first comes first."""
    clock = state.clock[0]
    set_leaf(state.events, leaf, time_s, (kind << PRIORITY) | (clock.sequence << SEQUENCE) | leaf)
    clock.sequence += 1


@kernel
def fault_leaf(state: State, process: int, who: int) -> int:
    """The leaf of a process that happens to a worker."""
    return len(state.slots) + len(state.workers) * (1 + process) + who


@kernel
def wake(state: State) -> None:
    """Idle workers are about to read, in order of their numbers."""
    for who in range(len(state.workers)):
        if state.workers[who].status == PARKED:
            about_to_read(state, who)


@kernel
def become(state: State, who: int, status: int) -> None:
    """Change a worker's status and the counts that go with it."""
    clock, worker = state.clock[0], state.workers[who]
    clock.parked += (status == PARKED) - (worker.status == PARKED)
    clock.busy += (status in (ABOUT_TO_READ, ENGAGED)) - (worker.status in (ABOUT_TO_READ, ENGAGED))
    worker.status = status


@kernel
def about_to_read(state: State, who: int) -> None:
    """A worker reads at this instant, when everything else at it is done."""
    become(state, who, ABOUT_TO_READ)
    append(state.readers, state.clock[0].now_s, who)


@kernel
def not_least(state: State, rules: Rules) -> None:
    """One of the workers with the fewest folds has more now, or is away."""
    state.clock[0].at_least -= 1
    if state.clock[0].at_least == 0:
        find_least(state, rules)


@kernel
def find_least(state: State, rules: Rules) -> None:
    """Find the fewest folds of any present worker; workers that the bound held back read now."""
    clock = state.clock[0]
    clock.at_least = 0
    for who in range(len(state.workers)):
        worker = state.workers[who]
        if worker.status != AWAY:
            if clock.at_least == 0 or worker.folds < clock.least:
                clock.least = worker.folds
                clock.at_least = 0
            clock.at_least += worker.folds == clock.least
    while state.held[1].time_s <= clock.least + rules.bound:
        first = state.held[1].key & LEAF
        scratch(state.held, first)
        about_to_read(state, first)


@kernel
def go(state: State, rules: Rules, who: int, until_s: float) -> None:
    """A worker is absent until an instant; it computes nothing, and no other waits for it."""
    worker, leaf = state.workers[who], len(state.slots) + who
    if worker.status == HELD:
        scratch(state.held, who)
    if worker.status == ABOUT_TO_READ:
        withdraw(state.readers, who)
    become(state, who, AWAY)
    worker.computing = 0
    worker.since_fetch = -1
    scratch(state.events, leaf)
    if until_s < np.inf:
        plan(state, leaf, until_s, RETURNED)
    if worker.folds == state.clock[0].least:
        not_least(state, rules)


@kernel
def come_back(state: State, rules: Rules, who: int) -> None:
    """A worker is there again; it goes on from the slowest of the others."""
    clock, worker = state.clock[0], state.workers[who]
    about_to_read(state, who)
    if clock.at_least == 0:
        find_least(state, rules)
    else:
        worker.folds = max(worker.folds, clock.least)
        clock.at_least += worker.folds == clock.least

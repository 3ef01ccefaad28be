"""The parameter server in full: any kind of link, every setting, faults.

Each contribution lives in a slot of its worker. Slots, workers and fault processes are the
leaves of one tournament and have at most one pending event each, so whatever a failure cuts
off is taken out of the order, and no orphan of it can count later.

Of events at one instant: folds, arrivals, messages sent again, ends of computing, ends of
fetching, faults, returns, reads.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from harness.simulator import faults, link
from harness.simulator.cluster import Cluster
from harness.simulator.costs import Costs, computation_s, folding_s
from harness.simulator.events import enter, new_tournament, scratch, set_leaf
from harness.simulator.faults import instant_s
from harness.simulator.jit import kernel
from harness.simulator.laws import uniforms
from harness.simulator.protocols.contract import CLOCK_FIELDS, DONE, FULL, GONE, STUCK, Limits

__all__ = ["RESTART", "SLOT", "Rules", "State", "run", "start", "wake"]

FOLDED, PUSHED, SEND, COMPUTED, FETCHED, FAULT, RETURNED, READ = range(8)
"""Event kinds; the number is the priority at equal times."""

PARKED, ABOUT_TO_READ, HELD, ENGAGED, AWAY = range(5)
"""A worker: idle for want of work, about to read, held by the staleness bound, at work or
waiting for a fold, not there."""

FREE, WORKING, GATED, PUSHING, AT_SERVER, ABANDONED = range(6)
"""A slot: empty, fetched or computed for, waiting for room at the server, on its way there,
there, lost with its copy still on a fair link."""

_PRIORITY, _SEQUENCE, _LEAF = 60, 24, (1 << 24) - 1
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

INTEGERS = ("worker", "phase", "on_link", "first_step", "steps", "read_version")
COSTS = ("copy_s", "compute_s", "fold_s")
INSTANTS = (
    *("read_at_s", "fetch_start_s", "fetch_end_s", "compute_end_s"),
    *("push_start_s", "push_end_s", "fold_start_s", "fold_end_s"),
)
SLOT = np.dtype(
    [(name, np.int64) for name in INTEGERS] + [(name, np.float64) for name in COSTS + INSTANTS]
)
"""A contribution, what it costs, and the instants of its life; at its loss the fold's end is
the instant of the loss."""

WORKER = np.dtype(
    [(name, np.int64) for name in ("status", "step", "since_fetch", "folds", "mine", "computing")]
    + [(name, np.int64) for name in ("read_version", "messages")]
    + [(name, np.float64) for name in ("read_at_s", "uplink_free_s", "leave_s")]
)
"""A worker: minibatches begun, contributions begun since it fetched (-1: it holds nothing), its
folds, its contributions under way, whether it computes, messages sent, what it read and when,
when its own link to the server is free, and how long it will be away before its next read."""

RESTART = np.dtype([("time_s", np.float64), ("version", np.int64), ("restored_version", np.int64)])


class Rules(NamedTuple):
    """The protocol's settings; a bound or limit of -1 is none.

    Attributes:
        push_every: minibatches in a contribution.
        fetch_every: contributions from one fetch.
        bound: how many folds a worker may be ahead of the slowest.
        queue: places at the server.
        depth: contributions a worker may have under way.
    """

    push_every: int
    fetch_every: int
    bound: int
    queue: int
    depth: int


class State(NamedTuple):
    """Everything that moves.

    Attributes:
        clock: [1] of `CLOCK`.
        events: tournament of slots, workers, and fault processes by worker.
        held: [2N] tournament of workers held by the bound, by their folds.
        gate: [2C] tournament of slots that wait for room at the server.
        channels: the link.
        slots: [C] of `SLOT`, ``depth`` a worker.
        workers: [N] of `WORKER`.
        occurrences: [P, N] how often each process happened to each worker.
    """

    clock: Any
    events: Any
    held: Any
    gate: Any
    channels: link.Channels
    slots: Any
    workers: Any
    occurrences: Any


class Record(NamedTuple):
    """What happened: [M] folded and [L] lost slots, restarts, and how many there are of each."""

    folded: Any
    lost: Any
    restarts: Any
    counts: Any


def start(cluster: Cluster, workers: int, depth: int) -> State:
    """All workers idle at time 0, version 0."""
    count = workers * depth
    slots, people = np.zeros(count, SLOT), np.zeros(workers, WORKER)
    slots["worker"] = np.repeat(np.arange(workers), depth)
    people["since_fetch"] = -1
    clock = np.zeros(1, CLOCK)
    clock["parked"] = clock["at_least"] = workers
    timed = sum(fault.kind != "message" for fault in cluster.faults)
    return State(
        clock=clock,
        events=new_tournament(count + workers * (1 + timed)),
        held=new_tournament(workers),
        gate=new_tournament(count),
        channels=link.new_channels(cluster.link, count),
        slots=slots,
        workers=people,
        occurrences=np.zeros((timed, workers if timed else 0), np.int64),
    )


@kernel
def run(state: State, costs: Costs, rules: Rules, limits: Limits, record: Record, room: int) -> int:
    """Move ``state`` until a limit is met or the record is full; returns why it stopped."""
    clock, counts = state.clock[0], record.counts
    if clock.begun == 0:
        begin(state, costs, rules)
    while clock.version < limits.version:
        if counts[0] == room or counts[1] >= room or counts[2] >= room:
            return FULL
        if clock.busy == 0 and (clock.parked > 0 or limits.dispatch_s < clock.now_s):
            return DONE
        link_s, where = link.soonest(state.channels)
        event_s = state.events[1].time_s
        time_s = max(min(link_s, event_s), clock.now_s)
        if time_s > limits.time_s:
            clock.now_s = limits.time_s
            return DONE
        if time_s == np.inf:
            return GONE
        clock.standing = clock.standing + 1 if time_s == clock.now_s else 0
        if clock.standing > limits.standing:
            return STUCK
        clock.now_s = time_s
        if link_s <= event_s:
            leave_link(state, costs, where)
        else:
            key = state.events[1].key
            happen(state, costs, rules, limits, record, key >> _PRIORITY, key & _LEAF)
    return DONE


@kernel
def happen(
    state: State, costs: Costs, rules: Rules, limits: Limits, record: Record, kind: int, leaf: int
) -> None:
    """The first event of the tournament takes place."""
    set_leaf(state.events, leaf, np.inf, 1 << 62)
    who = leaf - len(state.slots)
    if kind == FOLDED:
        fold(state, costs, rules, limits, record, leaf)
    elif kind == PUSHED:
        arrive(state, costs, leaf)
    elif kind == SEND:
        send(state, costs, leaf)
    elif kind == COMPUTED:
        computed(state, costs, rules, leaf)
    elif kind == FETCHED:
        compute(state, leaf, state.clock[0].now_s)
    elif kind == FAULT:
        place = who - len(state.workers)
        process, worker = place // len(state.workers), place % len(state.workers)
        strike(state, costs, rules, limits, record, process, worker)
    elif kind == RETURNED:
        come_back(state, rules, who)
    else:
        read(state, costs, rules, limits, who)


@kernel
def plan(state: State, leaf: int, time_s: float, kind: int) -> None:
    """The next event of a leaf; of equal time and kind, the one planned first comes first."""
    clock = state.clock[0]
    set_leaf(state.events, leaf, time_s, (kind << _PRIORITY) | (clock.sequence << _SEQUENCE) | leaf)
    clock.sequence += 1


@kernel
def begin(state: State, costs: Costs, rules: Rules) -> None:
    """Schedule every fault process; who joins late is not there yet."""
    clock, processes = state.clock[0], costs.faults
    clock.begun = 1
    for process in range(len(processes.kind)):
        for who in range(len(state.workers)):
            time_s = instant_s(processes, process, who, 0, clock.now_s)
            if processes.kind[process] == faults.LATE and time_s < np.inf:
                go(state, rules, who, time_s)
            elif time_s < np.inf:
                plan(state, fault_leaf(state, process, who), time_s, FAULT)


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
    plan(state, len(state.slots) + who, state.clock[0].now_s, READ)


@kernel
def read(state: State, costs: Costs, rules: Rules, limits: Limits, who: int) -> None:
    """Begin a contribution, if there is one to begin, the bound allows it and the server is up."""
    clock, worker = state.clock[0], state.workers[who]
    if worker.leave_s > 0.0:
        away_s, worker.leave_s = worker.leave_s, 0.0
        go(state, rules, who, clock.now_s + away_s)
        return
    if clock.now_s < clock.server_up_s:
        plan(state, len(state.slots) + who, clock.server_up_s, READ)
        return
    if clock.version + clock.under_way >= limits.dispatch or clock.now_s > limits.dispatch_s:
        become(state, who, PARKED)
        return
    if rules.bound >= 0 and worker.folds + worker.mine > clock.least + rules.bound:
        become(state, who, HELD)
        enter(state.held, who, float(worker.folds + worker.mine), clock.sequence)
        clock.sequence += 1
        return
    slot = who * rules.depth
    while state.slots[slot].phase != FREE:
        slot += 1
        if slot == (who + 1) * rules.depth:
            become(state, who, ENGAGED)
            return
    become(state, who, ENGAGED)
    take(state, costs, rules, who, slot)


@kernel
def take(state: State, costs: Costs, rules: Rules, who: int, place: int) -> None:
    """Take the snapshot, if it is time for one, and the next minibatches."""
    clock, worker, slot = state.clock[0], state.workers[who], state.slots[place]
    fetches = worker.since_fetch < 0 or worker.since_fetch >= rules.fetch_every
    if fetches:
        worker.since_fetch = 0
        worker.read_version = clock.version
        worker.read_at_s = clock.now_s
    worker.since_fetch += 1
    slot.phase = WORKING
    slot.on_link = 0
    slot.read_version = worker.read_version
    slot.read_at_s = worker.read_at_s
    slot.first_step = clock.dispatched
    slot.steps = rules.push_every
    slot.copy_s = costs.copy_s
    slot.compute_s = 0.0
    for step in range(worker.step, worker.step + rules.push_every):
        slot.compute_s += computation_s(costs, who, step)
    slot.fold_s = folding_s(costs, who, worker.step // rules.push_every)
    worker.step += rules.push_every
    worker.mine += 1
    worker.computing = 1
    clock.dispatched += rules.push_every
    clock.under_way += 1
    clock.busy += 1
    slot.fetch_start_s = clock.now_s
    if not fetches:
        compute(state, place, clock.now_s)
    elif state.channels.sharing == link.FAIR:
        slot.on_link = 1
        link.join(state.channels, link.DOWN, clock.now_s, slot.copy_s, FETCHED, place)
    else:
        slot.fetch_start_s = link.occupy(state.channels, link.DOWN, clock.now_s, slot.copy_s)
        compute(state, place, slot.fetch_start_s + slot.copy_s + costs.latency_s)


@kernel
def leave_link(state: State, costs: Costs, where: int) -> None:
    """A copy is off the fair link; its last byte arrives a latency later."""
    kind, place = link.finish(state.channels, where, state.clock[0].now_s)
    slot = state.slots[place]
    slot.on_link = 0
    if slot.phase == ABANDONED:
        slot.phase = FREE
        worker = state.workers[slot.worker]
        if worker.status == ENGAGED and worker.computing == 0:
            about_to_read(state, slot.worker)
    else:
        plan(state, place, state.clock[0].now_s + costs.latency_s, kind)


@kernel
def compute(state: State, place: int, start_s: float) -> None:
    """Compute the gradient from an instant on."""
    slot = state.slots[place]
    slot.fetch_end_s = start_s
    slot.compute_end_s = start_s + slot.compute_s
    plan(state, place, slot.compute_end_s, COMPUTED)


@kernel
def computed(state: State, costs: Costs, rules: Rules, place: int) -> None:
    """The gradient is there: it waits for room at the server; its worker may go on."""
    clock, slot = state.clock[0], state.slots[place]
    worker = state.workers[slot.worker]
    worker.computing = 0
    if rules.queue >= 0 and clock.places == rules.queue:
        slot.phase = GATED
        enter(state.gate, place, clock.now_s, clock.sequence)
        clock.sequence += 1
    else:
        clock.places += 1
        send(state, costs, place)
    if worker.mine < rules.depth and worker.status == ENGAGED:
        about_to_read(state, slot.worker)


@kernel
def send(state: State, costs: Costs, place: int) -> None:
    """Copy the contribution to the server."""
    clock, slot, channels = state.clock[0], state.slots[place], state.channels
    worker = state.workers[slot.worker]
    slot.phase = PUSHING
    slot.push_start_s = clock.now_s
    if channels.sharing == link.FAIR:
        slot.on_link = 1
        link.join(channels, channels.up, clock.now_s, slot.copy_s, PUSHED, place)
        return
    if channels.sharing == link.OWN:
        slot.push_start_s = max(clock.now_s, worker.uplink_free_s)
        worker.uplink_free_s = slot.push_start_s + slot.copy_s
    else:
        slot.push_start_s = link.occupy(channels, channels.up, clock.now_s, slot.copy_s)
    plan(state, place, slot.push_start_s + slot.copy_s + costs.latency_s, PUSHED)


@kernel
def arrive(state: State, costs: Costs, place: int) -> None:
    """A contribution is at the server and queues, unless its message was lost on the way."""
    clock, slot = state.clock[0], state.slots[place]
    worker = state.workers[slot.worker]
    worker.messages += 1
    if costs.faults.probability > 0.0:
        u = uniforms(costs.faults.message_key, slot.worker, worker.messages, 0)[0]
        if u < costs.faults.probability:
            plan(state, place, clock.now_s + costs.faults.retry_s, SEND)
            return
    slot.phase = AT_SERVER
    slot.push_end_s = clock.now_s
    slot.fold_start_s = max(clock.now_s, clock.server_free_s)
    slot.fold_end_s = slot.fold_start_s + slot.fold_s
    clock.server_free_s = slot.fold_end_s
    plan(state, place, slot.fold_end_s, FOLDED)


@kernel
def fold(
    state: State, costs: Costs, rules: Rules, limits: Limits, record: Record, place: int
) -> None:
    """The fold is complete: a new version, room at the server, and its worker reads again."""
    clock, slot = state.clock[0], state.slots[place]
    who, worker = slot.worker, state.workers[slot.worker]
    save(state, costs)
    record.folded[record.counts[0]] = slot
    record.counts[0] += 1
    clock.version += 1
    slot.phase = FREE
    end_of(state, costs, rules, who)
    worker.folds += 1
    if worker.status != AWAY and worker.folds == clock.least + 1:
        not_least(state, rules)
    if worker.status == ENGAGED and worker.computing == 0:
        about_to_read(state, who)


@kernel
def end_of(state: State, costs: Costs, rules: Rules, who: int) -> None:
    """A contribution with a place at the server is no longer under way: the next may be sent."""
    clock = state.clock[0]
    state.workers[who].mine -= 1
    clock.under_way -= 1
    clock.busy -= 1
    clock.places -= 1
    if state.gate[1].time_s < np.inf:
        place = state.gate[1].key & _LEAF
        scratch(state.gate, place)
        clock.places += 1
        send(state, costs, place)


@kernel
def not_least(state: State, rules: Rules) -> None:
    """One of the workers with the fewest folds has more now, or is away."""
    state.clock[0].at_least -= 1
    if state.clock[0].at_least == 0:
        find_least(state, rules)


@kernel
def find_least(state: State, rules: Rules) -> None:
    """The fewest folds of a worker that is there; whoever the bound no longer holds reads."""
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
        first = state.held[1].key & _LEAF
        scratch(state.held, first)
        about_to_read(state, first)


@kernel
def save(state: State, costs: Costs) -> None:
    """The server's checkpoints up to this instant hold the present version."""
    clock, every_s = state.clock[0], costs.faults.checkpoint_s
    if every_s < np.inf:
        checkpoints = int(clock.now_s / every_s)
        if checkpoints > clock.checkpoint:
            clock.checkpoint = checkpoints
            clock.restored = clock.version


@kernel
def strike(
    state: State,
    costs: Costs,
    rules: Rules,
    limits: Limits,
    record: Record,
    process: int,
    who: int,
) -> None:
    """A fault happens; its process goes on when what it causes is over."""
    clock, processes, worker = state.clock[0], costs.faults, state.workers[who]
    kind, down_s = processes.kind[process], processes.down_s[process]
    if kind == faults.SERVER:
        fail(state, costs, rules, limits, record, clock.now_s + down_s)
    elif kind == faults.PREEMPTION:
        if worker.status != AWAY:
            worker.leave_s = max(worker.leave_s, down_s)
    elif worker.status != AWAY:
        for place in range(who * rules.depth, (who + 1) * rules.depth):
            phase = state.slots[place].phase
            if phase in (WORKING, GATED, PUSHING):
                lose(state, costs, rules, limits, record, place)
        go(state, rules, who, clock.now_s + down_s)
    state.occurrences[process, who] += 1
    times, over_s = state.occurrences[process, who], clock.now_s + down_s
    next_s = instant_s(processes, process, who, times, over_s)
    if next_s < np.inf:
        plan(state, fault_leaf(state, process, who), next_s, FAULT)


@kernel
def lose(
    state: State, costs: Costs, rules: Rules, limits: Limits, record: Record, place: int
) -> None:
    """A contribution is lost: recorded, and no event of it is left."""
    slot, clock = state.slots[place], state.clock[0]
    scratch(state.events, place)
    slot.fold_end_s = clock.now_s
    record.lost[record.counts[1]] = slot
    record.counts[1] += 1
    phase, slot.phase = slot.phase, ABANDONED if slot.on_link == 1 else FREE
    if phase in (WORKING, GATED):
        scratch(state.gate, place)
        state.workers[slot.worker].mine -= 1
        clock.under_way -= 1
        clock.busy -= 1
    else:
        end_of(state, costs, rules, slot.worker)
    if clock.parked > 0 and clock.now_s <= limits.dispatch_s:
        wake(state)


@kernel
def go(state: State, rules: Rules, who: int, until_s: float) -> None:
    """A worker is away until an instant; it holds nothing and holds nobody up."""
    worker, leaf = state.workers[who], len(state.slots) + who
    if worker.status == HELD:
        scratch(state.held, who)
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


@kernel
def fail(
    state: State, costs: Costs, rules: Rules, limits: Limits, record: Record, up_s: float
) -> None:
    """The server is down: what is queued is lost, and so is every fold since the checkpoint."""
    clock = state.clock[0]
    save(state, costs)
    clock.server_up_s = clock.server_free_s = up_s
    row = record.restarts[record.counts[2]]
    row.time_s, row.version, row.restored_version = up_s, clock.version, clock.restored
    record.counts[2] += 1
    for place in range(len(state.slots)):
        if state.slots[place].phase == AT_SERVER:
            who = state.slots[place].worker
            lose(state, costs, rules, limits, record, place)
            worker = state.workers[who]
            if worker.status == ENGAGED and worker.computing == 0:
                about_to_read(state, who)

"""Asynchronous training around one server.

Each worker repeats: read the shared model (the snapshot is that of the instant of the
read), copy it to its device, compute the gradient of one minibatch, copy that back, queue
at the server. The server folds one contribution at a time, first come first served; when a
fold is complete the version rises by one and its worker reads again.

Of events at one instant, folds come before pushes, pushes before what links and devices
do, and reads last: a worker that reads at the instant of a fold sees the folded model. So
with all costs zero each worker's whole cycle is done before the next one reads, which is
serial SGD.

Minibatches are handed out by one counter in order of reads. What a contribution costs is
settled when it is read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from harness.simulator import link
from harness.simulator.cluster import Cluster
from harness.simulator.costs import Costs, computation_s, folding_s
from harness.simulator.events import Heap, first_s, new_heap, pop, push
from harness.simulator.jit import kernel
from harness.simulator.protocols import plain_server
from harness.simulator.protocols.contract import CLOCK_FIELDS, DONE, FULL, STUCK, Limits
from harness.simulator.timeline import (
    IN_FLIGHT,
    SERVER,
    Contributions,
    Folds,
    Spans,
    Timeline,
)
from harness.spec import Spec

__all__ = ["ParameterServer"]

FOLDED, PUSHED, COMPUTED, FETCHED, READ = range(5)
"""Event kinds; the number is the priority at equal times."""

PARKED, ABOUT_TO_READ, UNDER_WAY = range(3)
"""Phases of a worker."""

CLOCK = np.dtype([*CLOCK_FIELDS, ("server_free_s", np.float64), ("standing", np.int64)])

INTEGERS = ("worker", "phase", "step", "read_version", "first_step")
COSTS = ("copy_s", "compute_s", "fold_s")
INSTANTS = (
    *("read_at_s", "fetch_start_s", "fetch_end_s", "compute_end_s"),
    *("push_start_s", "push_end_s", "fold_start_s", "fold_end_s"),
)
TASK = np.dtype(
    [(name, np.int64) for name in INTEGERS] + [(name, np.float64) for name in COSTS + INSTANTS]
)
"""A worker and its contribution: minibatches it has read so far, what the contribution costs,
and the instants of its life."""


class State(NamedTuple):
    """Everything that moves.

    Attributes:
        clock: [1] of `CLOCK`: the time, the counters, when the server has folded all that is
            queued, and how many events in a row were at one instant.
        heap: pending events, at most one a worker.
        channels: the link.
        tasks: [N] of `TASK`.
    """

    clock: Any
    heap: Heap
    channels: link.Channels
    tasks: Any


@dataclass(frozen=True)
class ParameterServer(Spec):
    """Asynchronous SGD's timing: one server, first come first served, a fold a gradient."""

    name = "parameter_server"

    def start(self, cluster: Cluster, workers: int) -> State | plain_server.PlainState:
        """All workers idle at time 0, version 0."""
        if cluster.link.sharing == "none":
            return plain_server.start(workers)
        return general_start(cluster, workers)

    def wake(self, state: State | plain_server.PlainState) -> None:
        """Idle workers are about to read, at the present time."""
        if isinstance(state, plain_server.PlainState):
            plain_server.wake(state)
        else:
            wake(state)

    def advance(
        self,
        state: State | plain_server.PlainState,
        costs: Costs,
        limits: Limits,
        room: int,
        spans: bool,
    ) -> tuple[int, Timeline]:
        """Run until a limit or until ``room`` folds are recorded: (why it stopped, what was)."""
        if isinstance(state, plain_server.PlainState):
            return plain_server.advance(state, costs, limits, room, spans)
        first = int(state.clock[0]["version"])
        folded = np.empty(room, TASK)
        why = run(state, costs, limits, folded)
        done = folded[: int(state.clock[0]["version"]) - first]
        numbers = np.arange(first, first + len(done), dtype=np.int64)
        return why, Timeline(
            folds=Folds(numbers, done["fold_end_s"].copy()),
            contributions=_contributions(numbers, done),
            spans=_spans(done) if spans else Spans(),
        )

    def in_flight(self, state: State | plain_server.PlainState) -> Contributions:
        """Contributions read and not yet folded, by first step."""
        if isinstance(state, plain_server.PlainState):
            return plain_server.in_flight(state)
        under_way = state.tasks[state.tasks["phase"] == UNDER_WAY]
        ordered = under_way[np.argsort(under_way["first_step"])]
        return _contributions(np.full(len(ordered), IN_FLIGHT, np.int64), ordered)


def general_start(cluster: Cluster, workers: int) -> State:
    """All workers idle at time 0, version 0, before any kind of link."""
    tasks = np.zeros(workers, TASK)
    tasks["worker"] = np.arange(workers)
    return State(
        clock=np.zeros(1, CLOCK),
        heap=new_heap(workers),
        channels=link.new_channels(cluster.link, workers),
        tasks=tasks,
    )


def _contributions(folds: np.ndarray, tasks: np.ndarray) -> Contributions:
    return Contributions(
        fold=folds,
        worker=tasks["worker"].astype(np.int32),
        read_version=tasks["read_version"].copy(),
        read_time_s=tasks["read_at_s"].copy(),
        first_step=tasks["first_step"].copy(),
        steps=np.ones(len(tasks), np.int32),
    )


def _spans(tasks: np.ndarray) -> Spans:
    """Fetch, compute, push and fold of each contribution; what took no time is left out."""
    starts = ("fetch_start_s", "fetch_end_s", "push_start_s", "fold_start_s")
    ends = ("fetch_end_s", "compute_end_s", "push_end_s", "fold_end_s")
    start_s = np.stack([tasks[name] for name in starts], axis=1).reshape(-1)
    end_s = np.stack([tasks[name] for name in ends], axis=1).reshape(-1)
    worker = np.repeat(tasks["worker"].astype(np.int32), 4)
    worker[3::4] = SERVER
    kind = np.tile(np.arange(4, dtype=np.int32), len(tasks))
    busy = end_s > start_s
    return Spans(worker[busy], kind[busy], start_s[busy], end_s[busy])


@kernel
def run(state: State, costs: Costs, limits: Limits, folded: np.ndarray) -> int:
    """Move ``state`` until a limit is met or ``folded`` is full; returns why it stopped."""
    clock, heap = state.clock[0], state.heap
    rows = 0
    while clock.version < limits.version:
        if rows == len(folded):
            return FULL
        link_s, where = link.soonest(state.channels)
        heap_s = first_s(heap)
        time_s = min(link_s, heap_s)
        if time_s > limits.time_s:
            clock.now_s = limits.time_s
            return DONE
        if time_s == np.inf:
            return DONE
        clock.standing = clock.standing + 1 if time_s == clock.now_s else 0
        if clock.standing > limits.standing:
            return STUCK
        clock.now_s = time_s
        if link_s <= heap_s:
            kind, who = link.finish(state.channels, where, time_s)
            push(heap, time_s + costs.latency_s, kind, who)
            continue
        _, kind, who = pop(heap)
        if kind == FOLDED:
            folded[rows] = state.tasks[who]
            rows += 1
            fold(state, costs, limits, who)
        else:
            step(state, costs, limits, kind, who)
    return DONE


@kernel
def wake(state: State) -> None:
    """Idle workers are about to read, in order of their numbers."""
    for who in range(len(state.tasks)):
        if state.tasks[who].phase == PARKED:
            state.tasks[who].phase = ABOUT_TO_READ
            state.clock[0].busy += 1
            push(state.heap, state.clock[0].now_s, READ, who)


@kernel
def step(state: State, costs: Costs, limits: Limits, kind: int, who: int) -> None:
    """One event in the life of a contribution before its fold."""
    now_s = state.clock[0].now_s
    if kind == PUSHED:
        queue(state, who)
    elif kind == COMPUTED:
        send(state, costs, who, now_s)
    elif kind == FETCHED:
        compute(state, costs, who, now_s)
    else:
        read(state, costs, limits, who)


@kernel
def read(state: State, costs: Costs, limits: Limits, who: int) -> None:
    """Take the snapshot and the next minibatch, then fetch; or stay idle if there is none."""
    clock, task = state.clock[0], state.tasks[who]
    if clock.dispatched >= limits.dispatch or clock.now_s > limits.dispatch_s:
        task.phase = PARKED
        clock.busy -= 1
        return
    task.phase = UNDER_WAY
    task.read_version = clock.version
    task.first_step = clock.dispatched
    task.copy_s = costs.copy_s
    task.compute_s = computation_s(costs, who, task.step)
    task.fold_s = folding_s(costs, who, task.step)
    task.step += 1
    clock.dispatched += 1
    fetch(state, costs, who, clock.now_s)


@kernel
def fetch(state: State, costs: Costs, who: int, now_s: float) -> None:
    """Copy the parameters to the device."""
    channels, task = state.channels, state.tasks[who]
    task.read_at_s = now_s
    task.fetch_start_s = now_s
    if channels.sharing == link.FAIR:
        link.join(channels, link.DOWN, now_s, task.copy_s, FETCHED, who)
    else:
        task.fetch_start_s = link.occupy(channels, link.DOWN, now_s, task.copy_s)
        compute(state, costs, who, task.fetch_start_s + task.copy_s + costs.latency_s)


@kernel
def compute(state: State, costs: Costs, who: int, start_s: float) -> None:
    """Compute the gradient; on a link of its own, nothing can hold up the copy that follows."""
    task = state.tasks[who]
    task.fetch_end_s = start_s
    task.compute_end_s = start_s + task.compute_s
    if state.channels.sharing == link.OWN:
        send(state, costs, who, task.compute_end_s)
    else:
        push(state.heap, task.compute_end_s, COMPUTED, who)


@kernel
def send(state: State, costs: Costs, who: int, now_s: float) -> None:
    """Copy the gradient to the server."""
    channels, task = state.channels, state.tasks[who]
    task.push_start_s = now_s
    if channels.sharing == link.FAIR:
        link.join(channels, channels.up, now_s, task.copy_s, PUSHED, who)
    else:
        task.push_start_s = link.occupy(channels, channels.up, now_s, task.copy_s)
        task.push_end_s = task.push_start_s + task.copy_s + costs.latency_s
        push(state.heap, task.push_end_s, PUSHED, who)


@kernel
def queue(state: State, who: int) -> None:
    """A contribution is at the server: its fold follows those before it."""
    clock, task = state.clock[0], state.tasks[who]
    task.push_end_s = clock.now_s
    task.fold_start_s = max(clock.now_s, clock.server_free_s)
    task.fold_end_s = task.fold_start_s + task.fold_s
    clock.server_free_s = task.fold_end_s
    push(state.heap, task.fold_end_s, FOLDED, who)


@kernel
def fold(state: State, costs: Costs, limits: Limits, who: int) -> None:
    """The fold is complete: a new version, and its worker reads again.

    The read waits for its turn among the events of this instant, unless it is the only one.
    """
    clock, task = state.clock[0], state.tasks[who]
    clock.version += 1
    task.phase = ABOUT_TO_READ
    alone = first_s(state.heap) > clock.now_s and link.soonest(state.channels)[0] > clock.now_s
    if alone and clock.version < limits.version:
        read(state, costs, limits, who)
    else:
        push(state.heap, clock.now_s, READ, who)

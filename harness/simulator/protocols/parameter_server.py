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
from harness.simulator.costs import Costs, computation_s
from harness.simulator.events import Heap, new_heap, pop, push
from harness.simulator.jit import kernel
from harness.simulator.protocols.contract import (
    BUSY,
    DISPATCHED,
    DONE,
    FULL,
    NOW,
    STUCK,
    VERSION,
    Limits,
)
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

SERVER_FREE = 1
READ_AT, FETCH_START, FETCH_END, COMPUTE_END, PUSH_START, PUSH_END, FOLD_START, FOLD_END = range(8)
STEP, READ_VERSION, FIRST_STEP, PHASE = range(4)
PARKED, ABOUT_TO_READ, UNDER_WAY = range(3)
COPY_S, COMPUTE_S, FOLD_S = range(3)


class State(NamedTuple):
    """Everything that moves.

    Attributes:
        heap: pending events, at most one a worker.
        channels: the link.
        counts: [3] version, minibatches dispatched, workers with a contribution under way.
        clocks: [2] the time, and when the server has folded all that is queued.
        tasks: [N, 4] of each worker: minibatches read so far, version it read, number of its
            minibatch, phase.
        prices: [N, 3] copy, compute and fold seconds of its contribution.
        marks: [N, 8] instants in the life of its contribution.
    """

    heap: Heap
    channels: link.Channels
    counts: Any
    clocks: Any
    tasks: Any
    prices: Any
    marks: Any


class Output(NamedTuple):
    """Room for folds: [C] worker, read version and first step, and [C, 8] instants."""

    worker: Any
    read_version: Any
    first_step: Any
    marks: Any


@dataclass(frozen=True)
class ParameterServer(Spec):
    """Asynchronous SGD's timing: one server, first come first served, a fold a gradient."""

    name = "parameter_server"

    def start(self, cluster: Cluster, workers: int) -> State:
        """All workers idle at time 0, version 0."""
        return State(
            heap=new_heap(workers),
            channels=link.new_channels(cluster.link, workers),
            counts=np.zeros(3, np.int64),
            clocks=np.zeros(2),
            tasks=np.zeros((workers, 4), np.int64),
            prices=np.zeros((workers, 3)),
            marks=np.zeros((workers, 8)),
        )

    def advance(
        self, state: State, costs: Costs, limits: Limits, room: int, spans: bool
    ) -> tuple[int, Timeline]:
        """Run until a limit or until ``room`` folds are recorded: (why it stopped, what was)."""
        output = _new_output(room)
        first = int(state.counts[VERSION])
        why = run(state, costs, limits, output)
        count = int(state.counts[VERSION]) - first
        done = Output(*(column[:count] for column in output))
        return why, Timeline(_folds(first, done), _contributions(first, done), _spans(done, spans))

    def in_flight(self, state: State) -> Contributions:
        """Contributions read and not yet folded, by first step."""
        under_way = np.flatnonzero(state.tasks[:, PHASE] == UNDER_WAY)
        order = under_way[np.argsort(state.tasks[under_way, FIRST_STEP], kind="stable")]
        return Contributions(
            fold=np.full(len(order), IN_FLIGHT, np.int64),
            worker=order.astype(np.int32),
            read_version=state.tasks[order, READ_VERSION],
            read_time_s=state.marks[order, READ_AT],
            first_step=state.tasks[order, FIRST_STEP],
            steps=np.ones(len(order), np.int32),
        )


@kernel
def run(state: State, costs: Costs, limits: Limits, output: Output) -> int:
    """Move ``state`` until a limit is met or ``output`` is full; returns why it stopped."""
    counts, clocks, heap = state.counts, state.clocks, state.heap
    first, room = counts[VERSION], len(output.worker)
    start_parked(state)
    standing = 0
    while counts[VERSION] < limits.version:
        if counts[VERSION] - first == room:
            return FULL
        link_s, channel = link.soonest(state.channels)
        heap_s = heap.time_s[0] if heap.counts[0] > 0 else np.inf
        time_s = min(link_s, heap_s)
        if time_s == np.inf:
            return DONE
        if time_s > limits.time_s:
            clocks[NOW] = limits.time_s
            return DONE
        standing = standing + 1 if time_s == clocks[NOW] else 0
        if standing > limits.standing:
            return STUCK
        clocks[NOW] = time_s
        if link_s <= heap_s:
            copied(state, costs, channel)
            continue
        _, kind, who = pop(heap)
        if kind == FOLDED:
            record(state, output, counts[VERSION] - first, who)
            fold(state, who)
        elif kind == PUSHED:
            queue(state, who)
        elif kind == COMPUTED:
            send(state, costs, who)
        elif kind == FETCHED:
            compute(state, costs, who)
        else:
            read(state, costs, limits, who)
    return DONE


@kernel
def start_parked(state: State) -> None:
    """Idle workers are about to read, in order of their numbers."""
    if state.counts[BUSY] == len(state.tasks):
        return
    for who in range(len(state.tasks)):
        if state.tasks[who, PHASE] == PARKED:
            state.tasks[who, PHASE] = ABOUT_TO_READ
            push(state.heap, state.clocks[NOW], READ, who)


@kernel
def read(state: State, costs: Costs, limits: Limits, who: int) -> None:
    """Take the snapshot and the next minibatch, and ask for the copy to the device."""
    counts, task, mark = state.counts, state.tasks[who], state.marks[who]
    now_s = state.clocks[NOW]
    if counts[DISPATCHED] >= limits.dispatch or now_s > limits.dispatch_s:
        task[PHASE] = PARKED
        return
    task[PHASE] = UNDER_WAY
    task[READ_VERSION] = counts[VERSION]
    task[FIRST_STEP] = counts[DISPATCHED]
    counts[DISPATCHED] += 1
    counts[BUSY] += 1
    state.prices[who, COPY_S] = costs.copy_s
    state.prices[who, FOLD_S] = costs.fold_s
    state.prices[who, COMPUTE_S] = computation_s(costs, who, task[STEP])
    task[STEP] += 1
    mark[READ_AT] = now_s
    mark[FETCH_START] = now_s
    if state.channels.sharing == link.FAIR:
        link.join(state.channels, link.DOWN, FETCHED, now_s, costs.copy_s, who)
    else:
        mark[FETCH_START] = link.occupy(state.channels, link.DOWN, now_s, costs.copy_s)
        mark[FETCH_END] = mark[FETCH_START] + costs.copy_s + costs.latency_s
        push(state.heap, mark[FETCH_END], FETCHED, who)


@kernel
def compute(state: State, costs: Costs, who: int) -> None:
    """The parameters are there: compute."""
    mark = state.marks[who]
    mark[FETCH_END] = state.clocks[NOW]
    mark[COMPUTE_END] = mark[FETCH_END] + state.prices[who, COMPUTE_S]
    push(state.heap, mark[COMPUTE_END], COMPUTED, who)


@kernel
def send(state: State, costs: Costs, who: int) -> None:
    """The gradient is there: ask for the copy to the server."""
    channels, mark, now_s = state.channels, state.marks[who], state.clocks[NOW]
    copy_s = state.prices[who, COPY_S]
    mark[PUSH_START] = now_s
    if channels.sharing == link.FAIR:
        link.join(channels, channels.up, PUSHED, now_s, copy_s, who)
    else:
        mark[PUSH_START] = link.occupy(channels, channels.up, now_s, copy_s)
        push(state.heap, mark[PUSH_START] + copy_s + costs.latency_s, PUSHED, who)


@kernel
def copied(state: State, costs: Costs, channel: int) -> None:
    """A copy on a fair link has left; it arrives after the latency."""
    kind, who = link.finish(state.channels, channel, state.clocks[NOW])
    push(state.heap, state.clocks[NOW] + costs.latency_s, kind, who)


@kernel
def queue(state: State, who: int) -> None:
    """A contribution is at the server: its fold follows those before it."""
    clocks, mark = state.clocks, state.marks[who]
    mark[PUSH_END] = clocks[NOW]
    mark[FOLD_START] = max(clocks[NOW], clocks[SERVER_FREE])
    clocks[SERVER_FREE] = mark[FOLD_START] + state.prices[who, FOLD_S]
    push(state.heap, clocks[SERVER_FREE], FOLDED, who)


@kernel
def record(state: State, output: Output, row: int, who: int) -> None:
    """Write down the contribution whose fold is complete."""
    state.marks[who, FOLD_END] = state.clocks[NOW]
    output.worker[row] = who
    output.read_version[row] = state.tasks[who, READ_VERSION]
    output.first_step[row] = state.tasks[who, FIRST_STEP]
    for place in range(8):
        output.marks[row, place] = state.marks[who, place]


@kernel
def fold(state: State, who: int) -> None:
    """The fold is complete: a new version, and its worker reads again."""
    state.counts[VERSION] += 1
    state.counts[BUSY] -= 1
    state.tasks[who, PHASE] = ABOUT_TO_READ
    push(state.heap, state.clocks[NOW], READ, who)


def _new_output(room: int) -> Output:
    return Output(
        worker=np.empty(room, np.int32),
        read_version=np.empty(room, np.int64),
        first_step=np.empty(room, np.int64),
        marks=np.empty((room, 8)),
    )


def _numbers(first: int, done: Output) -> np.ndarray:
    return np.arange(first, first + len(done.worker), dtype=np.int64)


def _folds(first: int, done: Output) -> Folds:
    return Folds(fold=_numbers(first, done), time_s=done.marks[:, FOLD_END].copy())


def _contributions(first: int, done: Output) -> Contributions:
    return Contributions(
        fold=_numbers(first, done),
        worker=done.worker.copy(),
        read_version=done.read_version.copy(),
        read_time_s=done.marks[:, READ_AT].copy(),
        first_step=done.first_step.copy(),
        steps=np.ones(len(done.worker), np.int32),
    )


def _spans(done: Output, wanted: bool) -> Spans:
    """Fetch, compute, push and fold of each contribution; what took no time is left out."""
    if not wanted:
        return Spans()
    start = done.marks[:, [FETCH_START, FETCH_END, PUSH_START, FOLD_START]].reshape(-1)
    end = done.marks[:, [FETCH_END, COMPUTE_END, PUSH_END, FOLD_END]].reshape(-1)
    worker = np.repeat(done.worker, 4)
    worker[3::4] = SERVER
    kind = np.tile(np.arange(4, dtype=np.int32), len(done.worker))
    busy = end > start
    return Spans(worker[busy], kind[busy], start[busy], end[busy])

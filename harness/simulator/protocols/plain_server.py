"""The parameter server with one link per worker: a fold costs one tree update.

The general kernel (`asynchronous`) handles five events per contribution. Here all but two instants
follow from the read: nothing delays a contribution until it reaches the server, and there the
fold's end follows from the previous fold. So a worker's only pending event is its arrival at the
server. The sequence is that of the general kernel, bit for bit:

- folds end in the order of arrival;
- all folds of one instant are complete before any worker reads at that instant;
- readers of one instant read in the order of their folds, each after everything that the
  earlier readers have caused at that instant.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from harness.simulator.costs import Costs, computation_with_jitter_s, folding_s, jitter_of
from harness.simulator.events import (
    WAIT,
    WHO,
    Queue,
    append,
    enter,
    kernel,
    loop,
    new_queue,
    new_tournament,
    part,
    scratch,
    take,
)
from harness.simulator.laws import CONSTANT
from harness.simulator.protocols.contract import CLOCK_FIELDS, DONE, FULL, STUCK, Limits
from harness.simulator.protocols.record import Record, space, timeline, write_row
from harness.simulator.protocols.rows import rows_under_way
from harness.simulator.timeline import Contributions, Timeline

PARKED, ABOUT_TO_READ, UNDER_WAY = range(3)

CLOCK = np.dtype(
    [
        *CLOCK_FIELDS,
        *(("standing", np.int64), ("folded_s", np.float64)),
    ]
)
"""With the number of folds in a row at one instant, and the end of the last fold."""

TASK = np.dtype(
    [(name, np.int64) for name in ("worker", "phase", "step", "read_version", "first_step")]
    + [(name, np.float64) for name in ("read_at_s", "copy_s", "compute_s", "fold_s")]
    + [("jitter", np.float64)]
)
"""A worker and its contribution: minibatches read so far, the contribution's costs, and the
jitter of the worker's next computation, drawn ahead because that hides its latency."""


class PlainState(NamedTuple):
    """The state of the protocol.

    Attributes:
        clock: [1] of `CLOCK`.
        arrivals: [2N] tournament of arrivals at the server.
        tasks: [N] of `TASK`.
        readers: workers about to read at the present instant.
    """

    clock: Any
    arrivals: Any
    tasks: Any
    readers: Queue


def start(workers: int) -> PlainState:
    """All workers idle at time 0, version 0."""
    tasks = np.zeros(workers, TASK)
    tasks["worker"] = np.arange(workers)
    return PlainState(
        clock=np.zeros(1, CLOCK),
        arrivals=new_tournament(workers),
        tasks=tasks,
        readers=new_queue(workers),
    )


def advance(
    state: PlainState, costs: Costs, limits: Limits, room: int, spans: bool
) -> tuple[int, Timeline]:
    """Run until a limit or until ``room`` folds are recorded; see `TimingProtocol`."""
    start, record = int(state.clock[0]["version"]), space(room, spans)
    reason = run(state, costs, limits, record)
    record.counts[0] = state.clock[0]["version"] - start
    return reason, timeline(record, start, 1)


def contributions_in_flight(state: PlainState) -> Contributions:
    """Contributions read and not yet folded, by first step."""
    return rows_under_way(state.tasks, (UNDER_WAY, UNDER_WAY))


@kernel
def wake(state: PlainState) -> None:
    """Let idle workers read next, in order of their numbers."""
    if state.clock[0].busy == len(state.tasks):
        return
    for worker in range(len(state.tasks)):
        if state.tasks[worker].phase == PARKED:
            state.clock[0].busy += 1
            queue_reader(state, worker)


@loop
def run(state: PlainState, costs: Costs, limits: Limits, record: Record) -> int:
    """Advance ``state`` until a limit is met or the record is full; returns the reason."""
    clock, arrivals, tasks, readers = state.clock[0], state.arrivals, state.tasks, state.readers
    rows, room, with_spans = 0, len(record.worker), len(record.instants) > 0
    shortest_s = shortest_fold_s(state, costs)
    while clock.version < limits.version:
        worker = arrivals[1].key & WHO
        arrived_s = arrivals[1].time_s
        start_s = max(arrived_s, clock.folded_s)
        end_s = np.inf if arrived_s == np.inf else start_s + tasks[worker].fold_s
        # Folds of this instant come first, then its readers, each with what it causes.
        if readers.counts[WAIT] > 0 and end_s > clock.now_s:
            worker = take(readers)[1]
        else:
            if end_s > limits.time_s:
                clock.now_s = limits.time_s
                return DONE
            if end_s == np.inf:  # no arrival is pending: all workers are parked
                return DONE
            if rows == room:
                return FULL
            clock.standing = clock.standing + 1 if end_s == clock.now_s else 0
            if clock.standing > limits.standing:
                return STUCK
            write_row(record, rows, tasks[worker], end_s)
            if with_spans:
                write_instants(record.instants[rows], tasks[worker], costs.latency_s, start_s)
            rows += 1
            clock.now_s = clock.folded_s = end_s
            clock.version += 1
            # If no further fold can end now, the worker reads at once: its leaf is then updated
            # once instead of twice. `shortest_s` may be too small for a float to add to `end_s`.
            certain = end_s + shortest_s > end_s and readers.counts[WAIT] == 0
            if not certain or clock.version == limits.version:
                scratch(arrivals, worker)
                queue_reader(state, worker)
                continue
        read(state, costs, limits, worker)
    return DONE


@kernel
def shortest_fold_s(state: PlainState, costs: Costs) -> float:
    """Lower bound of the duration of all coming folds; 0 if there is no bound."""
    # Contributions in flight keep the costs of an earlier workload, so they count, too.
    if costs.fold_law != CONSTANT:
        return 0.0
    shortest_s = costs.fold_s
    for worker in range(len(state.tasks)):
        if state.tasks[worker].phase == UNDER_WAY:
            shortest_s = min(shortest_s, state.tasks[worker].fold_s)
    return shortest_s


@part
def write_instants(instants: Any, task: Any, latency_s: float, fold_start_s: float) -> None:
    """Write the instants of a folded contribution, from which spans are made."""
    instants.fetch_start_s = task.read_at_s
    instants.fetch_end_s = task.read_at_s + task.copy_s + latency_s
    instants.compute_end_s = instants.fetch_end_s + task.compute_s
    instants.push_start_s = instants.compute_end_s
    instants.push_end_s = instants.push_start_s + task.copy_s + latency_s
    instants.fold_start_s = fold_start_s


@kernel
def queue_reader(state: PlainState, worker: int) -> None:
    """Append a worker to those that are about to read."""
    append(state.readers, state.clock[0].now_s, worker)
    state.tasks[worker].phase = ABOUT_TO_READ


@part
def read(state: PlainState, costs: Costs, limits: Limits, worker: int) -> None:
    """Take a snapshot and the next minibatch; or become idle if the limits allow none."""
    clock, task = state.clock[0], state.tasks[worker]
    now_s = clock.now_s
    if clock.dispatched >= limits.dispatch or now_s > limits.dispatch_s:
        task.phase = PARKED
        clock.busy -= 1
        scratch(state.arrivals, worker)
        return
    task.phase = UNDER_WAY
    task.read_version = clock.version
    task.read_at_s = now_s
    task.first_step = clock.dispatched
    if task.step == 0:  # later ones are drawn at the end of the previous read
        task.jitter = jitter_of(costs, worker, 0)
    task.copy_s = costs.copy_s
    task.compute_s = computation_with_jitter_s(costs, worker, task.step, task.jitter)
    task.fold_s = folding_s(costs, worker, task.step)
    task.step += 1
    clock.dispatched += 1
    fetched_s = now_s + task.copy_s + costs.latency_s
    sent_s = fetched_s + task.compute_s
    # The order of equal arrivals is that of the reads.
    enter(state.arrivals, worker, sent_s + task.copy_s + costs.latency_s, task.first_step)
    task.jitter = jitter_of(costs, worker, task.step)

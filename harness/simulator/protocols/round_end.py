"""How a round of averaging ends: when each worker hands in, and when it has the average."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from harness.simulator.cluster import Cluster
from harness.simulator.costs import Costs, computation_s, own_links
from harness.simulator.exchange import AllReduce
from harness.simulator.jit import kernel
from harness.simulator.protocols.absences import Absences
from harness.simulator.protocols.buckets import in_buckets, sizes
from harness.simulator.protocols.neighbours import (
    Neighbours,
    average_s,
    message_bytes,
)
from harness.simulator.protocols.saving import Saving
from harness.simulator.topology import Level, Network, Wiring, wire

__all__ = ["State", "coding_s", "network_of", "plan", "reduce", "sent_bytes", "wired"]


class State(NamedTuple):
    """Everything that moves, and the network it moves on.

    Attributes:
        clock: [1] of `CLOCK`.
        tasks: [N] of `TASK`, the present round.
        later: [N] of `TASK`, the next round, which overlapped workers begin before the fold.
        machine: the cluster.
        collective: the all-reduce on its network.
        absences: who is away, and when the next one goes.
        buckets: bytes of those in which gradients travel, if they do.
        saving: where checkpoints stand.
        neighbours: other jobs on the network.
    """

    clock: Any
    tasks: Any
    later: Any
    machine: Cluster
    collective: AllReduce
    absences: Absences
    buckets: list[float]
    saving: Saving
    neighbours: Neighbours


def network_of(cluster: Cluster) -> Network:
    """The cluster's network; without one, what its link says of workers and server holds for all.

    A link of one's own carries one message at a time in each direction; a link that all
    share carries every message.
    """
    if cluster.network is not None:
        return cluster.network
    link = cluster.link
    if link.sharing == "none":
        level = Level(1, link.bandwidth_bytes_per_s, link.latency_s, link.duplex)
        return Network((level,), sharing="fifo")
    return Network(
        (Level(latency_s=link.latency_s),),
        sharing=link.sharing,
        core_bandwidth_bytes_per_s=link.bandwidth_bytes_per_s,
    )


def wired(cluster: Cluster, workers: int) -> Wiring:
    """The links of `network_of` a cluster, numbered."""
    return wire(network_of(cluster), workers, own=own_links(cluster, workers))


def plan(state: State, costs: Costs, join_s: Any) -> None:
    """When each worker takes part in the all-reduce and has the average, and so the fold."""
    tasks, size = state.tasks, costs.parameter_bytes
    state.absences.size_bytes[:] = size
    if state.buckets and len(tasks) > 1:
        _plan_buckets(state, costs)
        return
    join_s = join_s + _average_s(state)
    tasks["join_s"] = np.where(tasks["is_read"] == 1, join_s, np.inf)
    tasks["pushed_s"] = tasks["join_s"] + _stage_s(state, size) + _coding_s(state, size)[0]
    reduce(state, size, -math.inf)


def _plan_buckets(state: State, costs: Costs) -> None:
    """As `plan`, with gradients that travel while the rest of them is computed."""
    tasks, parallel = state.tasks, state.machine.parallel
    there = np.flatnonzero(tasks["is_read"])
    tasks["join_s"], tasks["reduced_s"] = np.inf, -np.inf
    mine, backward_s = tasks[there], np.zeros(len(there))
    last_minibatches(costs, mine, there, backward_s)
    backward_s *= parallel.slowdown * parallel.backward_share
    begins_s = mine["compute_end_s"] - backward_s
    encode_s, decode_s = coding_s(state.machine, costs.parameter_bytes)
    computed_s, reduced_s = in_buckets(
        state.collective.among(there),
        sizes(state.buckets, costs.parameter_bytes),
        begins_s,
        backward_s + encode_s,
        parallel.overlap_slowdown,
        _average_s(state),
        _add_s_per_byte(state),
        sent_bytes(state.machine, 1.0),
    )
    tasks["compute_end_s"][there] = computed_s
    tasks["join_s"][there] = computed_s + _average_s(state)
    tasks["pushed_s"] = tasks["join_s"]
    tasks["reduced_s"][there] = reduced_s
    _fetch(state, decode_s)


@kernel
def last_minibatches(costs: Costs, tasks: Any, there: Any, seconds: Any) -> None:
    """How long the last minibatch of a round takes each of the workers ``there`` [M]."""
    for place in range(len(tasks)):
        step = tasks[place].first_step + tasks[place].steps - 1
        seconds[place] = computation_s(costs, there[place], step)


def _average_s(state: State) -> float:
    """A worker's fixed time for the average that comes next; one alone has none."""
    if len(state.tasks) == 1:
        return 0.0
    parallel, first = state.machine.parallel, state.clock[0]["version"] == 0
    return parallel.average_s + (parallel.first_average_s if first else 0.0)


def _add_s_per_byte(state: State) -> float:
    """Time to add what has been received to one's own."""
    rate = state.machine.host.memory_bytes_per_s
    return 0.0 if rate is None else state.machine.server.fold_traffic / rate


def reduce(state: State, size: float, from_s: float) -> None:
    """Average among those in the round, from an instant on or when they have handed in."""
    tasks = state.tasks
    there = np.flatnonzero(tasks["is_read"])
    ready_s = np.maximum(tasks["pushed_s"][there], from_s)
    tasks["reduced_s"] = -np.inf
    sent, add_s = sent_bytes(state.machine, size), _add_s_per_byte(state)
    if state.machine.jobs and len(there) > 1:
        tasks["reduced_s"][there] = _beside_others(state, float(ready_s.max()), sent, add_s)
    else:
        tasks["reduced_s"][there] = state.collective.among(there).ends_s(ready_s, sent, add_s)
    _fetch(state, _stage_s(state, size) + _coding_s(state, size)[1])


def _beside_others(state: State, begins_s: float, size: float, add_s_per_byte: float) -> float:
    """When an all-reduce of everybody is through that shares links with other jobs."""
    message = message_bytes(size, len(state.tasks))
    end_s = average_s(state.neighbours, message, begins_s)
    return end_s + message / 2.0 * add_s_per_byte


def _fetch(state: State, seconds: float) -> None:
    """Everybody has the average so long after its messages; the last one completes the fold."""
    tasks = state.tasks
    tasks["fetched_s"] = tasks["reduced_s"] + seconds
    state.clock[0]["fold_s"] = tasks["fetched_s"].max()


def _stage_s(state: State, size: float) -> float:
    """How long the copy of the parameters to or from a pinned buffer takes."""
    host = state.machine.host
    if host.staging == "pageable" and host.staging_bytes_per_s and len(state.tasks) > 1:
        return size / host.staging_bytes_per_s
    return 0.0


def _coding_s(state: State, size: float) -> tuple[float, float]:
    """`coding_s` of a round; one worker sends nothing."""
    return coding_s(state.machine, size) if len(state.tasks) > 1 else (0.0, 0.0)


def sent_bytes(cluster: Cluster, size: float) -> float:
    """What is sent in the place of so many bytes of parameters."""
    return size * (cluster.compression.ratio if cluster.compression else 1.0)


def coding_s(cluster: Cluster, size: float) -> tuple[float, float]:
    """How long it takes to compress parameters, and to undo it."""
    coder = cluster.compression
    if coder is None:
        return 0.0, 0.0
    rates = (coder.encode_bytes_per_s, coder.decode_bytes_per_s)
    encode_s, decode_s = (0.0 if rate is None else size / rate for rate in rates)
    return encode_s, decode_s

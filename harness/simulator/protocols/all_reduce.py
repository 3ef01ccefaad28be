"""The all-reduce of a round: copies, compression, messages, and buckets sent while computing.

`plan` computes the instants at which workers join a round's all-reduce and have the average;
`reduce` repeats the all-reduce without a worker that died.

**Buckets.** Gradients are sent in buckets while the rest is computed. Li et al., "PyTorch
distributed: experiences on accelerating data parallel training" (VLDB 2020): gradients are ready
from the last layer to the first, and are averaged a bucket at a time, in that order, the same on
every worker. Here

- the last ``backward_share`` of a round's last minibatch computes gradients, at an even pace;
- a worker enters the all-reduce of a bucket when the bucket is full and it has left that of the
  previous bucket;
- during an all-reduce the worker computes ``overlap_slowdown`` times as slowly, since the
  all-reduce needs a part of the device.

With r the instant at which a worker's bucket is full, e that at which it leaves the bucket's
all-reduce, d the time for computing the next bucket alone, σ the slowdown and b = max(e − r, 0),
the next bucket is full at r + min(σ d, d + b (1 − 1/σ)): computed slowly as a whole, or for b
seconds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from harness.base.errors import UserError
from harness.simulator.cluster import Cluster
from harness.simulator.collectives import Ring
from harness.simulator.costs import own_links
from harness.simulator.network import Level, Network, Wiring, wire
from harness.simulator.protocols.neighbours import average_s, message_bytes


def network_of(cluster: Cluster) -> Network:
    """The cluster's network; without one, a network with the properties of the cluster's link.

    A worker's own link carries one message at a time in each direction; a shared link carries the
    messages of all workers.
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


def build_wiring(cluster: Cluster, workers: int) -> Wiring:
    """The links of `network_of` a cluster, numbered."""
    link_rates = own_links(cluster, workers)
    return wire(network_of(cluster), workers, own=link_rates, alone=not cluster.jobs)


def wire_bytes(cluster: Cluster, size: float) -> float:
    """Bytes that are sent for ``size`` bytes of parameters, after compression."""
    return size * (cluster.compression.ratio if cluster.compression else 1.0)


def coding_s(cluster: Cluster, size: float) -> tuple[float, float]:
    """Seconds to compress parameters, and to decompress them."""
    coder = cluster.compression
    if coder is None:
        return 0.0, 0.0
    rates = (coder.encode_bytes_per_s, coder.decode_bytes_per_s)
    encode_s, decode_s = (0.0 if rate is None else size / rate for rate in rates)
    return encode_s, decode_s


def plan(state: Any, size: float, join_s: Any) -> None:
    """Compute the instants at which workers join the all-reduce and have the average, and the fold.

    Args:
        state: of `harness.simulator.protocols.averaging`; changed in place.
        size: bytes of the parameters.
        join_s: [N] instants at which workers are ready to join.
    """
    clock, tasks = state.clock[0], state.tasks
    # Kept for a repetition after a death, when the workload may have changed.
    clock["size_bytes"] = size
    if len(tasks) > 1 and state.buckets:
        _reduce_buckets(state)
        return
    pause_s, stage_s, encode_s, _ = pauses_s(state)
    tasks["join_s"] = np.where(tasks["is_read"] == 1, join_s + pause_s, np.inf)
    tasks["pushed_s"] = tasks["join_s"] + stage_s + encode_s
    reduce(state, -math.inf)


def pauses_s(state: Any) -> tuple[float, float, float, float]:
    """Seconds of the pause before an all-reduce, of its copy, of compression; and after it.

    A single worker sends nothing, and pays for its minibatches and epochs only.
    """
    host, size, parallel = state.machine.host, state.clock[0]["size_bytes"], state.machine.parallel
    if len(state.tasks) == 1:
        return 0.0, 0.0, 0.0, 0.0
    rate = host.staging_bytes_per_s if host.staging == "pageable" else None
    stage_s = 0.0 if rate is None else float(size) / rate
    encode_s, decode_s = coding_s(state.machine, float(size))
    is_first = state.clock[0]["version"] == 0
    pause_s = parallel.average_s + (parallel.first_average_s if is_first else 0.0)
    return pause_s, stage_s, encode_s, stage_s + decode_s


def ring_of(state: Any, members: Any) -> Ring | None:
    """The ring of the next all-reduce among these workers; None if it needs a table."""
    size = wire_bytes(state.machine, state.clock[0]["size_bytes"])
    return state.collective.restrict(members).ring(size, _add_s_per_byte(state.machine))


def reduce(state: Any, from_s: float) -> None:
    """Compute the round's all-reduce among its workers, which join at ``from_s`` or later.

    Args:
        state: changed in place.
        from_s: the present instant for a repetition; −∞ for the first time.
    """
    tasks, machine = state.tasks, state.machine
    members = np.flatnonzero(tasks["is_read"])
    ready_s = np.maximum(tasks["pushed_s"][members], from_s)
    sent, add_s = wire_bytes(machine, state.clock[0]["size_bytes"]), _add_s_per_byte(machine)
    if machine.jobs and len(members) > 1:  # as a fluid, from the last worker's start
        message = message_bytes(sent, len(tasks))
        end_s = average_s(state.neighbours, message, float(ready_s.max())) + message / 2.0 * add_s
    else:
        end_s = state.collective.restrict(members).ends_s(ready_s, sent, add_s)
    _end(state, members, end_s, pauses_s(state)[3])


def _reduce_buckets(state: Any) -> None:
    """Compute and average bucket after bucket."""
    tasks, parallel = state.tasks, state.machine.parallel
    members = np.flatnonzero(tasks["is_read"])
    collective, size = state.collective.restrict(members), float(state.clock[0]["size_bytes"])
    pause_s, _, encode_s, decode_s = pauses_s(state)  # buckets need no copy
    backward_s = tasks["last_s"][members] * (parallel.slowdown * parallel.backward_share)
    parts, slowdown = sizes(state.buckets, size), parallel.overlap_slowdown
    total, add_s = sum(parts), _add_s_per_byte(state.machine)
    # The forward part is over then; the backward part is stretched by its all-reduces.
    full_s, left_s = tasks["compute_end_s"][members] - backward_s, np.full(len(members), -np.inf)
    for place, part in enumerate(parts, 1):
        # In the module's symbols: `full_s` is r, `left_s` e, `alone_s` d, `slowly_s` b (1 − 1/σ).
        alone_s = (backward_s + encode_s) * (part / total if total else 1.0)
        slowly_s = np.maximum(left_s - full_s, 0.0) * (1.0 - 1.0 / slowdown)
        full_s = full_s + np.minimum(slowdown * alone_s, alone_s + slowly_s)
        joined_s = np.maximum(full_s, left_s) + (pause_s if place == len(parts) else 0.0)
        left_s = collective.ends_s(joined_s, part * wire_bytes(state.machine, 1.0), add_s)
    tasks["compute_end_s"][members] = full_s
    tasks["join_s"] = tasks["pushed_s"] = np.inf
    tasks["join_s"][members] = tasks["pushed_s"][members] = full_s + pause_s
    _end(state, members, left_s, decode_s)


def _end(state: Any, members: Any, reduced_s: Any, copy_s: float) -> None:
    """Record the ends of an all-reduce; the last worker's copy back completes the fold."""
    state.tasks["reduced_s"][members] = reduced_s
    state.tasks["fetched_s"][members] = reduced_s + copy_s
    state.clock[0]["end_s"] = np.max(reduced_s + copy_s)


def _add_s_per_byte(machine: Cluster) -> float:
    """Time to add a received byte to the worker's own parameters."""
    rate = machine.host.memory_bytes_per_s
    return 0.0 if rate is None else machine.server.fold_traffic / rate


MOST_BUCKETS = 10_000


def sizes(buckets: Sequence[float], size_bytes: float) -> list[float]:
    """Bytes of each bucket: those named, in order, with the last one repeated as needed.

    Example:
        >>> sizes((1.0, 4.0), 10.0)
        [1.0, 4.0, 4.0, 1.0]

    Raises:
        UserError: too many to simulate.
    """
    parts, remainder = list[float](), size_bytes
    while remainder > 0.0:
        if len(parts) == MOST_BUCKETS:
            excess = f"more than {MOST_BUCKETS} of them for {size_bytes:g} bytes"
            raise UserError(f"buckets: {excess}; allowed: larger ones")
        parts.append(min(buckets[min(len(parts), len(buckets) - 1)], remainder))
        remainder -= parts[-1]
    return parts or [0.0]  # without parameters still one all-reduce, of latencies only

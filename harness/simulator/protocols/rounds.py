"""Rounds of averaging: their ends, with buckets and beside other jobs, and their timeline.

`plan` computes the instants at which workers join a round's all-reduce and have the average;
`round_timeline` makes a timeline of finished rounds.

**Buckets** (`average_in_buckets`). Gradients are sent in buckets while the rest is computed. Li et
al., "PyTorch distributed: experiences on accelerating data parallel training" (VLDB 2020):
gradients are ready from the last layer to the first, and are averaged a bucket at a time, in
that order, the same on every worker. Here

- the last ``backward_share`` of a round's last minibatch computes gradients, at an even pace;
- a worker enters the all-reduce of a bucket when the bucket is full and it has left that of the
  previous bucket;
- during an all-reduce the worker computes ``overlap_slowdown`` times as slowly, since the
  all-reduce needs a part of the device.

With r the instant at which a worker's bucket is full, e that at which it leaves the bucket's
all-reduce, d the time for computing the next bucket alone, σ the slowdown and b = max(e − r, 0),
the next bucket is full at r + min(σ d, d + b (1 − 1/σ)): computed slowly as a whole, or for b
seconds.

**Neighbours** are other jobs on the same network, which use a part of the links. Each repeats
computing and averaging over a ring of its own workers, without variation. A ring is modelled as a
fluid: all its messages have one rate, that of their most limiting link, and an all-reduce of S
bytes among n workers moves 2 (n − 1) / n S bytes per message. Rates are max-min fair among the
messages of all active rings: they grow together until a link is full, and the rings on it keep
their rate. For one ring on idle links with a common start this equals the time of the messages
themselves; latencies are added at the end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from harness.base.errors import UserError
from harness.simulator.cluster import Cluster, Job
from harness.simulator.collectives import AllReduce
from harness.simulator.costs import Costs, computation_s, compute_seconds, own_links
from harness.simulator.events import kernel
from harness.simulator.network import NO_LINK, Level, Network, Wiring, route, wire
from harness.simulator.protocols.absences import Absences, Saving
from harness.simulator.timeline import (
    IN_FLIGHT,
    KINDS,
    LOST,
    SERVER,
    Contributions,
    Folds,
    Spans,
    Timeline,
)

TASK = np.dtype(
    [(name, np.int64) for name in ("is_read", "read_version", "first_step", "steps")]
    + [
        (name, np.float64)
        for name in (
            *("read_at_s", "start_s", "compute_end_s"),
            *("join_s", "pushed_s", "reduced_s", "fetched_s"),
        )
    ]
)
"""A worker's part in one round: its read, its minibatches, and the instants of its stages."""

LOST_TASK = np.dtype([("worker", np.int64), ("task", TASK)])
"""A worker's part in a round that it did not finish."""

EPOCH, AVERAGE, REDUCE = "epoch", "average", "all-reduce"

SPAN_KINDS = (*KINDS, EPOCH, AVERAGE, REDUCE)

BEFORE = ((EPOCH, "read_at_s", "start_s"), ("compute", "start_s", "compute_end_s"))

AFTER = (
    (AVERAGE, "compute_end_s", "join_s"),
    ("push", "join_s", "pushed_s"),
    (REDUCE, "pushed_s", "reduced_s"),
    ("fetch", "reduced_s", "fetched_s"),
)

SERVED = (
    ("fetch", "read_at_s", "start_s"),
    ("compute", "start_s", "compute_end_s"),
    (AVERAGE, "compute_end_s", "join_s"),
    ("push", "join_s", "pushed_s"),
)
"""Stages of a worker as (kind of span, first and last instant); `SERVED` are those of a server."""


def round_timeline(
    first_fold: int,
    rounds: Sequence[Any],
    lost: Any,
    spans: bool,
    stages: Sequence[tuple[str, str, str]],
    overlap: bool = False,
) -> Timeline:
    """The timeline of folded rounds.

    Args:
        first_fold: number of the first round's fold.
        rounds: for each round [N] of `TASK`; workers with ``is_read`` 1 take part in it.
        lost: [L] of `LOST_TASK`.
        spans: whether to record busy times.
        stages: kinds of spans, each with its first and last instant in a task.
        overlap: whether workers continue while their parameters are averaged.
    """
    if not rounds:
        losses = _contributions(LOST, lost["worker"], lost["task"])
        return Timeline(contributions=losses, kinds=SPAN_KINDS)
    tasks = np.stack(rounds)
    folds = np.arange(first_fold, first_fold + len(tasks), dtype=np.int64)
    round_, worker = np.nonzero(tasks["is_read"])
    fates = np.concatenate([folds[round_], np.full(len(lost), LOST, np.int64)])
    workers = np.concatenate([worker, lost["worker"]])
    parts = np.concatenate([tasks[round_, worker], lost["task"]])
    return Timeline(
        folds=Folds(folds, tasks["fetched_s"].max(axis=1)),
        contributions=_contributions(fates, workers, parts),
        spans=_spans(tasks, stages, overlap) if spans else Spans(),
        kinds=SPAN_KINDS,
    )


def contributions_in_flight(rounds: Sequence[Any]) -> Contributions:
    """Contributions of rounds that have not been folded, by first step."""
    if not rounds:
        return Contributions()
    tasks = np.stack(rounds)
    round_, worker = np.nonzero(tasks["is_read"])
    return _contributions(IN_FLIGHT, worker, tasks[round_, worker])


def _contributions(fates: Any, workers: Any, parts: Any) -> Contributions:
    """[C] contributions from their folds (or `LOST`, `IN_FLIGHT`), workers and `TASK` rows."""
    return Contributions(
        fold=np.array(np.broadcast_to(np.asarray(fates, np.int64), len(parts))),
        worker=workers.astype(np.int32),
        read_version=parts["read_version"].copy(),
        read_time_s=parts["read_at_s"].copy(),
        first_step=parts["first_step"].copy(),
        steps=parts["steps"].astype(np.int32),
    )


def _spans(tasks: Any, stages: Sequence[tuple[str, str, str]], overlap: bool) -> Spans:
    """Busy times of workers in rounds [F, N], without spans of no time.

    With overlap a worker computes during its all-reduce, so the all-reduce is a span of the
    server.
    """
    rounds, workers = tasks.shape
    present = np.repeat(tasks["is_read"] == 1, len(stages), axis=1)
    lane = np.repeat(np.arange(workers, dtype=np.int32), len(stages))
    kind = np.tile(np.array([SPAN_KINDS.index(name) for name, *_ in stages], np.int32), workers)
    start_s = np.stack([tasks[start] for _, start, _ in stages], axis=2).reshape(rounds, -1)
    end_s = np.stack([tasks[end] for *_, end in stages], axis=2).reshape(rounds, -1)
    if overlap:
        lane = np.append(lane, np.int32(SERVER))
        kind = np.append(kind, np.int32(SPAN_KINDS.index(REDUCE)))
        start_s = np.column_stack([start_s, tasks["join_s"].min(axis=1)])
        end_s = np.column_stack([end_s, tasks["fetched_s"].max(axis=1)])
        present = np.column_stack([present, np.ones(rounds, np.bool_)])
    busy = (present & (end_s > start_s)).reshape(-1)
    lanes, kinds = (np.tile(column, rounds)[busy] for column in (lane, kind))
    return Spans(lanes, kinds, start_s.reshape(-1)[busy], end_s.reshape(-1)[busy])


class RoundState(NamedTuple):
    """The state of the protocol, and its network.

    Attributes:
        clock: [1] of `CLOCK`.
        tasks: [N] of `TASK`, the present round.
        later: [N] of `TASK`, the next round, which overlapped workers begin before the fold.
        machine: the cluster.
        collective: the all-reduce on its network.
        absences: state of the faults of workers.
        buckets: bytes of each bucket of gradients, empty without buckets.
        saving: state of the checkpoints.
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


def plan(state: RoundState, costs: Costs, join_s: Any) -> None:
    """Compute the instants at which workers join the all-reduce and have the average, and the fold.

    Args:
        state: changed in place.
        costs: of the present workload.
        join_s: [N] instants at which workers are ready to join.
    """
    tasks, size = state.tasks, costs.parameter_bytes
    # Kept for a repetition after a death, when the workload may have changed.
    state.absences.size_bytes[:] = size
    if state.buckets and len(tasks) > 1:
        _plan_buckets(state, costs)
        return
    join_s = join_s + _average_s(state)
    tasks["join_s"] = np.where(tasks["is_read"] == 1, join_s, np.inf)
    tasks["pushed_s"] = tasks["join_s"] + _stage_s(state, size) + _coding_s(state, size)[0]
    reduce(state, size, -math.inf)


def _plan_buckets(state: RoundState, costs: Costs) -> None:
    """`plan` with buckets: gradients are sent while the rest is computed."""
    tasks, parallel = state.tasks, state.machine.parallel
    members = np.flatnonzero(tasks["is_read"])
    tasks["join_s"], tasks["reduced_s"] = np.inf, -np.inf
    mine, backward_s = tasks[members], np.zeros(len(members))
    last_minibatches(costs, mine, members, backward_s)
    backward_s *= parallel.slowdown * parallel.backward_share
    # The forward part is over then; the backward part is stretched by its all-reduces.
    begins_s = mine["compute_end_s"] - backward_s
    encode_s, decode_s = coding_s(state.machine, costs.parameter_bytes)
    computed_s, reduced_s = average_in_buckets(
        state.collective.restrict(members),
        sizes(state.buckets, costs.parameter_bytes),
        begins_s,
        backward_s + encode_s,
        parallel.overlap_slowdown,
        _average_s(state),
        _add_s_per_byte(state),
        wire_bytes(state.machine, 1.0),
    )
    tasks["compute_end_s"][members] = computed_s
    tasks["join_s"][members] = computed_s + _average_s(state)
    tasks["pushed_s"] = tasks["join_s"]
    tasks["reduced_s"][members] = reduced_s
    _fetch(state, decode_s)


@kernel
def last_minibatches(costs: Costs, tasks: Any, members: Any, seconds: Any) -> None:
    """Durations of the last minibatch of a round for the workers ``members`` [M]."""
    for place in range(len(tasks)):
        step = tasks[place].first_step + tasks[place].steps - 1
        seconds[place] = computation_s(costs, members[place], step)


def _average_s(state: RoundState) -> float:
    """A worker's fixed time for the next average; 0 for a single worker."""
    if len(state.tasks) == 1:
        return 0.0
    parallel, is_first = state.machine.parallel, state.clock[0]["version"] == 0
    return parallel.average_s + (parallel.first_average_s if is_first else 0.0)


def _add_s_per_byte(state: RoundState) -> float:
    """Time to add a received byte to the worker's own parameters."""
    rate = state.machine.host.memory_bytes_per_s
    return 0.0 if rate is None else state.machine.server.fold_traffic / rate


def reduce(state: RoundState, size: float, from_s: float) -> None:
    """Compute the round's all-reduce among its workers, which join at ``from_s`` or later.

    Args:
        state: changed in place.
        size: bytes of the parameters.
        from_s: the present instant for a repetition; −∞ for the first time.
    """
    tasks = state.tasks
    members = np.flatnonzero(tasks["is_read"])
    ready_s = np.maximum(tasks["pushed_s"][members], from_s)
    tasks["reduced_s"] = -np.inf
    sent, add_s = wire_bytes(state.machine, size), _add_s_per_byte(state)
    if state.machine.jobs and len(members) > 1:  # as a fluid, from the last worker's start
        end_s = _reduce_end_s(state, float(ready_s.max()), sent, add_s)
    else:
        end_s = state.collective.restrict(members).ends_s(ready_s, sent, add_s)
    tasks["reduced_s"][members] = end_s
    _fetch(state, _stage_s(state, size) + _coding_s(state, size)[1])


def _reduce_end_s(state: RoundState, begins_s: float, size: float, add_s_per_byte: float) -> float:
    """End of an all-reduce of all workers that shares links with other jobs."""
    message = message_bytes(size, len(state.tasks))
    end_s = average_s(state.neighbours, message, begins_s)
    return end_s + message / 2.0 * add_s_per_byte


def _fetch(state: RoundState, seconds: float) -> None:
    """Add ``seconds`` after each worker's all-reduce; the last worker completes the fold."""
    tasks = state.tasks
    tasks["fetched_s"] = tasks["reduced_s"] + seconds
    state.clock[0]["fold_s"] = tasks["fetched_s"].max()


def _stage_s(state: RoundState, size: float) -> float:
    """Duration of the copy of the parameters to or from a pinned buffer."""
    host = state.machine.host
    if host.staging == "pageable" and host.staging_bytes_per_s and len(state.tasks) > 1:
        return size / host.staging_bytes_per_s
    return 0.0


def _coding_s(state: RoundState, size: float) -> tuple[float, float]:
    """`coding_s` of a round; 0 for a single worker, which sends nothing."""
    return coding_s(state.machine, size) if len(state.tasks) > 1 else (0.0, 0.0)


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


def average_in_buckets(
    collective: AllReduce,
    parts: Sequence[float],
    begins_s: Any,
    backward_s: Any,
    slowdown: float,
    pause_s: float,
    add_s_per_byte: float,
    ratio: float,
) -> tuple[Any, Any]:
    """Compute and average bucket after bucket.

    Args:
        collective: among the M members.
        parts: [B] bytes of each bucket.
        begins_s: [M] instants at which members begin to compute gradients.
        backward_s: [M] durations of that without an all-reduce.
        slowdown: of computing while a bucket is averaged.
        pause_s: before a worker enters the last all-reduce.
        add_s_per_byte: time to add a received byte.
        ratio: bytes that are sent over those of the gradients.

    Returns:
        [M] instants at which members have their last gradients, and [M] all averages.
    """
    total, end = sum(parts), len(parts) - 1
    full_s, left_s = np.asarray(begins_s, np.float64), np.full(len(begins_s), -np.inf)
    for place, part in enumerate(parts):
        # In the module's symbols: `full_s` is r, `left_s` e, `alone_s` d, `slowly_s` b (1 − 1/σ).
        alone_s = np.asarray(backward_s) * (part / total if total else 1.0)
        slowly_s = np.maximum(left_s - full_s, 0.0) * (1.0 - 1.0 / slowdown)
        full_s = full_s + np.minimum(slowdown * alone_s, alone_s + slowly_s)
        joined_s = np.maximum(full_s, left_s) + (pause_s if place == end else 0.0)
        left_s = collective.ends_s(joined_s, part * ratio, add_s_per_byte)
    return full_s, left_s


class Neighbours(NamedTuple):
    """Progress of the J other jobs, on the E links of the whole network.

    Attributes:
        now_s: [1] instant up to which they have been simulated.
        sending: [J] whether each is averaging.
        left: [J] bytes of each message left to send, or seconds left of computing and latency.
        compute_s: [J] from the end of a job's average to its next one.
        bytes: [J] bytes of each message in an average.
        uses: [J, E] number of a job's messages on each link.
        rate: [E] bytes per second of each link.
        own: [E] number of the simulated job's own messages on each link.
        latency_s: [1] latency of its ring.
    """

    now_s: Any
    sending: Any
    left: Any
    compute_s: Any
    bytes: Any
    uses: Any
    rate: Any
    own: Any
    latency_s: Any


def new_neighbours(cluster: Cluster, network: Network, workers: int) -> Neighbours:
    """The initial state of a cluster's other jobs, which begin to compute at time 0."""
    jobs = cluster.jobs
    if not jobs:
        return Neighbours(*(np.zeros(0) for _ in Neighbours._fields))
    # The other jobs may have workers beyond those of the simulated job.
    count = max([workers, *(job.first + job.workers for job in jobs)])
    wiring = wire(network, count, own=own_links(cluster, count), alone=False)
    rings = [ring_uses(wiring, job.first, job.workers) for job in jobs]
    computes = [_compute_s(cluster, job) + ring[1] for job, ring in zip(jobs, rings, strict=True)]
    uses, latency_s = ring_uses(wiring, 0, workers)
    return Neighbours(
        now_s=np.zeros(1),
        sending=np.zeros(len(jobs)),
        left=np.array(computes),
        compute_s=np.array(computes),
        bytes=np.array([message_bytes(job.workload.parameter_bytes, job.workers) for job in jobs]),
        uses=np.array([ring[0] for ring in rings]),
        rate=wiring.rate,
        own=uses,
        latency_s=np.array([latency_s]),
    )


def message_bytes(size: float, workers: int) -> float:
    """Bytes that each message of a ring carries in all its rounds."""
    return 2.0 * (workers - 1) * size / workers


def ring_uses(wiring: Wiring, begin: int, workers: int) -> tuple[Any, float]:
    """[E] number of messages of a ring of workers from ``begin`` on each link; and its latency."""
    uses, latency_s = np.zeros(len(wiring.rate)), 0.0
    way = np.zeros(wiring.longest, np.int64)
    # Each of the 2 (n − 1) rounds takes as long as its slowest message.
    for place in range(workers if workers > 1 else 0):
        ends = begin + place, begin + (place + 1) % workers
        latency_s = max(latency_s, route(wiring, *ends, way))
        np.add.at(uses, way[way != NO_LINK], 1.0)
    return uses, 2.0 * (workers - 1) * latency_s


def average_s(neighbours: Neighbours, size: float, begins_s: float) -> float:
    """End of an average of the simulated job beside the others, which are simulated up to it.

    Args:
        neighbours: changed in place.
        size: bytes of each message.
        begins_s: beginning of the average, not before ``neighbours.now_s``.
    """
    # First the other jobs alone up to the beginning, then with the own average.
    while neighbours.now_s[0] < begins_s:
        _step(neighbours, math.inf, begins_s)
    remainder = size
    while remainder > 0.0:
        remainder = _step(neighbours, remainder, math.inf)
    return float(neighbours.now_s[0] + neighbours.latency_s[0])


def fair_rates(uses: Any, rate: Any) -> Any:
    """[J] max-min fair rates of the messages of each ring (infinite for a ring without a link).

    Args:
        uses: [J, E] number of messages of each ring on each link.
        rate: [E] bytes per second of each link.
    """
    rates, room = np.full(len(uses), np.inf), rate.astype(np.float64)
    open_ = uses.any(axis=1)
    while open_.any():
        load = uses[open_].sum(axis=0)
        share = np.divide(room, load, out=np.full(len(room), np.inf), where=load > 0.0)
        least = share.min()
        if not np.isfinite(least):  # the remaining rings use infinitely fast links only
            break
        # One ring's messages have one rate, so a full link stops all of them, on all links.
        full = share <= least
        stops = open_ & uses[:, full].any(axis=1)
        rates[stops] = least
        room = np.maximum(room - least * uses[stops].sum(axis=0), 0.0)
        open_ &= ~stops
    return rates


def _step(neighbours: Neighbours, remainder: float, end_s: float) -> float:
    """Advance to the next event, or to ``end_s``; returns what is left of the own average.

    An infinite ``remainder`` means that there is no such average.
    """
    sending, averages = neighbours.sending == 1.0, math.isfinite(remainder)
    uses = np.vstack([neighbours.uses * sending[:, None], neighbours.own * averages])
    pace = fair_rates(uses, neighbours.rate)
    pace[:-1][~sending] = 1.0  # what is left of a computing job is in seconds
    amounts = np.append(neighbours.left, remainder if averages else 0.0)
    waits_s = amounts / pace  # 0 for an infinite pace
    # An average of no bytes would end at once, and time would stand still.
    waits_s[-1] = waits_s[-1] if averages else math.inf
    passes_s = min(float(waits_s.min()), end_s - neighbours.now_s[0])
    over = waits_s <= passes_s
    # Without an event, exactly ``end_s``: a sum could miss it by rounding, and loop.
    neighbours.now_s[0] = neighbours.now_s[0] + passes_s if over.any() else end_s
    amounts_left = amounts - np.where(np.isinf(pace), 0.0, pace) * passes_s
    neighbours.left[:] = amounts_left[:-1]
    ended = over[:-1]
    neighbours.sending[ended] = 1.0 - neighbours.sending[ended]
    neighbours.left[ended] = np.where(
        neighbours.sending[ended] == 1.0, neighbours.bytes[ended], neighbours.compute_s[ended]
    )
    if not averages:
        return remainder
    return 0.0 if over[-1] else float(amounts_left[-1])


def _compute_s(cluster: Cluster, job: Job) -> float:
    """Seconds of computing of a job's round, without variation: those of its slowest worker."""
    workers: Sequence[int] = range(job.first, job.first + job.workers)
    return job.every * max(compute_seconds(cluster, job.workload, worker) for worker in workers)

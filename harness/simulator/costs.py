"""Durations of computing, copying and folding on a cluster, in seconds, and instants of its faults.

Random factors are pure functions of (key, worker, step). The generator is Philox 4×32 with 10
rounds (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011): 128 counter bits are
worker, step and draw, 64 key bits come from `harness.base.seeds.stream_key` of the seed and the
purpose. There is no generator state, so under every protocol a worker takes the same time for its
n-th minibatch.

Faults are seeded processes, one for each `[[faults]]` table of a cluster file. A process that
concerns workers runs independently for each of them. Its instants are listed, or random: from the
end of one occurrence to the next passes an exponential time with the table's mean, drawn from a
stream of the process, the worker and the occurrence. So faults happen at the same instants under
every protocol.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from harness.base.errors import UserError
from harness.base.seeds import stream_key
from harness.simulator.cluster import (
    FAULT_KINDS,
    JITTER_LAWS,
    Cluster,
    Fault,
    Jitter,
    Stragglers,
    Workload,
)
from harness.simulator.events import kernel, part
from harness.simulator.network import Level, Network

CONSTANT, LOGNORMAL, GAMMA, SHIFTED_EXPONENTIAL, EMPIRICAL = range(5)
"""Indices of `JITTER_LAWS`."""

DEATH, PREEMPTION, LATE, MESSAGE, SERVER = range(5)
"""Indices of `FAULT_KINDS`."""

Way = Literal["link", "network", "workers", "generators"]
"""Routes of messages: to the server over ``[link]``, or over ``[network]`` if that has a table
``server``; to the server over any ``[network]``; to other workers over any ``[network]``; over
``[link]`` between workers and no server, neither of whose seconds are minibatches or folds."""


class Faults(NamedTuple):
    """All fault processes of a cluster, as arguments of a kernel.

    Attributes:
        kind, mean_s, down_s: [P] of each process; a mean of 0 means listed instants,
            an infinite time down means no return.
        happens: [P, N] whether the process happens to the worker (for the server: worker 0).
        at_s: [P, A] listed instants, infinite where there are fewer.
        key: of the instants' random stream.
        message_key: of the losses of messages.
        probability, retry_s: of messages.
        checkpoint_s: infinite where the server takes none.
        down_law, down_cv: [P] law of the time down.
        down_key: of its random stream.
        notice_s: [P] time from a notice to the worker's death.
    """

    kind: Any
    mean_s: Any
    down_s: Any
    happens: Any
    at_s: Any
    key: Any
    message_key: Any
    probability: float
    retry_s: float
    checkpoint_s: float
    down_law: Any
    down_cv: Any
    down_key: Any
    notice_s: Any


class Law(NamedTuple):
    """The jitter of computations or of folds: a factor with mean 1.

    Attributes:
        code: one of the codes above.
        cv: coefficient of variation.
        values: [V] equally likely factors with mean 1, for the empirical law.
        key: of the random stream (see `purpose_key`).
    """

    code: int
    cv: float
    values: Any
    key: Any


class Costs(NamedTuple):
    """All durations that a protocol needs, as arguments of a kernel.

    Attributes:
        compute_s: [N] time of one minibatch of each worker, before jitter.
        copy_s: time of a parameter-sized copy on an idle link.
        latency_s: from the end of a copy's departure to its arrival.
        fold_s: time to fold one contribution.
        parameter_bytes: size of the model.
        jitter, fold_jitter: the laws of computations and of folds.
        straggle_probability, slowdown: the stragglers.
        straggler_key, length_key, sample_key: of the random streams.
        faults: fault processes.
    """

    compute_s: Any
    copy_s: float
    latency_s: float
    fold_s: float
    parameter_bytes: float
    jitter: Law
    fold_jitter: Law
    straggle_probability: float
    slowdown: float
    straggler_key: Any
    length_key: Any
    sample_key: Any
    faults: Faults


def compute_seconds(cluster: Cluster, workload: Workload, worker: int = 0) -> float:
    """Seconds of one minibatch on a worker's device, without variation."""
    group = cluster.group_of(worker)
    return cluster.devices[group.device].minibatch_s(workload) / group.speed


def bare_throughput_per_s(cluster: Cluster, workload: Workload) -> float:
    """Minibatches per second of the first worker's device alone: no server, no copies."""
    seconds = compute_seconds(cluster, workload)
    return math.inf if seconds == 0.0 else 1.0 / seconds


def copy_seconds(cluster: Cluster, size_bytes: float) -> float:
    """Seconds that a copy occupies an idle link, without latency.

    A pageable buffer is first copied to a pinned one, so the two times add up.
    """
    rates = [cluster.link.bandwidth_bytes_per_s]
    if cluster.host.staging == "pageable":
        rates.append(cluster.host.staging_bytes_per_s)
    return sum(size_bytes / rate for rate in rates if rate is not None)


def fold_seconds(cluster: Cluster, workload: Workload) -> float:
    """Seconds of one fold: its fixed time and its traffic through host memory."""
    rate, server = cluster.host.memory_bytes_per_s, cluster.server
    moving = 0.0 if rate is None else server.fold_traffic * workload.parameter_bytes / rate
    return server.fold_s + moving


def costs_of(
    cluster: Cluster, workload: Workload, workers: int, seed: int, way: Way = "link"
) -> Costs:
    """All costs of a workload on the first ``workers`` workers of a cluster.

    Keys without use for the protocol are not read, so that they are known to have no effect.

    Args:
        cluster: the machine.
        workload: the job.
        workers: number of workers.
        seed: of the random durations.
        way: the protocol's route of messages.

    Raises:
        UserError: the settings are so extreme that a duration is not a finite number.
    """
    steps = way != "generators"
    on_link = way in ("link", "generators") and server_network(cluster) is None
    jitter, odd = (cluster.jitter, cluster.stragglers) if steps else (Jitter(), Stragglers())
    folds = cluster.server.jitter if way == "link" else Jitter()
    costs = Costs(
        compute_s=_compute_seconds(cluster, workload, workers, seed),
        copy_s=float(copy_seconds(cluster, workload.parameter_bytes)) if on_link else 0.0,
        latency_s=cluster.link.latency_s if on_link else 0.0,
        fold_s=fold_seconds(cluster, workload) if way in ("link", "network") else 0.0,
        parameter_bytes=workload.parameter_bytes,
        jitter=_law_of(jitter, seed, "jitter"),
        fold_jitter=_law_of(folds, seed, "fold"),
        straggle_probability=odd.probability,
        # Read only where it matters: the keys that were read are those with an effect.
        slowdown=odd.slowdown if odd.probability > 0.0 else 1.0,
        straggler_key=purpose_key(seed, "straggler"),
        length_key=purpose_key(seed, "utterance length"),
        sample_key=purpose_key(seed, "sample"),
        faults=faults_of(cluster.faults, workers, seed),
    )
    durations = [costs.compute_s.max(), costs.copy_s, costs.fold_s]
    if not np.isfinite(durations).all():
        raise UserError(f"cluster {cluster.name!r}: a duration overflows; rates are too small")
    return costs


def _law_of(jitter: Jitter, seed: int, purpose: str) -> Law:
    values = np.array(jitter.values, dtype=np.float64)
    cv = 0.0 if jitter.law in ("constant", "empirical") else jitter.cv
    values = values / values.mean() if len(values) else values
    return Law(JITTER_LAWS.index(jitter.law), cv, values, purpose_key(seed, purpose))


def _compute_seconds(cluster: Cluster, workload: Workload, workers: int, seed: int) -> np.ndarray:
    """[N] seconds of one minibatch of each worker, with its lasting speed."""
    firsts = np.cumsum([0, *(group.count for group in cluster.workers[:-1])]).tolist()
    group_s = [compute_seconds(cluster, workload, start) for start in firsts]
    # A file may describe millions of workers; no group is repeated beyond those needed.
    worker_s = np.repeat(group_s, [min(group.count, workers) for group in cluster.workers])
    # More workers than the file describes are its groups over again.
    base = np.resize(worker_s, workers)
    if cluster.heterogeneity_cv == 0.0:
        return base
    speeds = np.empty(workers)
    draw_speeds(purpose_key(seed, "speed"), cluster.heterogeneity_cv, speeds)
    return base / speeds


@kernel
def draw_speeds(key: Any, cv: float, speeds: Any) -> None:
    """Fill in each worker's lasting speed."""
    for worker in range(len(speeds)):
        speeds[worker] = lognormal(key, worker, 0, cv)


def server_network(cluster: Cluster) -> Network | None:
    """The network that messages to the server take; None if they take the cluster's link.

    Workers with links of their own need no network: these replace the link, as the lowest level.
    """
    link, network = cluster.link, cluster.network
    if network is None and any(group.has_link for group in cluster.workers):
        level = Level(1, link.bandwidth_bytes_per_s, link.latency_s, link.duplex)
        return Network((level,), server=Level())
    return network if network is not None and network.server is not None else None


def own_links(cluster: Cluster, workers: int) -> np.ndarray | None:
    """[2, N] bytes per second of each worker's own link, up and down, for `wire`."""
    groups = cluster.workers
    if not any(group.has_link for group in groups):
        return None
    rates = [(group.up_bytes_per_s, group.down_bytes_per_s) for group in groups]
    counts = [min(group.count, workers) for group in groups]
    worker_rates = np.repeat(np.array(rates, np.float64), counts, axis=0)  # None becomes nan
    return np.resize(worker_rates, (workers, 2)).T


@kernel
def computation_s(costs: Costs, worker: int, step: int) -> float:
    """The duration of a worker's ``step``-th minibatch, with jitter and stragglers."""
    return computation_with_jitter_s(costs, worker, step, jitter_of(costs, worker, step))


@part
def jitter_of(costs: Costs, worker: int, step: int) -> float:
    """The jitter of a worker's ``step``-th minibatch; it does not depend on the workload."""
    return factor(costs.jitter, worker, step)


@part
def computation_with_jitter_s(costs: Costs, worker: int, step: int, jitter: float) -> float:
    """`computation_s` for a jitter that has been drawn already."""
    seconds = costs.compute_s[worker] * jitter
    if costs.straggle_probability > 0.0:
        # From a stream of its own: stragglers change no worker's jitter.
        u = uniforms(costs.straggler_key, worker, step, 0)[0]
        if u < costs.straggle_probability:
            seconds *= costs.slowdown
    return seconds


@part
def folding_s(costs: Costs, worker: int, step: int) -> float:
    """The duration of the fold of a worker's ``step``-th contribution."""
    return costs.fold_s * factor(costs.fold_jitter, worker, step)


NEVER_AWAY = Fault("death", at_s=(0.0,))


def faults_of(faults: Sequence[Fault], workers: int, seed: int) -> Faults:
    """The processes of the first ``workers`` workers under a seed."""
    timed = [fault for fault in faults if fault.kind != "message"]
    messages = [fault for fault in faults if fault.kind == "message"]
    happens = np.zeros((len(timed), workers if timed else 0), np.bool_)
    # The last column of instants stays infinite: a process without further instants reads it.
    at_s = np.full((len(timed), max((len(f.at_s) for f in timed), default=0) + 1), math.inf)
    for place, fault in enumerate(timed):
        crew = [0] if fault.kind == "server" else list(fault.workers) or slice(None)
        happens[place, [w for w in crew if w < workers] if isinstance(crew, list) else crew] = 1
        at_s[place, : len(fault.at_s)] = fault.at_s
    away = [fault if fault.kind != "late" else NEVER_AWAY for fault in timed]
    downs = [math.inf if fault.down_s is None else fault.down_s for fault in away]
    down_laws = [fault.down_law if fault.down_s else "constant" for fault in away]
    varies = [law != "constant" for law in down_laws]
    return Faults(
        kind=np.array([FAULT_KINDS.index(fault.kind) for fault in timed], np.int64),
        mean_s=np.array([fault.mean_s or 0.0 for fault in timed]),
        down_s=np.array(downs),
        happens=happens,
        at_s=at_s,
        key=purpose_key(seed, "fault"),
        message_key=purpose_key(seed, "message"),
        probability=1.0 - math.prod(1.0 - fault.probability for fault in messages),
        retry_s=max((fault.retry_s or 0.0 for fault in messages), default=0.0),
        checkpoint_s=min(
            (f.checkpoint_s or math.inf for f in timed if f.kind == "server"), default=math.inf
        ),
        down_law=np.array([JITTER_LAWS.index(law) for law in down_laws], np.int64),
        down_cv=np.array([f.down_cv if v else 0.0 for f, v in zip(away, varies, strict=True)]),
        down_key=purpose_key(seed, "down"),
        notice_s=np.array([fault.notice_s for fault in away]),
    )


@kernel
def instant_s(faults: Faults, process: int, worker: int, occurrence: int, over_s: float) -> float:
    """Instant of the next occurrence of a process at a worker, infinity if there is none.

    Args:
        faults: all processes.
        process: index of the process.
        worker: index of the worker; 0 for the server.
        occurrence: number of earlier occurrences.
        over_s: end of the last occurrence, its absence included.
    """
    if not faults.happens[process, worker]:
        return np.inf
    if faults.mean_s[process] == 0.0:
        return faults.at_s[process, min(occurrence, faults.at_s.shape[1] - 1)]
    u = uniforms(faults.key, worker, occurrence, process)[0]
    return over_s - faults.mean_s[process] * np.log(u)


@kernel
def away_s(faults: Faults, process: int, worker: int, occurrence: int) -> float:
    """Seconds for which an occurrence of a process removes a worker, or the server."""
    down_s, law = faults.down_s[process], faults.down_law[process]
    if law == CONSTANT or down_s == np.inf:
        return down_s
    # A law takes several draws of one step, so processes must differ in their steps.
    number = occurrence * len(faults.kind) + process
    return down_s * draw_factor(faults.down_key, worker, number, law, faults.down_cv[process])


@kernel
def count_faults(faults: Faults, until_s: float) -> int:
    """Number of faults until an instant, lost messages left out; a late worker is one."""
    count = 0
    for process in range(faults.happens.shape[0]):
        for worker in range(faults.happens.shape[1]):
            times, time_s = 0, instant_s(faults, process, worker, 0, 0.0)
            if faults.kind[process] == LATE:
                count += time_s < np.inf
            while time_s <= until_s and faults.kind[process] != LATE:
                over_s = time_s + faults.notice_s[process] + away_s(faults, process, worker, times)
                times += 1
                time_s = instant_s(faults, process, worker, times, over_s)
            count += times
    return count


_MASK = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_MULTIPLY_0, _MULTIPLY_1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_WEYL_0, _WEYL_1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_TO_53_BITS = np.uint64(11)


def purpose_key(seed: int, purpose: str) -> Any:
    """The 64-bit Philox key of one purpose under a seed, as uint64."""
    return np.uint64(stream_key(seed, purpose) & 0xFFFFFFFFFFFFFFFF)


@kernel
def philox(a: Any, b: Any, c: Any, d: Any, key: Any) -> tuple[Any, Any, Any, Any]:
    """Four 32-bit words for a counter of four 32-bit words (all held in uint64)."""
    k0, k1 = key & _MASK, key >> _HALF
    for _ in range(10):
        p, q = _MULTIPLY_0 * a, _MULTIPLY_1 * c
        a, b, c, d = (q >> _HALF) ^ b ^ k0, q & _MASK, (p >> _HALF) ^ d ^ k1, p & _MASK
        k0, k1 = (k0 + _WEYL_0) & _MASK, (k1 + _WEYL_1) & _MASK
    return a, b, c, d


@kernel
def uniforms(key: Any, worker: int, step: int, draw: int) -> tuple[float, float]:
    """Two independent numbers, uniform on the open interval (0, 1), 53 bits each."""
    w, s = np.uint64(worker), np.uint64(step)
    a, b, c, d = philox(s & _MASK, s >> _HALF, w & _MASK, np.uint64(draw), np.uint64(key))
    u = ((a << _HALF) | b) >> _TO_53_BITS
    v = ((c << _HALF) | d) >> _TO_53_BITS
    # int64 converts to float exactly below 2**53, and faster than uint64
    return (np.int64(u) + 0.5) * 2.0**-53, (np.int64(v) + 0.5) * 2.0**-53


@kernel
def normal(key: Any, worker: int, step: int, draw: int) -> float:
    """A standard normal number (Box and Muller 1958)."""
    u, v = uniforms(key, worker, step, draw)
    return math.sqrt(-2.0 * math.log(u)) * math.cos(2.0 * math.pi * v)


@kernel
def lognormal(key: Any, worker: int, step: int, cv: float) -> float:
    """Lognormal with mean 1 and standard deviation ``cv``: σ² = ln(1 + cv²), μ = −σ²/2."""
    variance = math.log1p(cv * cv)
    return math.exp(math.sqrt(variance) * normal(key, worker, step, 0) - 0.5 * variance)


@kernel
def gamma(key: Any, worker: int, step: int, cv: float) -> float:
    """Gamma with mean 1 and standard deviation ``cv``, by rejection.

    Marsaglia and Tsang, "A simple method for generating gamma variables" (2000), with
    shape α = 1/cv²; below α = 1 a draw for α + 1 is multiplied by U^(1/α).
    """
    if cv == 0.0:
        return 1.0
    shape = 1.0 / (cv * cv)
    boost = 1.0
    if shape < 1.0:
        boost = uniforms(key, worker, step, 0)[0] ** (1.0 / shape)
    d = (shape if shape >= 1.0 else shape + 1.0) - 1.0 / 3.0
    c = 1.0 / math.sqrt(9.0 * d)
    # Draw 0 is the boost's, and every try takes two of its own: no number serves twice.
    draw = 1
    while True:
        x = normal(key, worker, step, draw)
        u = uniforms(key, worker, step, draw + 1)[0]
        draw += 2
        v = (1.0 + c * x) ** 3
        if v > 0.0 and math.log(u) < 0.5 * x * x + d * (1.0 - v + math.log(v)):
            return boost * d * v / shape


@kernel
def draw_factor(key: Any, worker: int, step: int, law: int, cv: float) -> float:
    """One draw, with mean 1, of a law that is neither constant nor empirical."""
    if law == LOGNORMAL:
        return lognormal(key, worker, step, cv)
    if law == GAMMA:
        return gamma(key, worker, step, cv)
    # Shifted by 1 − cv, an exponential of mean cv has mean 1 and deviation cv.
    return (1.0 - cv) - cv * math.log(uniforms(key, worker, step, 0)[0])


@kernel
def factor(law: Law, worker: int, step: int) -> float:
    """One draw of a jitter law, for a worker's own count of computations or folds."""
    if law.code == CONSTANT:
        return 1.0
    if law.code == EMPIRICAL:
        return law.values[int(uniforms(law.key, worker, step, 0)[0] * len(law.values))]
    return draw_factor(law.key, worker, step, law.code, law.cv)

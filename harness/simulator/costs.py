"""Durations of computing, copying and folding on a cluster, in seconds."""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import numpy as np

from harness.base.errors import UserError
from harness.simulator import laws
from harness.simulator.cluster import Cluster, Jitter, Stragglers, Workload
from harness.simulator.events import kernel, part
from harness.simulator.faults import Faults, faults_of

Way = Literal["link", "network", "workers", "generators"]
"""Routes of messages: to the server over ``[link]``, or over ``[network]`` if that has a table
``server``; to the server over any ``[network]``; to other workers over any ``[network]``; over
``[link]`` between workers and no server, neither of whose seconds are minibatches or folds."""


class Costs(NamedTuple):
    """All durations that a protocol needs, as arguments of a kernel.

    Attributes:
        compute_s: [N] time of one minibatch of each worker, before jitter.
        copy_s: time of a parameter-sized copy on an idle link.
        latency_s: from the end of a copy's departure to its arrival.
        fold_s: time to fold one contribution.
        parameter_bytes: size of the model.
        law, cv, values: the jitter law (see `laws.factor`).
        straggle_probability, slowdown: the stragglers.
        fold_law, fold_cv, fold_values: the jitter law of folds.
        jitter_key, straggler_key, fold_key, length_key, sample_key: of the random streams.
        faults: fault processes.
    """

    compute_s: Any
    copy_s: float
    latency_s: float
    fold_s: float
    parameter_bytes: float
    law: int
    cv: float
    values: Any
    straggle_probability: float
    slowdown: float
    fold_law: int
    fold_cv: float
    fold_values: Any
    jitter_key: Any
    straggler_key: Any
    fold_key: Any
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
    network, steps = cluster.network, way != "generators"
    on_link = way in ("link", "generators") and (network is None or network.server is None)
    jitter, odd = (cluster.jitter, cluster.stragglers) if steps else (Jitter(), Stragglers())
    folds = cluster.server.jitter if way == "link" else Jitter()
    costs = Costs(
        compute_s=_compute_seconds(cluster, workload, workers, seed),
        copy_s=float(copy_seconds(cluster, workload.parameter_bytes)) if on_link else 0.0,
        latency_s=cluster.link.latency_s if on_link else 0.0,
        fold_s=fold_seconds(cluster, workload) if way in ("link", "network") else 0.0,
        parameter_bytes=workload.parameter_bytes,
        law=laws.LAW_CODES[jitter.law],
        cv=_cv(jitter),
        values=_factors(jitter),
        straggle_probability=odd.probability,
        # Read only where it matters: the keys that were read are those with an effect.
        slowdown=odd.slowdown if odd.probability > 0.0 else 1.0,
        fold_law=laws.LAW_CODES[folds.law],
        fold_cv=_cv(folds),
        fold_values=_factors(folds),
        jitter_key=laws.purpose_key(seed, "jitter"),
        straggler_key=laws.purpose_key(seed, "straggler"),
        fold_key=laws.purpose_key(seed, "fold"),
        length_key=laws.purpose_key(seed, "utterance length"),
        sample_key=laws.purpose_key(seed, "sample"),
        faults=faults_of(cluster.faults, workers, seed),
    )
    durations = [costs.compute_s.max(), costs.copy_s, costs.fold_s]
    if not np.isfinite(durations).all():
        raise UserError(f"cluster {cluster.name!r}: a duration overflows; rates are too small")
    return costs


def _cv(jitter: Jitter) -> float:
    return 0.0 if jitter.law in ("constant", "empirical") else jitter.cv


def _factors(jitter: Jitter) -> np.ndarray:
    """[V] factors with mean 1 of an empirical law; empty for other laws."""
    values = np.array(jitter.values, dtype=np.float64)
    return values / values.mean() if len(values) else values


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
    draw_speeds(laws.purpose_key(seed, "speed"), cluster.heterogeneity_cv, speeds)
    return base / speeds


@kernel
def draw_speeds(key: Any, cv: float, speeds: Any) -> None:
    """Fill in each worker's lasting speed."""
    for worker in range(len(speeds)):
        speeds[worker] = laws.lognormal(key, worker, 0, cv)


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
    return laws.factor(costs.jitter_key, worker, step, costs.law, costs.cv, costs.values)


@part
def computation_with_jitter_s(costs: Costs, worker: int, step: int, jitter: float) -> float:
    """`computation_s` for a jitter that has been drawn already."""
    seconds = costs.compute_s[worker] * jitter
    if costs.straggle_probability > 0.0:
        # From a stream of its own: stragglers change no worker's jitter.
        u = laws.uniforms(costs.straggler_key, worker, step, 0)[0]
        if u < costs.straggle_probability:
            seconds *= costs.slowdown
    return seconds


@part
def folding_s(costs: Costs, worker: int, step: int) -> float:
    """The duration of the fold of a worker's ``step``-th contribution."""
    if costs.fold_law == laws.CONSTANT:
        return costs.fold_s
    factor = laws.factor(
        costs.fold_key, worker, step, costs.fold_law, costs.fold_cv, costs.fold_values
    )
    return costs.fold_s * factor

"""Before a simulation: keys without effect, and an estimate of its cost.

`find_unused_keys` lists the keys of a cluster file that differ from their defaults but cannot
change the timeline, for a protocol and a number of workers, each with the reason. Keys without
effect because of a protocol's own settings come from `TimingProtocol.without_effect`. If no key of
a table has an effect, the table is listed instead of its keys. A test changes every key of a full
file under every protocol and requires that the listed keys, and no others, leave the timeline
unchanged. `leave_out_untouched` drops keys of a bundled cluster that a user has not changed.

`effort_of` estimates CPU time and memory from the protocol's unit costs (`TimingProtocol.effort`).
Every figure was measured on one core of 2023, in processor time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import fields
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple, cast

from harness.base.errors import UserError
from harness.base.files import find_bundled
from harness.base.settings import find_changed, load_toml
from harness.simulator.cluster import Cluster, Device, Jitter, Workload, load_cluster
from harness.simulator.faults import Fault
from harness.simulator.network import Network
from harness.simulator.protocols.contract import TimingProtocol
from harness.simulator.protocols.state import is_networked

__all__ = ["Effort", "effort_of", "find_unused_keys", "leave_out_untouched"]

Found = Iterator[tuple[str, str]]


def describe_repeats(cluster: Cluster, workers: int) -> list[str]:
    """One line if there are more workers than the cluster's file describes; else none."""
    if workers <= cluster.size:
        return []
    described = f"{cluster.size} worker{'' if cluster.size == 1 else 's'}"
    times = f"{workers / cluster.size:.3g} times over"
    return [f"{cluster.name} describes {described}; {workers} are these {times}"]


def find_unused_keys(
    cluster: Cluster,
    protocol: TimingProtocol,
    workload: Workload,
    workers: int,
    long_run: bool = False,
) -> Found:
    """Dotted keys that have no effect, and why.

    Args:
        cluster: the machine.
        protocol: the timing protocol.
        workload: the job.
        workers: the largest number of workers.
        long_run: whether the start is left out of the results.
    """
    yield from _workers(cluster, workers)
    yield from _steps(cluster, workload, workers)
    yield from _ways(cluster, protocol, workload, workers)
    yield from _host(cluster, workload)
    yield from _server(cluster, protocol, workload)
    yield from _variation(cluster)
    yield from _parallel(cluster, protocol)
    yield from protocol.without_effect(cluster, workers)
    for place, fault in enumerate(cluster.faults):
        yield from _fault(fault, f"faults[{place}]", workers)
    if cluster.checkpoints and cluster.checkpoints.restart_s > 0.0 and not cluster.faults:
        yield "checkpoints.restart_s", "no worker is ever missing without [[faults]]"
    if long_run:
        yield from _start(cluster)


def leave_out_untouched(cluster: Cluster, found: Iterable[tuple[str, str]]) -> Found:
    """Keys without effect, less those that a bundled cluster has in its file too.

    Whole tables stay, as ``network``: without one, the cluster is not the machine of its name. The
    workload goes, since a run that charges another says so.
    """
    original = _load_bundled(cluster.name)
    for key, why in found:
        value = _value_at(cluster, key)
        is_table = key != "workload" and not set(".[") & set(key)
        if original is None or is_table or value is None or value != _value_at(original, key):
            yield key, why


@cache
def _load_bundled(name: str) -> Cluster | None:
    """The bundled cluster with this ``name`` in its file; None if there is none that is right."""
    for path in find_bundled("cluster").values():
        # a plugin's file that is wrong is told where it is asked for
        with suppress(UserError):
            if load_toml(path).get("name") == name:
                return load_cluster(path)
    return None


def _value_at(cluster: Cluster, key: str) -> object:
    """The value of a dotted key such as ``network.levels[0].inside``; None where there is none."""
    value: object = cluster
    for name in re.findall(r"[^.\[\]]+", key):
        if isinstance(value, tuple):
            items = cast(tuple[object, ...], value)
            value = items[int(name)] if int(name) < len(items) else None
        elif isinstance(value, Mapping):
            value = cast(Mapping[str, object], value).get(name)
        else:
            value = getattr(value, name, None)
    return value


def _start(cluster: Cluster) -> Found:
    for place, fault in enumerate(cluster.faults):
        if fault.kind == "late":
            yield f"faults[{place}]", "the long run excludes the start-up"
    if cluster.parallel.first_average_s > 0.0:
        yield "parallel.first_average_s", "the long run excludes the start-up"


def _workers(cluster: Cluster, workers: int) -> Found:
    first, used = 0, set[str]()
    for place, group in enumerate(cluster.workers):
        if first < workers:
            used.add(group.device)
        else:
            yield f"workers[{place}]", f"is not among the first {workers:,} workers"
        first += group.count
    named = {group.device for group in cluster.workers}
    for name in cluster.devices:
        if name not in named:
            yield f"devices.{name}", "no worker has it"


def _steps(cluster: Cluster, workload: Workload, workers: int) -> Found:
    """Keys of the launches and memory traffic of steps, of this job and of others."""
    jobs = [("workload", workload, 0, workers)]
    for place, job in enumerate(cluster.jobs):
        jobs.append((f"jobs[{place}].workload", job.workload, job.first, job.workers))
    for name, device in cluster.devices.items():
        if find_changed(device, "operator_s") and not any(work.operators for _, work, *_ in jobs):
            yield f"devices.{name}.operator_s", "workload.operators is 0"
    for key, work, first, count in jobs:
        devices = _devices_of(cluster, first, count)
        if work.moved_bytes > 0.0 and not any(each.memory_bytes_per_s for each in devices):
            yield f"{key}.moved_bytes", "no device has memory_bytes_per_s"
        if work.operators > 0.0 and all(
            work.operators * each.operator_s <= each.launch_s for each in devices
        ):
            yield f"{key}.operators", "launch_s of every device is at least as long"


def _devices_of(cluster: Cluster, first: int, count: int) -> list[Device]:
    """The devices of ``count`` workers from number ``first`` on."""
    found, begins = dict[str, Device](), 0
    for group in cluster.workers:
        ends = begins + group.count
        if begins < first + count and first < ends:
            found[group.device] = cluster.devices[group.device]
        begins = ends
    return list(found.values())


def _ways(cluster: Cluster, protocol: TimingProtocol, workload: Workload, workers: int) -> Found:
    """Keys of ``[link]`` and ``[network]``, of which only one is used."""
    network = cluster.network
    by_link = protocol.way == "link"
    on_network = network is not None and (not by_link or is_networked(cluster))
    own = [
        f"workers[{place}].{name}"
        for place, group in enumerate(cluster.workers)
        for name in find_changed(group, "up_bytes_per_s", "down_bytes_per_s")
    ]
    if on_network:
        assert network is not None
        if cluster.link != type(cluster.link)():
            yield "link", "[network] replaces it"
        yield from _network(cluster, network, protocol, workers)
        if network.levels and network.levels[0].inside and protocol.way != "workers":
            for key in own:
                yield key, "it belongs to a link of network.levels[0], which is inside"
        return
    for key in own:
        yield key, "it belongs to a link of [network], which is not used"
    if network is not None:
        needs = "without a table [network.server]" if "network" in protocol.can else ""
        yield "network", f"{protocol.name} {needs or 'always'} uses [link]"
    idle = cluster.link.bandwidth_bytes_per_s is None or workload.parameter_bytes == 0.0
    for name in find_changed(cluster.link, "sharing", "duplex"):
        if idle:
            yield f"link.{name}", "copies take no time without bandwidth_bytes_per_s and bytes"
        elif name == "duplex" and cluster.link.sharing == "none" and by_link:
            yield "link.duplex", "a worker does not fetch and push at once on a link of its own"
        elif name == "duplex" and cluster.link.sharing != "none" and not by_link:
            yield "link.duplex", "the one link carries all messages, whatever their direction"


def _network(cluster: Cluster, network: Network, protocol: TimingProtocol, workers: int) -> Found:
    for place, (below, above) in enumerate(pairwise(network.levels), start=1):
        alike = (above.workers_per_link, above.links) == (below.workers_per_link, below.links)
        if alike and not (below.inside or above.inside):
            key = f"network.levels[{place}].workers_per_link"
            yield key, "it joins no more workers than the level below, so two links are in series"
    for place, level in enumerate(network.levels):
        changed = [level.duplex == "half", level.shaping is not None]
        for name, is_changed in zip(("duplex", "shaping"), changed, strict=True):
            if level.bandwidth_bytes_per_s is None and is_changed:
                yield f"network.levels[{place}].{name}", "its links are infinitely fast"
    if protocol.way == "workers":
        yield from _find_idle_between_workers(cluster, network, protocol, workers)
    else:
        yield from _find_idle_to_a_server(network, protocol)


def _find_idle_between_workers(
    cluster: Cluster, network: Network, protocol: TimingProtocol, workers: int
) -> Found:
    """Keys without effect on a network between workers."""
    if network.server is not None:
        yield "network.server", f"{protocol.name} has no server"
    if cluster.jobs and network.sending != "rendezvous":
        yield "network.sending", "beside [[jobs]] all messages of a ring move together"
    joined = max([workers, *(job.first + job.workers for job in cluster.jobs)])
    # Levels at which all workers are behind one link: no message passes them.
    beyond = [level.workers_per_link >= joined for level in network.levels]
    for place, is_beyond in enumerate(beyond):
        if is_beyond:
            yield f"network.levels[{place}]", f"all {joined:,} workers are behind one of its links"
        elif network.levels[place].inside and beyond[place + 1]:
            yield f"network.levels[{place}].inside", "no message passes the next level"
    if any(beyond):
        for name in find_changed(network, "core_bandwidth_bytes_per_s", "rails"):
            yield f"network.{name}", f"no message of the {joined:,} workers passes the core"
    elif network.rails and network.levels[-1].links == 1:
        why = "with one of the highest links for each group all workers are on one rail"
        yield "network.core_bandwidth_bytes_per_s", why


def _find_idle_to_a_server(network: Network, protocol: TimingProtocol) -> Found:
    """Keys without effect on a network between workers and a server."""
    if network.server is not None:
        for name in find_changed(network.server, "workers_per_link", "links", "inside"):
            yield f"network.server.{name}", "every shard has one link of its own"
    if network.sending != "rendezvous":
        yield "network.sending", f"in {protocol.name} no sender waits for a receiver"
    among = f"workers of {protocol.name} do not send to each other"
    if network.rails:
        yield "network.rails", among
    for place, level in enumerate(network.levels):
        if level.inside:
            of_level = [entry.name for entry in fields(level) if entry.name != "inside"]
            for name in find_changed(level, *of_level):
                yield f"network.levels[{place}].{name}", f"it is inside, and {among}"


def _host(cluster: Cluster, workload: Workload) -> Found:
    host = cluster.host
    if host.staging != "pageable" and host.staging_bytes_per_s is not None:
        yield "host.staging_bytes_per_s", "host.staging is 'pinned'"
    moved = cluster.server.fold_traffic * workload.parameter_bytes
    if host.memory_bytes_per_s is not None and moved == 0.0:
        yield "host.memory_bytes_per_s", "a fold has no memory traffic"
    if host.memory_bytes_per_s is None and find_changed(cluster.server, "fold_traffic"):
        yield "server.fold_traffic", "host.memory_bytes_per_s is infinite"


def _server(cluster: Cluster, protocol: TimingProtocol, workload: Workload) -> Found:
    server, host = cluster.server, cluster.host
    none = f"{protocol.name} has no server" if protocol.way == "workers" else ""
    if none and server.fold_s > 0.0:
        yield "server.fold_s", none
    if protocol.way != "link" and server.jitter != Jitter():
        yield "server.jitter", none or f"folds of {protocol.name} do not vary"
        return
    yield from _jitter(server.jitter, "server.jitter")
    free = host.memory_bytes_per_s is None or server.fold_traffic * workload.parameter_bytes == 0.0
    if free and server.fold_s == 0.0 and server.jitter != Jitter():
        yield "server.jitter", "a fold takes no time"


def _variation(cluster: Cluster) -> Found:
    yield from _jitter(cluster.jitter, "jitter")
    odd = cluster.stragglers
    if odd.slowdown != 1.0 and odd.probability == 0.0:
        yield "stragglers.slowdown", "stragglers.probability is 0"
    if odd.probability > 0.0 and odd.slowdown == 1.0:
        yield "stragglers.probability", "stragglers.slowdown is 1"


def _jitter(jitter: Jitter, key: str) -> Found:
    if jitter.law in ("constant", "empirical") and jitter.cv > 0.0:
        yield f"{key}.cv", f"{key}.law is {jitter.law!r}"
    elif jitter.law not in ("constant", "empirical") and jitter.cv == 0.0:
        yield f"{key}.law", f"{key}.cv is 0"


def _parallel(cluster: Cluster, protocol: TimingProtocol) -> Found:
    if protocol.way == "link":
        names = [entry.name for entry in fields(cluster.parallel)]
        for name in find_changed(cluster.parallel, *names):
            yield f"parallel.{name}", f"workers of {protocol.name} do not send to each other"


def _fault(fault: Fault, key: str, workers: int) -> Found:
    away = ("down_s", "down_law", "down_cv")
    of_kind: dict[str, tuple[str, ...]] = {
        "message": ("probability", "retry_s"),
        "server": ("mean_s", "at_s", "checkpoint_s", *away),
        "late": ("workers", "at_s"),
    }
    taken = of_kind.get(fault.kind, ("workers", "mean_s", "at_s", "notice_s", *away))
    names: list[Any] = [entry.name for entry in fields(fault) if entry.name != "kind"]
    for name in find_changed(fault, *(name for name in names if name not in taken)):
        yield f"{key}.{name}", f"{key}.kind is {fault.kind!r}"
    if "down_law" in taken:
        yield from _down(fault, key)
    if fault.kind == "message" and fault.probability == 0.0:
        yield key, "its probability is 0"
    if "workers" in taken and fault.workers and min(fault.workers) >= workers:
        yield key, f"it happens to none of the first {workers:,} workers"


def _down(fault: Fault, key: str) -> Found:
    """Keys of the law of the time down, if that has no variation."""
    if not fault.down_s:
        why = "workers leave permanently" if fault.down_s is None else "no worker is ever away"
        for name in find_changed(fault, "down_law", "down_cv"):
            yield f"{key}.{name}", why
    elif fault.down_law == "constant":
        for name in find_changed(fault, "down_cv"):
            yield f"{key}.{name}", f"{key}.down_law is 'constant'"
    elif fault.down_cv == 0.0:
        yield f"{key}.down_law", f"{key}.down_cv is 0"


KEPT_BYTES = 500.0
"""Bytes of a contribution in a timeline in memory: measured, 200 to 590."""

LEAST_FOLDS, LEAST_READS = 320, 5
"""Least folds of a long run, and least contributions of each worker; it may need many more."""


class Effort(NamedTuple):
    """CPU seconds in all, CPU seconds before the first fold, and bytes of memory."""

    seconds: float
    first_s: float
    size: float


def effort_of(
    cluster: Cluster, protocol: TimingProtocol, workers: int, folds: int | None
) -> Effort:
    """Estimate the cost of simulating one number of workers.

    Args:
        cluster: the machine.
        protocol: the timing protocol.
        workers: number of workers.
        folds: number of folds; None for the long run, for which the result is a lower bound.
    """
    costs, handing = protocol.effort(cluster, workers), protocol.handing(workers)
    each = workers if handing is not None and handing.rounds else costs.contributions or 1
    least = LEAST_FOLDS if costs.rounds else max(LEAST_FOLDS, LEAST_READS * workers)
    rounds = least if folds is None else folds
    first_s, size = workers * costs.worker_s, workers * costs.worker_bytes
    fold_s = each * costs.contribution_s + workers * costs.present_s + costs.messages_s
    kept = (0 if folds is None else folds * each) * KEPT_BYTES
    return Effort(first_s + rounds * fold_s, first_s, size + costs.messages_bytes + kept)

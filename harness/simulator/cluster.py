"""A cluster file: workers and their devices, host, link, server, and the training job.

`Cluster` describes the machine, including the variation of its speeds; `Device` one kind of device.
`catalogue` has devices that a cluster file need not describe. `Workload` has the figures of a
training job that timing depends on.
"""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, cast

from harness.base.errors import UserError, describe_unknown, name_error
from harness.base.registry import find_bundled
from harness.base.settings import (
    GREATEST_DURATION_S,
    Spec,
    build,
    duration,
    load_toml,
    rate,
    ratio,
    setting,
    size,
    text_of,
)
from harness.simulator.network import Level, Network

JITTER_LAWS = ("constant", "lognormal", "gamma", "shifted-exponential", "empirical")

FAULT_KINDS = ("death", "preemption", "late", "message", "server")

MOST_WORKERS = 10_000_000

LONGEST_S = 1e9
"""Longest measured duration of a computation."""

LEAST = 1e-100
"""Least nonzero spread or mean duration: its square and their inverses are finite."""


@dataclass(frozen=True)
class WorkerGroup(Spec):
    """A number of equal workers.

    Attributes:
        count: number of workers.
        device: name of the device, among the file's devices or in the catalogue.
        speed: computing speed of these workers, as a multiple of the device's.
        up_bytes_per_s, down_bytes_per_s: bandwidth of the link from (to) each of these workers,
            which replaces that of the lowest level of ``network``, or of ``link`` if there is no
            network and the link is not shared.
    """

    count: int = setting(at_least=1, at_most=MOST_WORKERS)
    device: str = setting()
    speed: float = ratio()
    up_bytes_per_s: float | None = rate()
    down_bytes_per_s: float | None = rate()

    @property
    def has_link(self) -> bool:
        """Whether its workers' links differ from the lowest level's."""
        return self.up_bytes_per_s is not None or self.down_bytes_per_s is not None


@dataclass(frozen=True)
class Host(Spec):
    """The memory of the machine that holds the shared model.

    Attributes:
        memory_bytes_per_s: memory bandwidth of a fold; without it, infinite.
        staging: kind of host buffers: ``pinned`` ones are sent directly, ``pageable`` ones are
            first copied to a pinned buffer.
        staging_bytes_per_s: bandwidth of that extra copy.
    """

    memory_bytes_per_s: float | None = rate()
    staging: str = setting("pinned", one_of=("pinned", "pageable"))
    staging_bytes_per_s: float | None = rate()

    def trouble(self) -> tuple[str, str] | None:
        """Pageable staging needs a rate."""
        if self.staging == "pageable" and self.staging_bytes_per_s is None:
            return "staging_bytes_per_s", "missing; needed where staging is 'pageable'"
        return None


@dataclass(frozen=True)
class Link(Spec):
    """The link between the server and its workers.

    Attributes:
        latency_s: latency of a copy, from its first byte's departure to its arrival.
        bandwidth_bytes_per_s: bandwidth of the link; without it, infinite.
        sharing: sharing of the link: ``none``, every worker has a link of its own; ``fifo``, all
            share one link and copies follow one another; ``fair``, all share one link, and
            concurrent copies get equal shares of its bandwidth.
        duplex: ``full``, both directions have the full bandwidth at once; ``half``, they share it.
    """

    latency_s: float = duration()
    bandwidth_bytes_per_s: float | None = rate()
    sharing: str = setting("none", one_of=("none", "fifo", "fair"))
    duplex: str = setting("full", one_of=("full", "half"))


@dataclass(frozen=True)
class Jitter(Spec):
    """Random variation of every computation (or fold): a factor with mean 1.

    Attributes:
        law: distribution of the factor.
        cv: standard deviation of the factor, whose mean is 1; unused by ``constant`` and
            ``empirical``.
        values: measured durations for ``empirical``; they are divided by their mean.
        file: text file with one measured duration per line, and comments after ``#``, instead of
            ``values``; its path is relative to the cluster file's folder.
    """

    law: str = setting("constant", one_of=JITTER_LAWS)
    cv: float = setting(0.0, at_least=0.0, at_most=100.0)
    values: tuple[float, ...] = setting((), at_least=0.0, at_most=LONGEST_S)
    file: str = setting("")

    def trouble(self) -> tuple[str, str] | None:
        """Limits that depend on the law."""
        if self.file:
            return "file", "only a cluster file may name one, and not beside values"
        if self.law == "empirical" and not sum(self.values) / max(len(self.values), 1) >= LEAST:
            return "values", "an empirical law needs durations (or a file), not all of them zero"
        if 0.0 < self.cv < LEAST:
            return "cv", f"{self.cv!r} is not allowed; allowed: 0, or at least {LEAST:g}"
        if self.law != "empirical" and self.values:
            return "values", f"only the empirical law has values; law is {self.law!r}"
        if self.law == "shifted-exponential" and self.cv > 1.0:
            return "cv", f"{self.cv!r} is not allowed with {self.law!r}; allowed: at most 1"
        return None


@dataclass(frozen=True)
class Server(Spec):
    """The holder of the shared model.

    Attributes:
        fold_s: fixed time of a fold.
        fold_traffic: number of parameter-sized memory transfers of a fold. Three are: read the
            model, read the contribution, write the model.
        jitter: random variation of the duration of folds.
    """

    fold_s: float = duration()
    fold_traffic: float = ratio(3.0, at_least=0.0)
    jitter: Jitter = field(default=Jitter())


@dataclass(frozen=True)
class Stragglers(Spec):
    """Rare computations that take several times as long.

    Attributes:
        probability: probability that a computation is slow.
        slowdown: factor on the duration of a slow computation.
    """

    probability: float = setting(0.0, at_least=0.0, at_most=1.0)
    slowdown: float = ratio(at_least=1.0)


@dataclass(frozen=True)
class Parallel(Spec):
    """Costs of parallel training for a worker, beside its minibatches and messages.

    Attributes:
        slowdown: time of a minibatch in the parallel program over that of a single worker.
        average_s: a worker's fixed time for each average, beside its messages.
        epoch_minibatches: minibatches in an epoch of all workers together; 0 if there are
            no epochs.
        epoch_s: fixed time at the start of each epoch, e.g. for a scan of the whole corpus.
        first_average_s: additional time of a worker for the very first average, e.g. to set up
            connections.
        backward_share: share of a minibatch's time, at its end, in which gradients are
            computed; with the protocol's ``buckets`` they are sent meanwhile.
        overlap_slowdown: factor on computing time while a bucket is averaged.
    """

    slowdown: float = ratio()
    average_s: float = duration()
    epoch_minibatches: int = setting(0, at_least=0, at_most=2**50)
    epoch_s: float = duration()
    first_average_s: float = duration()
    backward_share: float = setting(2 / 3, at_least=0.0, at_most=1.0)
    overlap_slowdown: float = ratio(at_least=1.0)

    def trouble(self) -> tuple[str, str] | None:
        """An epoch's cost needs a length of the epoch."""
        if self.epoch_s > 0.0 and self.epoch_minibatches == 0:
            return "epoch_minibatches", "missing; needed with epoch_s"
        return None


@dataclass(frozen=True)
class Compression(Spec):
    """Compression of the parameters or gradients that workers send.

    Attributes:
        ratio: compressed bytes over uncompressed ones.
        encode_bytes_per_s: uncompressed bytes encoded per second; none is infinitely fast.
        decode_bytes_per_s: uncompressed bytes decoded per second, after the average; none is
            infinitely fast.
    """

    ratio: float = ratio(at_least=0.0)
    encode_bytes_per_s: float | None = rate()
    decode_bytes_per_s: float | None = rate()


@dataclass(frozen=True)
class Checkpoints(Spec):
    """Training in rounds that waits for all workers and restarts from checkpoints.

    Attributes:
        every_folds: number of folds between checkpoints.
        write_s: pause of all workers while a checkpoint is written.
        restart_s: duration of a restart, once all workers are present again.
    """

    every_folds: int = setting(at_least=1, at_most=2**50)
    write_s: float = duration()
    restart_s: float = duration()


def _interval() -> Any:
    """Seconds between two occurrences; not so short that nothing else could happen."""
    return setting(None, at_least=1e-6, at_most=GREATEST_DURATION_S)


@dataclass(frozen=True)
class Fault(Spec):
    """One fault process.

    Attributes:
        kind: kind of fault: ``death``, a worker fails at once and loses the contributions that have
            not arrived; ``preemption``, a worker finishes its contribution and then leaves;
            ``late``, a worker is absent at the start; ``message``, a contribution on its way to the
            server is lost and sent again; ``server``, the server fails, loses its queue,
            and restarts from its last checkpoint.
        workers: numbers of the affected workers; without it, all.
        mean_s: mean time from the end of one occurrence at a worker (or the server) to the next.
        at_s: instants of the occurrences, instead of ``mean_s``; for ``late``, the instant when the
            workers join.
        down_s: mean downtime of the worker or server; without it, a worker leaves permanently.
        probability: probability that a message is lost, each time it is sent.
        retry_s: time from the loss of a message until it is sent again.
        checkpoint_s: interval between checkpoints of the server, which take no time.
        down_law: distribution of the downtime.
        down_cv: standard deviation of the downtime over its mean; unused by ``constant``.
        notice_s: time between the notice of a death and the death. ``mean_s`` or ``at_s`` then
            determine the notice, and ``down_s`` counts from the death.
    """

    kind: str = setting(one_of=FAULT_KINDS)
    workers: tuple[int, ...] = setting((), at_least=0, at_most=MOST_WORKERS)
    mean_s: float | None = _interval()
    at_s: tuple[float, ...] = duration(())
    down_s: float | None = duration(None)
    probability: float = setting(0.0, at_least=0.0, at_most=0.99)
    retry_s: float | None = _interval()
    checkpoint_s: float | None = _interval()
    down_law: str = setting("constant", one_of=JITTER_LAWS[:-1])
    down_cv: float = setting(1.0, at_least=0.0, at_most=100.0)
    notice_s: float = duration()

    def trouble(self) -> tuple[str, str] | None:
        """Each kind needs its own keys."""
        if self.kind == "message":
            missing = self.retry_s is None
            return ("retry_s", "missing; needed where kind is 'message'") if missing else None
        if (self.mean_s is None) == (not self.at_s):
            return "mean_s", "exactly one of mean_s and at_s is needed"
        if list(self.at_s) != sorted(self.at_s):
            return "at_s", "instants must be in order of time"
        if self.kind == "late" and len(self.at_s) != 1:
            return "at_s", "one instant is needed where kind is 'late'"
        if self.kind == "server" and self.checkpoint_s is None:
            return "checkpoint_s", "missing; needed where kind is 'server'"
        if self.kind in ("server", "preemption") and self.down_s is None:
            return "down_s", f"missing; needed where kind is {self.kind!r}"
        if self.notice_s > 0.0 and self.kind != "death":
            return "notice_s", f"not allowed where kind is {self.kind!r}; allowed: with 'death'"
        if self.down_law == "shifted-exponential" and self.down_cv > 1.0:
            return "down_cv", f"{self.down_cv!r} is not allowed with that law; allowed: at most 1"
        return None


@dataclass(frozen=True)
class Job(Spec):
    """Another job on the network: averaging over a ring with a barrier, without variation.

    Attributes:
        first: number of the job's first worker; its other workers follow.
        workers: number of workers of the job.
        workload: operations and bytes of the job's minibatches.
        every: number of minibatches between averages.
        name: name of the job in tables and figures.
    """

    first: int = setting(at_least=0, at_most=MOST_WORKERS)
    workers: int = setting(at_least=1, at_most=MOST_WORKERS)
    workload: Workload = setting()
    every: int = setting(1, at_least=1, at_most=2**30)
    name: str = setting("")


@dataclass(frozen=True)
class Cluster(Spec):
    """Everything about the machine that timing depends on.

    Attributes:
        name: name of the cluster in tables and figures.
        devices: kinds of device by name. Devices of the catalogue may be omitted.
        workers: groups of workers, in order. For more workers than all groups have, the simulator
            repeats the groups.
        link: the link between server and workers.
        host: memory of the server's machine.
        server: costs of a fold.
        jitter: random variation of the duration of computations.
        stragglers: rare long computations.
        network: links between workers, for protocols in which workers send to each other. Without
            it every worker has a link like ``link``. A parameter server may be part of it.
        parallel: further costs of protocols in which workers send to each other.
        heterogeneity_cv: standard deviation of lasting speed differences: each worker's speed is
            drawn once from a lognormal distribution with mean 1.
        workload: the job that `lagbench simulate` times by default.
        faults: failures, for protocols that simulate them.
        compression: compression of the messages between workers.
        checkpoints: checkpoints of training in rounds. Without them, rounds continue without
            missing workers.
        jobs: other jobs on the workers' network.
    """

    name: str = setting()
    devices: dict[str, Device] = setting()
    workers: tuple[WorkerGroup, ...] = setting()
    link: Link = field(default=Link())
    host: Host = field(default=Host())
    server: Server = field(default=Server())
    jitter: Jitter = field(default=Jitter())
    stragglers: Stragglers = field(default=Stragglers())
    network: Network | None = setting(None)
    parallel: Parallel = field(default=Parallel())
    heterogeneity_cv: float = setting(0.0, at_least=0.0, at_most=100.0)
    workload: Workload | None = setting(None)
    faults: tuple[Fault, ...] = ()
    compression: Compression | None = setting(None)
    checkpoints: Checkpoints | None = setting(None)
    jobs: tuple[Job, ...] = setting(())

    @classmethod
    def of(
        cls,
        workers: int,
        *,
        step_s: float | None = None,
        device: str | None = None,
        bandwidth_bytes_per_s: float | None = None,
        latency_s: float = 0.0,
        step_cv: float = 0.0,
        name: str = "equal workers",
        **parts: Any,
    ) -> Cluster:
        """A cluster of equal workers, each with a link to the server.

        Args:
            workers: number of workers.
            step_s: seconds of a step on each of them, or
            device: name of their device in the `catalogue`.
            bandwidth_bytes_per_s: of each worker's link, in each direction; None for no limit.
            latency_s: of each message.
            step_cv: standard deviation of a step's time over its mean, lognormal.
            name: name of the cluster.
            parts: further fields, such as ``faults`` and ``compression``.

        Raises:
            UserError: a value that is not allowed, both or none of ``step_s`` and ``device``, or a
                part beside a number that is in it.

        Examples:
            >>> Cluster.of(16, step_s=0.02, bandwidth_bytes_per_s=1.25e9).size
            16
        """
        if (step_s is None) == (device is None):
            raise UserError("Cluster.of: step_s, device; allowed: one of them")
        if device is not None and device not in catalogue():
            raise name_error("device", device, catalogue())
        kind = Device(launch_s=step_s or 0.0) if device is None else catalogue()[device]
        group = WorkerGroup(workers, device or "worker")
        link = Link(latency_s, bandwidth_bytes_per_s)
        jitter = Jitter("lognormal", step_cv) if step_cv else Jitter()
        usual: dict[str, Any] = {"link": link, "jitter": jitter}
        numbers_of = {"link": "bandwidth_bytes_per_s or latency_s", "jitter": "step_cv"}
        for part, numbers in numbers_of.items():
            if part in parts and usual[part] != type(usual[part])():
                raise UserError(f"Cluster.of: {part} beside {numbers}; allowed: {part} alone")
        return cls(name, {group.device: kind}, (group,), **{**usual, **parts})

    def trouble(self) -> tuple[str, str] | None:
        """Unknown devices, no workers or too many, and tables that do not fit together."""
        if not self.workers:
            return "workers", "empty; allowed: at least one group of workers"
        if self.size > MOST_WORKERS:
            return "workers", f"{self.size} in all; allowed: at most {MOST_WORKERS}"
        devices = {**self.devices, **catalogue()}
        for place, group in enumerate(self.workers):
            if group.device not in self.devices:
                return f"workers[{place}].device", describe_unknown(group.device, devices)
        for place, job in enumerate(self.jobs):
            if job.first + job.workers > self.size:
                excess = f"{job.first + job.workers - 1} is none of the workers"
                return f"jobs[{place}].workers", f"{excess}; allowed: numbers below {self.size}"
        if self.jobs and (self.network is None or self.network.sharing != "fair"):
            return "jobs", "not allowed without a network with sharing 'fair'"
        link = (Level(duplex=self.link.duplex),) if self.link.sharing == "none" else ()
        levels = self.network.levels if self.network else link
        # Own links replace those of a lowest level with one full-duplex link per worker.
        replaceable = levels and levels[0].workers_per_link == 1 and levels[0].duplex == "full"
        for place, group in enumerate(self.workers):
            if group.has_link and not replaceable:
                needed = "needs a lowest level of network with a full-duplex link a worker"
                return f"workers[{place}].up_bytes_per_s", needed
        kinds = [fault.kind for fault in self.faults]
        if max(kinds.count("message"), kinds.count("server")) > 1:
            return "faults", "allowed: at most one table of kind 'message', and one of 'server'"
        return None

    @property
    def size(self) -> int:
        """Number of workers that the file describes."""
        return sum(group.count for group in self.workers)

    def group_of(self, worker: int) -> WorkerGroup:
        """The group of a worker; worker numbers beyond the last repeat the groups."""
        ends = list(accumulate(group.count for group in self.workers))
        return self.workers[bisect(ends, worker % self.size)]


def load_cluster(path: str | Path) -> Cluster:
    """Read a cluster file.

    Raises:
        UserError: the file cannot be read, or any setting in it is wrong.
    """
    return cluster_from(load_toml(path), Path(path))


@cache
def load_bundled(name: str) -> Cluster | None:
    """The bundled cluster with this ``name`` in its file; None if there is none that is right."""
    for path in find_bundled("cluster").values():
        # a plugin's file that is wrong is told where it is asked for
        with suppress(UserError):
            if load_toml(path).get("name") == name:
                return load_cluster(path)
    return None


def cluster_from(table: dict[str, object], path: Path) -> Cluster:
    """The cluster that the tables of a file describe.

    Devices of the catalogue and durations from other files are copied into it, so a `Cluster`
    depends on no other file.

    Args:
        table: the file's content; completed in place.
        path: the file, for messages and for the folder to which its paths are relative.

    Raises:
        UserError: any setting in it is wrong.
    """
    if isinstance(table.get("cluster"), str):
        allowed = f"lagbench train {path}, or the cluster that it names, {table['cluster']!r}"
        raise UserError(f"{path}: a run file, not a cluster file; allowed: {allowed}")
    with_durations(table, path)
    with_catalogue(table)
    return build(Cluster, table, str(path))


def with_durations(table: dict[str, Any], path: Path) -> None:
    """Replace every ``file`` of a jitter table by the file's durations.

    Args:
        table: of a cluster file; malformed entries are left for the schema to reject.
        path: the cluster file; file names are relative to its folder.

    Raises:
        UserError: such a file cannot be read, or contains a line that is not a duration.
    """
    server = table.get("server")
    inner = cast(dict[str, Any], server) if isinstance(server, dict) else {}
    for key, value in (("jitter", table.get("jitter")), ("server.jitter", inner.get("jitter"))):
        jitter = cast(dict[str, Any], value) if isinstance(value, dict) else {}
        name = jitter.get("file")
        if isinstance(name, str) and name and "values" not in jitter:
            jitter["values"] = _read_durations(path.parent / name, f"{path}: {key}.file")
            del jitter["file"]


def _read_durations(path: Path, place: str) -> list[float]:
    """The numbers of a text file, one per line; empty lines and ``#`` comments are skipped.

    Args:
        path: the file.
        place: the key that refers to it, for messages.

    Raises:
        UserError: it cannot be read, or a line is not a finite number of at least 0.
    """
    durations = list[float]()
    for number, line in enumerate(text_of(path, place).splitlines(), 1):
        text = line.partition("#")[0].strip()
        try:
            seconds = float(text or 0.0)
        except ValueError:
            seconds = math.nan
        if not 0.0 <= seconds <= LONGEST_S:
            wrong = f"{path.name} line {number}: {text[:40]!r}"
            raise UserError(f"{place}: {wrong} is not allowed; allowed: 0 to {LONGEST_S:g}")
        durations += [seconds] if text else []
    return durations


CATALOGUE = Path(__file__).with_name("devices.toml")

OPERATOR_S = 5e-6
"""Seconds to launch an operator in PyTorch's eager mode: see the head of devices.toml."""


@dataclass(frozen=True)
class Device(Spec):
    """A kind of device that workers compute with.

    Attributes:
        achieved_flops_per_s: arithmetic rate of training with large minibatches; without it,
            infinite.
        half_rate_frames: minibatch size at which half of that rate is reached.
        launch_s: fixed time of a minibatch of any size; with ``operators`` in the workload, the
            least time of their launches.
        peak_flops_per_s: peak arithmetic rate by the manufacturer; for information only.
        memory_bytes_per_s: memory bandwidth by the manufacturer, for a workload with
            ``moved_bytes``; without it, infinite.
        source: sources of the figures, and which of them are assumed.
        operator_s: time from one launch of an operator to the next, for the ``operators`` of a
            workload.
    """

    achieved_flops_per_s: float | None = rate()
    half_rate_frames: float = size(0.0)
    launch_s: float = duration()
    peak_flops_per_s: float | None = rate()
    memory_bytes_per_s: float | None = rate()
    source: str = setting("")
    operator_s: float = duration(OPERATOR_S)

    def trouble(self) -> tuple[str, str] | None:
        """A rate that is missing from a partly described device, which is not infinitely fast."""
        described = self.half_rate_frames > 0.0 or self.peak_flops_per_s is not None
        if self.achieved_flops_per_s is None and described:
            return "achieved_flops_per_s", "missing; needed with half_rate_frames or a peak"
        return None

    def rate_flops_per_s(self, frames: float) -> float:
        """Achieved rate for a minibatch of ``frames``: saturating, r·b / (b + h)."""
        if self.achieved_flops_per_s is None:
            return math.inf
        return self.achieved_flops_per_s * frames / (frames + self.half_rate_frames)

    def minibatch_s(self, workload: Workload) -> float:
        """Seconds for one minibatch, without variation: launches, memory traffic, arithmetic."""
        rate = self.rate_flops_per_s(workload.minibatch_frames)
        launched_s = workload.operators * self.operator_s if workload.operators else 0.0
        memory = self.memory_bytes_per_s
        moving_s = 0.0 if memory is None else workload.moved_bytes / memory
        return max(self.launch_s, launched_s) + moving_s + workload.minibatch_flops / rate


@cache
def catalogue() -> Mapping[str, Device]:
    """The devices that need no description, by name, each with the sources of its figures."""
    tables = load_toml(CATALOGUE)
    return {name: build(Device, table, CATALOGUE.name, name) for name, table in tables.items()}


def with_catalogue(table: dict[str, Any]) -> None:
    """Add to a cluster file's table the catalogue's devices that its workers name.

    Malformed entries are left for the schema to reject.
    """
    devices, groups = table.setdefault("devices", {}), table.get("workers")
    if not isinstance(devices, dict) or not isinstance(groups, list):
        return
    described = cast(dict[str, Any], devices)
    for group in cast(list[Any], groups):
        name = cast(dict[str, Any], group).get("device") if isinstance(group, dict) else None
        if isinstance(name, str) and name in catalogue():
            described.setdefault(name, catalogue()[name].to_dict())


@dataclass(frozen=True)
class Workload(Spec):
    """The work of one minibatch, and the size of a message.

    Attributes:
        minibatch_frames: frames (training examples) in one minibatch.
        flops_per_frame: floating-point operations to train on one frame.
        parameter_bytes: size of the parameters, and of a gradient.
        operators: operators of a minibatch, which a device launches one after the other.
        moved_bytes: bytes of a minibatch that its operators read and write in the device's memory.
    """

    minibatch_frames: int = setting(at_least=1, at_most=2**40)
    flops_per_frame: float = size()
    parameter_bytes: float = size()
    operators: float = size(0.0)
    moved_bytes: float = size(0.0)

    @property
    def minibatch_flops(self) -> float:
        """Floating-point operations of one minibatch."""
        return self.minibatch_frames * self.flops_per_frame

    @classmethod
    def of_network(cls, layer_sizes: Sequence[int], minibatch: int) -> Workload:
        """The job of training a fully connected network in 32-bit floats.

        A frame costs 2 operations per weight forward, 2 for the weights' gradient and 2 for
        the inputs' gradient, which the first layer does not need: 6·P − 2·P₁ over weights.
        Biases are sent, but their additions are not counted.

        Args:
            layer_sizes: units of each layer, input first, e.g. ``(429, 2048, 10217)``.
            minibatch: frames in a minibatch.
        """
        weights = [below * above for below, above in pairwise(layer_sizes)]
        return cls(
            minibatch_frames=minibatch,
            flops_per_frame=float(6 * sum(weights) - 2 * weights[0]),
            parameter_bytes=float(4 * (sum(weights) + sum(layer_sizes[1:]))),
        )

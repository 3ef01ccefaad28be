"""The machine: devices, host, link, server, and how much their speeds vary."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

from harness.simulator.workload import Workload
from harness.spec import Spec, build, load_toml, setting

__all__ = [
    "Cluster",
    "Device",
    "Host",
    "Jitter",
    "Link",
    "Server",
    "Stragglers",
    "WorkerGroup",
    "load_cluster",
]

JITTER_LAWS = ("constant", "lognormal", "gamma", "shifted-exponential", "empirical")
MOST_WORKERS = 10_000_000


@dataclass(frozen=True)
class Device(Spec):
    """What a worker computes with.

    Attributes:
        achieved_flops_per_s: rate of training arithmetic at large minibatches; none is
            infinitely fast.
        half_rate_frames: minibatch at which half of that rate is reached.
        launch_s: fixed time a minibatch costs whatever its size.
        peak_flops_per_s: the maker's figure; nothing is computed from it.
        source: where the figures come from.
    """

    achieved_flops_per_s: float | None = setting(None, above=0.0)
    half_rate_frames: float = setting(0.0, at_least=0.0)
    launch_s: float = setting(0.0, at_least=0.0)
    peak_flops_per_s: float | None = setting(None, above=0.0)
    source: str = setting("")

    def trouble(self) -> tuple[str, str] | None:
        """A device that is described in part must not be taken for an infinitely fast one."""
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
        """Seconds for one minibatch, without variation."""
        rate = self.rate_flops_per_s(workload.minibatch_frames)
        return self.launch_s + workload.minibatch_flops / rate


@dataclass(frozen=True)
class WorkerGroup(Spec):
    """So many workers of one kind.

    Attributes:
        count: how many.
        device: a name among the cluster's devices.
        speed: of these workers relative to the device's figures.
    """

    count: int = setting(at_least=1, at_most=MOST_WORKERS)
    device: str = setting()
    speed: float = setting(1.0, above=0.0)


@dataclass(frozen=True)
class Host(Spec):
    """The memory of the machine that holds the shared model.

    Attributes:
        memory_bytes_per_s: rate of memory traffic of a fold; none is infinitely fast.
        staging: ``pinned`` buffers go straight to the link, ``pageable`` ones are first
            copied to a pinned buffer.
        staging_bytes_per_s: rate of that extra copy.
    """

    memory_bytes_per_s: float | None = setting(None, above=0.0)
    staging: str = setting("pinned", one_of=("pinned", "pageable"))
    staging_bytes_per_s: float | None = setting(None, above=0.0)

    def trouble(self) -> tuple[str, str] | None:
        """Pageable staging needs a rate."""
        if self.staging == "pageable" and self.staging_bytes_per_s is None:
            return "staging_bytes_per_s", "missing; needed where staging is 'pageable'"
        return None


@dataclass(frozen=True)
class Link(Spec):
    """Between the server and its workers.

    Attributes:
        latency_s: from the first byte's departure to its arrival.
        bandwidth_bytes_per_s: none is infinitely fast.
        sharing: ``none``, every worker has a link of its own; ``fifo``, all share one link
            and copies follow one another; ``fair``, all share one link and copies under way
            at once have equal parts of it.
        duplex: ``full``, both directions at full rate at once; ``half``, they share it.
    """

    latency_s: float = setting(0.0, at_least=0.0)
    bandwidth_bytes_per_s: float | None = setting(None, above=0.0)
    sharing: str = setting("none", one_of=("none", "fifo", "fair"))
    duplex: str = setting("full", one_of=("full", "half"))


@dataclass(frozen=True)
class Jitter(Spec):
    """Random variation of every computation (or fold): a factor with mean 1.

    Attributes:
        law: the factor's distribution.
        cv: its standard deviation (over its mean, which is 1); unused by ``constant`` and
            ``empirical``.
        values: for ``empirical``, measured durations; they are divided by their mean.
    """

    law: str = setting("constant", one_of=JITTER_LAWS)
    cv: float = setting(0.0, at_least=0.0, at_most=100.0)
    values: tuple[float, ...] = setting((), at_least=0.0)

    def trouble(self) -> tuple[str, str] | None:
        """Limits that depend on the law."""
        if self.law == "empirical" and not sum(self.values) > 0.0:
            return "values", "an empirical law needs durations, not all of them zero"
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
        fold_traffic: parameter-sized memory transfers of a fold: read the model, read the
            contribution, write the model.
        jitter: variation from one fold to the next.
    """

    fold_s: float = setting(0.0, at_least=0.0)
    fold_traffic: float = setting(3.0, at_least=0.0)
    jitter: Jitter = field(default=Jitter())


@dataclass(frozen=True)
class Stragglers(Spec):
    """Now and then a computation takes several times as long.

    Attributes:
        probability: of each computation.
        slowdown: how many times as long.
    """

    probability: float = setting(0.0, at_least=0.0, at_most=1.0)
    slowdown: float = setting(1.0, at_least=1.0)


@dataclass(frozen=True)
class Cluster(Spec):
    """Everything about the machine that timing depends on.

    Attributes:
        name: for tables and figures.
        devices: kinds of device by name.
        workers: groups of workers in order; asked for more than their sum, the simulator
            goes through the groups again.
        link: between the server and the workers.
        host: memory of the server's machine.
        server: costs of a fold.
        jitter: variation from one computation to the next.
        stragglers: rare long computations.
        heterogeneity_cv: lasting differences: each worker's speed is drawn once from a
            lognormal law with mean 1 and this standard deviation.
        workload: the job `lagbench simulate` times when none is given.
    """

    name: str = setting()
    devices: dict[str, Device] = setting()  # noqa: RUF009
    workers: tuple[WorkerGroup, ...] = setting()
    link: Link = field(default=Link())
    host: Host = field(default=Host())
    server: Server = field(default=Server())
    jitter: Jitter = field(default=Jitter())
    stragglers: Stragglers = field(default=Stragglers())
    heterogeneity_cv: float = setting(0.0, at_least=0.0, at_most=100.0)
    workload: Workload | None = setting(None)  # noqa: RUF009

    def trouble(self) -> tuple[str, str] | None:
        """Every group names a device that exists, and there is at least one worker."""
        if not self.workers:
            return "workers", "empty; allowed: at least one group of workers"
        for place, group in enumerate(self.workers):
            if group.device not in self.devices:
                known = ", ".join(sorted(self.devices)) or "none is defined"
                return f"workers[{place}].device", f"unknown {group.device!r}; allowed: {known}"
        return None

    @property
    def size(self) -> int:
        """Number of workers the file describes."""
        return sum(group.count for group in self.workers)

    def group_of(self, worker: int) -> WorkerGroup:
        """The group a worker belongs to; worker numbers beyond the last start over."""
        place = worker % self.size
        for group in self.workers:
            if place < group.count:
                return group
            place -= group.count
        raise IndexError(worker)


def load_cluster(path: str | Path) -> Cluster:
    """Read a cluster file.

    Raises:
        UserError: the file cannot be read, or any setting in it is wrong.
    """
    return build(Cluster, load_toml(path), str(path))

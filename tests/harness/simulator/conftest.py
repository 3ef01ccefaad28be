from collections.abc import Callable
from typing import Any

import pytest

from harness.simulator import Cluster, Device, WorkerGroup, Workload
from harness.simulator.cluster import Host, Jitter, Link, Server
from harness.simulator.simulation import Simulation
from harness.simulator.timeline import Timeline


def make_cluster(
    workers: int = 4,
    compute_s: float = 1.0,
    copy_s: float = 0.0,
    fold_s: float = 0.0,
    latency_s: float = 0.0,
    jitter: Jitter | None = None,
    sharing: str = "none",
    duplex: str = "full",
    **more: Any,
) -> Cluster:
    """A cluster whose durations for `UNIT_JOB` are the ones named."""
    return Cluster(
        name="made for a test", devices={"unit": Device(1.0 / compute_s if compute_s else None)},
        workers=(WorkerGroup(workers, "unit"),),
        link=Link(latency_s, 1.0 / copy_s if copy_s else None, sharing, duplex), host=Host(),
        server=Server(fold_s=fold_s, fold_traffic=0.0), jitter=jitter or Jitter(), **more,
    )  # fmt: skip


UNIT_JOB = Workload(minibatch_frames=1, flops_per_frame=1.0, parameter_bytes=1.0)
FREE_JOB = Workload(minibatch_frames=1, flops_per_frame=0.0, parameter_bytes=0.0)


@pytest.fixture
def cluster() -> Callable[..., Cluster]:
    return make_cluster


@pytest.fixture
def unit_job() -> Workload:
    return UNIT_JOB


@pytest.fixture
def free_job() -> Workload:
    return FREE_JOB


@pytest.fixture
def simulate() -> Callable[..., Simulation]:
    """A simulation of a cluster with the durations named."""

    def build(
        workers: int = 4, seed: int = 0, protocol: Any = "parameter_server", **durations: Any
    ) -> Simulation:
        return Simulation(make_cluster(workers, **durations), protocol, UNIT_JOB, workers, seed)

    return build


def sequence(timeline: Timeline) -> list[tuple[float, int, int]]:
    """(time, worker, staleness) of every fold."""
    times, workers = timeline.folds.time_s.tolist(), timeline.folded().worker.tolist()
    return list(zip(times, workers, timeline.staleness().tolist(), strict=True))

"""Notes on a cluster before a simulation."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from functools import cache

from harness.base.errors import UserError
from harness.base.registry import find_bundled
from harness.base.settings import load_toml
from harness.simulator.cluster import LAUNCH_S, LEAST_STEP_S, Cluster, Workload, load_cluster

REMARKS = ("name", "source", "peak_flops_per_s")
"""Keys of a cluster file that are for its reader."""


def describe_doubts(machine: Cluster, work: Workload) -> Iterator[str]:
    """A line for each device that lacks a rate, or whose step is shorter than a launch can be."""
    for name, device in machine.devices.items():
        if work.moved_bytes and device.memory_bytes_per_s is None:
            doubt = "moving data in memory takes no time on it without memory_bytes_per_s"
            yield f"devices.{name}: {doubt}"
        seconds = device.minibatch_s(work)
        if device.is_too_quick(work):
            least = f"{1e6 * LEAST_STEP_S:.0f} µs or more, and launch_s is 0"
        elif 0.0 < seconds < LAUNCH_S:
            least = f"{1e6 * LAUNCH_S:.0f} µs for a single kernel"
        else:
            continue
        yield f"devices.{name}: a step takes {1e6 * seconds:.2g} µs; its launches take {least}"


def describe_equal(machine: Cluster, workers: int) -> Iterator[str]:
    """A line if asynchronous workers are so equal that all of them fold at the same instants."""
    usual = Cluster(machine.name, machine.devices, machine.workers)
    parts = "jitter", "stragglers", "server", "host", "network", "faults", "heterogeneity_cv"
    is_equal = all(getattr(machine, part) == getattr(usual, part) for part in parts)
    if is_equal and len(machine.workers) == 1 < workers and machine.link.sharing == "none":
        text = f"{machine.name}: workers are exactly equal, arrive at one instant and read after"
        effect = f"the last fold: staleness {(workers - 1) / 2:g} instead of {workers - 1}"
        yield f"{text} {effect}; step_cv=0.01 (jitter) lets them differ"


def describe_idle(keys: Sequence[Collection[str]]) -> list[str]:
    """A line for each key without effect on any of several simulations."""
    common = [key for key in keys[0] if all(key in group for group in keys)] if keys else []
    common = [key for key in common if not key.endswith(REMARKS)]
    return [f"no effect: {key}" for key in common]


@cache
def load_bundled(name: str) -> Cluster | None:
    """The bundled cluster with this ``name`` in its file; None if there is none that is right."""
    for path in find_bundled("cluster").values():
        # a plugin's file that is wrong is told where it is asked for
        with suppress(UserError):
            if load_toml(path).get("name") == name:
                return load_cluster(path)
    return None

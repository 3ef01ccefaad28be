"""Before a simulation: an estimate of its cost, and notes on the cluster.

`effort_of` estimates CPU time and memory from the protocol's unit costs (`TimingProtocol.effort`).
Every figure was measured on one core of 2023, in processor time.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from functools import cache
from typing import NamedTuple

from harness.base.errors import UserError
from harness.base.files import find_bundled
from harness.base.settings import load_toml
from harness.simulator.cluster import Cluster, load_cluster
from harness.simulator.protocols.contract import TimingProtocol

__all__ = ["Effort", "describe_idle", "describe_repeats", "effort_of", "load_bundled"]

REMARKS = ("name", "source", "peak_flops_per_s")
"""Keys of a cluster file that are for its reader."""


def describe_repeats(cluster: Cluster, workers: int) -> list[str]:
    """One line if there are more workers than the cluster's file describes; else none."""
    if workers <= cluster.size:
        return []
    described = f"{cluster.size} worker{'' if cluster.size == 1 else 's'}"
    times = f"{workers / cluster.size:.3g} times over"
    return [f"{cluster.name} describes {described}; {workers} are these {times}"]


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
    batch = workers if handing is not None and handing.rounds else costs.contributions or 1
    least = LEAST_FOLDS if costs.rounds else max(LEAST_FOLDS, LEAST_READS * workers)
    rounds = least if folds is None else folds
    first_s, size = workers * costs.worker_s, workers * costs.worker_bytes
    fold_s = batch * costs.contribution_s + workers * costs.present_s + costs.messages_s
    kept_bytes = (0 if folds is None else folds * batch) * KEPT_BYTES
    return Effort(first_s + rounds * fold_s, first_s, size + costs.messages_bytes + kept_bytes)

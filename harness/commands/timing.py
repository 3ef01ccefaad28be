"""The figures of simulated worker counts: for people as a table, for programs as records."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.units import format_quantity, format_seconds

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from harness.simulator import Cluster, Timeline, Workload

__all__ = ["Timing", "record", "table"]


@dataclass(frozen=True)
class Timing:
    """What one simulated worker count gave."""

    workers: int
    timeline: Timeline
    virtual_s: float

    @property
    def throughput_per_s(self) -> float:
        """Folded minibatches a second of virtual time (infinite where nothing costs time)."""
        minibatches = int(self.timeline.folded().steps.sum())
        return minibatches / self.virtual_s if self.virtual_s > 0.0 else math.inf


def record(timing: Timing, single: Timing) -> dict[str, Any]:
    """One object of ``--json``; a throughput or ratio that is not finite is null.

    Args:
        timing: the worker count.
        single: one worker under the same protocol, to which the speed-up refers.
    """
    timeline = timing.timeline
    return {
        "workers": timing.workers,
        "folds": len(timeline.folds),
        "virtual_s": timing.virtual_s,
        "throughput_per_s": _finite(timing.throughput_per_s),
        "speedup": _finite(_ratio(timing.throughput_per_s, single.throughput_per_s)),
        "staleness": _summary(timeline.staleness()),
        "lag_s": _summary(timeline.lag_s()),
        "timeline_sha256": timeline.sha256(),
    }


def table(
    cluster: Cluster, workload: Workload, bare_per_s: float, single: Timing, rows: Sequence[Timing]
) -> Iterator[str]:
    """Lines for people.

    Args:
        cluster: the machine.
        workload: the job.
        bare_per_s: minibatches a second of one device without a server, the other baseline.
        single: one worker under the same protocol.
        rows: the worker counts.
    """
    yield f"{cluster.name}: {workload.minibatch_frames} frames a minibatch"
    yield f"  {format_quantity(workload.minibatch_flops, 'FLOP')} a minibatch"
    yield f"  {format_quantity(workload.parameter_bytes, 'B')} of parameters"
    yield f"  one device alone, no server: {bare_per_s:.4g} minibatches/s"
    yield ""
    yield "        minibatches     speed-up over      staleness            lag"
    yield "workers          /s  1 worker  device    mean   p95   max      mean       p95"
    for row in rows:
        yield _line(row, single, bare_per_s)


def _line(row: Timing, single: Timing, bare_per_s: float) -> str:
    stale, lag = _summary(row.timeline.staleness()), _summary(row.timeline.lag_s())
    rate = row.throughput_per_s
    over_one, over_bare = _ratio(rate, single.throughput_per_s), _ratio(rate, bare_per_s)
    return (
        f"{row.workers:>7} {rate:>11.4g} {over_one:>9.2f} {over_bare:>7.2f}"
        f" {stale['mean']:>7.2f} {stale['p95']:>5.4g} {stale['max']:>5.4g}"
        f" {format_seconds(lag['mean']):>9} {format_seconds(lag['p95']):>9}"
    )


def _summary(values: NDArray[Any]) -> dict[str, float]:
    """Mean, median, 95th percentile and largest of at least one value."""
    return {
        "mean": float(np.mean(values)),
        "p50": float(np.percentile(values, 50)),
        "p95": float(np.percentile(values, 95)),
        "max": float(np.max(values)),
    }


def _ratio(value: float, reference: float) -> float:
    """How many times the reference; nan where both are infinite."""
    return value / reference if math.isfinite(value) or math.isfinite(reference) else math.nan


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None

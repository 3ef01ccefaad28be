"""The figures of simulated worker counts: for people as a table, for programs as records."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.units import format_quantity, format_seconds

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from harness.simulator import Cluster, Simulation, Timeline, Workload

__all__ = ["Timing", "heading", "record", "table", "throughput_per_s", "timing_of"]


@dataclass(frozen=True)
class Timing:
    """The figures of one simulated worker count.

    Attributes:
        workers: how many.
        folds: that were simulated.
        virtual_s: how long they took.
        throughput_per_s: folded minibatches a second (infinite where nothing costs time).
        single_per_s: the same of one worker under the same protocol.
        bare_per_s: minibatches a second of one device without any server.
        staleness, lag_s: mean, median, 95th percentile and largest.
        sha256: of the timeline.
        swept: the values put into the cluster file, by key.
    """

    workers: int
    folds: int
    virtual_s: float
    throughput_per_s: float
    single_per_s: float
    bare_per_s: float
    staleness: Mapping[str, float]
    lag_s: Mapping[str, float]
    sha256: str
    swept: Mapping[str, object] = field(default_factory=dict[str, object])

    @property
    def speedup(self) -> float:
        """Over one worker under the same protocol."""
        return _ratio(self.throughput_per_s, self.single_per_s)

    @property
    def gain(self) -> float:
        """Over one device without any server."""
        return _ratio(self.throughput_per_s, self.bare_per_s)


def timing_of(
    simulation: Simulation, timeline: Timeline, single_per_s: float, bare_per_s: float
) -> Timing:
    """The figures of a simulation that has run from its start.

    Args:
        simulation: at its end.
        timeline: what happened.
        single_per_s: minibatches a second of one worker under the same protocol.
        bare_per_s: minibatches a second of one device without any server.
    """
    return Timing(
        workers=simulation.workers,
        folds=len(timeline.folds),
        virtual_s=simulation.now_s,
        throughput_per_s=throughput_per_s(timeline, simulation.now_s),
        single_per_s=single_per_s,
        bare_per_s=bare_per_s,
        staleness=_summary(timeline.staleness()),
        lag_s=_summary(timeline.lag_s()),
        sha256=timeline.sha256(),
    )


def throughput_per_s(timeline: Timeline, virtual_s: float) -> float:
    """Folded minibatches a second of virtual time (infinite where nothing costs time)."""
    minibatches = int(timeline.kept().steps.sum())
    return minibatches / virtual_s if virtual_s > 0.0 else math.inf


def record(timing: Timing) -> dict[str, Any]:
    """One object of ``--json``; a throughput or ratio that is not finite is null."""
    swept = {"sweep": dict(timing.swept)} if timing.swept else {}
    return {
        **swept,
        "workers": timing.workers,
        "folds": timing.folds,
        "virtual_s": timing.virtual_s,
        "throughput_per_s": _finite(timing.throughput_per_s),
        "speedup": _finite(timing.speedup),
        "staleness": dict(timing.staleness),
        "lag_s": dict(timing.lag_s),
        "timeline_sha256": timing.sha256,
    }


def heading(cluster: Cluster, workload: Workload, bare_per_s: float) -> Iterator[str]:
    """What is timed, in a few lines.

    Args:
        cluster: the machine.
        workload: the job.
        bare_per_s: minibatches a second of one device without a server.
    """
    yield f"{cluster.name}: {workload.minibatch_frames} frames a minibatch"
    yield f"  {format_quantity(workload.minibatch_flops, 'FLOP')} a minibatch"
    yield f"  {format_quantity(workload.parameter_bytes, 'B')} of parameters"
    yield f"  one device alone, no server: {bare_per_s:.4g} minibatches/s"
    yield ""


@dataclass(frozen=True)
class _Column:
    """A column of the table; ``above`` stands once over neighbours that share it."""

    above: str
    title: str
    width: int
    text: Callable[[Timing], str]


COLUMNS = (
    _Column("", "workers", 7, lambda row: str(row.workers)),
    _Column("minibatches", "/s", 11, lambda row: f"{row.throughput_per_s:.4g}"),
    _Column("speed-up over", "1 worker", 9, lambda row: f"{row.speedup:.2f}"),
    _Column("speed-up over", "device", 8, lambda row: f"{row.gain:.2f}"),
    _Column("staleness", "mean", 7, lambda row: _count(row.staleness["mean"], 2)),
    _Column("staleness", "p95", 5, lambda row: _count(row.staleness["p95"])),
    _Column("staleness", "max", 5, lambda row: _count(row.staleness["max"])),
    _Column("lag", "mean", 9, lambda row: format_seconds(row.lag_s["mean"])),
    _Column("lag", "p95", 9, lambda row: format_seconds(row.lag_s["p95"])),
)


def table(rows: Sequence[Timing]) -> Iterator[str]:
    """The table: at most 80 columns, unless several keys are swept."""
    columns = [_swept_column(key, rows) for key in rows[0].swept]
    spare = {"device", "max"} if columns else set[str]()
    columns += [column for column in COLUMNS if column.title not in spare]
    yield _above(columns)
    yield " ".join(column.title.rjust(column.width) for column in columns)
    for row in rows:
        yield " ".join(column.text(row).rjust(column.width) for column in columns)


def _swept_column(key: str, rows: Sequence[Timing]) -> _Column:
    """Values of a swept key; the end of its name is its title."""
    above, _, title = key.rpartition(".")
    width = max(len(title), len(above), *(len(_shown(row.swept[key])) for row in rows))
    return _Column(above, title, width, lambda row: _shown(row.swept[key]))


def _shown(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _above(columns: Sequence[_Column]) -> str:
    """The first line: what neighbours share, in the middle above them."""
    pieces: list[str] = []
    for above, neighbours in groupby(columns, key=lambda column: column.above):
        group = list(neighbours)
        width = sum(column.width for column in group) + len(group) - 1
        name = above if len(above) <= width else above.split()[0][:width]
        pieces.append(name.center(width) if len(group) > 1 else name.rjust(width))
    return " ".join(pieces).rstrip()


def _count(value: float, decimals: int = 0) -> str:
    """A number of folds, with a prefix where it would be too long."""
    if value < 10_000.0:
        return f"{value:.{decimals}f}"
    return f"{value / 1e3:.0f}k" if value < 1e6 else f"{value / 1e6:.3g}M"


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

"""The figures of simulated worker counts: for people as a table, for programs as records."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.base.settings import format_quantity, format_seconds

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from harness.simulator import Cluster, Simulation, Timeline, Workload
    from harness.simulator.steady import LongRun

__all__ = [
    "Timing",
    "heading",
    "record",
    "table",
    "throughput_per_s",
    "timing_of",
    "timing_of_long_run",
    "warnings",
]


LOCKED = 0.03
"""Relative change of throughput by a little jitter beyond which lock step matters."""


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
        sha256: of the timeline; empty if nobody asked.
        swept: the values put into the cluster file, by key.
        long_run: what the figures are of, where no number of folds was asked for.
        transient: whether the folds that were asked for say little of the long run.
        jittered_per_s: throughput with a little jitter, where nothing varies.
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
    long_run: LongRun | None = None
    transient: bool = False
    jittered_per_s: float | None = None

    @property
    def in_lock_step(self) -> bool:
        """Whether a little jitter changes throughput by more than `LOCKED`."""
        if self.jittered_per_s is None or not math.isfinite(self.throughput_per_s):
            return False
        change = abs(self.jittered_per_s - self.throughput_per_s)
        return change > LOCKED * self.throughput_per_s

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


def timing_of_long_run(
    simulation: Simulation, found: LongRun, sha256: str, single_per_s: float, bare_per_s: float
) -> Timing:
    """The figures of a long run; the largest staleness and lag are those of its start, too.

    Args:
        simulation: at its end.
        found: in it.
        sha256: of its timeline.
        single_per_s: as for `timing_of`.
        bare_per_s: likewise.
    """
    staleness, lag_s = found.single
    stalest, latest_s = found.largest
    return Timing(
        workers=simulation.workers,
        folds=found.folds,
        virtual_s=simulation.now_s,
        throughput_per_s=found.throughput_per_s.value,
        single_per_s=single_per_s,
        bare_per_s=bare_per_s,
        staleness={**_summary(staleness), "mean": found.staleness.value, "max": stalest},
        lag_s={**_summary(lag_s), "mean": found.lag_s.value, "max": latest_s},
        sha256=sha256,
        long_run=found,
    )


def throughput_per_s(timeline: Timeline, virtual_s: float) -> float:
    """Folded minibatches a second of virtual time (infinite where nothing costs time)."""
    minibatches = int(timeline.kept().steps.sum())
    return minibatches / virtual_s if virtual_s > 0.0 else math.inf


def record(timing: Timing) -> dict[str, Any]:
    """One object of ``--json``; a throughput or ratio that is not finite is null.

    Of a long run it has a table ``long_run`` besides, of folds that are a transient says so.
    """
    swept = {"sweep": dict(timing.swept)} if timing.swept else {}
    more: dict[str, Any] = {"transient": True} if timing.transient else {}
    if timing.long_run is not None:
        more = {"long_run": _long_run(timing.long_run)}
    if timing.in_lock_step:
        more["lock_step"] = {"jittered_per_s": timing.jittered_per_s}
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
        **more,
    }


def _long_run(found: LongRun) -> dict[str, Any]:
    """The start that was dropped, and 95% intervals, of an infinite throughput null."""
    return {
        "warm_up_folds": found.warm_up_folds,
        "warm_up_s": found.warm_up_s,
        "throughput_per_s": [_finite(edge) for edge in found.throughput_per_s[1:]],
        "staleness_mean": list(found.staleness[1:]),
        "lag_mean_s": list(found.lag_s[1:]),
        "reached": found.reached,
        "lacks": found.lacks,
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


def warnings(rows: Sequence[Timing]) -> Iterator[str]:
    """A line for each row whose figures are to be read with care."""
    for row in rows:
        what = "".join(f"{key} = {_shown(value)}, " for key, value in row.swept.items())
        name = f"{what}{row.workers:,} workers"
        if row.long_run is not None and not row.long_run.reached:
            spent = f"{row.folds:,} folds"
            yield f"warning: {name}: not settled after {spent}: {row.long_run.lacks}"
        if row.in_lock_step and row.jittered_per_s is not None:
            yield (
                f"warning: {name}: in lock step, for they are equal and nothing varies; with a"
                f" [jitter] of 5% {row.jittered_per_s:.4g} minibatches/s,"
                f" {_ratio(row.jittered_per_s, row.single_per_s):.2f} times one worker"
            )
        if row.transient:
            folds = "1 fold is" if row.folds == 1 else f"{row.folds:,} folds are"
            yield (
                f"warning: {name}: {folds} a transient, not the long run;"
                " without --folds that is simulated"
            )


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

WITHIN = _Column("95%", "within", 6, lambda row: _percent(row))
"""In the place of the largest staleness, which grows with the length of a long run."""


def table(rows: Sequence[Timing]) -> Iterator[str]:
    """The table: at most 80 columns, unless several keys are swept."""
    columns = [_swept_column(key, rows) for key in rows[0].swept]
    spare = {"device", "max"} if columns else set[str]()
    if rows[0].long_run is not None:
        columns += [COLUMNS[0], COLUMNS[1], WITHIN, *COLUMNS[2:]]
        spare |= {"max"}
    else:
        columns += COLUMNS
    columns = [column for column in columns if column.title not in spare]
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


def _percent(row: Timing) -> str:
    """The wider interval of throughput and mean staleness, relative to it; "?" if too wide."""
    if row.long_run is None:
        return ""
    per_s, staleness = row.long_run.throughput_per_s, row.long_run.staleness
    wide = max(_ratio(per_s.width, per_s.value), staleness.width / max(staleness.value, 1.0))
    if wide < 5e-4:
        return "<0.1%"
    return f"±{wide:.1%}" if wide < 0.9995 else ">100%"


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

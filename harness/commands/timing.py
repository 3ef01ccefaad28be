"""Timing of `lagbench simulate`: worker counts and swept keys, as tables and records.

The figures of simulated worker counts: for people as a table, for programs as records.

What `lagbench simulate` simulates: one worker count after another of a cluster. Without a number
of folds the question is the long run, and each count is simulated until that is known
(`harness.simulator.steady`). With ``--folds`` or ``--epochs`` the answer is of exactly these, the
start included.

``--sweep key=a,b,c``: the cluster file read once for every value of a key in it.
"""

from __future__ import annotations

import argparse
import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from harness.base.errors import UserError
from harness.base.settings import format_quantity, format_seconds
from harness.commands import protocols
from harness.simulator import Cluster, Simulation, Timeline, Workload, bare_throughput_per_s, concat
from harness.simulator.queueing import is_lockstep, with_small_jitter
from harness.simulator.steady import LongRun, history, horizon_of, is_transient, long_run
from harness.simulator.timeline import KINDS, Contributions, Digest

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "ONCE",
    "Point",
    "Row",
    "Timing",
    "Watch",
    "heading",
    "points",
    "record",
    "rows",
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
        what = "".join(f"{key} = {_format_value(value)}, " for key, value in row.swept.items())
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
    columns = [_sweep_column(key, rows) for key in rows[0].swept]
    spare = {"device", "max"} if columns else set[str]()
    if rows[0].long_run is not None:
        columns += [COLUMNS[0], COLUMNS[1], WITHIN, *COLUMNS[2:]]
        spare |= {"max"}
    else:
        columns += COLUMNS
    columns = [column for column in columns if column.title not in spare]
    yield _format_group_titles(columns)
    yield " ".join(column.title.rjust(column.width) for column in columns)
    for row in rows:
        yield " ".join(column.text(row).rjust(column.width) for column in columns)


def _sweep_column(key: str, rows: Sequence[Timing]) -> _Column:
    """Values of a swept key; the end of its name is its title."""
    above, _, title = key.rpartition(".")
    width = max(len(title), len(above), *(len(_format_value(row.swept[key])) for row in rows))
    return _Column(above, title, width, lambda row: _format_value(row.swept[key]))


def _format_value(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _format_group_titles(columns: Sequence[_Column]) -> str:
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


ONCE = 10_000
"""Folds from the start of a cluster that has no long run."""

ALONE = 20
"""Minibatches for which one worker is timed, at least, where workers fail."""

FIRST, LAST = 1 << 8, 1 << 16
"""Folds of the first piece of a simulation, and the most in one."""

Watch = Callable[[int, int], object]
"""Told how many folds are done, and how many there will be; of a long run contributions, and how
many at most."""


@dataclass
class Row:
    """One worker count.

    Attributes:
        timing: its figures.
        simulation: at its end.
        timeline: all that happened, where a number of folds was asked for.
        long_run: where none was.
    """

    timing: Timing
    simulation: Simulation
    timeline: Timeline | None
    long_run: LongRun | None

    def ensure_timeline(self, folds: int) -> Timeline:
        """All that happened; or the next so many folds of the long run."""
        if self.timeline is None:
            self.simulation.spans = True
            self.timeline = self.simulation.advance(folds=folds)
        return self.timeline


def rows(
    arguments: argparse.Namespace,
    point: Point,
    workload: Workload,
    counts: Sequence[int],
    watch: Callable[[int, bool], Watch],
) -> Iterator[Row]:
    """Each worker count of one cluster.

    Args:
        arguments: of the command.
        point: the cluster, and what was swept in it.
        workload: the job.
        counts: of workers.
        watch: from a worker count, and whether its folds are known beforehand, to what is told how
            far it is.
    """
    asked = _Request(arguments, point.cluster, workload, watch)
    bare_per_s = bare_throughput_per_s(point.cluster, workload)
    for count in counts:
        run = asked.run(count)
        per_s = asked.alone_per_s(run)
        timing = replace(_timing(run, per_s, bare_per_s), swept=point.values)
        if count == max(counts) and is_lockstep(point.cluster, workload, count):
            timing = replace(timing, jittered_per_s=asked.simulate_with_jitter(count))
        yield Row(timing, run.simulation, run.timeline, run.long_run)


class _Run(NamedTuple):
    """A simulation at its end, and what is known of it: one of the two that follow."""

    simulation: Simulation
    timeline: Timeline | None
    long_run: LongRun | None
    sha256: str


def _timing(run: _Run, single_per_s: float, bare_per_s: float) -> Timing:
    if run.timeline is None:
        assert run.long_run is not None
        return timing_of_long_run(
            run.simulation, run.long_run, run.sha256, single_per_s, bare_per_s
        )
    timing = timing_of(run.simulation, run.timeline, single_per_s, bare_per_s)
    return replace(timing, transient=is_transient(run.timeline))


def _per_s(run: _Run) -> float:
    """Minibatches a second."""
    if run.timeline is None:
        assert run.long_run is not None
        return run.long_run.throughput_per_s.value
    return throughput_per_s(run.timeline, run.simulation.now_s)


class _Request:
    """What is asked of one cluster."""

    def __init__(
        self,
        arguments: argparse.Namespace,
        cluster: Cluster,
        workload: Workload,
        watch: Callable[[int, bool], Watch],
    ) -> None:
        self.arguments, self.cluster, self.workload = arguments, cluster, workload
        self.protocol, self.watch = protocols.protocol(arguments), watch
        self._alone: _Run | None = None

    def run(self, workers: int) -> _Run:
        """So many workers, for as long as is asked; one worker only once."""
        if workers == 1 and self._alone is not None:
            return self._alone
        folds = protocols.folds(self.arguments, self.cluster, workers)
        if folds is None and history(self.cluster):
            folds = ONCE
        hashed = self.arguments.json is not None
        watch = self.watch(workers, folds is not None)
        simulation = self._simulation(workers, spans=folds is not None or hashed)
        if folds is None:
            run = self._long(simulation, watch)
        else:
            run = _Run(simulation, _advance_in_pieces(simulation, folds, watch), None, "")
        if workers == 1:
            self._alone = run
        return run

    def alone_per_s(self, run: _Run) -> float:
        """Minibatches a second of one worker, asked the same.

        Where workers fail, folds from the start are compared over equal virtual time: as many
        folds of one worker would take so long that it fails more often.
        """
        if run.simulation.workers == 1 or run.timeline is None or not self.cluster.faults:
            return _per_s(self.run(1))
        healthy = Simulation(
            replace(self.cluster, faults=()), self.protocol, self.workload, 1, self.arguments.seed
        )
        healthy.advance(folds=ALONE)
        simulation = self._simulation(1, spans=False)
        seconds = max(run.simulation.now_s, healthy.now_s)
        return throughput_per_s(simulation.advance(seconds=seconds), seconds)

    def simulate_with_jitter(self, workers: int) -> float:
        """Minibatches a second of so many workers that are not in lock step."""
        other = _Request(self.arguments, with_small_jitter(self.cluster), self.workload, self.watch)
        return _per_s(other.run(workers))

    def _simulation(self, workers: int, spans: bool) -> Simulation:
        settings = (self.cluster, self.protocol, self.workload, workers, self.arguments.seed)
        return Simulation(*settings, spans=spans)

    def _long(self, simulation: Simulation, watch: Watch) -> _Run:
        limits = horizon_of(self.cluster, self.protocol, self.workload, simulation.workers)
        hashed = None if self.arguments.json is None else _Hash()

        done = 0

        def see(part: Timeline) -> None:
            nonlocal done
            done += len(part.folded())
            watch(done, limits.most)
            if hashed is not None:
                hashed.add(part)

        found = long_run(
            simulation, limits.most, period=limits.period, least_s=limits.least_s, watch=see
        )
        return _Run(simulation, None, found, hashed.hexdigest() if hashed is not None else "")


def _advance_in_pieces(simulation: Simulation, folds: int, watch: Watch) -> Timeline:
    """A segment of so many folds, in pieces between which ``watch`` is told."""
    parts, piece = [Timeline()], FIRST
    while simulation.version < folds:
        # What is in flight after a piece has folded in a later one, but for the last.
        parts = [part for part in parts if len(part.folds)]
        parts += simulation.parts(folds=min(piece, folds - simulation.version))
        watch(simulation.version, folds)
        piece = min(2 * piece, LAST)
    return concat(parts)


class _Hash:
    """What `Timeline.sha256` gives for parts that are not kept."""

    def __init__(self) -> None:
        self.digest, self.kinds = Digest(), KINDS
        self.lost, self.under_way = list[Contributions](), Contributions()

    def add(self, part: Timeline) -> None:
        """The next part."""
        for table, rows in part.tables().items():
            self.digest.add(table, part.folded() if table == "contributions" else rows)
        self.kinds = part.kinds if len(part.folds) else self.kinds
        self.lost += [part.lost()] if len(part.lost()) else []
        self.under_way = part.in_flight()

    def hexdigest(self) -> str:
        """Of all parts."""
        for rows in (*self.lost, self.under_way):
            self.digest.add("contributions", rows)
        return self.digest.hexdigest(self.kinds)


MOST_POINTS = 1000

EXAMPLE = "--sweep link.latency_s=0,1e-5,1e-4"


@dataclass(frozen=True)
class Point:
    """One combination of swept values.

    Attributes:
        cluster: the file with those values put in.
        values: what was put in, by dotted key.
    """

    cluster: Cluster
    values: Mapping[str, object] = field(default_factory=dict[str, object])


def points(path: Path, sweeps: Sequence[str]) -> list[Point]:
    """Every combination of the swept values, the last key fastest; without any, the file itself.

    Args:
        path: the cluster file.
        sweeps: ``key=a,b,c``; a key is dotted and may have places, e.g. ``workers[0].count``.

    Raises:
        UserError: a sweep is malformed, or a value is not allowed where it is put.
    """
    from harness.base.settings import load_toml
    from harness.simulator.cluster import cluster_from
    from harness.simulator.keys import put

    table, swept = load_toml(path), _grid(sweeps)
    found: list[Point] = []
    for choice in product(*swept.values()):
        values = dict(zip(swept, choice, strict=True))
        changed = copy.deepcopy(table)
        for key, value in values.items():
            put(changed, key, value, "--sweep")
        found.append(Point(cluster_from(changed, path), values))
    return found


def _grid(sweeps: Sequence[str]) -> dict[str, list[object]]:
    """The values of each key."""
    from harness.simulator.keys import is_key

    grid: dict[str, list[object]] = {}
    size = 1
    for text in sweeps:
        key, _, listed = text.partition("=")
        parts = [part.strip() for part in listed.split(",")]
        if not all(parts) or not is_key(key.strip()):
            shown = text if len(text) <= 60 else f"{text[:57]}..."
            raise UserError(f"--sweep: {shown!r} is not allowed; allowed: key=a,b,c, as {EXAMPLE}")
        if key.strip() in grid:
            raise UserError(f"--sweep: {key.strip()!r} is given twice; allowed: once each")
        grid[key.strip()] = [protocols.read_value(part) for part in parts]
        size *= len(parts)
    if size > MOST_POINTS:
        raise UserError(f"--sweep: {size} combinations; allowed: at most {MOST_POINTS}")
    return grid

"""Timing of `lagbench simulate`: worker counts and swept keys, as tables and records.

One worker count after another of a cluster is simulated. Without a number of folds, the figures
are those of the long run, and each count is simulated until they are known
(`harness.simulator.steady`). With ``--folds``, they are those of exactly these folds, the start
included.

``--sweep key=a,b,c`` reads the cluster file once for every value of the key.
"""

from __future__ import annotations

import argparse
import copy
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.base.errors import UserError
from harness.base.log import say
from harness.base.settings import (
    format_count,
    format_quantity,
    format_seconds,
    load_toml,
    read_value,
)
from harness.cluster_keys import is_key, put
from harness.commands import protocols
from harness.simulator.cluster import Cluster, Jitter, Workload, cluster_from
from harness.simulator.costs import bare_throughput_per_s
from harness.simulator.protocols.contract import TimingProtocol
from harness.simulator.simulation import Simulation
from harness.simulator.steady import LongRun, history, horizon_of, long_run
from harness.simulator.timeline import Timeline
from harness.store.schema import finite_or_none

LOCKED = 0.03
"""Relative change of throughput or staleness by small jitter that marks a row as in lock step."""


@dataclass(frozen=True)
class Timing:
    """The figures of one simulated worker count.

    Attributes:
        workers: number of workers.
        folds: number of simulated folds.
        virtual_s: simulated seconds.
        throughput_per_s: folded minibatches a second (infinite if nothing costs time).
        single_per_s: the same for one worker under the same protocol.
        bare_per_s: minibatches a second of one device without any server.
        staleness, lag_s: mean, median, 95th percentile and maximum.
        sha256: digest of the timeline; empty for a long run, whose timeline is not kept.
        long_run: the long run, if no number of folds was requested; else None.
        swept: the values put into the cluster file, by key.
        jittered: the figures with small jitter, for clusters in which nothing varies.
        unit: name of contributions.
        own: figures of the protocol's own, by title.
    """

    workers: int
    folds: int
    virtual_s: float
    throughput_per_s: float
    single_per_s: float
    bare_per_s: float
    staleness: Mapping[str, float]
    lag_s: Mapping[str, float]
    sha256: str = ""
    long_run: LongRun | None = None
    swept: Mapping[str, object] = field(default_factory=dict[str, object])
    jittered: Timing | None = None
    unit: str = "minibatches"
    own: Mapping[str, float] = field(default_factory=dict[str, float])

    @property
    def in_lock_step(self) -> bool:
        """Whether small jitter changes throughput or mean staleness by more than `LOCKED`."""
        if self.jittered is None or not math.isfinite(self.throughput_per_s):
            return False
        pairs = [(row.throughput_per_s, row.staleness["mean"]) for row in (self, self.jittered)]
        return not np.allclose(*pairs, rtol=LOCKED, atol=0.0)

    @property
    def speedup(self) -> float:
        """Throughput over that of one worker under the same protocol."""
        return _ratio(self.throughput_per_s, self.single_per_s)

    @property
    def gain(self) -> float:
        """Throughput over that of one device without any server."""
        return _ratio(self.throughput_per_s, self.bare_per_s)


def timing_of(simulation: Simulation, source: Timeline | LongRun, bare_per_s: float) -> Timing:
    """The figures of a simulation from its start; one worker's throughput is its own.

    Args:
        simulation: the simulation at its end.
        source: its timeline from the start; or its long run, whose largest staleness and lag
            include its warm-up.
        bare_per_s: minibatches a second of one device without any server.
    """
    if isinstance(source, Timeline):
        folds, per_s = len(source.folds), throughput_per_s(source, simulation.now_s)
        staleness, lag_s = _summary(source.staleness()), _summary(source.lag_s())
        further: dict[str, Any] = {"sha256": source.sha256()}
    else:
        folds, per_s, further = source.folds, source.throughput_per_s.value, {"long_run": source}
        staleness, lag_s = map(_summary, source.single)
        stalest, latest_s = source.largest
        staleness |= {"mean": source.staleness.value, "max": stalest}
        lag_s |= {"mean": source.lag_s.value, "max": latest_s}
    figures = folds, simulation.now_s, per_s, per_s, bare_per_s, staleness, lag_s
    return Timing(simulation.workers, *figures, **further)


def throughput_per_s(timeline: Timeline, virtual_s: float) -> float:
    """Folded minibatches a second of simulated time (infinite if nothing costs time)."""
    minibatches = int(timeline.kept().steps.sum())
    return minibatches / virtual_s if virtual_s > 0.0 else math.inf


OPTIONAL = ("sweep", "timeline_sha256", "long_run", "lock_step", "own")
"""Figures that only some records have."""


def record(timing: Timing) -> dict[str, Any]:
    """One object of ``--json``; a throughput or ratio that is not finite is null.

    A long run has a further table ``long_run``.
    """
    lock_step: dict[str, Any] = {}
    if timing.jittered is not None and timing.in_lock_step:
        lock_step["jittered_per_s"] = timing.jittered.throughput_per_s
        lock_step["jittered_staleness"] = dict(timing.jittered.staleness)
    figures: dict[str, Any] = {
        "sweep": dict(timing.swept),
        "workers": timing.workers,
        "folds": timing.folds,
        "virtual_s": timing.virtual_s,
        "throughput_per_s": finite_or_none(timing.throughput_per_s),
        "speedup": finite_or_none(timing.speedup),
        "staleness": dict(timing.staleness),
        "lag_s": dict(timing.lag_s),
        "timeline_sha256": timing.sha256,
        "long_run": timing.long_run and _long_run(timing.long_run),
        "lock_step": lock_step,
        "own": dict(timing.own),
    }
    return {name: figure for name, figure in figures.items() if figure or name not in OPTIONAL}


def _long_run(run: LongRun) -> dict[str, Any]:
    """The warm-up that was dropped, and 95% intervals; infinite edges are null."""
    return {
        "warm_up_folds": run.warm_up_folds,
        "warm_up_s": run.warm_up_s,
        "throughput_per_s": [finite_or_none(edge) for edge in run.throughput_per_s[1:]],
        "staleness_mean": list(run.staleness[1:]),
        "lag_mean_s": list(run.lag_s[1:]),
        "reached": run.reached,
        "lacks": run.lacks,
    }


def heading(cluster: Cluster, workload: Workload | None, bare_per_s: float) -> Iterator[str]:
    """The timed cluster and workload, in a few lines; without a workload the cluster alone.

    Args:
        cluster: the cluster.
        workload: the workload of a minibatch; None for a protocol that trains none.
        bare_per_s: minibatches a second of one device without a server.
    """
    if workload is None:
        yield from (cluster.name, "")
        return
    yield f"{cluster.name}: {workload.minibatch_frames} frames a minibatch"
    yield f"  {format_quantity(workload.minibatch_flops, 'FLOP')} a minibatch"
    yield f"  {format_quantity(workload.parameter_bytes, 'B')} of parameters"
    yield f"  one device alone, no server: {bare_per_s:.4g} minibatches/s"
    yield ""


def warnings(rows: Sequence[Timing]) -> Iterator[str]:
    """Warnings about rows: not settled, or in lock step, of which the last one is described."""
    locked = [row for row in rows if row.in_lock_step]
    for row in rows:
        values = "".join(f"{key} = {format_value(value)}, " for key, value in row.swept.items())
        place = f"warning: {values}{row.workers:,} workers"
        if row.long_run is not None and not row.long_run.reached:
            yield f"{place}: not settled after {row.folds:,} folds: {row.long_run.lacks}"
        if locked and row is locked[-1] and (varied := row.jittered):
            neighbours = f" (and {format_count(len(locked) - 1, 'other row')})"
            yield (
                f"{place}{neighbours if len(locked) > 1 else ''}: in lock step, since nothing"
                f" varies; with a [jitter] of 5% {varied.throughput_per_s:.4g} minibatches/s,"
                f" {_ratio(varied.throughput_per_s, row.single_per_s):.2f} times one worker,"
                f" staleness {varied.staleness['mean']:.3g}"
            )


@dataclass(frozen=True)
class _Column:
    """A column of the table; neighbours with the same ``above`` share that title."""

    above: str
    title: str
    width: int
    text: Callable[[Timing], str]


COLUMNS = (
    _Column("", "workers", 7, lambda row: str(row.workers)),
    _Column("minibatches", "/s", 11, lambda row: f"{row.throughput_per_s:.4g}"),
    _Column("95%", "within", 6, lambda row: _percent(row)),
    _Column("speed-up over", "1 worker", 9, lambda row: f"{row.speedup:.2f}"),
    _Column("speed-up over", "device", 8, lambda row: f"{row.gain:.2f}"),
    _Column("staleness", "mean", 7, lambda row: _count(row.staleness["mean"], 2)),
    _Column("staleness", "p95", 5, lambda row: _count(row.staleness["p95"])),
    _Column("staleness", "max", 5, lambda row: _count(row.staleness["max"])),
    _Column("lag", "mean", 9, lambda row: format_seconds(row.lag_s["mean"])),
    _Column("lag", "p95", 9, lambda row: format_seconds(row.lag_s["p95"])),
)


def table(rows: Sequence[Timing]) -> Iterator[str]:
    """The table as lines of at most 80 columns, unless several keys are swept.

    The largest staleness grows with the length of a long run: intervals take its place.
    """
    swept, row = [_sweep_column(key, rows) for key in rows[0].swept], rows[0]
    spare = {
        "device": swept or row.unit != "minibatches",
        "max": swept or row.long_run,
        "within": not row.long_run,
    }
    columns = [
        replace(column, above=column.above.replace("minibatches", row.unit))
        for column in (*swept, *COLUMNS)
        if not spare.get(column.title)
    ]
    yield _format_group_titles(columns)
    yield " ".join(column.title.rjust(column.width) for column in columns)
    for row in rows:
        yield " ".join(column.text(row).rjust(column.width) for column in columns)


def own_table(rows: Sequence[Timing]) -> Iterator[str]:
    """The figures of the protocol's own as lines of at most 80 columns: a column for each row."""
    titles = [*dict.fromkeys(title for row in rows for title in row.own)]
    counts = {row.workers for row in rows}
    heading = ", ".join(key.rpartition(".")[2] for key in rows[0].swept) or "workers"
    for start in range(0, len(rows) if titles else 0, MOST_COLUMNS):
        part = rows[start : start + MOST_COLUMNS]
        values = [[*map(format_value, row.swept.values())] for row in part]
        names = [
            ",".join([*swept, *([str(row.workers)] if len(counts) > 1 or not swept else [])])[:9]
            for row, swept in zip(part, values, strict=True)
        ]
        yield ""
        yield " ".join([heading.ljust(TITLE), *(name.rjust(9) for name in names)])
        for title in titles:
            figures = [f"{row.own[title]:.4g}" if title in row.own else "" for row in part]
            yield " ".join([title.ljust(TITLE), *(figure.rjust(9) for figure in figures)])


TITLE, MOST_COLUMNS = 30, 5
"""Width of the titles of a protocol's own figures, and their columns beside each other."""


def _sweep_column(key: str, rows: Sequence[Timing]) -> _Column:
    """The column of a swept key; its title is the last part of the key."""
    above, _, title = key.rpartition(".")
    width = max(len(title), len(above), *(len(format_value(row.swept[key])) for row in rows))
    return _Column(above, title, width, lambda row: format_value(row.swept[key]))


def format_value(value: object) -> str:
    """A swept value as text."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def _format_group_titles(columns: Sequence[_Column]) -> str:
    """The first line of the table: shared titles, centred above their columns."""
    pieces: list[str] = []
    for above, neighbours in groupby(columns, key=lambda column: column.above):
        group = list(neighbours)
        width = sum(column.width for column in group) + len(group) - 1
        name = above if len(above) <= width else above.split()[0][:width]
        pieces.append(name.center(width) if len(group) > 1 else name.rjust(width))
    return " ".join(pieces).rstrip()


def _percent(row: Timing) -> str:
    """The wider relative 95% interval of throughput and mean staleness, from <0.1% to >100%."""
    if row.long_run is None:
        return ""
    per_s, staleness = row.long_run.throughput_per_s, row.long_run.staleness
    wide = max(_ratio(per_s.width, per_s.value), staleness.width / max(staleness.value, 1.0))
    if wide < 5e-4:
        return "<0.1%"
    return f"±{wide:.1%}" if wide < 0.9995 else ">100%"


def _count(value: float, decimals: int = 0) -> str:
    """A number of folds; from 10,000 on with k or M."""
    if value < 10_000.0:
        return f"{value:.{decimals}f}"
    return f"{value / 1e3:.0f}k" if value < 1e6 else f"{value / 1e6:.3g}M"


def _summary(values: NDArray[Any]) -> dict[str, float]:
    """Mean, median, 95th percentile and maximum of at least one value."""
    return {
        "mean": float(np.mean(values)),
        "p50": float(np.percentile(values, 50)),
        "p95": float(np.percentile(values, 95)),
        "max": float(np.max(values)),
    }


def _ratio(value: float, reference: float) -> float:
    """``value / reference``; nan if both are infinite."""
    return value / reference if math.isfinite(value) or math.isfinite(reference) else math.nan


ONCE = 10_000
"""Default number of folds for a cluster that has no long run."""

MEASURED = 400_000
"""Contributions of a long run from which a protocol's own figures are taken."""

STARTED = 50_000
"""The same of a protocol that trains minibatches; they are counted from the start."""

ALONE = 20
"""Smallest number of minibatches for which one worker is timed if workers fail."""


@dataclass
class Row:
    """Result for one worker count.

    Attributes:
        timing: its figures.
        simulation: the simulation at its end.
        timeline: the whole timeline, if a number of folds was requested; else None.
    """

    timing: Timing
    simulation: Simulation
    timeline: Timeline | None = None

    def timeline_of(self, contributions: int) -> Timeline:
        """The timeline; of a long run so many further contributions, in a hundred folds or more."""
        if self.timeline is not None:
            return self.timeline
        self.simulation.spans = True
        return self.simulation.advance(folds=_count_folds(self.simulation, contributions))

    def own_figures(self) -> Mapping[str, float]:
        """The figures of the protocol's own, which some take from a start of the simulation."""
        simulation, protocol = self.simulation, self.simulation.protocol
        if type(protocol).measure is TimingProtocol.measure:
            return {}
        if protocol.trains_minibatches and self.timeline is None:
            settings = (protocol, simulation.workload, simulation.workers, simulation.seed)
            folds = _count_folds(simulation, STARTED)
            timeline = Simulation(simulation.cluster, *settings).advance(folds=folds)
        else:
            timeline = self.timeline_of(MEASURED)
        return protocol.measure(timeline, simulation.workers)


def _count_folds(simulation: Simulation, contributions: int) -> int:
    """Folds of about so many contributions, and at least a hundred."""
    a_fold = max(1, simulation.dispatched // max(1, simulation.version))
    return max(100, contributions // a_fold)


TELL_AFTER_S, TELL_EVERY_S = 2.0, 10.0
"""Seconds before the first line on how far a simulation is, and between two."""


@dataclass
class News:
    """Lines on a terminal on how far the simulations of a table are.

    Attributes:
        total: number of rows of the table.
        row: the present one, from 1.
        next_s: when the next line is due, on the monotonic clock.
    """

    total: int
    row: int = 0
    next_s: float = field(default_factory=lambda: time.monotonic() + TELL_AFTER_S)

    def tell(self, simulation: Simulation) -> None:
        """A line, if one is due."""
        if time.monotonic() < self.next_s or not sys.stderr.isatty():
            return
        self.next_s = time.monotonic() + TELL_EVERY_S
        folds = f"{simulation.version:,} folds in {format_seconds(simulation.now_s)} simulated"
        row = f"row {self.row} of {self.total} (workers {simulation.workers})"
        say(f"{row}: {folds} so far")


class _Telling(Simulation):
    """A simulation that tells after each part."""

    news: News

    def parts(self, **limits: Any) -> Iterator[Timeline]:
        for part in super().parts(**limits):
            self.news.tell(self)
            yield part


def rows(
    arguments: argparse.Namespace, point: Point, workload: Workload, counts: Sequence[int],
    news: News,
) -> Iterator[Row]:  # fmt: skip
    """Simulate each worker count of one cluster.

    Args:
        arguments: options of the command.
        point: the cluster, with its swept values.
        workload: the workload of a minibatch.
        counts: numbers of workers.
        news: says how far it is.
    """
    simulated = _Simulated(arguments, point.cluster, workload, news)
    for count in counts:
        news.row += 1
        row = simulated.row(count)
        timing = replace(row.timing, single_per_s=simulated.alone_per_s(row), swept=point.values)
        protocol = row.simulation.protocol
        timing = replace(timing, unit=protocol.unit, own=row.own_figures())
        if count > 1 and protocol.trains_minibatches and is_lockstep(point.cluster):
            varied = replace(point.cluster, jitter=Jitter("lognormal", JITTER_CV))
            jittered = _Simulated(arguments, varied, workload, news).row(count)
            timing = replace(timing, jittered=jittered.timing)
        yield replace(row, timing=timing)


JITTER_CV = 0.05
"""Coefficient of variation of the jitter that takes workers out of lock step."""


def is_lockstep(cluster: Cluster) -> bool:
    """Whether nothing varies, so that workers stay in lock step, as those of real clusters do not.

    Equal workers then copy at the same instants, and compute at the same instants.
    """
    stragglers = cluster.stragglers
    return not (
        any(_varies(jitter) for jitter in (cluster.jitter, cluster.server.jitter))
        or (stragglers.probability > 0.0 and stragglers.slowdown > 1.0)
        or cluster.heterogeneity_cv > 0.0
        or bool(cluster.faults)
    )


def _varies(jitter: Jitter) -> bool:
    if jitter.law == "empirical":
        return len(set(jitter.values)) > 1
    return jitter.law != "constant" and jitter.cv > 0.0


class _Simulated:
    """The simulations of one cluster under the options of the command."""

    def __init__(
        self, arguments: argparse.Namespace, cluster: Cluster, workload: Workload, news: News
    ) -> None:
        self.arguments, self.news = arguments, news
        self.cluster, self.workload = cluster, workload
        self.protocol = protocols.protocol(arguments)
        self.bare_per_s = bare_throughput_per_s(cluster, workload)
        self._alone: Row | None = None

    def row(self, workers: int) -> Row:
        """Simulate ``workers`` workers as the options say; one worker is simulated only once."""
        if workers == 1 and self._alone is not None:
            return self._alone
        folds: int | None = self.arguments.folds
        if folds is None and history(self.cluster):
            folds = ONCE
        row = self._long(workers) if folds is None else self._some(workers, folds)
        if workers == 1:
            self._alone = row
        return row

    def alone_per_s(self, row: Row) -> float:
        """Minibatches a second of one worker, under the same options.

        If workers fail, a number of folds from the start is compared over equal simulated time: as
        many folds of one worker would take longer, so that it would fail more often.
        """
        if row.simulation.workers == 1 or row.timeline is None or not self.cluster.faults:
            return self.row(1).timing.throughput_per_s
        healthy = self._simulation(1, replace(self.cluster, faults=()))
        healthy.advance(folds=ALONE)
        seconds = max(row.simulation.now_s, healthy.now_s)
        return throughput_per_s(self._simulation(1).advance(seconds=seconds), seconds)

    def _simulation(
        self, workers: int, cluster: Cluster | None = None, *, spans: bool = False
    ) -> Simulation:
        machine, seed = cluster or self.cluster, self.arguments.seed
        simulation = _Telling(machine, self.protocol, self.workload, workers, seed, spans=spans)
        simulation.news = self.news
        self.news.tell(simulation)
        return simulation

    def _some(self, workers: int, folds: int) -> Row:
        """Simulate a number of folds."""
        simulation = self._simulation(workers, spans=True)
        timeline = simulation.advance(folds=folds)
        return Row(timing_of(simulation, timeline, self.bare_per_s), simulation, timeline)

    def _long(self, workers: int) -> Row:
        """Simulate until the estimates settle."""
        simulation = self._simulation(workers)
        limits = horizon_of(self.cluster, self.protocol, self.workload, workers)
        estimates = long_run(simulation, limits.most, period=limits.period, least_s=limits.least_s)
        return Row(timing_of(simulation, estimates, self.bare_per_s), simulation)


EXAMPLE = "--sweep link.latency_s=0,1e-5,1e-4"


@dataclass(frozen=True)
class Point:
    """One combination of swept values.

    Attributes:
        cluster: the cluster with these values.
        values: swept values by dotted key.
    """

    cluster: Cluster
    values: Mapping[str, object] = field(default_factory=dict[str, object])


def points(path: Path, sweeps: Sequence[str]) -> list[Point]:
    """Every combination of the swept values, the last key fastest; without any, the file itself.

    Args:
        path: the cluster file.
        sweeps: ``key=a,b,c``; a key is dotted and may have indices, e.g. ``workers[0].count``.

    Raises:
        UserError: a sweep is malformed, or a value is not allowed for its key.
    """
    table, swept = load_toml(path), _grid(sweeps)
    combinations: list[Point] = []
    for choice in product(*swept.values()):
        values = dict(zip(swept, choice, strict=True))
        changed = copy.deepcopy(table)
        for key, value in values.items():
            put(changed, key, value, "--sweep")
        combinations.append(Point(cluster_from(changed, path), values))
    return combinations


def _grid(sweeps: Sequence[str]) -> dict[str, list[object]]:
    """Parse sweeps: the values of each key.

    Raises:
        UserError: a malformed or repeated key, or too many combinations.
    """
    grid: dict[str, list[object]] = {}
    for text in sweeps:
        key, _, listed = text.partition("=")
        parts = [part.strip() for part in listed.split(",")]
        if not all(parts) or not is_key(key.strip()):
            allowed = f"key=a,b,c, as {EXAMPLE}"
            raise UserError(f"--sweep: {text[:60]!r} is not allowed; allowed: {allowed}")
        if key.strip() in grid:
            raise UserError(f"--sweep: {key.strip()!r} is given twice; allowed: once each")
        grid[key.strip()] = [read_value(part) for part in parts]
    return grid

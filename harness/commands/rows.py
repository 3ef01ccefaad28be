"""What `lagbench simulate` simulates: one worker count after another of a cluster.

Without a number of folds the question is the long run, and each count is simulated until that is
known (`harness.simulator.steady`). With ``--folds`` or ``--epochs`` the answer is of exactly
these, the start included.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from harness.commands import protocols
from harness.commands.sweep import Point
from harness.commands.timing import Timing, throughput_per_s, timing_of, timing_of_long_run
from harness.simulator import Cluster, Simulation, Timeline, Workload, bare_throughput_per_s, concat
from harness.simulator.queueing import jittered, nothing_varies
from harness.simulator.steady import LongRun, history, horizon_of, is_transient, long_run
from harness.simulator.timeline import KINDS, Contributions, Digest

__all__ = ["ONCE", "Row", "Watch", "rows"]

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

    def shown(self, folds: int) -> Timeline:
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
    asked = _Asked(arguments, point.cluster, workload, watch)
    bare_per_s = bare_throughput_per_s(point.cluster, workload)
    for count in counts:
        run = asked.run(count)
        per_s = asked.alone_per_s(run)
        timing = replace(_timing(run, per_s, bare_per_s), swept=point.values)
        if count == max(counts) and nothing_varies(point.cluster, workload, count):
            timing = replace(timing, jittered_per_s=asked.jittered_per_s(count))
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


class _Asked:
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
            run = _Run(simulation, _advanced(simulation, folds, watch), None, "")
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

    def jittered_per_s(self, workers: int) -> float:
        """Minibatches a second of so many workers that are not in lock step."""
        other = _Asked(self.arguments, jittered(self.cluster), self.workload, self.watch)
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


def _advanced(simulation: Simulation, folds: int, watch: Watch) -> Timeline:
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

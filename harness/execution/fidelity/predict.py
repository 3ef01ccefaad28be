"""How long a run would take on a cluster: simulated, not trained."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path

import numpy as np

from data_synth.corpus import Utterances
from harness.execution.fidelity.replay import stored_run
from harness.execution.runs.boundaries import Boundaries
from harness.execution.runs.config import RunConfig
from harness.execution.runs.file import RunFile
from harness.simulator import Cluster, Timeline, concat
from harness.store import Run

MOST_FOLDS = 200_000
"""Folds that are simulated; a longer run goes on at the rate that it had by then."""
SAMPLE = 2000
"""Folds of a single worker, for the speed-up."""


def prediction(
    asked: RunFile[RunConfig], cluster: Cluster | None, workers: int | None, target: Path | None
) -> Iterator[str]:
    """Lines that say throughput, speed-up, staleness and time.

    Args:
        asked: the run.
        cluster: in place of the run's.
        workers: in place of the run's.
        target: the folder of a finished run of these settings; its frame errors are given the
            times at which the cluster would reach them.

    Raises:
        UserError: no such run, or too many workers for the data.
    """
    config = replace(
        asked.config,
        cluster=cluster or asked.config.cluster,
        workers=workers or asked.config.workers,
    )
    train = asked.corpus.split("train")
    run = whole(config, train)
    healthy = replace(config.cluster, faults=())
    alone = whole(replace(config, cluster=healthy, workers=1, passes=1), train, SAMPLE)
    staleness = run.timeline.staleness()
    yield f"{'cluster':28} {config.cluster.name}, {config.workers} workers"
    yield f"{'folds a second':28} {run.per_s:.5g}"
    yield f"{'speed-up over one worker':28} {run.minibatches_per_s / alone.minibatches_per_s:.4g}"
    yield f"{'staleness':28} mean {staleness.mean():.3g}, largest {staleness.max()}"
    yield f"{'first pass':28} {run.folds[0]} folds, {run.ends_s[0]:.6g} s"
    yield f"{'all passes, at most':28} {config.passes} passes, {run.ends_s[-1]:.6g} s"
    if target is not None:
        yield from reached(stored_run(target), run)


@dataclass(frozen=True)
class Whole:
    """A run from its beginning to its end, in simulated time.

    Attributes:
        timeline: of the folds that were simulated: all, or the first ones of a long run.
        folds: of every pass.
        ends_s: when each pass ends; beyond the simulated folds, at their rate.
    """

    timeline: Timeline
    folds: tuple[int, ...]
    ends_s: tuple[float, ...]

    @property
    def per_s(self) -> float:
        """Folds a second, pauses included."""
        times = self.timeline.folds.time_s
        return float(len(times) / times[-1]) if times[-1] > 0.0 else float("inf")

    @property
    def minibatches_per_s(self) -> float:
        """Minibatches a second that have entered folds."""
        times = self.timeline.folds.time_s
        steps = int(self.timeline.folded().steps.sum())
        return float(steps / times[-1]) if times[-1] > 0.0 else float("inf")

    def second_of(self, fold: int) -> float:
        """When so many folds are done."""
        times = self.timeline.folds.time_s
        return float(times[fold - 1]) if 0 < fold <= len(times) else fold / self.per_s


def whole(config: RunConfig, train: Utterances, most: int = MOST_FOLDS) -> Whole:
    """A run that trains every pass, timed as its executor times it.

    Args:
        config: of the run.
        train: the training utterances.
        most: folds that are simulated.

    Raises:
        UserError: too many workers for the data.
    """
    simulation = config.simulation(train)
    happened: list[Timeline] = []
    folds: list[int] = []
    ends_s: list[float] = []
    for stage in range(config.passes):
        simulation.change(config.workload(stage))
        order = config.order(stage, train)
        boundaries = Boundaries(config, order, stage)
        folds.append(order.folds)
        for asked in boundaries.segments():
            left = order.folds - asked.begins
            if boundaries.is_chunk(asked.begins) and (
                search_s := config.search_s(stage, order.chunk_steps, left)
            ):
                happened.append(simulation.pause(search_s, "search"))
            if (rest := most - simulation.version) < asked.folds:
                happened.append(simulation.advance(folds=rest))
                return _longer(config, train, concat(happened), folds)
            how = {"drain": asked.drain, "handing_out": asked.handing_out}
            happened.append(simulation.advance(folds=asked.folds, **how))
        ends_s.append(simulation.now_s)
    return Whole(concat(happened), tuple(folds), tuple(ends_s))


def _longer(config: RunConfig, train: Utterances, known: Timeline, folds: list[int]) -> Whole:
    """A run of which only the beginning was simulated."""
    rest = range(len(folds), config.passes)
    every = (*folds, *(config.order(stage, train).folds for stage in rest))
    run = Whole(known, every, ())
    return replace(run, ends_s=tuple(run.second_of(done) for done in accumulate(every)))


def reached(run: Run, predicted: Whole) -> Iterator[str]:
    """Lines that say when a cluster would have had a run's errors."""
    metrics = run.metrics
    for name in ("dev_frame_error/average", "dev_frame_error/iterate"):
        rows = np.flatnonzero(np.array(metrics["name"]) == name)
        if len(rows) == 0:
            continue
        yield f"{'frame error (' + name.rsplit('/', 1)[1] + ')':28} {'after s':>12}"
        best = np.inf
        for row in rows:
            error, fold = float(metrics["value"][row]), int(metrics["fold"][row])
            if error < best:
                best = error
                yield f"{error:28.2%} {predicted.second_of(fold):12.5g}"
        return

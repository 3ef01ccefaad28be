"""How long a run would take on a cluster: simulated, not trained."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from harness.execution.data.frames import Frames
from harness.execution.data.minibatches import Dealing
from harness.execution.fidelity.replay import stored_run
from harness.execution.runs.config import RunConfig
from harness.execution.runs.file import RunFile
from harness.simulator import Cluster, Simulation, Timeline
from harness.store import Run

SAMPLE = 2000
"""Folds that are simulated."""


def foreseen(
    asked: RunFile, cluster: Cluster | None, workers: int | None, target: Path | None
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
    timeline = _simulated(config.workers, config)
    per_s, alone_per_s = _rate(timeline), _rate(_simulated(1, config))
    each = config.workers if config.protocol else 1
    frames = Frames.of(asked.corpus, "cpu")
    folds = Dealing(config, asked.corpus, frames).order.folds
    staleness = timeline.staleness()
    yield f"{'cluster':28} {config.cluster.name}, {config.workers} workers"
    yield f"{'folds a second':28} {per_s:.5g}"
    yield f"{'speed-up over one worker':28} {per_s * each / alone_per_s:.4g}"
    yield f"{'staleness':28} mean {staleness.mean():.3g}, largest {staleness.max()}"
    yield f"{'first pass':28} {folds} folds, {folds / per_s:.5g} s"
    passes, whole_s = config.passes, config.passes * folds / per_s
    yield f"{'all passes, at most':28} {passes} passes, {whole_s:.5g} s"
    if target is not None:
        yield from reached(stored_run(target), per_s)


def _simulated(workers: int, config: RunConfig) -> Timeline:
    simulation = Simulation(
        config.cluster, config.timed, config.workload(0), workers=workers, seed=config.seed
    )
    return simulation.advance(folds=SAMPLE)


def _rate(timeline: Timeline) -> float:
    times = timeline.folds.time_s
    return float(len(times) / times[-1]) if times[-1] > 0.0 else float("inf")


def reached(run: Run, per_s: float) -> Iterator[str]:
    """Lines that say when a cluster of so many folds a second would have had a run's errors."""
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
                yield f"{error:28.2%} {fold / per_s:12.5g}"
        return

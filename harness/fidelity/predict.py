"""Prediction of a run's time on a cluster, by simulation without training."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from harness.base.errors import UserError
from harness.experiment.contract import TaskConfig
from harness.experiment.run import MOST_FOLDS
from harness.experiment.run_file import application_of_config
from harness.fidelity.replay import config_of, load_finished_run
from harness.simulator import Cluster
from harness.simulator.full_run import Whole
from harness.store import Run


def prediction(
    config: TaskConfig,
    pieces: Any,
    cluster: Cluster | None = None,
    workers: int | None = None,
    target: Path | None = None,
    kept: float | None = None,
) -> Iterator[str]:
    """Predict throughput, speed-up, staleness from each read and time; yields lines.

    Args:
        config: configuration of the run.
        pieces: its training data, see `Application.pieces`.
        cluster: cluster in place of the run's.
        workers: number of workers or replicas in place of the run's.
        target: folder of a finished run of these settings; its errors are shown with the times at
            which the cluster would reach them.
        kept: share of frames that decoders keep, in sequence training; None for the target's, or
            the usual one.

    Raises:
        UserError: no such run, too many workers for the data, or a run that cannot be predicted.
    """
    config = config.with_cluster(cluster, workers)
    application = application_of_config(config)
    finished = _load_run_of_task(target, config) if target else None
    share = application.share(config, finished, kept)
    # The same run with one healthy worker, to which the speed-up refers.
    single, most = application.sampled(config)
    run, alone = time_full_run(config, pieces, share), time_full_run(single, pieces, share, most)
    yield from _lines(config, share, run, alone)
    if finished is not None:
        yield from _format_error_times(config, finished, run)


def time_full_run(
    config: TaskConfig, pieces: Any, share: float = 1.0, most: int = MOST_FOLDS
) -> Whole:
    """Simulate a run from beginning to end; see `Application.time`."""
    return application_of_config(config).time(config, pieces, share, most)


def _lines(config: TaskConfig, share: float, run: Whole, alone: Whole) -> Iterator[str]:
    application = application_of_config(config)
    worker = application.worker
    yield f"{'cluster':28} {config.cluster.name}, {config.count} {worker}s"
    yield f"{f'  {worker}s':28} machines of the cluster file, not processes here"
    for label, value in application.describe(config, share):
        yield f"{label:28} {value}"
    yield f"{'folds a second':28} {run.per_s:.5g}"
    if run.beyond is not None:
        edges = f"{run.beyond.low:.5g} to {run.beyond.high:.5g}"
        yield f"{'  95% interval':28} {edges}, from {len(run.timeline.folds)} folds"
    speed_up = run.minibatches_per_s / alone.minibatches_per_s
    yield f"{f'speed-up over one {worker}':28} {speed_up:.4g}"
    reads = config.reads()
    for name, reads_of in reads.items():
        staleness = reads_of(run.timeline).staleness
        label = f"{name} staleness" if len(reads) > 1 else "staleness"
        yield f"{label:28} mean {staleness.mean():.3g}, largest {staleness.max()}"
    yield f"{'first pass':28} {run.folds[0]} folds, {run.ends_s[0]:.6g} s"
    passes = "all passes, at most" if len(reads) == 1 else "all passes"
    yield f"{passes:28} {config.passes} passes, {run.ends_s[-1]:.6g} s"


def _format_error_times(config: TaskConfig, finished: Run, predicted: Whole) -> Iterator[str]:
    """Lines with the simulated times of a run's errors, one per new best error."""
    metrics = finished.metrics
    for model in ("average", "iterate"):
        rows = metrics["name"] == f"{config.judged}/{model}"
        if not rows.any():
            continue
        yield f"{f'{config.metric} ({model})':28} {'after s':>12}"
        best = np.inf
        for error, fold in zip(metrics["value"][rows], metrics["fold"][rows], strict=True):
            if error < best:
                best = error
                yield f"{config.show(error):>28} {predicted.second_of(int(fold)):12.5g}"
        return


def _load_run_of_task(folder: Path, config: TaskConfig) -> Run:
    """Load a stored run of the same task.

    Raises:
        UserError: there is no run, or it is of another task.
    """
    run = load_finished_run(folder)
    if (kind := config_of(run, config).kind) != config.kind:
        raise UserError(f"{folder}: trains {kind}; allowed: a run that trains {config.kind}")
    return run

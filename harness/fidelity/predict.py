"""Prediction of a run's time on a cluster, by simulation without training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from harness.algorithms.diloco import EagerDiLoCo
from harness.base.errors import UserError
from harness.experiment.experiment import AnyExperiment
from harness.experiment.run import MOST_FOLDS, time_run
from harness.experiment.task import OwnLoop
from harness.simulator import Cluster
from harness.simulator.full_run import Whole


def prediction(
    config: AnyExperiment,
    pieces: Any,
    cluster: Cluster | None = None,
    workers: int | None = None,
    kept: float | None = None,
) -> Iterator[str]:
    """Predict throughput, speed-up, staleness from each read and time; yields lines.

    Args:
        config: configuration of the run.
        pieces: its training data, see `Problem.pieces`.
        cluster: cluster in place of the run's.
        workers: number of workers or replicas in place of the run's.
        kept: share of frames that decoders keep, in sequence training; None for the usual one.

    Raises:
        UserError: too many workers for the data, or a run that cannot be predicted.
    """
    config = config.with_cluster(cluster, workers)
    task, share = config.task, 1.0
    if isinstance(task, OwnLoop):
        share = task.share(kept)
        single, most = task.alone(config)
    else:
        if kept is not None:
            raise UserError(f"--kept {kept}: for sequence training; this run is none")
        single, most = _run_alone(config), MOST_FOLDS
    run, alone = time_run(config, pieces, share), time_run(single, pieces, share, most)
    yield from _lines(config, share, run, alone)


def _run_alone(config: AnyExperiment) -> AnyExperiment:
    """The same run with one healthy worker, to which the speed-up refers.

    A rate search costs time once a chunk, so a whole pass is timed.
    """
    healthy, algorithm = replace(config.cluster, faults=()), config.algorithm
    if isinstance(algorithm, EagerDiLoCo):  # the one with their number as a setting
        algorithm = replace(algorithm, workers=1)
    return replace(config, cluster=healthy, algorithm=algorithm, workers=1, passes=1)


def _describe_work(config: AnyExperiment) -> Mapping[str, str]:
    """The workload that time is charged for: values by label."""
    work = config.workload()
    rate = f"{work.flops_per_frame:.6g} operations an example"
    if work.operators:
        rate += f", {work.operators:.6g} operators, {work.moved_bytes:.6g} bytes moved"
    size = f"{work.parameter_bytes:.6g} bytes"
    text = f"minibatches of {work.minibatch_frames}, {rate}, {size}"
    return {"  time is charged for": text}


def _lines(config: AnyExperiment, share: float, run: Whole, alone: Whole) -> Iterator[str]:
    task, worker = config.task, config.task.worker
    yield f"{'cluster':28} {config.cluster.name}, {config.workers} {worker}s"
    yield f"{f'  {worker}s':28} machines of the cluster file, not processes here"
    has_loop = isinstance(task, OwnLoop)
    lines = task.describe(config, share) if has_loop else _describe_work(config)
    for label, value in lines.items():
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

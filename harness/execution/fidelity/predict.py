"""How long a run would take on a cluster: simulated, not trained."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from data_synth.corpus import Utterances
from harness.base.errors import UserError
from harness.execution.evaluation.lags import reads
from harness.execution.fidelity.replay import config_of, stored_run
from harness.execution.fidelity.whole import MOST_FOLDS, Whole, whole
from harness.execution.runs.config import RunConfig
from harness.execution.runs.sequence import SequenceConfig
from harness.simulator import Cluster, Sequence
from harness.store import Run

SAMPLE = 2000
"""Folds of a single replica, for the speed-up."""
Config = RunConfig | SequenceConfig


def prediction(
    config: Config,
    train: Utterances,
    cluster: Cluster | None = None,
    workers: int | None = None,
    target: Path | None = None,
    kept: float | None = None,
) -> Iterator[str]:
    """Lines that say throughput, speed-up, staleness from each read, and time.

    Args:
        config: of the run.
        train: the training utterances.
        cluster: in place of the run's.
        workers: in place of the run's workers or replicas.
        target: the folder of a finished run of these settings; its frame errors are given the
            times at which the cluster would reach them.
        kept: the share of frames that decoders keep, in sequence training; None for the
            target's, or the usual.

    Raises:
        UserError: no such run, too many workers for the data, or a run that cannot be predicted.
    """
    config = on_cluster(config, cluster, workers)
    finished = _finished(target, config) if target else None
    share = _share(config, finished, kept)
    # A search is paid once a chunk: a few folds of the first one would say too much of it.
    most = SAMPLE if isinstance(config, SequenceConfig) else MOST_FOLDS
    run, alone = whole(config, train, share), whole(_alone(config), train, share, most)
    yield from _shown(config, share, run, alone)
    if finished is not None:
        yield from _reached(finished, run)


def on_cluster(config: Config, cluster: Cluster | None, workers: int | None) -> Config:
    """The same on a cluster with so many workers; None leaves the run's own."""
    cluster = cluster or config.cluster
    if isinstance(config, SequenceConfig):
        return replace(config, cluster=cluster, replicas=workers or config.replicas)
    return replace(config, cluster=cluster, workers=workers or config.workers)


def _alone(config: Config) -> Config:
    """The same with one healthy worker, of which a sample says enough."""
    one = on_cluster(config, replace(config.cluster, faults=()), 1)
    return one if isinstance(one, SequenceConfig) else replace(one, passes=1)


def _shown(config: Config, share: float, run: Whole, alone: Whole) -> Iterator[str]:
    sequence = isinstance(config, SequenceConfig)
    worker, count = ("replica", config.replicas) if sequence else ("worker", config.workers)
    yield f"{'cluster':28} {config.cluster.name}, {count} {worker}s"
    yield f"{f'  {worker}s':28} machines of the cluster file, not processes here"
    yield f"{'  timed network':28} {_timed_network(config)}"
    if sequence:
        yield f"{'frames kept':28} {share:.3g} of all"
    yield f"{'folds a second':28} {run.per_s:.5g}"
    if run.beyond is not None:
        edges = f"{run.beyond.low:.5g} to {run.beyond.high:.5g}"
        yield f"{'  95% interval':28} {edges}, from {len(run.timeline.folds)} folds"
    speed_up = run.minibatches_per_s / alone.minibatches_per_s
    yield f"{f'speed-up over one {worker}':28} {speed_up:.4g}"
    for name, read in reads(config).items():
        staleness = read(run.timeline).staleness
        label = f"{name} staleness" if sequence else "staleness"
        yield f"{label:28} mean {staleness.mean():.3g}, largest {staleness.max()}"
    yield f"{'first pass':28} {run.folds[0]} folds, {run.ends_s[0]:.6g} s"
    passes = "all passes" if sequence else "all passes, at most"
    yield f"{passes:28} {config.passes} passes, {run.ends_s[-1]:.6g} s"


def _timed_network(config: Config) -> str:
    """Whose minibatches the cluster computes: often a larger network than the trained one."""
    hidden = (config.start if isinstance(config, SequenceConfig) else config).hidden
    timed = "-".join(map(str, config.timed_layers))
    if config.timed_layers[1:-1] == tuple(hidden):
        return f"{timed}, as trained"
    return f"{timed} (timed_layers); trained is hidden = {list(hidden)}"


def _reached(finished: Run, predicted: Whole) -> Iterator[str]:
    """Lines that say when a cluster would have had a run's errors."""
    metrics = finished.metrics
    for model in ("average", "iterate"):
        rows = metrics["name"] == f"dev_frame_error/{model}"
        if not rows.any():
            continue
        yield f"{f'frame error ({model})':28} {'after s':>12}"
        best = np.inf
        for error, fold in zip(metrics["value"][rows], metrics["fold"][rows], strict=True):
            if error < best:
                best = error
                yield f"{error:28.2%} {predicted.second_of(int(fold)):12.5g}"
        return


def _share(config: Config, finished: Run | None, kept: float | None) -> float:
    """Of all frames, those that enter minibatches.

    Raises:
        UserError: of the target's, nothing was kept.
    """
    if isinstance(config, RunConfig) or config.frames == "all":
        return 1.0
    if kept is not None:
        return kept
    if finished is None:
        return Sequence().kept
    found = float(finished.summary["kept_frames"])
    if not found > 0.0:
        raise UserError(f"{finished.dir}: kept no frame; give --kept")
    return found


def _finished(folder: Path, config: Config) -> Run:
    """A stored run of the same kind.

    Raises:
        UserError: there is none, or it is of another.
    """
    run, sequence = stored_run(folder), isinstance(config, SequenceConfig)
    if isinstance(config_of(run), SequenceConfig) != sequence:
        found = "no sequence training" if sequence else "a sequence training"
        raise UserError(f"{folder}: {found}; allowed: a run of such a file")
    return run

"""How long a sequence training would take on a cluster: simulated, not trained.

How much decoders keep follows from parameters, which nobody has before training: it is given, or
taken from a finished run. Lengths are drawn, with the mean and the spread of the corpus.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from data_synth.corpus import Utterances
from harness.errors import UserError
from harness.execution.fidelity.predict import SAMPLE, reached
from harness.execution.fidelity.replay import is_sequence, stored_run
from harness.execution.runs.sequence import SequenceConfig
from harness.execution.runs.sequence_file import SequenceFile
from harness.execution.training.setup import workload
from harness.simulator import Cluster, Sequence, Simulation, Timeline
from harness.simulator.protocols.sequence import outer_lag
from harness.store import Run


def foreseen_sequence(
    asked: SequenceFile,
    cluster: Cluster | None,
    replicas: int | None,
    target: Path | None,
    kept: float | None,
) -> Iterator[str]:
    """Lines that say throughput, speed-up, stalenesses and time.

    Args:
        asked: the run.
        cluster: in place of the run's.
        replicas: in place of the run's.
        target: the folder of a finished run of these settings; its frame errors are given the
            times at which the cluster would reach them.
        kept: the share of frames that decoders keep; None for the target's, or the usual.

    Raises:
        UserError: no such run, or frames are shuffled over whole passes.
    """
    config = replace(
        asked.config,
        cluster=cluster or asked.config.cluster,
        replicas=replicas or asked.config.replicas,
    )
    run = _sequence_run(target) if target else None
    train, share = asked.corpus.split("train"), _share(config, run, kept)
    timeline = foreseen_timeline(config, train, share)
    per_s = steady_rate(timeline)
    alone_per_s = steady_rate(foreseen_timeline(replace(config, replicas=1), train, share))
    folds = round(float(train.frames.sum()) * share / config.slots)
    inner = timeline.staleness()
    outer, _ = outer_lag(timeline, None if config.shuffling == "on the fly" else config.slots)
    first_s = float(timeline.folds.time_s[0])
    yield f"{'cluster':28} {config.cluster.name}, {config.replicas} replicas"
    yield f"{'frames kept':28} {share:.3g} of all"
    yield f"{'folds a second':28} {per_s:.5g}"
    yield f"{'speed-up over one replica':28} {per_s / alone_per_s:.4g}"
    yield f"{'inner staleness':28} mean {inner.mean():.3g}, largest {inner.max()}"
    yield f"{'outer staleness':28} mean {outer.mean():.3g}, largest {outer.max()}"
    yield f"{'first pass':28} {folds} folds, {first_s + folds / per_s:.5g} s"
    passes = config.passes
    yield f"{'all passes':28} {passes} passes, {first_s + passes * folds / per_s:.5g} s"
    if run is not None:
        yield from reached(run, per_s)


def foreseen_timeline(config: SequenceConfig, train: Utterances, kept: float) -> Timeline:
    """Some folds of a run that keeps the share ``kept`` of every utterance's frames.

    Raises:
        UserError: frames are shuffled over whole passes.
    """
    if config.shuffling == "full":
        raise UserError("shuffling: 'full' cannot be predicted; allowed: none, on the fly")
    lengths = np.asarray(train.frames, np.float64)
    protocol = Sequence(
        slots=config.slots,
        frames=float(lengths.mean()),
        frames_cv=float(lengths.std() / lengths.mean()),
        kept=kept,
        decode_cost=config.decode_cost,
        fetch_s=config.fetch_s,
        waiting=config.waiting,
        shards=config.shards,
        shuffled=config.shuffling == "on the fly",
    )
    simulation = Simulation(
        config.cluster, protocol, workload(config), workers=config.replicas, seed=config.seed
    )
    return simulation.advance(folds=SAMPLE)


def steady_rate(timeline: Timeline) -> float:
    """Folds a second in the second half: until slots are filled, there are fewer."""
    times = timeline.folds.time_s
    half = len(times) // 2
    passed_s = float(times[-1] - times[half - 1])
    return (len(times) - half) / passed_s if passed_s > 0.0 else float("inf")


def _share(config: SequenceConfig, run: Run | None, kept: float | None) -> float:
    """Of all frames, those that enter minibatches.

    Raises:
        UserError: of the target's, nothing was kept.
    """
    if config.frames == "all":
        return 1.0
    if kept is not None:
        return kept
    if run is None:
        return Sequence().kept
    found = float(run.summary["kept_frames"])
    if not found > 0.0:
        raise UserError(f"{run.dir}: kept no frame; give --kept")
    return found


def _sequence_run(folder: Path) -> Run:
    run = stored_run(folder)
    if not is_sequence(run):
        raise UserError(f"{folder}: no sequence training; allowed: a run of such a file")
    return run

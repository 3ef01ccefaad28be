"""How long a sequence training would take on a cluster: simulated, not trained.

Which frames decoders keep follows from parameters, which nobody has before training: how many is
given, or taken from a finished run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

import numpy as np

from data_synth.corpus import Utterances
from harness.errors import UserError
from harness.execution.fidelity.predict import MOST_FOLDS, SAMPLE, Whole, reached
from harness.execution.fidelity.replay import is_sequence, stored_run
from harness.execution.runs.file import RunFile
from harness.execution.runs.sequence import SequenceConfig
from harness.simulator import Cluster, Sequence, Timeline, concat
from harness.simulator.protocols.sequence import outer_lag
from harness.store import Run

WITHOUT_LIMIT = 10**9
KeptOf = Callable[[int], int]
"""How many frames of an utterance, by its number, enter minibatches."""


def sequence_prediction(
    asked: RunFile[SequenceConfig],
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
    if config.shuffling == "full":
        raise UserError("shuffling: 'full' cannot be predicted; allowed: none, on the fly")
    run = _sequence_run(target) if target else None
    train, share = asked.corpus.split("train"), _share(config, run, kept)
    kept_of = sharing(train, share)
    timeline = simulated(config, train, kept_of)
    per_s = steady_rate(timeline)
    alone_per_s = steady_rate(simulated(replace(config, replicas=1), train, kept_of, most=SAMPLE))
    inner = timeline.staleness()
    outer, _ = outer_lag(timeline, None if config.shuffling == "on the fly" else config.slots)
    whole = _whole(config, train, share, timeline)
    yield f"{'cluster':28} {config.cluster.name}, {config.replicas} replicas"
    yield f"{'frames kept':28} {share:.3g} of all"
    yield f"{'folds a second':28} {per_s:.5g}"
    yield f"{'speed-up over one replica':28} {per_s / alone_per_s:.4g}"
    yield f"{'inner staleness':28} mean {inner.mean():.3g}, largest {inner.max()}"
    yield f"{'outer staleness':28} mean {outer.mean():.3g}, largest {outer.max()}"
    yield f"{'first pass':28} {whole.folds[0]} folds, {whole.ends_s[0]:.6g} s"
    yield f"{'all passes':28} {config.passes} passes, {whole.ends_s[-1]:.6g} s"
    if run is not None:
        yield from reached(run, whole)


def sharing(train: Utterances, share: float) -> KeptOf:
    """The share ``share`` of every utterance's frames is kept, whole frames only."""
    counts = np.rint(share * train.frames).astype(np.int64)
    return lambda utterance: int(counts[utterance])


def as_told(kept: Iterator[tuple[int, int]]) -> KeptOf:
    """As many frames are kept as were in a real run: (utterance, frames), oldest first."""
    queues: dict[int, deque[int]] = {}
    for utterance, frames in kept:
        queues.setdefault(utterance, deque()).append(frames)
    return lambda utterance: queues[utterance].popleft()


def simulated(
    config: SequenceConfig,
    train: Utterances,
    kept_of: KeptOf,
    cluster: Cluster | None = None,
    most: int = MOST_FOLDS,
) -> Timeline:
    """The timeline of a run whose decoders keep so many frames of every utterance.

    Args:
        config: of the run.
        train: the training utterances.
        kept_of: asked once for each utterance that is decoded, in the order of decoding.
        cluster: in place of the run's own.
        most: folds after which it ends, if the run is longer.
    """
    simulation, order = config.simulation(train, cluster), config.orders(train)
    segments: list[Timeline] = []
    while True:
        segments.append(simulation.advance(folds=WITHOUT_LIMIT))
        begun = simulation.untold()
        if not len(begun.worker) or simulation.version >= most:
            return concat(segments)
        utterances = order[begun.worker, begun.number].tolist()
        simulation.tell(begun.worker, np.array([kept_of(u) for u in utterances]))


def steady_rate(timeline: Timeline) -> float:
    """Folds a second in the middle half: while slots are filled and emptied, there are fewer."""
    times = timeline.folds.time_s
    quarter = len(times) // 4
    first, last = quarter, len(times) - 1 - quarter
    passed_s = float(times[last] - times[first])
    return (last - first) / passed_s if passed_s > 0.0 else float("inf")


def _whole(config: SequenceConfig, train: Utterances, share: float, known: Timeline) -> Whole:
    """The run from its beginning to its end; a pass ends with its share of the folds."""
    folds = len(known.folds)
    if folds >= MOST_FOLDS:
        folds = round(config.passes * float(train.frames.sum()) * share / config.slots)
    each = tuple(np.diff(np.linspace(0, folds, config.passes + 1).round().astype(int)).tolist())
    run = Whole(known, each, ())
    return replace(run, ends_s=tuple(run.second_of(done) for done in accumulate(each)))


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

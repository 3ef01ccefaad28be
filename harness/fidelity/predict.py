"""The time that a run would take on a cluster: simulated, not trained.

How long a run would take on a cluster: simulated, not trained.

A run from its beginning to its end in simulated time, without training it. Which frames the
decoders of a sequence training keep follows from parameters, which nobody has before training: how
many they keep is given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as abc_Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path

import numpy as np

from data_synth.corpus import Utterances
from harness.base.errors import UserError
from harness.fidelity.replay import config_of, stored_run
from harness.runs.config import SEARCH, Boundaries
from harness.runs.executed import reads
from harness.simulator import Cluster, Sequence, Simulation, Timeline, concat
from harness.simulator.steady import Estimate, settled
from harness.speech.frames import RunConfig
from harness.speech.sequence import SequenceConfig
from harness.store import Run
from harness.tasks.order import Laid

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


MOST_FOLDS = 200_000
"""Folds that are simulated; a longer run goes on at the rate that it has after its start."""

WITHOUT_LIMIT = 10**9

KeptOf = Callable[[int], int]
"""How many frames of an utterance, by its number, enter minibatches."""


@dataclass(frozen=True)
class Whole:
    """A run from its beginning to its end, in simulated time.

    Attributes:
        timeline: of the folds that were simulated: all, or the first ones of a long run.
        per_s: folds a second; of a long run, without its start.
        folds: of every pass.
        ends_s: when each pass ends; beyond the simulated folds, at their rate.
        beyond: of a long run, the rate with its 95% interval; None if all was simulated.
    """

    timeline: Timeline
    per_s: float
    folds: tuple[int, ...]
    ends_s: tuple[float, ...]
    beyond: Estimate | None = None

    @classmethod
    def of(
        cls,
        timeline: Timeline,
        per_s: float,
        folds: abc_Sequence[int],
        ends_s: abc_Sequence[float] = (),
    ) -> Whole:
        """A run of which the ends of the first passes are known, or of none."""
        known = cls(timeline, per_s, tuple(folds), tuple(ends_s))
        if sum(folds) > len(timeline.folds) > 1:
            rate = settled(timeline)[1]
            known = replace(known, per_s=rate.value, beyond=rate)
        rest = list(accumulate(folds))[len(ends_s) :]
        return replace(known, ends_s=(*ends_s, *map(known.second_of, rest)))

    @property
    def minibatches_per_s(self) -> float:
        """Minibatches a second that have entered folds."""
        steps = int(self.timeline.folded().steps.sum())
        return self.per_s * steps / len(self.timeline.folds)

    def second_of(self, fold: int) -> float:
        """When so many folds are done."""
        times = self.timeline.folds.time_s
        if fold <= len(times):
            return float(times[fold - 1]) if fold else 0.0
        return float(times[-1]) + (fold - len(times)) / self.per_s


def whole(
    config: RunConfig | SequenceConfig,
    train: Utterances,
    kept: float = 1.0,
    most: int = MOST_FOLDS,
) -> Whole:
    """A run that trains every pass, timed as its executor times it.

    Args:
        config: of the run.
        train: the training utterances.
        kept: the share of frames that enters minibatches, in sequence training.
        most: folds that are simulated.

    Raises:
        UserError: too many workers for the data, or a run that cannot be predicted.
    """
    if isinstance(config, SequenceConfig):
        return _of_sequences(config, train, kept, most)
    return _of_frames(config, train, most)


def _of_frames(config: RunConfig, train: Utterances, most: int) -> Whole:
    simulation = config.simulation(train)
    happened: list[Timeline] = []
    folds: list[int] = []
    ends_s: list[float] = []
    for stage in range(config.passes):
        order = config.order(stage, train)
        folds.append(order.folds)
        if simulation.version < most:
            happened += _stage(config, simulation, order, stage, most)
        if simulation.version == sum(folds):
            ends_s.append(simulation.now_s)
    timeline = concat(happened)
    return Whole.of(timeline, overall_rate(timeline), folds, ends_s)


def _stage(
    config: RunConfig, simulation: Simulation, order: Laid, stage: int, most: int
) -> Iterator[Timeline]:
    """The segments of one stage, cut as training cuts them, until there are ``most`` folds."""
    config.begin_stage(simulation, stage, order)
    boundaries = Boundaries(config, order, stage)
    for asked in boundaries.segments():
        left = order.folds - asked.begins
        if boundaries.is_chunk(asked.begins) and (
            search_s := config.search_s(stage, boundaries.chunk_steps, left)
        ):
            yield simulation.pause(search_s, SEARCH)
        if (rest := most - simulation.version) < asked.folds:
            yield simulation.advance(folds=rest)
            return
        yield simulation.advance(
            folds=asked.folds, drain=asked.drain, handing_out=asked.handing_out
        )


def _of_sequences(config: SequenceConfig, train: Utterances, kept: float, most: int) -> Whole:
    """A pass ends with its share of the folds.

    Raises:
        UserError: frames are shuffled over whole passes, or there are no folds.
    """
    if config.shuffling == "full":
        raise UserError("shuffling: 'full' cannot be predicted; allowed: none, on the fly")
    if not config.passes:
        raise UserError("passes: 0 trains nothing; allowed: at least 1")
    timeline = decoded(config, train, sharing(train, kept), most=most)
    folds = len(timeline.folds)
    if not folds:
        raise UserError(f"frames kept: {kept:.3g} of all fill no minibatch")
    if folds >= most:
        folds = round(config.passes * float(train.frames.sum()) * kept / config.slots)
    each = np.diff(np.linspace(0, folds, config.passes + 1).round().astype(int))
    return Whole.of(timeline, steady_rate(timeline), each.tolist())


def sharing(train: Utterances, share: float) -> KeptOf:
    """The share ``share`` of every utterance's frames is kept, whole frames only."""
    counts = np.rint(share * train.frames).astype(np.int64)
    return lambda utterance: int(counts[utterance])


def decoded(
    config: SequenceConfig,
    train: Utterances,
    kept_of: KeptOf,
    cluster: Cluster | None = None,
    most: int = WITHOUT_LIMIT,
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


def overall_rate(timeline: Timeline) -> float:
    """Folds a second, pauses included."""
    return _rate(len(timeline.folds), float(timeline.folds.time_s[-1]))


def steady_rate(timeline: Timeline) -> float:
    """Folds a second in the middle half: while slots are filled and emptied, there are fewer."""
    times = timeline.folds.time_s
    quarter = len(times) // 4
    first, last = quarter, len(times) - 1 - quarter
    return _rate(last - first, float(times[last] - times[first]))


def _rate(folds: int, seconds: float) -> float:
    return folds / seconds if seconds > 0.0 else float("inf")

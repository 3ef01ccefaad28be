"""Prediction of a run's time on a cluster, by simulation without training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from harness.algorithms.diloco import EagerDiLoCo
from harness.experiment.experiment import AnyExperiment
from harness.experiment.folds import SEARCH, Boundaries
from harness.experiment.task import Pieces
from harness.simulator.simulation import Simulation
from harness.simulator.steady import Estimate, steady_estimate
from harness.simulator.timeline import Timeline, concat
from harness.tasks.order import Laid


@dataclass(frozen=True)
class Whole:
    """A whole run in simulated time.

    Attributes:
        timeline: of the folds that were simulated: all, or the first ones of a long run.
        per_s: folds per second; of a long run, without its start.
        folds: number of folds of every pass.
        ends_s: end of each pass; beyond the simulated folds, at their rate.
        beyond: of a long run, the rate with its 95% interval; None if all was simulated.
    """

    timeline: Timeline
    per_s: float
    folds: tuple[int, ...]
    ends_s: tuple[float, ...]
    beyond: Estimate | None = None

    @classmethod
    def from_timeline(
        cls, timeline: Timeline, per_s: float, folds: Sequence[int], ends_s: Sequence[float] = ()
    ) -> Whole:
        """A run from its timeline; ``ends_s`` has the known ends of the first passes, if any."""
        run = cls(timeline, per_s, tuple(folds), tuple(ends_s))
        if sum(folds) > len(timeline.folds) > 1:  # not all folds were simulated
            rate = steady_estimate(timeline)[1]
            run = replace(run, per_s=rate.value, beyond=rate)
        ends = list(accumulate(folds))[len(ends_s) :]
        return replace(run, ends_s=(*ends_s, *map(run.second_of, ends)))

    @property
    def minibatches_per_s(self) -> float:
        """Minibatches per second that have entered folds which no restart undid."""
        steps = int(self.timeline.kept().steps.sum())
        return self.per_s * steps / len(self.timeline.folds)

    def second_of(self, fold: int) -> float:
        """Instant of the fold with this number, counted from 1; 0 for none."""
        times = self.timeline.folds.time_s
        if fold <= len(times):
            return float(times[fold - 1]) if fold else 0.0
        return float(times[-1]) + (fold - len(times)) / self.per_s


def overall_rate(timeline: Timeline) -> float:
    """Folds per second, pauses included."""
    seconds = float(timeline.folds.time_s[-1])
    return len(timeline.folds) / seconds if seconds > 0.0 else float("inf")


MOST_FOLDS = 200_000
"""Folds that are simulated; a longer run is extrapolated at its rate after the start."""


def prediction(
    config: AnyExperiment,
    pieces: Any,
) -> Iterator[str]:
    """Predict throughput, speed-up, staleness and time; yields lines.

    Args:
        config: configuration of the run.
        pieces: its training data, see `Problem.pieces`.

    Raises:
        UserError: too many workers for the data.
    """
    run, alone = time_passes(config, pieces), time_passes(_run_alone(config), pieces)
    yield from _lines(config, run, alone)


def _run_alone(config: AnyExperiment) -> AnyExperiment:
    """The same run with one healthy worker, to which the speed-up refers.

    A rate search costs time once a chunk, so a whole pass is timed.
    """
    healthy, algorithm = replace(config.cluster, faults=()), config.algorithm
    if isinstance(algorithm, EagerDiLoCo):  # the one with their number as a setting
        algorithm = replace(algorithm, workers=1)
    return replace(config, cluster=healthy, algorithm=algorithm, workers=1, passes=1)


def _describe_work(config: AnyExperiment) -> str:
    """The workload that time is charged for."""
    work = config.workload()
    rate = f"{work.flops_per_frame:.6g} operations an example"
    if work.operators:
        rate += f", {work.operators:.6g} operators, {work.moved_bytes:.6g} bytes moved"
    size = f"{work.parameter_bytes:.6g} bytes"
    return f"minibatches of {work.minibatch_frames}, {rate}, {size}"


def _lines(config: AnyExperiment, run: Whole, alone: Whole) -> Iterator[str]:
    worker = config.task.worker
    yield f"{'cluster':28} {config.cluster.name}, {config.workers} {worker}s"
    yield f"{f'  {worker}s':28} machines of the cluster file, not processes here"
    yield f"{'  time is charged for':28} {_describe_work(config)}"
    yield f"{'folds a second':28} {run.per_s:.5g}"
    if run.beyond is not None:
        edges = f"{run.beyond.low:.5g} to {run.beyond.high:.5g}"
        yield f"{'  95% interval':28} {edges}, from {len(run.timeline.folds)} folds"
    if undone := len(run.timeline.folded()) - len(run.timeline.kept()):
        share = undone / len(run.timeline.folded())
        yield f"{'undone by restarts':28} {share:.1%} of the folds, which use up passes"
    speed_up = run.minibatches_per_s / alone.minibatches_per_s
    yield f"{f'speed-up over one {worker}':28} {speed_up:.4g}"
    staleness = run.timeline.staleness()
    yield f"{'staleness':28} mean {staleness.mean():.3g}, largest {staleness.max()}"
    yield f"{'first pass':28} {run.folds[0]} folds, {run.ends_s[0]:.6g} s"
    yield f"{'all passes, at most':28} {config.passes} passes, {run.ends_s[-1]:.6g} s"


def time_passes(config: AnyExperiment, pieces: Pieces, most: int = MOST_FOLDS) -> Whole:
    """Time a run over all its passes, with the segments that its executor would simulate.

    Args:
        config: configuration of the run.
        pieces: its training data.
        most: largest number of folds that are simulated.

    Raises:
        UserError: too many workers for the data.
    """
    simulation = config.new_simulation(config.timed)
    happened: list[Timeline] = []
    folds: list[int] = []
    ends_s: list[float] = []
    for stage in range(config.passes):
        order = config.order(stage, pieces)
        folds.append(order.folds)
        if simulation.version < most:
            happened += _stage(config, simulation, order, stage, most)
        # Else the simulation has ended amid a stage, and later times are extrapolated.
        if simulation.version == sum(folds):
            ends_s.append(simulation.now_s)
    timeline = concat(happened)
    return Whole.from_timeline(timeline, overall_rate(timeline), folds, ends_s)


def _stage(
    config: AnyExperiment, simulation: Simulation, order: Laid, stage: int, most: int
) -> Iterator[Timeline]:
    """Simulate the segments of one stage, cut as in training, until there are ``most`` folds."""
    config.begin_stage(simulation, stage, order)
    boundaries = Boundaries(config, order, stage)
    for segment in boundaries.segments():
        # In the order of `FoldTraining.step`: a search pauses the cluster, then come folds.
        steps_left = order.folds - segment.begins
        if boundaries.is_chunk(segment.begins) and (
            search_s := config.search_s(stage, boundaries.chunk_steps, steps_left)
        ):
            yield simulation.pause(search_s, SEARCH)
        if (room := most - simulation.version) < segment.folds:
            yield simulation.advance(folds=room)
            return
        yield simulation.advance(
            folds=segment.folds,
            drain=segment.handing_out is None,
            handing_out=segment.handing_out,
        )

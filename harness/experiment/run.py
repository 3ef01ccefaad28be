"""Training by folds as an application: runs, replays and timing, for any task."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar, cast

from torch import Tensor

from harness.experiment.contract import EXECUTED, Application, Task, TaskConfig, Watch
from harness.experiment.executors import SimulationExecutor, TimelineExecutor
from harness.experiment.experiment import SEARCH, Boundaries, Pieces, TrainingConfig
from harness.experiment.folds import FrameTraining
from harness.experiment.loop import FrameExecutor, carry_out
from harness.experiment.order import Laid, Minibatches
from harness.simulator import Simulation, Timeline, concat
from harness.simulator.full_run import Whole, overall_rate
from harness.simulator.timeline_file import load_timeline
from harness.store import Run, RunWriter, Store
from harness.store.schema import TIMELINE

MOST_FOLDS = 200_000
"""Folds that are simulated; a longer run is extrapolated at its rate after the start."""

Config = TypeVar("Config", bound=TrainingConfig[Any])
Data = TypeVar("Data")

ExecutedBy = Callable[[Any, Any, Tensor, Minibatches], FrameExecutor]
"""Makes an executor from a configuration, its data, initial parameters ``[P]`` and minibatches."""


class FoldApplication(Application[Config, Data]):
    """An application whose runs train by folds; subclasses open its tasks."""

    @abstractmethod
    def open(self, config: Config, data: Data, store: Store, writer: RunWriter) -> Task:
        """Open the task of a run: network, minibatches and measures.

        Args:
            config: configuration of the run.
            data: its data.
            store: the store of other runs that this one needs.
            writer: writer of the run.
        """

    @abstractmethod
    def computing(self, config: Config) -> AbstractContextManager[None]:
        """Set up the process for computing a run: threads, rounding, random generators."""

    def execute(self, config: Config, store: Store, watch: Watch) -> Run:
        """See `Configuration`."""
        return train(config, self.load(config, lambda line: None), store, watch)

    def replay(self, config: Config, data: Data, run: Run, store: Store, watch: Watch) -> Run:
        """See `Application`."""
        made = partial(TimelineExecutor, timeline=load_timeline(run.path(TIMELINE)))
        return train(config, data, store, watch, made, {"by": "a record"})

    def pieces(self, config: Config, data: Data) -> Pieces:
        """See `Application`."""
        return config.pieces(data)

    def time(self, config: Config, pieces: Any, share: float, most: int) -> Whole:
        """See `Application`; stage by stage, with what searches cost."""
        del share
        return time_passes(config, pieces, most)

    def time_again(self, config: Config, pieces: Any, run: Run, timeline: Timeline) -> Timeline:
        """See `Application`."""
        del run
        return time_passes(config, pieces, len(timeline.folds)).timeline

    def sampled(self, config: Config) -> tuple[Config, int]:
        """See `Application`; a rate search costs time once a chunk, so a whole pass is timed."""
        alone, healthy = config.algorithm.with_workers(1), replace(config.cluster, faults=())
        return replace(config, cluster=healthy, algorithm=alone, workers=1, passes=1), MOST_FOLDS


def train(
    config: TrainingConfig[Data],
    data: Data,
    store: Store,
    watch: Watch,
    executed_by: ExecutedBy = SimulationExecutor,
    how: Mapping[str, object] | None = None,
) -> Run:
    """Load the finished run of a configuration from the store, or train or resume it.

    Args:
        config: configuration of the run.
        data: its training data.
        store: the store of the run.
        watch: receives progress.
        executed_by: makes the executor, by default a simulated cluster.
        how: the part of the identity that names another executor; None for a simulated cluster.

    Raises:
        UserError: this machine cannot compute as the configuration asks.
    """
    application = cast("FoldApplication[Any, Any]", config.application)

    def execute(writer: RunWriter) -> None:
        made = partial(executed_by, config, data)
        task = application.open(config, data, store, writer)
        carry_out(FrameTraining(writer, config, task, watch, made))

    with application.computing(config):
        return store.obtain(identity_config(config, how), execute)


def identity_config(config: TaskConfig, how: Mapping[str, object] | None = None) -> dict[str, Any]:
    """The values that a run's identity hashes; ``how`` is None on a simulated cluster."""
    return config.to_dict() | ({EXECUTED: dict(how)} if how else {})


def time_passes(config: TrainingConfig[Any], pieces: Pieces, most: int = MOST_FOLDS) -> Whole:
    """Time a run over all its passes, with the segments that its executor would simulate.

    Args:
        config: configuration of the run.
        pieces: its training data.
        most: largest number of folds that are simulated.

    Raises:
        UserError: too many workers for the data.
    """
    simulation = config.simulation(pieces)
    happened: list[Timeline] = []
    folds: list[int] = []
    ends_s: list[float] = []
    for stage in range(config.passes):
        order = config.order(stage, pieces)
        folds.append(order.folds)
        if simulation.version < most:
            happened += _stage(config, simulation, order, stage, most)
        if simulation.version == sum(folds):
            ends_s.append(simulation.now_s)
    timeline = concat(happened)
    return Whole.from_timeline(timeline, overall_rate(timeline), folds, ends_s)


def _stage(
    config: TrainingConfig[Any], simulation: Simulation, order: Laid, stage: int, most: int
) -> Iterator[Timeline]:
    """Simulate the segments of one stage, cut as in training, until there are ``most`` folds."""
    config.begin_stage(simulation, stage, order)
    boundaries = Boundaries(config, order, stage)
    for asked in boundaries.segments():
        # In the order of `FrameTraining._advance`: a search pauses the cluster, then come folds.
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

"""Running an experiment: `run` loads its finished run from the store, trains or resumes it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

from harness.base import reads
from harness.base.errors import UserError
from harness.base.seeds import identity
from harness.base.settings import check_device
from harness.experiment.cluster_notes import load_bundled
from harness.experiment.contract import EXECUTED, Configuration, Watch, ignore
from harness.experiment.executors import SimulationExecutor
from harness.experiment.experiment import AnyExperiment, Experiment
from harness.experiment.folds import SEARCH, Boundaries, FoldTraining
from harness.experiment.full_run import Whole, overall_rate
from harness.experiment.task import OwnLoop, Pieces
from harness.simulator import Simulation, Timeline, concat
from harness.store import AlreadyFinished, Run, Store
from harness.tasks.order import Laid

Execution = Mapping[str, object] | None
"""The part of an identity that names another executor; None for a simulated cluster."""

MOST_FOLDS = 200_000
"""Folds that are simulated; a longer run is extrapolated at its rate after the start."""


def resolve(choice: str, name: str = "--device") -> str:
    """The device, ``"cpu"`` or ``"cuda"``, for ``--device auto|cpu|cuda``.

    Args:
        choice: the device.
        name: option or argument, for the message.

    Raises:
        UserError: an unknown choice, or CUDA where PyTorch sees none.
    """
    check_device(choice, name)
    import torch

    available = torch.cuda.is_available()
    if choice == "cuda" and not available:
        reason = "cuda asked for, but PyTorch sees no CUDA device"
        raise UserError(f"{name}: {reason}; allowed here: cpu")
    return choice if choice != "auto" else ("cuda" if available else "cpu")


def run(
    config: Configuration,
    store: Store,
    watch: Watch = ignore,
    executed_by: Any = None,
    execution: Execution = None,
    *,
    alone: bool = True,
) -> Run:
    """Load the finished run of a configuration from the store, or execute or resume it.

    Args:
        config: an experiment, or another computation that the store keeps.
        store: the store of the run.
        watch: receives progress.
        executed_by: makes an experiment's executor; None for that of a simulated cluster.
        execution: names another executor in the run's identity.
        alone: whether no other thread uses the run's tensors.

    Raises:
        UserError: bad input, or this machine cannot compute as the experiment asks.
    """
    if not isinstance(config, Experiment):
        return cast(Any, config).execute(store, watch)
    experiment = cast(AnyExperiment, config)
    task = experiment.task
    with nullcontext() if execution else _note_unread_keys(experiment):
        try:
            with store.begin(identity_config(experiment, execution)) as writer:
                problem = task.open(experiment, store, watch)
                with problem.computing(alone=alone):
                    if isinstance(task, OwnLoop):
                        task.train(writer, experiment, problem, watch)
                    else:
                        executed_by = executed_by or SimulationExecutor
                        FoldTraining(writer, experiment, problem, watch, executed_by).run()
        except AlreadyFinished as finished:
            return finished.run
        return store.load(writer.hash)


def _note_unread_keys(config: AnyExperiment) -> AbstractContextManager[object]:
    """Within it, keys of a training that nothing reads are written beside its run."""
    watched = reads.Reads(config, load_bundled(config.cluster.name), identity(config.to_dict()))
    work = config.cluster.workload
    if work is not None and work.minibatch_flops == config.workload().minibatch_flops:
        watched.use(work)  # where the run was configured
    return reads.watch(watched)


def identity_config(config: AnyExperiment, execution: Execution = None) -> dict[str, Any]:
    """The values that a run's identity hashes; ``execution`` is None on a simulated cluster."""
    return config.to_dict() | ({EXECUTED: dict(execution)} if execution else {})


def time_passes(config: AnyExperiment, pieces: Pieces, most: int = MOST_FOLDS) -> Whole:
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
            folds=segment.folds, drain=segment.drain, handing_out=segment.handing_out
        )

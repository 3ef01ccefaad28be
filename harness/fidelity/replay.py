"""Replay of a stored run from its own timeline, and comparison of the parameters."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from harness.base.errors import UserError
from harness.base.registry import load_plugins
from harness.experiment.contract import EXECUTED, OPTIMIZED, Progress, Watch
from harness.experiment.experiment import AnyExperiment
from harness.experiment.loop import TimelineExecutor
from harness.experiment.run import run as execute
from harness.experiment.run_file import load_run, restore
from harness.experiment.task import OwnLoop, one_thread
from harness.simulator.timeline_file import load_timeline
from harness.store import Run, Store, folder_of_run
from harness.store.schema import TIMELINE


@dataclass(frozen=True)
class ReplayResult:
    """Result of a replay.

    Args:
        folds, parameters: numbers of folds and of parameters.
        recorded_sha256, replayed_sha256: digests of the final parameters.
        largest_difference: largest absolute difference of the parameters.
    """

    folds: int
    parameters: int
    recorded_sha256: str
    replayed_sha256: str
    largest_difference: float


def load_finished_run(folder: Path) -> Run:
    """Load the finished run in a folder of a store.

    Raises:
        UserError: there is no finished run.
    """
    run = Store(folder_of_run(folder).resolve().parent).load(folder.resolve().name)
    if run.status != "done":
        raise UserError(f"{folder}: {run.status}; allowed: a finished run")
    return run


def config_of(run: Run, named: AnyExperiment | None = None) -> AnyExperiment:
    """Restore the configuration of a stored training run, without importing what it names.

    Args:
        run: the run.
        named: configuration of the run file that the user names, for a run with code of a user.

    Raises:
        UserError: it is no training run of this program, or of other code.
    """
    for group in ("algorithms", "protocols"):
        load_plugins(group)
    table = {k: v for k, v in run.config.items() if k not in (EXECUTED, OPTIMIZED)}
    where = f"{run.dir}/config.json"
    return restore(run, table, where, named)


def named_config(file: Path | None) -> AnyExperiment | None:
    """Configuration of the run file that the user names, whose code is imported."""
    return None if file is None else load_run(file)


def replay_run(folder: Path, say: Callable[[str], None], file: Path | None = None) -> ReplayResult:
    """Execute a stored run again in its recorded order, and compare the parameters.

    Args:
        folder: folder of the run.
        say: receives progress.
        file: run file that it was trained from, for a run with code of a user.

    Raises:
        UserError: no such run, its corpus or timeline is missing, or its code is not the file's.
    """
    run = load_finished_run(folder)
    theirs = torch.as_tensor(run.model)
    folds = len(load_timeline(run.path(TIMELINE)).folds)
    with one_thread(), TemporaryDirectory() as scratch:  # as in a run
        ours = torch.as_tensor(_replay_into(run, Store(scratch), say, file).model)
    difference = (ours - theirs).abs().max().item()
    return ReplayResult(folds, len(ours), _sha256(theirs), _sha256(ours), difference)


def _replay_into(run: Run, store: Store, say: Callable[[str], None], file: Path | None) -> Run:
    def watch(progress: Progress) -> None:
        say(f"{progress.done:.1f} of {progress.passes:g} {progress.unit}, {progress.measured}")

    return execute_again(config_of(run, named_config(file)), run, store, watch)


def execute_again(config: AnyExperiment, run: Run, store: Store, watch: Watch) -> Run:
    """Execute a recorded run again on one device, in its recorded order.

    Raises:
        UserError: a timeline does not determine runs of its task.
    """
    refuse_own_loop(run, config)
    executor = partial(TimelineExecutor, timeline=load_timeline(run.path(TIMELINE)))
    return execute(config, store, watch, executor, {"by": "a record"})


def refuse_own_loop(run: Run, config: AnyExperiment) -> AnyExperiment:
    """The configuration, of a task whose folds a timeline determines.

    Raises:
        UserError: it is another task.
    """
    if isinstance(config.task, OwnLoop):
        raise UserError(f"{run.dir}: a run of {config.kind} has no record to replay")
    return config


def _sha256(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.contiguous().numpy().tobytes()).hexdigest()

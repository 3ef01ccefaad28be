"""A stored run executed again from its own record, and its parameters compared."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors.torch import load_file  # pyright: ignore[reportUnknownVariableType]

from harness.base.errors import UserError
from harness.base.settings import build
from harness.runs.executed import Progress
from harness.runs.file import spec_of
from harness.simulator.timeline_file import load_timeline
from harness.speech.frames import RunConfig, corpus_of
from harness.speech.recorded import replay
from harness.speech.sequence import SequenceConfig
from harness.speech.task import EXECUTED, train
from harness.store import Run, Store, folder_of_run
from harness.store.schema import MODEL, TIMELINE
from harness.training.executors import Recorded


@dataclass(frozen=True)
class Replayed:
    """What a replay gave.

    Args:
        folds, parameters: how many.
        recorded_sha256, replayed_sha256: of the final parameters.
        largest_difference: between the two, absolute.
    """

    folds: int
    parameters: int
    recorded_sha256: str
    replayed_sha256: str
    largest_difference: float


def stored_run(folder: Path) -> Run:
    """The finished run in a folder of a store.

    Raises:
        UserError: there is none.
    """
    run = Store(folder_of_run(folder).resolve().parent).load(folder.resolve().name)
    if run.status != "done":
        raise UserError(f"{folder}: {run.status}; allowed: a finished run")
    return run


def config_of(run: Run) -> RunConfig | SequenceConfig:
    """The configuration of a stored training run.

    Raises:
        UserError: it is no training run of this program.
    """
    table: Mapping[str, Any] = {k: v for k, v in run.config.items() if k != EXECUTED}
    where = f"{run.dir}/config.json"
    return build(spec_of(table, where), table, where)


def replayed(folder: Path, say: Callable[[str], None]) -> Replayed:
    """Execute a stored run again in its recorded order.

    Raises:
        UserError: no such run, or its corpus or timeline is missing.
    """
    run = stored_run(folder)
    theirs = load_file(run.path(MODEL))["model"]
    folds = len(load_timeline(run.path(TIMELINE)).folds)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with TemporaryDirectory() as scratch:
            ours = load_file(_again(run, Store(scratch), say).path(MODEL))["model"]
    finally:
        torch.set_num_threads(threads)
    difference = (ours - theirs).abs().max().item()
    return Replayed(folds, len(ours), _sha256(theirs), _sha256(ours), difference)


def _again(run: Run, store: Store, say: Callable[[str], None]) -> Run:
    config, watch = config_of(run), partial(_tell, say)
    corpus = corpus_of(config, say)
    if isinstance(config, SequenceConfig):
        return replay(config, corpus, run, store, watch)
    made = partial(Recorded, timeline=load_timeline(run.path(TIMELINE)))
    return train(config, corpus, store, watch, made, {"by": "a record"})


def _tell(say: Callable[[str], None], progress: Progress) -> None:
    say(f"{progress.done:.1f} of {progress.passes:g} passes, {progress.frame_error:.1%} wrong")


def _sha256(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.contiguous().numpy().tobytes()).hexdigest()

"""Runs that are killed amid training, and the same command again."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from harness.experiment import loop
from harness.experiment.contract import Progress, Watch
from harness.experiment.folds import FoldTraining
from harness.experiment.run import run as execute
from harness.store import Run, Store
from harness.store.schema import MODEL, TEST_ERRORS
from tests.silence import silent

FILES = ("run.json", "metrics.parquet", "timeline.parquet", MODEL)
KEPT = (*FILES, TEST_ERRORS)
"""Of a run of speech."""


class Killed(BaseException):
    """Raised where a process would have died."""


def kept_bytes(run: Run) -> dict[str, bytes]:
    return {name: run.path(name).read_bytes() for name in KEPT if name in run.digests}


def dying(after: int) -> Watch:
    """A watcher under which a run dies once so much was told of its progress."""
    left = iter(range(after))

    def watch(progress: Progress) -> None:
        if next(left, None) is None:
            raise Killed

    return watch


def check_deaths(
    execute: Callable[[Store, Watch], Run], whole: Run, folder: Path, *deaths: int
) -> None:
    """What dies after so many reports, time after time, resumes to the bytes of the whole run.

    Checkpoints are written at every boundary.
    """
    store = Store(folder / "killed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "CHECKPOINT_EVERY_S", -1e9)
        patch.setattr(loop, "CHECKPOINT_SHARE", float("inf"))
        for death in deaths:
            with pytest.raises(Killed):
                execute(store, dying(death))
            assert (store.path / whole.hash / "checkpoint").is_dir()
        resumed = execute(store, silent)
    assert kept_bytes(resumed) == kept_bytes(whole)
    assert not (store.path / whole.hash / "checkpoint").exists()


def check_resumption(config: Any, folder: Path, files: tuple[str, ...] = FILES) -> Run:
    """Train, and again with a death at the fourth step, after which the files must be equal.

    Checkpoints are written at every boundary. The death leaves other states of the generators that
    all share.

    Args:
        config: configuration of the run.
        folder: place of two stores.
        files: files of the run that are compared.

    Returns:
        The run that was resumed.
    """
    whole, killed = execute(config, Store(folder / "whole"), silent), Store(folder / "killed")
    steps, step = 0, FoldTraining.step

    def dying(training: FoldTraining) -> bool:
        nonlocal steps
        steps += 1
        if steps == 4:
            raise Killed
        return step(training)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "CHECKPOINT_EVERY_S", 0.0)
        patch.setattr(loop, "CHECKPOINT_SHARE", 1e9)
        patch.setattr(FoldTraining, "step", dying)
        with pytest.raises(Killed):
            execute(config, killed, silent)
    assert (killed.path / whole.hash / "checkpoint").is_dir()
    torch.rand(5)
    np.random.rand(5)
    resumed = execute(config, killed, silent)
    for name in files:
        assert resumed.path(name).read_bytes() == whole.path(name).read_bytes(), name
    return resumed

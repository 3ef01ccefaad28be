"""Training is equal bytes on one kind of processor, and agrees statistically with another's."""

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

from data_synth.corpus import Corpus
from harness.base import forks
from harness.experiment.experiment import Experiment
from harness.experiment.run import run as train
from harness.speech import frames
from harness.speech.task import Frames
from harness.store import Store
from tests.killed import kept_bytes

SEEDS = 8


def trained(
    configs: Sequence[Experiment[Frames]], corpus: Corpus, folder: Path
) -> tuple[list, list[bytes]]:
    """Final errors on the development set, and every byte that the runs keep."""
    with patch.object(frames, "_load_cached", lambda *_: corpus):  # in another process, too
        runs = [train(config, Store(folder), lambda _: None) for config in configs]
    errors = [run.summary["dev_frame_error/average"] for run in runs]
    return errors, [kept for run in runs for kept in kept_bytes(run).values()]


def trained_elsewhere(context, *arguments) -> tuple[list, list[bytes]]:
    """`trained` in a new process; one that is spawned reads the environment anew."""
    with ProcessPoolExecutor(1, context) as pool:
        return pool.submit(trained, *arguments).result()


@pytest.mark.nightly
def test_a_run_is_equal_bytes_in_another_process_and_an_equal_error_on_another_processor(
    configure, corpus, tmp_path, monkeypatch
):
    configs = [configure(seed=seed) for seed in range(SEEDS)]
    errors, kept = trained(configs, corpus, tmp_path / "here")
    assert trained_elsewhere(forks.context(), configs, corpus, tmp_path / "again") == (errors, kept)
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "default")  # no vector instructions in torch
    others, _ = trained_elsewhere(get_context("spawn"), configs, corpus, tmp_path / "other")
    # Claims are judged by intervals over seeds, two standard errors wide to each side: where a
    # processor moves the mean by less than one, seeds say more about a run than processors do.
    standard_error = np.std(errors, ddof=1) / SEEDS**0.5
    assert abs(np.mean(others) - np.mean(errors)) < standard_error

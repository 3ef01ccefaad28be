"""One run: the stored one, or trained now, or resumed."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_tensors

from data_synth.corpus import Corpus
from harness.acoustics.denormals import denormals_flushed
from harness.execution.config import RunConfig
from harness.execution.observe import Watch
from harness.execution.pretraining import MODEL
from harness.execution.training import Training
from harness.simulator import concat
from harness.store import Run, Store

WORD_ERRORS = "word_errors.safetensors"
"""The attached file: errors ``[utterances]`` for each ``test/candidate/stage``, and lengths."""


def train(config: RunConfig, corpus: Corpus, store: Store, watch: Watch) -> Run:
    """The finished run of a configuration: the stored one, or trained now, or resumed."""
    with denormals_flushed():
        return store.obtain(
            config.to_dict(),
            lambda writer: _execute(Training(config, corpus, store, writer, watch)),
        )


def _execute(training: Training) -> None:
    writer, status = training.writer, training.run()
    timeline = concat(training.segments)
    with TemporaryDirectory() as folder:
        timeline.save(path := Path(folder) / "timeline.parquet")
        writer.attach("timeline.parquet", path)
        save_file(training.word_errors, path := Path(folder) / WORD_ERRORS)
        writer.attach(WORD_ERRORS, path)
        save_tensors({"model": _deployed(training)}, path := Path(folder) / MODEL)
        writer.attach(MODEL, path)
    if status == "done":
        writer.finish(status, {**training.summary(), "timeline_sha256": timeline.sha256()})
        return
    at, folds = training.executor.now_s, training.executor.server.version
    writer.finish(
        status,
        {"virtual_s": at, "folds": folds},
        f"no longer finite at fold {folds}, {at:.1f} simulated seconds into the run",
    )


def _deployed(training: Training) -> torch.Tensor:
    """The parameters ``[P]`` that the tests are about; sequence training starts from them."""
    candidates = training.executor.server.candidates()
    return candidates.get("average", candidates["iterate"]).cpu().contiguous()

"""One run: the stored one, or trained now, or resumed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_tensors

from data_synth.corpus import Corpus
from harness.acoustics.denormals import denormals_flushed
from harness.acoustics.precision import check_here
from harness.execution.data.corpora import corpus_of
from harness.execution.runs.config import RunConfig
from harness.execution.runs.executed import Watch, executed
from harness.execution.training.divergence import stage_of, where
from harness.execution.training.executor import Simulated
from harness.execution.training.initial import MODEL
from harness.execution.training.loop import ExecutedBy, Training
from harness.simulator import concat
from harness.store import Run, Store

TIMELINE = "timeline.parquet"
EXECUTED = "executed"
"""Key of a run's configuration that says it was not executed on a simulated cluster."""
WORD_ERRORS = "word_errors.safetensors"
"""The attached file: errors ``[utterances]`` for each ``test/candidate/stage``, and lengths."""


def train(
    config: RunConfig,
    corpus: Corpus,
    store: Store,
    watch: Watch,
    executed_by: ExecutedBy = Simulated,
    executed: Mapping[str, object] | None = None,
) -> Run:
    """The finished run of a configuration: the stored one, or trained now, or resumed.

    Args:
        config: what to run.
        corpus: the corpus it names.
        store: where it is kept.
        watch: told of progress.
        executed_by: makes the executor, by default a simulated cluster.
        executed: what sets this executor apart, as part of the run's identity.

    Raises:
        UserError: this machine cannot compute in the precision asked for.
    """
    check_here(config.precision, config.device)
    identity = config.to_dict() | ({EXECUTED: dict(executed)} if executed else {})
    with denormals_flushed():
        return store.obtain(
            identity,
            lambda writer: _execute(Training(config, corpus, store, writer, watch, executed_by)),
        )


@executed.register
def trained(config: RunConfig, store: Store, watch: Watch) -> Run:
    """As `train` on a simulated cluster, of the corpus that the configuration names."""
    return train(config, corpus_of(config), store, watch)


def _execute(training: Training) -> None:
    writer, status = training.writer, training.run()
    timeline = concat(training.segments)
    with TemporaryDirectory() as folder:
        timeline.save(path := Path(folder) / TIMELINE)
        writer.attach(TIMELINE, path)
        save_file(training.word_errors, path := Path(folder) / WORD_ERRORS)
        writer.attach(WORD_ERRORS, path)
        save_tensors({"model": _deployed(training)}, path := Path(folder) / MODEL)
        writer.attach(MODEL, path)
    if status == "done":
        writer.finish(status, {**training.summary(), "timeline_sha256": timeline.sha256()})
        return
    moment = training.moment()
    writer.finish(
        status,
        {"virtual_s": moment.time_s, "folds": moment.fold},
        where(
            stage_of(training.config, moment.fold),
            moment,
            writer.rows(),
            "dev_loss",
            training.pace.rate,
        ),
    )


def _deployed(training: Training) -> torch.Tensor:
    """The parameters ``[P]`` that the tests are about; sequence training starts from them."""
    candidates = training.executor.server.candidates()
    return candidates.get("average", candidates["iterate"]).cpu().contiguous()

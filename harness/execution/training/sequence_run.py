"""One sequence training: the stored one, or trained now, or resumed."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from safetensors.numpy import save_file
from safetensors.torch import load_file
from safetensors.torch import save_file as save_tensors
from torch import Tensor

from data_synth.corpus import Corpus
from harness.acoustics.denormals import denormals_flushed
from harness.errors import UserError
from harness.execution.data.corpora import corpus_of
from harness.execution.runs.config import RunConfig
from harness.execution.runs.executed import Watch, executed
from harness.execution.runs.sequence import SequenceConfig
from harness.execution.training.divergence import STAGES, Moment, where
from harness.execution.training.initial import MODEL
from harness.execution.training.passes import Passes
from harness.execution.training.run import EXECUTED, TIMELINE, WORD_ERRORS, train
from harness.execution.training.sequence_loop import SequenceTraining
from harness.execution.training.streams import Streams
from harness.identity import SHORT
from harness.simulator import concat
from harness.store import Run, RunWriter, Store

TROUBLES = "troubles.json"
"""Which utterances had what wrong with them; only where any had."""
WAYS = {"none": Streams, "on the fly": Streams, "full": Passes}


Way = Callable[[SequenceConfig, Corpus, Tensor, RunWriter, Watch], SequenceTraining[Any]]
"""Makes a training from a configuration, its corpus, initial parameters ``[P]`` and a writer."""


def train_sequence(
    config: SequenceConfig,
    corpus: Corpus,
    store: Store,
    watch: Watch,
    way: Way | None = None,
    executed: Mapping[str, object] | None = None,
) -> Run:
    """The finished run of a configuration, and before it the one that it starts from.

    Where the start diverged, so did the run.

    Args:
        config: what to run.
        corpus: the corpus it names.
        store: where it is kept.
        watch: told of progress.
        way: makes the training; None is on a simulated cluster.
        executed: what sets another way apart, as part of the run's identity.

    Raises:
        UserError: the run to start from has kept no model.
    """

    def execute(writer: RunWriter) -> None:
        start = train(config.start, corpus, store, watch)
        if start.status != "done":
            its = f"in its cross-entropy start, run {start.hash[:SHORT]}"
            how = "failed" if start.status == "failed" else "diverged"
            writer.finish(how, {}, f"{its}, {start.note}")
            return
        with denormals_flushed():
            make = way or WAYS[config.shuffling]
            carry_out(make(config, corpus, final_model(start), writer, watch))

    identity = config.to_dict() | ({EXECUTED: dict(executed)} if executed else {})
    return store.obtain(identity, execute)


@executed.register
def trained_on_sequences(config: SequenceConfig, store: Store, watch: Watch) -> Run:
    """As `train_sequence` on a simulated cluster, of the corpus that the configuration names."""
    return train_sequence(config, corpus_of(config), store, watch)


def started(config: RunConfig, corpus: Corpus, store: Store, watch: Watch) -> Tensor:
    """The final parameters ``[P]`` of a run, which is trained if the store does not have it.

    Raises:
        UserError: it diverged, or has kept no model.
    """
    run = train(config, corpus, store, watch)
    if run.status != "done":
        raise UserError(f"start: {run.ending()}")
    return final_model(run)


def final_model(run: Run) -> Tensor:
    """The final parameters ``[P]`` of a run.

    Raises:
        UserError: it has kept none.
    """
    try:
        return load_file(run.path(MODEL))["model"]
    except FileNotFoundError:
        where = f"delete {run.dir} to have it trained again"
        raise UserError(f"start: run {run.hash[:12]} has kept no {MODEL}; {where}") from None


def carry_out(training: SequenceTraining[Any]) -> None:
    """Train to the end and keep what came of it."""
    writer, status = training.writer, training.run()
    timeline, told = concat(training.segments), training.summary()
    with TemporaryDirectory() as folder:
        timeline.save(path := Path(folder) / TIMELINE)
        writer.attach(TIMELINE, path)
        for name, arrays in training.attachments().items():
            save_file(arrays, path := Path(folder) / name)
            writer.attach(name, path)
        if troubled := training.troubled():
            path = Path(folder) / TROUBLES
            path.write_text(json.dumps(troubled, indent=1, ensure_ascii=False), encoding="utf-8")
            writer.attach(TROUBLES, path)
        save_file(training.word_errors, path := Path(folder) / WORD_ERRORS)
        writer.attach(WORD_ERRORS, path)
        model = training.whole_model().cpu().contiguous()
        save_tensors({"model": model}, path := Path(folder) / MODEL)
        writer.attach(MODEL, path)
    summary = {
        **told,
        **training.lags(timeline),
        "timeline_sha256": timeline.sha256(),
    }
    writer.finish(status, summary, "" if status == "done" else _diverged(training))


def _diverged(training: SequenceTraining[Any]) -> str:
    """Where a training diverged, in words."""
    clock, kind = training.simulation, training.config.criterion.kind
    return where(
        STAGES[kind],
        Moment(clock.version, training.epoch, clock.now_s),
        training.writer.rows(),
        "held_out_criterion",
        training.rate,
        "of the frames right" if kind == "smbr" else "nats a frame",
    )

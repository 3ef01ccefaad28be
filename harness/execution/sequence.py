"""One sequence training: the stored one, or trained now, or resumed."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from safetensors.numpy import save_file
from safetensors.torch import load_file
from safetensors.torch import save_file as save_tensors
from torch import Tensor

from data_synth.corpus import Corpus
from harness.acoustics.denormals import denormals_flushed
from harness.errors import UserError
from harness.execution.config import RunConfig
from harness.execution.observe import Watch
from harness.execution.pretraining import MODEL
from harness.execution.run import WORD_ERRORS, train
from harness.execution.sequence_config import SequenceConfig
from harness.execution.sequence_full import Passes
from harness.execution.sequence_lags import lags
from harness.execution.sequence_streams import Streams
from harness.execution.sequence_training import SequenceTraining
from harness.simulator import concat
from harness.store import Run, RunWriter, Store

WAYS = {"none": Streams, "on the fly": Streams, "full": Passes}


def train_sequence(config: SequenceConfig, corpus: Corpus, store: Store, watch: Watch) -> Run:
    """The finished run of a configuration, and before it the one that it starts from.

    Where the start diverged, so did the run.

    Raises:
        UserError: the run to start from has kept no model.
    """

    def execute(writer: RunWriter) -> None:
        start = train(config.start, corpus, store, watch)
        if start.status != "done":
            writer.finish("diverged", {}, f"its start, run {start.hash[:12]}: {start.note}")
            return
        with denormals_flushed():
            _execute(WAYS[config.shuffling](config, corpus, final_model(start), writer, watch))

    return store.obtain(config.to_dict(), execute)


def started(config: RunConfig, corpus: Corpus, store: Store, watch: Watch) -> Tensor:
    """The final parameters ``[P]`` of a run, which is trained if the store does not have it.

    Raises:
        UserError: it diverged, or has kept no model.
    """
    run = train(config, corpus, store, watch)
    if run.status != "done":
        raise UserError(f"start: run {run.hash[:12]} {run.status}: {run.note}")
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


def _execute(training: SequenceTraining) -> None:
    writer, status = training.writer, training.run()
    timeline = concat(training.segments)
    with TemporaryDirectory() as folder:
        timeline.save(path := Path(folder) / "timeline.parquet")
        writer.attach("timeline.parquet", path)
        save_file(training.word_errors, path := Path(folder) / WORD_ERRORS)
        writer.attach(WORD_ERRORS, path)
        model = training.whole_model().cpu().contiguous()
        save_tensors({"model": model}, path := Path(folder) / MODEL)
        writer.attach(MODEL, path)
    summary = {
        **training.summary(),
        **lags(timeline, training.config),
        "timeline_sha256": timeline.sha256(),
    }
    note = ""
    if status == "diverged":
        at, folds = training.simulation.now_s, training.simulation.version
        note = f"diverged by fold {folds}, {at:.1f} simulated seconds into the run"
    writer.finish(status, summary, note)

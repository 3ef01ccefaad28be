"""A run of training: the stored one, or trained now, or resumed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from data_synth.corpus import Corpus
from harness.base.errors import UserError
from harness.base.seeds import SHORT
from harness.execution.data.minibatches import Minibatches
from harness.execution.runs.config import RunConfig
from harness.execution.runs.executed import Watch, executed
from harness.execution.runs.sequence import SequenceConfig
from harness.execution.training import sequence
from harness.execution.training.acoustic import Acoustic
from harness.execution.training.alignment import targeted
from harness.execution.training.executor import FrameExecutor
from harness.execution.training.frames import FrameTraining
from harness.execution.training.initial import final_model
from harness.execution.training.loop import Training
from harness.execution.training.simulated import Simulated
from harness.networks.feedforward import check_here, denormals_flushed
from harness.simulator import concat
from harness.simulator.timeline_file import save_timeline
from harness.store import Run, RunWriter, Store
from harness.store.schema import MODEL, TIMELINE, WORD_ERRORS

ExecutedBy = Callable[[RunConfig, Corpus, Tensor, Minibatches], FrameExecutor]
EXECUTED = "executed"
"""Key of a run's configuration that says it was not executed on a simulated cluster."""


def train(
    config: RunConfig,
    corpus: Corpus,
    store: Store,
    watch: Watch,
    executed_by: ExecutedBy = Simulated,
    how: Mapping[str, object] | None = None,
) -> Run:
    """The finished run of a configuration: the stored one, or trained now, or resumed.

    Args:
        config: what to run.
        corpus: the corpus it names, with the targets it names (see `alignment.targeted`).
        store: where it is kept.
        watch: told of progress.
        executed_by: makes the executor, by default a simulated cluster.
        how: what sets this executor apart, as part of the run's identity.

    Raises:
        UserError: this machine cannot compute in the precision asked for.
    """
    check_here(config.precision, config.device)

    def execute(writer: RunWriter) -> None:
        made = partial(executed_by, config, corpus)
        carry_out(FrameTraining(writer, config, Acoustic(config, corpus, store), watch, made))

    with denormals_flushed():
        return store.obtain(identified(config, how), execute)


def train_sequence(
    config: SequenceConfig,
    corpus: Corpus,
    store: Store,
    watch: Watch,
    executed_by: sequence.ExecutedBy = sequence.simulated,
    how: Mapping[str, object] | None = None,
) -> Run:
    """The finished run of a configuration, and before it the one that it starts from.

    Where the start diverged, so did the run.

    Args:
        config: what to run.
        corpus: the corpus it names.
        store: where it is kept.
        watch: told of progress.
        executed_by: makes the executor, by default a simulated cluster.
        how: what sets this executor apart, as part of the run's identity.

    Raises:
        UserError: the run to start from has kept no model.
    """

    def execute(writer: RunWriter) -> None:
        start = train(config.start, corpus, store.needing(MODEL), watch)
        if start.status != "done":
            its = f"in its cross-entropy start, run {start.hash[:SHORT]}"
            ended = "failed" if start.status == "failed" else "diverged"
            writer.finish(ended, {}, f"{its}, {start.note}")
            return
        initial = final_model(start)
        with denormals_flushed():
            made = sequence.SequenceTraining(writer, config, corpus, initial, watch, executed_by)
            carry_out(made)

    return store.obtain(identified(config, how), execute)


@executed.register
def _(config: RunConfig, store: Store, watch: Watch) -> Run:
    # Gradients of speech are written out. Where autograd cannot be asked, calls are a tenth to a
    # fifth cheaper, with the same bits; on real processes threads share tensors, and may not.
    with torch.inference_mode():
        return train(config, targeted(config, store, watch), store, watch)


@executed.register
def _(config: SequenceConfig, store: Store, watch: Watch) -> Run:
    return train_sequence(config, targeted(config.start, store, watch), store, watch)


def identified(
    config: RunConfig | SequenceConfig, how: Mapping[str, object] | None
) -> dict[str, Any]:
    """What the identity of a run hashes, executed in some way; None is on a simulated cluster."""
    return config.to_dict() | ({EXECUTED: dict(how)} if how else {})


def carry_out(training: Training[Any]) -> None:  # whatever executes it
    """Train to the end and keep what came of it."""
    writer, status = training.writer, training.run()
    timeline = concat(training.segments)
    summary, note = training.told(status, timeline)
    with TemporaryDirectory() as folder:
        save_timeline(timeline, path := Path(folder) / TIMELINE)
        writer.attach(TIMELINE, path)
    for name, content in training.attachments().items():
        if isinstance(content, bytes):
            writer.attach(name, content)
        else:
            writer.attach_arrays(name, content)
    writer.attach_arrays(WORD_ERRORS, training.word_errors)
    writer.attach_arrays(MODEL, {"model": training.deployed().cpu().numpy()})
    writer.finish(status, summary, note)


def started(config: RunConfig, corpus: Corpus, store: Store, watch: Watch) -> Tensor:
    """The final parameters ``[P]`` of a run, which is trained if the store does not have it.

    Raises:
        UserError: it diverged, or has kept no model.
    """
    run = train(config, corpus, store.needing(MODEL), watch)
    if run.status != "done":
        raise UserError(f"start: {run.ending()}")
    return final_model(run)

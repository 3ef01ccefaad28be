"""A run of training: the stored one, or trained now, or resumed."""

from __future__ import annotations

import torch

from harness.runs.executed import Watch, executed
from harness.speech.frames import RunConfig
from harness.speech.sequence import SequenceConfig
from harness.speech.sequence_training import train_sequence
from harness.speech.task import targeted, train
from harness.store import Run, Store


@executed.register
def _(config: RunConfig, store: Store, watch: Watch) -> Run:
    # Gradients of speech are written out. Where autograd cannot be asked, calls are a tenth to a
    # fifth cheaper, with the same bits; on real processes threads share tensors, and may not.
    with torch.inference_mode():
        return train(config, targeted(config, store, watch), store, watch)


@executed.register
def _(config: SequenceConfig, store: Store, watch: Watch) -> Run:
    return train_sequence(config, targeted(config.start, store, watch), store, watch)

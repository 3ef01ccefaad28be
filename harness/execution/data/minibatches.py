"""Which frames a minibatch has: the training data of a run, stage by stage."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from data_synth.corpus import Corpus
from harness.algorithms.contract import Minibatch
from harness.execution.data.frames import Frames, Order
from harness.execution.data.partition import Shards
from harness.execution.replay.stale import Key
from harness.execution.runs.config import RunConfig


class Dealing:
    """The minibatches of one run; all who execute the run deal themselves the same.

    Args:
        config: what is run.
        corpus: what it is trained on.
        frames: the corpus on the device.

    Attributes:
        order: of the present stage.
        stage: its number.
        before: the steps of all stages before it.
    """

    def __init__(self, config: RunConfig, corpus: Corpus, frames: Frames) -> None:
        self._config, self._train, self._frames = config, corpus.split("train"), frames
        self.begin(0, 0)

    def begin(self, stage: int, before: int) -> None:
        """Lay out a stage that begins after so many steps."""
        self.stage, self.before, self.order = stage, before, self._order(stage)

    def minibatch_of(self, keys: Sequence[Key]) -> Minibatch:
        """The frames of the minibatches named by worker and by step since the run began."""
        rows: np.ndarray = self.order.dealt([(who, step - self.before) for who, step in keys])
        return self._frames.gather(torch.from_numpy(rows).to(self._config.device))

    def _order(self, number: int) -> Order | Shards:
        config, train, stage = self._config, self._train, self._config.stage(number)
        if config.protocol is not None:
            every = config.protocol.every
            dealing = (config.workers, stage.minibatch, every, stage.share)
            return Shards(config.seed, number, train.start, train.frames, *dealing)
        chunk = max(1, round(config.chunk * train.total_frames / stage.minibatch))
        cutting = (stage.minibatch, stage.share, chunk)
        return Order(config.seed, number, train.start, train.frames, *cutting)

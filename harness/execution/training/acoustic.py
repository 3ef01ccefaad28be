"""Frames of a corpus as a task: a network over spliced frames, scored in frames and words."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from data_synth.corpus import Corpus
from harness.execution.data.made import frames_of
from harness.execution.evaluation.frames import FrameEvaluator, Scores
from harness.execution.runs.config import RunConfig
from harness.execution.training.initial import initial_parameters
from harness.execution.training.task import Tested
from harness.store import Store


class Acoustic:
    """See `Task`.

    Args:
        config: what is run.
        corpus: the corpus it names.
        store: where pretrained networks are kept.
    """

    unit = "nats a frame"

    def __init__(self, config: RunConfig, corpus: Corpus, store: Store) -> None:
        self.config, self.corpus, self.store = config, corpus, store
        self.network = config.network(corpus)
        self.frames = frames_of(corpus, config.device, config.shuffling)
        self.evaluator = FrameEvaluator(self.network, self.frames, corpus)
        self.minibatches = config.minibatches(corpus, self.frames)

    def initial(self) -> Tensor:
        """See `Task`."""
        parts = self.config, self.network, self.frames, self.corpus, self.store
        return initial_parameters(*parts).to(self.config.device)

    def losses_in(self, minibatch: int) -> int:
        """One for each frame."""
        return minibatch

    def dev(self, model: Tensor) -> Scores:
        """See `Task`."""
        return self.evaluator.dev(model)

    def held_out_loss(self, model: Tensor) -> float:
        """See `Task`."""
        return self.evaluator.held_out_loss(model)

    def tested(self, model: Tensor, name: str) -> Tested:
        """Frame and word errors, at the acoustic scale that development data give the model."""
        measured: dict[str, float] = {}
        errors: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        tuned = self.evaluator.tuned(model)
        if tuned is not None:
            measured[f"acoustic_scale/{name}"] = tuned.best.scale
            measured[f"acoustic_scale_decided/{name}"] = float(tuned.decided)
        for test in self.corpus.tests:
            said = self.evaluator.recogniser.lengths(test)
            wrong = self.evaluator.word_errors(test, model, tuned)
            errors[test] = wrong, said
            frames = self.evaluator.frames_of(test, model)
            measured[f"{test}_frame_error/{name}"] = frames.frame_error
            measured[f"{test}_word_error/{name}"] = float(wrong.sum() / said.sum())
        return Tested(measured, errors)

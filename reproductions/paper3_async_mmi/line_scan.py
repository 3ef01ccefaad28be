"""A criterion and its auxiliary function along a straight line in parameter space."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor

from data_synth.corpus import Corpus
from harness.acoustics.lattice import Lattice
from harness.acoustics.mmi import Auxiliary, SequenceCriterion
from harness.experiment.contract import Configuration, Progress, Watch
from harness.experiment.experiment import Experiment
from harness.experiment.run import run
from harness.networks.feedforward import denormals_flushed
from harness.speech.decoding import posteriors_of, references_of, sample_evenly
from harness.speech.evaluation import log_prior
from harness.speech.frames import frames_of
from harness.speech.sequence_task import Sequences
from harness.speech.task import final_model, load_corpus_with_targets, train_or_load_start
from harness.store import Run, RunWriter, Store
from harness.store.schema import MODEL

POINTS = tuple(np.round(np.linspace(-1.0, 2.0, 25), 6).tolist())

STEP = 1e-4
"""Step of the central difference, as a share of the line from 0 to 1."""


@dataclass(frozen=True)
class LineConfig(Configuration):
    """The line from where a sequence training starts to where it ends.

    Args:
        training: its start is at 0, its last model at 1.
        utterances: number of its training utterances that are summed over, evenly chosen.
        points: positions on the line.
    """

    training: Experiment[Sequences]
    utterances: int = 40
    points: tuple[float, ...] = POINTS

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values: what the run's identity hashes."""
        plain = {"utterances": self.utterances, "points": list(self.points)}
        return {"is": "LineConfig", "training": self.training.to_dict(), **plain}

    def execute(self, store: Store, watch: Watch) -> Run:
        """See `Configuration`."""
        corpus = load_corpus_with_targets(self.training.task.start, store, watch)
        return scan_line(self, corpus, store, watch)


def scan_line(config: LineConfig, corpus: Corpus, store: Store, watch: Watch) -> Run:
    """The finished run of a configuration, and before it the training it belongs to.

    Where the training diverged, so did the line.
    """

    def execute(writer: RunWriter) -> None:
        trained = run(config.training, store.needing(MODEL), watch)
        if trained.status != "done":
            outcome = "failed" if trained.status == "failed" else "diverged"
            writer.finish(outcome, {}, trained.ending("its training"))
            return
        begin = train_or_load_start(config.training.task.start, store, watch)
        end = final_model(trained)
        with denormals_flushed():
            _measure(_Line(config, corpus, begin.double(), end.double()), writer, watch)

    return store.obtain(config.to_dict(), execute)


def _measure(line: _Line, writer: RunWriter, watch: Watch) -> None:
    """Log criterion and auxiliary function a frame at every point, in float64."""
    tangents = line.tangents()
    for number, point in enumerate(line.points):
        watch(Progress(writer.hash, number / len(line.points), 1.0))
        value, touching = line.values(point, tangents)
        writer.log("criterion", value, fold=0, time_s=0.0, epoch=point)
        writer.log("auxiliary", touching, fold=0, time_s=0.0, epoch=point)
    # A lattice searched for anew drops paths and finds others, by whole steps in the sum: what the
    # auxiliary function touches is the criterion over the paths that its gradient was made from.
    paths = line.competing(tangents)
    middle, ahead, behind = (line.values(p, tangents, paths) for p in (0.0, STEP, -STEP))
    slopes = [(a - b) / (2 * STEP) for a, b in zip(ahead, behind, strict=True)]
    summary = {"criterion_at_0": middle[0], "auxiliary_at_0": middle[1]}
    writer.finish("done", {**summary, "criterion_slope": slopes[0], "auxiliary_slope": slopes[1]})


class _Line:
    def __init__(self, config: LineConfig, corpus: Corpus, begin: Tensor, end: Tensor) -> None:
        training, self.points = config.training, config.points
        self.net = training.task.start.task.network(corpus)
        self.begin, self.way = begin, end - begin
        self.frames = frames_of(corpus, "cpu")
        # Whole frames or none: rejected and cancelled ones would leave another function.
        criterion = replace(training.task.criterion, reject_below=0.0, cancel_below=0.0)
        self.criterion = SequenceCriterion(criterion, references_of(corpus), log_prior(corpus))
        self.part = sample_evenly(corpus.split("train"), config.utterances)

    def posteriors(self, point: float) -> list[np.ndarray]:
        """Log p(s|x_t) of each utterance, float64 [T, K]."""
        model = self.begin + point * self.way
        return [*posteriors_of(self.net, model, self.frames, self.part)]

    def tangents(self) -> list[Auxiliary]:
        """The auxiliary functions of the utterances that can be trained on, at 0."""
        posteriors = self.posteriors(0.0)
        outers = map(self.criterion.outer, posteriors, self.part.words)
        return [Auxiliary(outer, p) for outer, p in zip(outers, posteriors, strict=True)]

    def competing(self, tangents: list[Auxiliary]) -> list[Lattice | None]:
        """The denominators' paths at 0, of the utterances that can be trained on."""
        return [
            self.criterion.search(tangent.log_posteriors)
            if np.isfinite(tangent.outer.value)
            else None
            for tangent in tangents
        ]

    def values(
        self, point: float, tangents: list[Auxiliary], held: list[Lattice | None] | None = None
    ) -> tuple[float, float]:
        """Criterion over paths ``held``, or over new ones, and auxiliary function, per frame."""
        posteriors, words = self.posteriors(point), self.part.words
        paths = held or [None] * len(posteriors)
        usable = [i for i, tangent in enumerate(tangents) if np.isfinite(tangent.outer.value)]
        frames = sum(len(posteriors[i]) for i in usable)
        value = sum(
            self.criterion.outer(posteriors[i], words[i], paths=paths[i]).value for i in usable
        )
        touching = sum(tangents[i].value(posteriors[i]) for i in usable)
        return value / frames, touching / frames

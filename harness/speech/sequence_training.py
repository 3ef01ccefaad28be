"""Sequence training: evaluations at shares of a pass, the learning rate on plateaus, troubles.

The executor, `Streams`, determines when utterances are decoded and trained on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from data_synth.corpus import Corpus
from harness.acoustics.mmi import Outer
from harness.experiment.contract import Progress, Watch
from harness.experiment.experiment import AnyExperiment
from harness.experiment.loop import Diverged, Training, describe_divergence
from harness.simulator.timeline import Timeline
from harness.speech.decoding import Tally
from harness.speech.held_out import HoldoutScores, SequenceEvaluator
from harness.speech.lags import summarise_lags
from harness.speech.sequence import Plateau, Setup
from harness.speech.streams import Streams
from harness.store.schema import Outcome

CRITERIA = {"mmi": "MMI", "numerator": "training without a denominator"}
"""Kinds of criteria in words."""


@dataclass
class SequenceTraining(Training[Streams]):
    """A sequence training in progress.

    Args:
        config: configuration of the run.
        corpus: the corpus it names.
        initial: initial parameters ``[P]``.
        watch: callback for progress.

    Attributes:
        measured: the held-out criterion of every evaluation.
        tally: decoding statistics since the last evaluation.
        total: decoding statistics from the start to the last evaluation.
    """

    SAVED = (*Training.SAVED, "measured", "tally", "total")

    config: AnyExperiment
    corpus: Corpus
    initial: Tensor
    watch: Watch
    measured: list[float] = field(default_factory=list[float], init=False)
    tally: Tally = field(default_factory=Tally, init=False)
    total: Tally = field(default_factory=Tally, init=False)

    def __post_init__(self) -> None:
        config, corpus = self.config, self.corpus
        self.task, self.words = config.task, config.tested != "never"
        self.setup = setup = Setup.from_config(config, corpus, self.initial)
        self.evaluator = SequenceEvaluator(
            setup.net, setup.frames, corpus, setup.criterion, self.task.held_out
        )
        self.executor = Streams(config, setup)
        self.ended = not config.passes
        self.resume()

    # -- the way through a run -----------------------------------------------------------

    def step(self) -> bool:
        """See `Training`."""
        if self.ended:
            return False
        step = self.executor.advance(self.rate)
        self.segments += step.happened
        self._count(step.seen)
        if self.epoch * self.config.evaluations >= len(self.measured):
            self.evaluate()
        self.ended = step.ended
        return not self.ended

    def finish(self) -> None:
        """Score the final model on the test sets, and store the errors of each utterance."""
        if self.executor.server.version > self._last_measured_version():
            self.evaluate()
        if not self.words:
            return
        model, order = self.model_to_deploy(), self.task.order
        tuned = self.evaluator.tune_decoding(model, order)
        self.log("acoustic_scale/iterate", tuned.best.scale)
        self.log("insertion_penalty/iterate", tuned.best.insertion)
        self.log("acoustic_scale_decided/iterate", float(tuned.decided))
        for test in self.corpus.tests:
            counts, frame_error = self.evaluator.test(test, model, order, tuned)
            self.test_errors[f"{test}/lengths"] = counts.lengths
            self.test_errors[f"{test}/iterate/{self.config.passes}"] = counts.errors
            self.log(f"{test}_frame_error/iterate", frame_error)
            self.log(f"{test}_word_error/iterate", counts.rate)

    @property
    def epoch(self) -> float:
        """Passes over the training utterances so far."""
        return self.executor.epoch

    @property
    def rate(self) -> float:
        """The learning rate after all evaluations so far."""
        schedule = self.config.schedule
        return (
            schedule.rate_after(self.measured) if isinstance(schedule, Plateau) else schedule.rate
        )

    def model_to_deploy(self) -> Tensor:
        """See `Training`."""
        return self.setup.halves.whole(self.executor.server.model)

    def _count(self, decoded: Sequence[Outer]) -> None:
        """Add the statistics of decoded utterances.

        Raises:
            Diverged: an utterance had values that are not finite.
        """
        for utterance in decoded:
            self.tally.add(utterance)
        if self.tally.troubles["not finite"]:
            raise Diverged

    # -- what is measured ----------------------------------------------------------------

    def evaluate(self) -> None:
        """Measure the server's model and log the statistics since the last time; see `Training`."""
        scores = self.evaluator.evaluate_held_out(self.model_to_deploy(), words=self.words)
        self.measured.append(scores.criterion)
        self._log_held_out(scores)
        self._log_tally()
        self.log("rate", self.rate)
        passes = max(float(self.config.passes), 1.0)
        measured = f"{self.config.metric} {self.config.show(scores.frame_error)}"
        self.watch(Progress(self.writer.hash, self.epoch, passes, measured))
        if has_collapsed(self.task.criterion.kind, self.measured[0], scores.criterion):
            raise Diverged

    def _last_measured_version(self) -> int:
        """Version of the last evaluation; -1 before the first one."""
        rows = self.writer.rows()
        return int(rows[-1]["fold"]) if rows else -1

    def _log_held_out(self, scores: HoldoutScores) -> None:
        self.log("held_out_criterion", scores.criterion)
        self.log("dev_frame_error/iterate", scores.frame_error)
        if scores.words is not None:
            self.log("dev_word_error/iterate", scores.words.best.rate)
            self.log("dev_acoustic_scale/iterate", scores.words.best.scale)

    def _log_tally(self) -> None:
        """Log the decoding statistics since the last evaluation, and reset them."""
        tally = self.tally
        if tally.frames:
            if tally.value_frames:
                self.log("train_criterion", tally.value / tally.value_frames)
            for name in ("kept", "rejected", "cancelled"):
                self.log(f"{name}_frames", getattr(tally, name) / tally.frames)
        self.total.take_in(tally)
        self.tally = Tally()

    # -- the end, and resuming -----------------------------------------------------------

    def summarise(self, status: Outcome, timeline: Timeline) -> tuple[dict[str, Any], str]:
        """See `Training`: final measurements, shares of decoded frames, times, stalenesses."""
        self.total.take_in(self.tally)
        self.tally, total, moment = Tally(), self.total, self.moment()
        frames, shares = max(1, total.frames), ("kept", "rejected", "cancelled")
        is_shuffled = self.config.shuffling == "on the fly"
        slots = None if is_shuffled else self.setup.protocol.slots
        summary = {
            **self.last_measured(),
            **{f"{name}_frames": getattr(total, name) / frames for name in shares},
            **{f"trouble/{name}": count for name, count in total.troubles.items()},
            "utterances": total.utterances,
            "decoded_frames": total.frames,
            "virtual_s": moment.time_s,
            "folds": moment.fold,
            "epochs": moment.passes,
            **summarise_lags(timeline, slots),
            "timeline_sha256": timeline.sha256(),
        }
        return summary, "" if status == "done" else self._describe_divergence()

    def _describe_divergence(self) -> str:
        kind, rows = self.task.criterion.kind, self.writer.rows()
        criterion = "held_out_criterion"
        return describe_divergence(CRITERIA[kind], self.moment(), rows, criterion, self.rate)


def has_collapsed(kind: str, start: float, value: float) -> bool:
    """Whether a criterion has fallen far below its value at ``start``, or is not finite.

    For MMI, which is at most 0: below twice the start, which is no noise. No bound is known for the
    numerator alone, or for MMI above 0, where lattices lost the reference.
    """
    if not math.isfinite(value):
        return True
    return kind == "mmi" and start < 0 and value < 2.0 * start

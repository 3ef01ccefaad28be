"""Sequence training: evaluations by shares of a pass, a rate that falls on plateaus, troubles.

Who decodes and trains when is up to the executor: decoders and trainers side by side (`streams`),
everything decoded as a pass begins (`passes`), real processes, or a record of them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from torch import Tensor

from data_synth.corpus import Corpus
from harness.base.seeds import SHORT
from harness.networks.feedforward import denormals_flushed
from harness.replay.stale import Arrays, Facts
from harness.simulator import Timeline
from harness.speech.decoding import DecodeStats, Tally
from harness.speech.held_out import HoldoutScores, SequenceEvaluator, lags
from harness.speech.sequence import SequenceConfig, SequenceExecutor, Setup
from harness.speech.streams import Passes, Streams
from harness.speech.task import final_model
from harness.store import Run, RunWriter, Store
from harness.store.schema import MODEL, Outcome
from harness.tasks.contract import Progress, Watch
from harness.training.loop import STAGES, Diverged, Training, carry_out, describe_divergence
from harness.training.run import identity_config, train

RECORD = "told.safetensors"
"""The attached file with what a replay of real processes needs besides the timeline."""

TROUBLES = "troubles.json"
"""Which utterances had what wrong with them; only where any had."""

ExecutedBy = Callable[[SequenceConfig, Setup, Tensor], SequenceExecutor]
"""Makes an executor from a configuration, its parts and the parameters ``[P]`` it starts from."""


def build_simulated_executor(
    config: SequenceConfig, setup: Setup, initial: Tensor
) -> SequenceExecutor:
    """A simulated cluster, whose every segment is replayed at once."""
    del initial  # the trained half of it is in the setup
    return Passes(config, setup) if config.shuffling == "full" else Streams(config, setup)


@dataclass
class SequenceTraining(Training[SequenceExecutor]):
    """A run in progress.

    Args:
        config: what to run.
        corpus: the corpus it names.
        initial: the parameters ``[P]`` it starts from.
        watch: told of progress.
        executed_by: makes the executor.

    Attributes:
        measured: the held-out criterion of every evaluation.
        tally: what decoders came across since the last one.
        total: the same, since the beginning.
    """

    config: SequenceConfig
    corpus: Corpus
    initial: Tensor
    watch: Watch
    executed_by: ExecutedBy = build_simulated_executor
    measured: list[float] = field(default_factory=list[float], init=False)
    tally: Tally = field(default_factory=Tally, init=False)
    total: Tally = field(default_factory=Tally, init=False)

    def __post_init__(self) -> None:
        config, corpus = self.config, self.corpus
        self.setup = setup = Setup.from_config(config, corpus, self.initial)
        self.evaluator = SequenceEvaluator(
            setup.net, setup.frames, corpus, setup.criterion, config.held_out
        )
        self.executor = self.executed_by(config, setup, self.initial)
        self.ended = not config.passes
        self.resume()

    # -- the way through a run -----------------------------------------------------------

    def step(self) -> bool:
        """See `Training`."""
        if self.ended:
            return False
        due = Fraction(len(self.measured), self.config.evaluations)
        step = self.executor.advance(self.rate, due)
        self.segments += step.happened
        self._count(step.seen)
        if self.epoch * self.config.evaluations >= len(self.measured):
            self.evaluate()
        self.ended = step.ended
        return not self.ended

    def finish(self) -> None:
        """Score the last model on the test sets; the errors of each utterance are kept."""
        if self.executor.server.version > self._last_measured_version():
            self.evaluate()
        if not self.config.test:
            return
        model, order = self.model_to_deploy(), self.config.order
        tuned = self.evaluator.tune_decoding(model, order)
        self.log("acoustic_scale/iterate", tuned.best.scale)
        self.log("insertion_penalty/iterate", tuned.best.insertion)
        self.log("acoustic_scale_decided/iterate", float(tuned.decided))
        for test in self.corpus.tests:
            found = self.evaluator.test(test, model, order, tuned)
            self.word_errors[f"{test}/lengths"] = found.lengths
            self.word_errors[f"{test}/iterate/{self.config.passes}"] = found.errors
            self.log(f"{test}_frame_error/iterate", found.frame_error)
            self.log(f"{test}_word_error/iterate", found.word_error)

    @property
    def epoch(self) -> float:
        """Passes over the training utterances so far."""
        return self.executor.epoch

    @property
    def rate(self) -> float:
        """The rate after all evaluations so far."""
        plateau = self.config.plateau
        return plateau.rate(self.config.rate, self.measured) if plateau else self.config.rate

    def model_to_deploy(self) -> Tensor:
        """See `Training`."""
        return self.setup.halves.whole(self.executor.server.model)

    def _count(self, decoded: Sequence[DecodeStats]) -> None:
        """Take note of decoded utterances.

        Raises:
            Diverged: the parameters gave no numbers for one of them.
        """
        for each in decoded:
            self.tally.add(each)
        if self.tally.troubles["not finite"]:
            raise Diverged

    # -- what is measured ----------------------------------------------------------------

    def evaluate(self) -> None:
        """Measure the server's model, and tell what went on since the last time; see `Training`."""
        found = self.evaluator.evaluate_held_out(self.model_to_deploy(), words=self.config.test)
        self.measured.append(found.criterion)
        self._log_held_out(found)
        self._log_tally()
        self.log("rate", self.rate)
        passes = max(float(self.config.passes), 1.0)
        measured = f"{self.config.metric} {self.config.show(found.frame_error)}"
        self.watch(Progress(self.writer.hash, self.epoch, passes, measured))
        if has_collapsed(self.config.criterion.kind, self.measured[0], found.criterion):
            raise Diverged

    def _last_measured_version(self) -> int:
        """The version that was measured last; -1 before the first evaluation."""
        rows = self.writer.rows()
        return int(rows[-1]["fold"]) if rows else -1

    def _log_held_out(self, found: HoldoutScores) -> None:
        self.log("held_out_criterion", found.criterion)
        self.log("dev_frame_error/iterate", found.frame_error)
        if found.words is not None:
            self.log("dev_word_error/iterate", found.words.best.rate)
            self.log("dev_acoustic_scale/iterate", found.words.best.scale)

    def _log_tally(self) -> None:
        """Log what decoding came across, and begin to count anew."""
        seen = self.tally
        if seen.frames:
            if seen.value_frames:
                self.log("train_criterion", seen.value / seen.value_frames)
            for name in ("kept", "rejected", "cancelled"):
                self.log(f"{name}_frames", getattr(seen, name) / seen.frames)
        self.total.take_in(seen)
        self.tally = Tally()

    # -- the end, and resuming -----------------------------------------------------------

    def summarise(self, status: Outcome, timeline: Timeline) -> tuple[dict[str, Any], str]:
        """See `Training`: the last measurements, shares of decoded frames, times, stalenesses."""
        self.total.take_in(self.tally)
        self.tally, total, now = Tally(), self.total, self.moment()
        frames, shares = max(1, total.frames), ("kept", "rejected", "cancelled")
        summary = {
            **self.last_measured(),
            **{f"{name}_frames": getattr(total, name) / frames for name in shares},
            **{f"trouble/{name}": count for name, count in total.troubles.items()},
            "utterances": total.utterances,
            "decoded_frames": total.frames,
            "virtual_s": now.time_s,
            "folds": now.fold,
            "epochs": now.passes,
            **self._staleness_summary(timeline),
            "timeline_sha256": timeline.sha256(),
        }
        return summary, "" if status == "done" else self._describe_divergence()

    def _staleness_summary(self, timeline: Timeline) -> dict[str, float]:
        """The three stalenesses, and what really happened besides."""
        late, record = lags(timeline, self.config), self.executor.record
        if record is None:
            return late
        if record.restarts:  # nobody knows whose frames were lost
            late = {name: value for name, value in late.items() if not name.startswith("outer")}
        return {"lost_frames": record.lost_frames, **late}

    def _describe_divergence(self) -> str:
        kind, rows = self.config.criterion.kind, self.writer.rows()
        unit = "of the frames right" if kind == "smbr" else "nats a frame"
        return describe_divergence(
            STAGES[kind], self.moment(), rows, "held_out_criterion", self.rate, unit
        )

    def attachments(self) -> dict[str, Arrays | bytes]:
        """See `Training`; after `summarise`."""
        found: dict[str, Arrays | bytes] = {}
        if (record := self.executor.record) is not None:
            start = self.initial.cpu().contiguous().numpy()
            found[RECORD] = {**record.arrays(), "start": start}
        if self.total.troubled:
            ids = self.setup.train.id
            named = {k: [str(ids[i]) for i in rows] for k, rows in self.total.troubled.items()}
            found[TROUBLES] = json.dumps(named, indent=1, ensure_ascii=False).encode()
        return found

    def loop_state(self) -> Facts:
        """See `Training`."""
        tallies = {"tally": self.tally.to_dict(), "total": self.total.to_dict()}
        return {"measured": self.measured, **tallies}

    def restore_loop_state(self, facts: Facts) -> None:
        """See `Training`."""
        self.measured = facts["measured"]
        self.tally, self.total = (Tally.from_dict(facts[n]) for n in ("tally", "total"))


def has_collapsed(kind: str, start: float, value: float) -> bool:
    """Whether a criterion that began at ``start`` is far worse than that, or no number.

    The best value of both is 0 (a share of 1): half the accuracy, or twice the nats away, is no
    noise. The numerator alone has no best value, and neither has a criterion above 0, whose
    lattices lost the reference.
    """
    if not math.isfinite(value):
        return True
    if kind == "smbr":
        return value < 0.5 * start
    return kind in ("mmi", "bmmi") and start < 0 and value < 2.0 * start


def train_sequence(
    config: SequenceConfig,
    corpus: Corpus,
    store: Store,
    watch: Watch,
    executed_by: ExecutedBy = build_simulated_executor,
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
            made = SequenceTraining(writer, config, corpus, initial, watch, executed_by)
            carry_out(made)

    return store.obtain(identity_config(config, how), execute)

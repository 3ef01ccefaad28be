"""What every way of sequence training shares: a start, measurements, checkpoints, an end."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from torch import Tensor

from data_synth.corpus import Corpus
from harness.execution.data.decoding import Seen, Tally
from harness.execution.evaluation.lags import lags
from harness.execution.evaluation.sequence import HeldOut, SequenceExaminer
from harness.execution.replay import state as resume
from harness.execution.runs.executed import Progress, Watch
from harness.execution.runs.sequence import SequenceConfig
from harness.execution.training import checkpoint
from harness.execution.training.setup import Setup
from harness.simulator import Timeline, Workload, concat
from harness.simulator.timeline import Contributions, Decodes, Folds, Spans
from harness.store import RunWriter
from harness.store.schema import Outcome

CHECKPOINT_EVERY_S = 5.0
CHECKPOINT_SHARE = 0.02
"""Checkpoints are as rare as it takes to spend at most this share of the time on them."""

LAYOUT = 2
"""Grows when checkpoints hold other things than before: an older one is not taken up."""

Arrays = dict[str, np.ndarray]
Facts = dict[str, Any]


class Clock(Protocol):
    """What says when things happen: a simulation, or real processes."""

    @property
    def version(self) -> int:
        """Folds so far."""
        ...

    @property
    def now_s(self) -> float:
        """Seconds since the run began."""
        ...

    def state(self) -> Arrays:
        """Everything needed to go on later, besides what `_capture` holds."""
        ...


Timed = TypeVar("Timed", bound=Clock)


class Diverged(Exception):  # noqa: N818 (what happened, not what was wrong)
    """The parameters give no numbers any more, or far worse ones than at the start."""


@dataclass
class Position:
    """Where a run stands, besides tensors and the simulation.

    Attributes:
        decoded: utterances whose outer gradients are known.
        measured: the held-out criterion of every evaluation.
        stage: for the way of training to use.
        step: for the way of training to use.
        steps_before: for the way of training to use.
    """

    decoded: int = 0
    measured: list[float] = field(default_factory=list[float])
    stage: int = 0
    step: int = 0
    steps_before: int = 0


@dataclass
class SequenceTraining(ABC, Generic[Timed]):
    """A run in progress.

    Args:
        config: what to run.
        corpus: the corpus it names.
        initial: the parameters ``[P]`` it starts from.
        writer: where its metrics go.
        watch: told of progress.
    """

    config: SequenceConfig
    corpus: Corpus
    initial: Tensor
    writer: RunWriter
    watch: Watch
    position: Position = field(default_factory=Position)
    tally: Tally = field(default_factory=Tally)
    total: Tally = field(default_factory=Tally)
    segments: list[Timeline] = field(default_factory=list[Timeline])
    word_errors: dict[str, np.ndarray] = field(default_factory=dict[str, np.ndarray])

    def __post_init__(self) -> None:
        config, corpus = self.config, self.corpus
        self.setup = Setup.of(config, corpus, self.initial)
        self.halves, self.part, self.loss = self.setup.halves, self.setup.part, self.setup.loss
        self.train, self.decoder = self.setup.train, self.setup.decoder
        self.examiner = SequenceExaminer(
            self.setup.net, self.setup.frames, corpus, self.setup.criterion, config.held_out
        )
        self.simulation = self._simulation()
        self._prepare()
        self._resume()

    # -- what a way of training is ------------------------------------------------------

    @abstractmethod
    def _simulation(self) -> Timed:
        """Who waits for whom, at time 0."""

    @abstractmethod
    def _restore(self, state: Arrays) -> None:
        """Undo the ``state`` of the simulation."""

    @abstractmethod
    def _prepare(self) -> None:
        """Set up whatever training needs, from ``self.part``."""

    @abstractmethod
    def _advance(self) -> bool:
        """Simulate and execute up to the next stop; False if there is nothing left to do."""

    @property
    @abstractmethod
    def model(self) -> Tensor:
        """The server's parameters [P'] of the trained half."""

    @property
    @abstractmethod
    def epoch(self) -> float:
        """Passes over the training utterances so far."""

    @abstractmethod
    def _capture(self) -> tuple[Arrays, Facts]:
        """What a checkpoint holds of all that `_prepare` set up."""

    @abstractmethod
    def _reinstate(self, arrays: Arrays, facts: Facts) -> None:
        """Undo ``_capture``."""

    # -- the way through a run ----------------------------------------------------------

    def run(self) -> Outcome:
        """Train to the end: ``"done"`` or ``"diverged"``."""
        self._next_save = time.monotonic() + CHECKPOINT_EVERY_S
        try:
            if not self.position.measured:
                self._evaluate()
            while self._advance():
                if time.monotonic() > self._next_save:
                    self._save()
            if self.simulation.version > self.measured_at:
                self._evaluate()
            self._test()
        except Diverged:
            return "diverged"
        return "done"

    @property
    def workload(self) -> Workload:
        """One minibatch, and the network the cluster is charged for."""
        return self.config.workload

    @property
    def rate(self) -> float:
        """The rate after all evaluations so far."""
        plateau = self.config.plateau
        measured = self.position.measured
        return plateau.rate(self.config.rate, measured) if plateau else self.config.rate

    @property
    def measured_at(self) -> int:
        """The version that was measured last; -1 before the first evaluation."""
        rows = self.writer.rows()
        return int(rows[-1]["fold"]) if rows else -1

    def whole_model(self) -> Tensor:
        """The parameters [P] one would deploy."""
        return self.halves.whole(self.model)

    def _count(self, decoded: Sequence[Seen]) -> None:
        """Take note of decoded utterances.

        Raises:
            Diverged: the parameters gave no numbers for one of them.
        """
        for each in decoded:
            self.tally.add(each)
        if self.tally.troubles["not finite"]:
            raise Diverged
        self.position.decoded += len(decoded)

    def _evaluate_when_due(self) -> None:
        """Evaluate when a share of a pass has gone by since the last time."""
        if self.epoch * self.config.evaluations >= len(self.position.measured):
            self._evaluate()

    def _evaluate(self) -> None:
        """Measure the server's model, and tell what went on since the last time.

        Raises:
            Diverged: the criterion is not a number, or has collapsed.
        """
        found = self.examiner.held_out(self.whole_model(), words=self.config.test)
        self.position.measured.append(found.criterion)
        self._log_held_out(found)
        self._log_tally()
        self._log("rate", self.rate)
        passes = float(self.config.passes)
        self.watch(Progress(self.writer.hash, self.epoch, max(passes, 1.0), found.frame_error))
        if self._collapsed(found.criterion):
            raise Diverged

    def _log_held_out(self, found: HeldOut) -> None:
        self._log("held_out_criterion", found.criterion)
        self._log("dev_frame_error/iterate", found.frame_error)
        if self.config.test:
            self._log("dev_word_error/iterate", found.word_error)

    def _log_tally(self) -> None:
        """Log what decoding came across, and begin to count anew."""
        seen = self.tally
        if seen.frames:
            if seen.value_frames:
                self._log("train_criterion", seen.value / seen.value_frames)
            for name in ("kept", "rejected", "cancelled"):
                self._log(f"{name}_frames", getattr(seen, name) / seen.frames)
        self.total.take_in(seen)
        self.tally = Tally()

    def _collapsed(self, value: float) -> bool:
        """Whether a criterion is far worse than at the start."""
        return collapsed(self.config.criterion.kind, self.position.measured[0], value)

    def _test(self) -> None:
        """Score the last model on the test sets; the errors of each utterance are kept."""
        if not self.config.test:
            return
        for test, found in self.examiner.tests(self.whole_model(), self.config.order).items():
            self.word_errors[f"{test}/lengths"] = found.lengths
            self.word_errors[f"{test}/iterate/{self.config.passes}"] = found.errors
            self._log(f"{test}_frame_error/iterate", found.frame_error)
            self._log(f"{test}_word_error/iterate", found.word_error)

    def _log(self, name: str, value: float) -> None:
        version, now_s = self.simulation.version, self.simulation.now_s
        self.writer.log(name, value, fold=version, time_s=now_s, epoch=self.epoch)

    def summary(self) -> dict[str, Any]:
        """The last measurements, shares of all decoded frames, and the simulated time."""
        last = {row["name"]: row["value"] for row in self.writer.rows()}
        self.total.take_in(self.tally)
        self.tally = Tally()
        frames = max(1, self.total.frames)
        shares = {n: getattr(self.total, n) / frames for n in ("kept", "rejected", "cancelled")}
        return {
            **last,
            **{f"{name}_frames": share for name, share in shares.items()},
            **{f"trouble/{name}": count for name, count in self.total.troubles.items()},
            "utterances": self.total.utterances,
            "decoded_frames": self.total.frames,
            "virtual_s": self.simulation.now_s,
            "folds": self.simulation.version,
            "epochs": self.epoch,
        }

    def troubled(self) -> dict[str, list[str]]:
        """Ids of the first training utterances that had each trouble, after ``summary``."""
        ids = self.train.id
        return {name: [str(ids[i]) for i in rows] for name, rows in self.total.troubled.items()}

    def lags(self, timeline: Timeline) -> dict[str, float]:
        """The three stalenesses of the whole run."""
        return lags(timeline, self.config)

    def attachments(self) -> dict[str, Arrays]:
        """Further files of the run, by name."""
        return {}

    # -- resuming -----------------------------------------------------------------------

    def _save(self) -> None:
        """Write a checkpoint of everything the rest of the run depends on."""
        began = time.monotonic()
        arrays, facts = self._capture()
        self.segments = [concat(self.segments)] if self.segments else []
        history, kinds = resume.capture_timeline(concat(self.segments))
        checkpoint.save(
            self.writer.checkpoint,
            {
                **resume.prefixed(arrays, "way/"),
                **resume.prefixed(self.simulation.state(), "simulation/"),
                **resume.prefixed(history, "timeline/"),
            },
            {
                "layout": LAYOUT,
                "position": asdict(self.position),
                "way": facts,
                "timeline": kinds,
                "rows": self.writer.rows(),
                "tally": self.tally.to_dict(),
                "total": self.total.to_dict(),
            },
        )
        now = time.monotonic()
        self._next_save = now + max(CHECKPOINT_EVERY_S, (now - began) / CHECKPOINT_SHARE)

    def _resume(self) -> None:
        """Take up the last checkpoint, if there is one."""
        found = checkpoint.load(self.writer.checkpoint)
        if found is None or found[1].get("layout") != LAYOUT:
            return
        arrays, facts = found
        self.position = Position(**facts["position"])
        self.tally, self.total = (Tally.from_dict(facts[n]) for n in ("tally", "total"))
        history = resume.part(arrays, "timeline/")
        self.segments = [
            Timeline(
                Folds(**resume.part(history, "folds.")),
                Contributions(**resume.part(history, "contributions.")),
                Spans(**resume.part(history, "spans.")),
                tuple(facts["timeline"]["kinds"]),
                decodes=Decodes(**resume.part(history, "decodes.")),
            )
        ]
        self._restore(resume.part(arrays, "simulation/"))
        self._reinstate(resume.part(arrays, "way/"), facts["way"])
        self.writer.restore_rows(facts["rows"])


def collapsed(kind: str, start: float, value: float) -> bool:
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

"""One run from its configuration to the store: stages, chunks, schedules, checkpoints.

Timing and training advance together, a segment at a time: the simulation moves to the next
boundary (a chunk's end, a held-out test, an evaluation), the replay executes what happened,
then whatever stands at the boundary is decided. Cheap decisions leave the workers running;
a rate search and the end of a stage wait until everybody is idle.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from data_synth.corpus import Corpus
from harness.algorithms.rate_search import trial_losses
from harness.algorithms.schedules import Pace
from harness.execution.data.frames import Frames, Order
from harness.execution.data.minibatches import Minibatches
from harness.execution.data.partition import Partition
from harness.execution.evaluation.frames import Examiner
from harness.execution.replay import state as resume
from harness.execution.runs.boundaries import Boundaries, Segment
from harness.execution.runs.config import RunConfig
from harness.execution.runs.executed import Progress, Watch
from harness.execution.training import checkpoint
from harness.execution.training.divergence import Moment
from harness.execution.training.executor import Executor, Simulated
from harness.execution.training.initial import initial_parameters
from harness.simulator import Timeline, concat
from harness.store import RunWriter, Store
from harness.store.schema import Outcome

CHECKPOINT_EVERY_S = 5.0
CHECKPOINT_SHARE = 0.02
"""Checkpoints are as rare as it takes to spend at most this share of the time on them."""
LAYOUT = 4
"""Grows when checkpoints hold other things than before: an older one is not taken up."""


@dataclass
class Position:
    """Where a run stands: everything besides tensors and the simulation that a resume needs."""

    stage: int = 0
    step: int = 0
    steps_before: int = 0
    epoch_before: float = 0.0
    losses: float = 0.0
    loss_frames: int = 0


ExecutedBy = Callable[[RunConfig, Corpus, Tensor, Minibatches], Executor]


@dataclass
class Training:
    """A run in progress.

    Args:
        config: what to run.
        corpus: the corpus it names.
        store: where pretrained networks are kept.
        writer: where its metrics go.
        watch: told of progress.
        executed_by: makes the executor.
    """

    config: RunConfig
    corpus: Corpus
    store: Store
    writer: RunWriter
    watch: Watch
    executed_by: ExecutedBy = Simulated
    position: Position = field(default_factory=Position)
    pace: Pace = field(init=False)
    segments: list[Timeline] = field(default_factory=list[Timeline])
    word_errors: dict[str, np.ndarray] = field(default_factory=dict[str, np.ndarray])

    def __post_init__(self) -> None:
        config, corpus = self.config, self.corpus
        self.net = config.network(corpus)
        self.frames = Frames.of(corpus, config.device)
        self.examiner = Examiner(self.net, self.frames, corpus)
        self.minibatches = config.minibatches(corpus, self.frames)
        model = initial_parameters(config, self.net, self.frames, corpus, self.store)
        self.executor = self.executed_by(config, corpus, model.to(config.device), self.minibatches)
        self.pace = Pace(config.schedule.rate)
        self._resume()

    # -- the way through a run -------------------------------------------------------

    def run(self) -> Outcome:
        """Train to the end: ``"done"`` or ``"diverged"``."""
        self._next_save = time.monotonic() + CHECKPOINT_EVERY_S
        finite = self._evaluate() if not self.segments else True
        while finite and not self._finished():
            boundaries = self._boundaries
            for segment in boundaries.segments(self.position.step):
                self._advance(segment)
                finite = segment.ends not in boundaries.evaluations or self._evaluate()
                if not finite:
                    break
                if segment.ends in boundaries.held_out_tests:
                    self._test_held_out()
                if time.monotonic() > self._next_save:
                    self._save()
            else:
                self._end_stage()
        return "done" if finite else "diverged"

    def _finished(self) -> bool:
        return self.pace.stop or self.position.stage >= self.config.passes

    @property
    def _boundaries(self) -> Boundaries:
        return Boundaries(self.config, self.order, self.position.stage)

    def _advance(self, asked: Segment) -> None:
        """Search if a chunk begins here, then simulate and execute up to the next boundary."""
        position = self.position
        if self._boundaries.is_chunk(asked.begins):
            self.pace.rate = self._search()
        happened = self.executor.advance(
            asked.folds, drain=asked.drain, handing_out=asked.handing_out, rate=self.pace.rate
        )
        self.segments.append(happened)
        position.loss_frames += int(happened.folded().steps.sum()) * self.order.minibatch
        position.step = asked.ends

    def _end_stage(self) -> None:
        """Test, let the schedule judge the pass, and lay out the next one."""
        position, schedule, accuracy = self.position, self.config.schedule, None
        if schedule.judges_passes:
            accuracy = 1.0 - self.examiner.dev(self.executor.server.model).frame_error
        schedule.after_pass(self.pace, position.stage + 1, accuracy)
        last = self.pace.stop or position.stage + 1 == self.config.passes
        if self.config.tested == "every pass" or (last and self.config.tested == "at the end"):
            self._test()
        position.epoch_before += self.config.stage(position.stage).share
        position.steps_before += self.order.steps
        position.stage, position.step = position.stage + 1, 0
        self.minibatches.begin(position.stage, position.steps_before)
        self.executor.begin_stage()

    # -- what happens at boundaries ---------------------------------------------------

    def _evaluate(self) -> bool:
        """Score every candidate model on the development set; False if one is not finite."""
        candidates = self.executor.server.candidates()
        scores = {name: self.examiner.dev(model) for name, model in candidates.items()}
        if not all(s.finite for s in scores.values()):
            return False
        for name, s in scores.items():
            self._log(f"dev_frame_error/{name}", s.frame_error)
            self._log(f"dev_loss/{name}", s.loss)
        self._log("rate", self.pace.rate)
        self._log_training_loss()
        errors = {name: s.frame_error for name, s in scores.items()}
        happened = self.config.algorithm.after_evaluation(self.executor.server, errors)
        for name, value in happened.items():
            self._log(name, value)
        deployed = "average" if "average" in scores else "iterate"
        self.watch(
            Progress(self.writer.hash, self.epoch, self._passes(), scores[deployed].frame_error)
        )
        return True

    def _test(self) -> None:
        """Score every candidate model on the test sets; the errors of each utterance are kept."""
        for test in self.corpus.tests:
            self.word_errors[f"{test}/lengths"] = self.examiner.recogniser.lengths(test)
            for name, model in self.executor.server.candidates().items():
                wrong = self.examiner.word_errors(test, model)
                frames = self.examiner.frames_of(test, model)
                self.word_errors[f"{test}/{name}/{self.position.stage}"] = wrong
                self._log(f"{test}_frame_error/{name}", frames.frame_error)
                said = self.word_errors[f"{test}/lengths"]
                self._log(f"{test}_word_error/{name}", float(wrong.sum() / said.sum()))

    def _test_held_out(self) -> None:
        """Tell the schedule the held-out loss."""
        loss = self.examiner.held_out_loss(self.executor.server.model)
        self.config.schedule.after_test(self.pace, loss)

    def _search(self) -> float:
        """Find the next chunk's rate from trial descents on its first minibatches.

        The simulated cluster runs one rung on each worker at a time.
        """
        schedule, left = self.config.schedule, self.order.steps - self.position.step
        if not schedule.tries(self.order.chunk_steps, left):
            return self.pace.rate
        steps = min(schedule.trial_steps(self.order.chunk_steps), left)
        first = self.position.steps_before + self.position.step
        minibatches = (self.minibatches.of([(0, step)]) for step in range(first, first + steps))
        ladder = schedule.ladder(self.pace.rate)
        losses = trial_losses(self.net.gradient, self.executor.server.model, ladder, minibatches)
        rate = schedule.choose(ladder, losses)
        cost = self.config.search_s(self.position.stage, self.order.chunk_steps, left)
        self.segments.append(self.executor.pause(cost, "search"))
        return rate

    # -- small readings ----------------------------------------------------------------

    @property
    def epoch(self) -> float:
        """Passes over the training set so far."""
        step, share = self.position.step, self.config.stage(self.position.stage).share
        done = self._boundaries.evaluations.get(step, step / self.order.folds)
        return self.position.epoch_before + share * done

    def moment(self) -> Moment:
        """Where the run stands."""
        return Moment(self.executor.server.version, self.epoch, self.executor.now_s)

    def _passes(self) -> float:
        return sum(self.config.stage(k).share for k in range(self.config.passes))

    @property
    def order(self) -> Order | Partition:
        """The minibatches of the present stage."""
        return self.minibatches.order

    def _log(self, name: str, value: float) -> None:
        self.writer.log(
            name,
            value,
            fold=self.executor.server.version,
            time_s=self.executor.now_s,
            epoch=self.epoch,
        )

    def _log_training_loss(self) -> None:
        position, total = self.position, self.executor.loss
        if position.loss_frames:
            self._log("train_loss", (total - position.losses) / position.loss_frames)
        position.losses, position.loss_frames = total, 0

    # -- the end, and resuming ------------------------------------------------------------

    def summary(self) -> dict[str, Any]:
        """The last measurements of every candidate model, and the simulated time."""
        last = {row["name"]: row["value"] for row in self.writer.rows()}
        return {
            **last,
            "virtual_s": self.executor.now_s,
            "folds": self.executor.server.version,
            "epochs": self.position.epoch_before,
            "passes": self.position.stage,
            "stopped": int(self.pace.stop),
        }

    def _save(self) -> None:
        """Write a checkpoint of everything the rest of the run depends on."""
        began = time.monotonic()
        executor_arrays, executor_facts = self.executor.capture()
        self.segments = [concat(self.segments)]
        history_arrays, history_facts = resume.capture_timeline(self.segments[0])
        arrays = {
            **resume.prefixed(executor_arrays, "executor/"),
            **resume.prefixed(history_arrays, "timeline/"),
            **resume.prefixed(self.word_errors, "word_errors/"),
        }
        checkpoint.save(
            self.writer.checkpoint,
            arrays,
            {
                "layout": LAYOUT,
                "position": vars(self.position),
                "pace": vars(self.pace),
                "executor": executor_facts,
                "timeline": history_facts,
                "rows": self.writer.rows(),
                "acoustic_scale": self.examiner.recogniser.scale,
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
        self.position, self.pace = Position(**facts["position"]), Pace(**facts["pace"])
        self.minibatches.begin(self.position.stage, self.position.steps_before)
        self.executor.reinstate(resume.part(arrays, "executor/"), facts["executor"])
        history = resume.part(arrays, "timeline/")
        self.segments = [resume.reinstate_timeline(history, facts["timeline"])]
        self.word_errors = resume.part(arrays, "word_errors/")
        self.examiner.recogniser.scale = facts["acoustic_scale"]
        self.writer.restore_rows(facts["rows"])

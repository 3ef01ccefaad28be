"""Training by folds, for any task: stages, chunks, schedules, and measuring at boundaries.

A pass over the data is a stage; the simulator calls it an epoch. Workers keep running during an
evaluation and from one pass to the next. They are idle during a rate search, and between stages
where `Experiment.waits_before` says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import ceil
from typing import Any

import numpy as np
from torch import Tensor

from harness.algorithms.async_sgd import AveragedSgd
from harness.algorithms.saved import Arrays
from harness.algorithms.schedules import Halving, Hand, Pace, trial_losses
from harness.base.errors import UserError
from harness.experiment.contract import Progress, Watch
from harness.experiment.experiment import AnyExperiment
from harness.experiment.loop import (
    Diverged,
    FoldExecutor,
    StatefulExecutor,
    Training,
    describe_divergence,
)
from harness.experiment.task import Problem
from harness.simulator.timeline import Timeline, concat
from harness.store.schema import STATE, Outcome
from harness.tasks.order import Laid, Minibatches

SEARCH = "search"
"""Kind of the cluster's pause for the search of the next chunk's learning rate."""

FAR_WORSE = 100.0
"""A run diverges if its loss rises by so many times its absolute value at the start, or 1."""

ExecutedBy = Callable[[Any, Problem, Tensor, Minibatches], FoldExecutor]
"""Makes an executor from an experiment, its problem, initial parameters ``[P]`` and minibatches."""


@dataclass(frozen=True)
class Segment:
    """The folds between two boundaries, as requested from the cluster.

    Attributes:
        begins, ends: first and last fold, counted from the beginning of the stage.
        handing_out: folds whose minibatches may be handed out, from ``begins``; None for those of
            the segment, after which nothing is in flight.
    """

    begins: int
    ends: int
    handing_out: int | None

    @property
    def folds(self) -> int:
        """Number of folds in the segment."""
        return self.ends - self.begins


@dataclass(frozen=True)
class Boundaries:
    """The boundaries of one stage.

    Args:
        config: the experiment.
        order: minibatches of the stage.
        stage: number of the stage, from 0.
    """

    config: AnyExperiment
    order: Laid
    stage: int

    @property
    def evaluations(self) -> dict[int, float]:
        """The folds after which candidates are scored, and the share of a pass done by then."""
        return self._every(self.config.evaluations)

    @property
    def considerations(self) -> dict[int, float]:
        """The folds after which the average is compared with the iterate, of `AveragedSgd`."""
        algorithm = self.config.algorithm
        return self._every(algorithm.considers if isinstance(algorithm, AveragedSgd) else 0)

    @property
    def held_out_tests(self) -> dict[int, float]:
        """The folds after which the schedule receives a held-out loss."""
        schedule = self.config.schedule
        return self._every(schedule.tests_a_pass if isinstance(schedule, Hand) else 0)

    @property
    def chunk_steps(self) -> int:
        """Minibatches in a chunk."""
        order = self.order
        return max(1, round(self.config.chunk * int(order.lengths.sum()) / order.minibatch))

    def is_chunk(self, step: int) -> bool:
        """Whether a chunk begins after ``step`` folds, and with it a search for its rate."""
        return self.config.search is not None and step % self.chunk_steps == 0

    def segments(self, begin: int = 0) -> Iterator[Segment]:
        """The remaining segments of a stage after its first ``begin`` folds."""
        folds = self.order.folds
        # Minibatches of later passes are handed out before this one ends, so no worker waits there.
        horizon = folds + self.order.ahead(self.config.handing.under_way)
        # A trial descent needs one version of the model, so workers are idle where a chunk begins.
        chunks = set(range(0, folds, self.chunk_steps)) if self.config.search else set[int]()
        measured = self.evaluations | self.considerations | self.held_out_tests
        for end in sorted(step for step in {*chunks, *measured, folds} if step > begin):
            idle = next(step for step in sorted({*chunks, horizon}) if step > begin)
            if self.config.shards > 1:
                idle = end  # shards have one common version only when nothing is in flight
            yield Segment(begin, end, None if end == idle else idle - begin)
            begin = end

    def _every(self, times: int) -> dict[int, float]:
        """Folds that divide a whole pass into ``times`` nearly equal parts, and the share done."""
        parts = max(1, round(times * self.config.stage(self.stage).share)) if times else 0
        # The share is nominal: a subset of whole utterances has other numbers of frames with each
        # seed, and evaluations at the same share are compared between seeds.
        return {ceil(self.order.folds * (k + 1) / parts): (k + 1) / parts for k in range(parts)}


@dataclass
class Position:
    """Counters of a run in progress: all that a resume needs besides tensors and simulation.

    Rows of training data: ``folded`` were trained on, ``trained`` of them are in the model, since a
    failing server undoes folds; ``offered`` are those of the passes. ``sizes`` are the folds at the
    end of each earlier stage, and the rows of its minibatches.
    """

    stage: int = 0
    step: int = 0
    steps_before: int = 0
    epoch_before: float = 0.0
    folded: int = 0
    trained: int = 0
    sizes: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    offered: int = 0
    losses: float = 0.0
    loss_frames: int = 0


@dataclass
class FoldTraining(Training[FoldExecutor]):
    """A run in progress that trains by folds.

    Args:
        config: the experiment.
        problem: its opened task.
        watch: receives progress.
        executed_by: makes the executor.
    """

    SAVED = (*Training.SAVED, "position", "pace")

    config: AnyExperiment
    problem: Problem
    watch: Watch
    executed_by: ExecutedBy
    position: Position = field(default_factory=Position, init=False)
    pace: Pace = field(init=False)

    def __post_init__(self) -> None:
        problem, self.minibatches = self.problem, self.problem.minibatches(self.config)
        self.executor = self.executed_by(self.config, problem, problem.initial(), self.minibatches)
        if isinstance(self.executor, StatefulExecutor):
            problem.take_states(self.executor.states)
        self.pace = Pace(self.config.schedule.rate)
        self.rates = self.config.rates(self.minibatches)
        self.resume()

    # -- the way through a run -----------------------------------------------------------

    def step(self) -> bool:
        """See `Training`."""
        # A stage ends when its next boundary is requested and none is, so that a checkpoint of its
        # last boundary resumes before the tests and the schedule's judgement.
        while (segment := next(self._boundaries.segments(self.position.step), None)) is None:
            self._end_stage()
            if self.pace.stop or self.position.stage >= self.config.passes:
                return False
        if self._boundaries.is_chunk(segment.begins):
            self.pace.rate = self._search()
        handing_out, rate = segment.handing_out, self.pace.rate
        timeline = self.executor.advance(segment.folds, handing_out=handing_out, rate=rate)
        self._count(timeline, segment.ends)
        self._score(segment.ends)
        schedule = self.config.schedule
        if isinstance(schedule, Hand) and segment.ends in self._boundaries.held_out_tests:
            model = self.executor.server.model
            schedule.after_test(self.pace, self.problem.evaluate_held_out(model))
        return True

    @property
    def _rate(self) -> float:
        """The learning rate of the last fold."""
        return self.rates.fold_rate(self.pace.rate, max(0, self.executor.server.version - 1))

    @property
    def _boundaries(self) -> Boundaries:
        return Boundaries(self.config, self.order, self.position.stage)

    def _count(self, timeline: Timeline, step: int) -> None:
        """Keep a segment, and count what was trained on in it."""
        self.segments.append(timeline)
        position, minibatches = self.position, int(timeline.folded().steps.sum())
        rows = minibatches * self.order.minibatch
        position.loss_frames += minibatches * self.problem.losses_in(self.order.minibatch)
        position.folded, position.trained = position.folded + rows, position.trained + rows
        if len(timeline.restarts):  # folds since the server's last checkpoint are undone
            position.trained = self._count_kept()
        position.step = step

    def _count_kept(self) -> int:
        """The rows whose folds no failure of the server has undone."""
        ends = [end for end, _ in self.position.sizes]
        sizes = np.array([*(size for _, size in self.position.sizes), self.order.minibatch])
        rows = concat(self.segments).kept()
        return int((rows.steps * sizes[np.searchsorted(ends, rows.fold, side="right")]).sum())

    def _end_stage(self) -> None:
        """Let the schedule judge the pass, score the test sets if due, and begin the next pass."""
        position, schedule, accuracy = self.position, self.config.schedule, None
        if isinstance(schedule, Halving):
            accuracy = 1.0 - self._error(self.problem.evaluate(self.executor.server.model))
        schedule.after_pass(self.pace, position.stage + 1, accuracy)
        is_last = self.pace.stop or position.stage + 1 == self.config.passes
        is_first = position.stage == 0
        due = {"every pass": True, "first pass": is_first, "at the end": is_last, "never": False}
        if due[self.config.tested]:
            self._test()
        position.epoch_before += self.config.stage(position.stage).share
        position.offered += self.order.size
        position.sizes.append((self.executor.server.version, self.order.minibatch))
        position.steps_before += self.order.steps
        position.stage, position.step = position.stage + 1, 0
        self.minibatches.begin(position.stage, position.steps_before)
        self.executor.begin_stage()

    def _search(self) -> float:
        """Find the next chunk's learning rate by trial descents on its first minibatches."""
        search, chunk_steps = self.config.search, self._boundaries.chunk_steps
        steps_left = self.order.steps - self.position.step
        if search is None or not search.tries(chunk_steps, steps_left):
            return self.pace.rate
        steps = min(search.trial_steps(chunk_steps), steps_left)
        begin = self.position.steps_before + self.position.step
        # Worker 0 stands for all: without rounds, workers share one order of minibatches.
        minibatches = (self.minibatches.fetch([(0, step)]) for step in range(begin, begin + steps))
        ladder = search.ladder(self.pace.rate)
        losses = trial_losses(
            self.problem.network.gradient, self.executor.server.model, ladder, minibatches
        )
        rate = search.choose(ladder, losses)
        # Computed here at once; on the cluster, each worker would run one rung at a time.
        cost = self.config.search_s(self.position.stage, chunk_steps, steps_left)
        self.segments.append(self.executor.pause(cost, SEARCH))
        return rate

    # -- what is measured ----------------------------------------------------------------

    def evaluate(self) -> None:
        """Score every candidate model on the development set; see `Training`."""
        self._tell(self._score_candidates())

    def _score(self, step: int) -> None:
        """Score the candidates if an evaluation is due, or if the algorithm considers scores."""
        is_evaluated, algorithm = step in self._boundaries.evaluations, self.config.algorithm
        is_considered = step in self._boundaries.considerations
        if not (is_evaluated or is_considered):
            return
        scores = self._score_candidates()
        if is_evaluated:
            self._tell(scores)
        if is_considered and isinstance(algorithm, AveragedSgd):
            errors = {name: self._error(measured) for name, measured in scores.items()}
            for name, value in algorithm.consider(self.executor.server, errors).items():
                self.log(name, value)

    def _error(self, measured: Mapping[str, float]) -> float:
        return self.config.task.judged.error(measured)

    def _score_candidates(self) -> dict[str, Mapping[str, float]]:
        candidates = self.executor.server.candidates()
        scores = {name: self.problem.evaluate(model) for name, model in candidates.items()}
        rows = reversed(self.writer.rows())  # so that the first row of a name remains
        starts = {row["name"]: row["value"] for row in rows}
        for name, measured in scores.items():
            if missing := {"loss", self.config.task.judged.name} - measured.keys():
                place = f"{type(self.problem).__name__}.evaluate"
                raise UserError(f"{place}: no {min(missing)!r}; needed: loss and what is judged")
            loss = measured["loss"]
            start = starts.get(f"dev_loss/{name}", loss)
            # A loss may begin at 0 or below, where a multiple of it means nothing.
            if not math.isfinite(loss) or loss - start > FAR_WORSE * max(1.0, abs(start)):
                raise Diverged
        return scores

    def _tell(self, scores: Mapping[str, Mapping[str, float]]) -> None:
        """Log the scores, and report progress."""
        for name, measured in scores.items():
            for metric, value in measured.items():
                self.log(f"dev_{metric}/{name}", value)
        self.log("rate", self._rate)
        position, losses = self.position, self.executor.loss
        if position.loss_frames:
            self.log("train_loss", (losses - position.losses) / position.loss_frames)
        position.losses, position.loss_frames = losses, 0
        passes = sum(self.config.stage(k).share for k in range(self.config.passes))
        error = self.config.show(self._error(scores[self._deployed]))
        measured = f"{self.config.metric} {error}"
        self.watch(Progress(self.writer.hash, self._passed, passes, measured))

    def _test(self) -> None:
        """Score candidate models on the test sets; keep the errors of each utterance."""
        for name, model in self.executor.server.candidates().items():
            if self.config.tested_models == "deployed" and name != self._deployed:
                continue
            result = self.problem.test(model, name)
            for metric, value in result.measured.items():
                self.log(metric, value)
            for test, (wrong, lengths) in result.errors.items():
                self.test_errors[f"{test}/lengths"] = lengths
                self.test_errors[f"{test}/{name}/{self.position.stage}"] = wrong

    @property
    def epoch(self) -> float:
        """Passes over the training set so far."""
        position, size = self.position, self.order.size
        if not self.config.task.drops_rest:
            return position.trained / size
        # Nominal: each pass counts as one whatever it leaves out, and undone folds do not count.
        return self._passed - (position.folded - position.trained) / size

    @property
    def _passed(self) -> float:
        """Passes so far; each counts as 1 at its end, also if it left out or added minibatches."""
        step, share = self.position.step, self.config.stage(self.position.stage).share
        shares = self._boundaries.considerations | self._boundaries.evaluations
        # At a boundary the share it was configured for, which its whole number of steps only nears.
        return self.position.epoch_before + share * shares.get(step, step / self.order.folds)

    @property
    def order(self) -> Laid:
        """The minibatches of the present stage."""
        return self.minibatches.order

    # -- the end, and resuming -----------------------------------------------------------

    def model_to_deploy(self) -> Tensor:
        """See `Training`; sequence training starts from these parameters."""
        return self.executor.server.candidates()[self._deployed]

    def attachments(self) -> dict[str, Arrays | bytes]:
        """See `Training`: the deployed state of replicas, of a task that has any."""
        state = self.problem.state()
        return {STATE: state} if state else {}

    @property
    def _deployed(self) -> str:
        """Name of the candidate to deploy: the average if the algorithm has one."""
        return "average" if "average" in self.executor.server.candidates() else "iterate"

    def summarise(self, status: Outcome, timeline: Timeline) -> tuple[dict[str, Any], str]:
        """See `Training`: the last measurements of every candidate model, and simulated time."""
        moment = self.moment()
        times = {"virtual_s": moment.time_s, "folds": moment.fold}
        if status == "done":
            ended = {"stopped": int(self.pace.stop), "timeline_sha256": timeline.sha256()}
            data = self.config.task.describe_data(self.config.workers, self.config.seed)
            return {**self.last_measured(), **times, **data, **self._progress(), **ended}, ""
        algorithm = type(self.config.algorithm).__name__
        stage = algorithm if moment.fold > 0 else "its initial parameters"
        rows = self.writer.rows()
        return times, describe_divergence(stage, moment, rows, "dev_loss", self._rate)

    def _progress(self) -> dict[str, float]:
        """Epochs and passes, and the share of the passes' rows that was trained on."""
        position, is_counted = self.position, not self.config.task.drops_rest
        figures = {"epochs": self.epoch, "passes": position.stage}
        left_out = position.offered - position.trained
        # Less than a minibatch of each pass always remains; rounds may leave out much more.
        if is_counted or left_out > position.stage * self.order.minibatch:
            figures["trained_share"] = position.trained / position.offered
        return figures

    def restore(self, state: Mapping[str, Any]) -> None:
        """See `Saved`."""
        self.position = state["position"]
        # First of all: the stage determines the minibatches that the executor draws from.
        self.minibatches.begin(self.position.stage, self.position.steps_before)
        super().restore(state)

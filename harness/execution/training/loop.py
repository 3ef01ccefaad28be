"""One run from its configuration to the store: what all training shares.

A training moves from boundary to boundary. Its executor does what lies between two of them: a
simulated cluster whose timeline is replayed on one device, a recorded timeline, or real workers.
What is decided and measured at a boundary is up to the kind of training (`frames`, `sequence`).
"""

from __future__ import annotations

import sys
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np
from torch import Tensor

from harness.execution.replay import state as resume
from harness.execution.replay.state import Arrays, Facts
from harness.execution.training import checkpoint
from harness.execution.training.divergence import Moment
from harness.execution.training.executor import Executor
from harness.simulator import Timeline, concat
from harness.store import RunWriter
from harness.store.schema import Outcome

CHECKPOINT_EVERY_S = 5.0
CHECKPOINT_SHARE = 0.02
"""Checkpoints are as rare as it takes to spend at most this share of the time on them."""
LAYOUT = 9
"""Grows when checkpoints hold other things than before: an older one is not taken up.

What a simulation holds is part of it: `tests/harness/execution/training/test_layout.py`.
"""


Executing = TypeVar("Executing", bound=Executor)


class Diverged(Exception):  # noqa: N818 (what happened, not what was wrong)
    """The parameters give no numbers any more, or far worse ones than at the start."""


@dataclass
class Training(ABC, Generic[Executing]):
    """A run in progress.

    Args:
        writer: where its metrics go.

    Attributes:
        executor: does what lies between boundaries.
        segments: what happened, from boundary to boundary.
        word_errors: errors ``[utterances]`` for each ``test/candidate/stage``, and lengths.
    """

    writer: RunWriter
    executor: Executing = field(init=False)
    segments: list[Timeline] = field(default_factory=list[Timeline], init=False)
    word_errors: dict[str, np.ndarray] = field(default_factory=dict[str, np.ndarray], init=False)

    # -- what a kind of training is ------------------------------------------------------

    @abstractmethod
    def step(self) -> bool:
        """Execute up to the next boundary and do what is due there; False if none is left.

        Raises:
            Diverged: it makes no sense to go on.
        """

    @abstractmethod
    def evaluate(self) -> None:
        """Measure the model as it is now.

        Raises:
            Diverged: it gives no numbers, or far worse ones than at the start.
        """

    @abstractmethod
    def finish(self) -> None:
        """Do what is due after the last boundary.

        Raises:
            Diverged: see `evaluate`.
        """

    @property
    @abstractmethod
    def epoch(self) -> float:
        """Passes over the training set so far."""

    @abstractmethod
    def deployed(self) -> Tensor:
        """The parameters ``[P]`` that the tests are about."""

    @abstractmethod
    def told(self, status: Outcome, timeline: Timeline) -> tuple[dict[str, Any], str]:
        """The run's summary, and where it diverged if it did, in words.

        Args:
            status: how it ended.
            timeline: of the whole run.
        """

    @abstractmethod
    def decided(self) -> Facts:
        """What a resume needs besides the executor, the timeline and what was measured."""

    @abstractmethod
    def take_up(self, facts: Facts) -> None:
        """Undo `decided`; the executor is reinstated afterwards."""

    def attachments(self) -> dict[str, Arrays | bytes]:
        """Further files of the run, by name: arrays, or their content."""
        return {}

    # -- the way through a run -----------------------------------------------------------

    def run(self) -> Outcome:
        """Train to the end: ``"done"`` or ``"diverged"``."""
        self._next_save = time.monotonic() + CHECKPOINT_EVERY_S
        try:
            if not self.writer.rows():
                self.evaluate()
            while self.step():
                if time.monotonic() > self._next_save:
                    self._save()
            self.finish()
        except Diverged:
            return "diverged"
        return "done"

    def moment(self) -> Moment:
        """Where the run stands."""
        return Moment(self.executor.server.version, self.epoch, self.executor.now_s)

    def log(self, name: str, value: float) -> None:
        """Keep a measurement of this moment."""
        now = self.moment()
        self.writer.log(name, value, fold=now.fold, time_s=now.time_s, epoch=now.passes)

    def last_measured(self) -> dict[str, float]:
        """The last value of everything that was logged."""
        return {row["name"]: row["value"] for row in self.writer.rows()}

    # -- resuming ------------------------------------------------------------------------

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
        facts = {
            "layout": LAYOUT,
            "run": self.writer.hash,
            "decided": self.decided(),
            "executor": executor_facts,
            "timeline": history_facts,
            "rows": self.writer.rows(),
        }
        checkpoint.save(self.writer.checkpoint, arrays, facts)
        now = time.monotonic()
        self._next_save = now + max(CHECKPOINT_EVERY_S, (now - began) / CHECKPOINT_SHARE)

    def resume(self) -> None:
        """Take up the last checkpoint, if there is one; once everything is set up."""
        found = checkpoint.load(self.writer.checkpoint)
        if found is None:
            return
        arrays, facts = found
        run = self.writer.hash  # an older checkpoint does not say whose it is
        if facts.get("layout") != LAYOUT or facts.get("run", run) != run:
            whose = "version" if facts.get("layout") != LAYOUT else "run"
            told = f"another {whose}'s checkpoint; the run begins again"
            print(f"{self.writer.checkpoint}: {told}", file=sys.stderr)
            return
        history = resume.part(arrays, "timeline/")
        self.segments = [resume.reinstate_timeline(history, facts["timeline"])]
        self.word_errors = resume.part(arrays, "word_errors/")
        self.writer.restore_rows(facts["rows"])
        self.take_up(facts["decided"])
        self.executor.reinstate(resume.part(arrays, "executor/"), facts["executor"])

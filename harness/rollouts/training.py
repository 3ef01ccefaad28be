"""Training by rollouts: updates of the trainer, evaluations, and what a run tells at its end."""

from __future__ import annotations

import math
from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np
from torch import Tensor

from harness.algorithms.saved import Arrays
from harness.experiment.contract import Progress, Watch
from harness.experiment.experiment import AnyExperiment
from harness.experiment.loop import Diverged, Training, describe_divergence
from harness.rollouts.executor import REWARD, RolloutExecutor
from harness.rollouts.records import ROLLOUTS, TRAINED, rollout_rows
from harness.rollouts.sampling import score_greedily
from harness.simulator.timeline import Timeline
from harness.store.schema import Outcome

DECIDING = ("gradient_norm", "log_prob")
"""Figures of an update that are finite unless the training has diverged."""


@dataclass
class RolloutTraining(Training[RolloutExecutor]):
    """A training by rollouts in progress.

    Args:
        config: configuration of the run.
        start: the parameters ``[P]`` it starts from.
        watch: receives progress.
    """

    config: AnyExperiment
    start: Tensor
    watch: Watch

    def __post_init__(self) -> None:
        config = self.config
        self.executor = RolloutExecutor(config, self.start)
        self.updates: int = config.task.updates
        self.held_out = self.executor.problems.held_out(config.task.held_out)
        share = self.updates / config.evaluations
        self.due = {ceil(share * (k + 1)) for k in range(config.evaluations)}
        self.resume()

    @property
    def epoch(self) -> float:
        """Share of the updates that are done."""
        return self.executor.server.version / max(1, self.updates)

    def step(self) -> bool:
        """See `Training`: one update, and an evaluation where one is due."""
        if self.executor.server.version == self.updates:
            return False
        update = self.executor.advance()
        self.segments.append(update.happened)
        for name, value in update.figures.items():
            self.log(name, value)
        # Logits that are not finite end every rollout at once, so that no group has a gradient.
        if not all(math.isfinite(update.figures.get(name, 0.0)) for name in DECIDING):
            raise Diverged
        if self.executor.server.version in self.due:
            self.evaluate()
        return self.executor.server.version < self.updates

    def evaluate(self) -> None:
        """See `Training`: greedy answers to the held-out problems."""
        policy = self.executor.weights.load(self.executor.server.model)
        score = score_greedily(policy, self.executor.problems, self.held_out)
        self.log("score", score.mean)
        self.log(f"{self.config.judged}/iterate", 1.0 - score.mean)
        for difficulty, mean in score.by_difficulty.items():
            self.log(f"score/{difficulty}", mean)
        self.log("answer_tokens", score.tokens)
        step, text = self.executor.server.version, f"score {score.mean:.1%}"
        self.watch(Progress(self.writer.hash, step, max(1, self.updates), text, "updates"))

    def model_to_deploy(self) -> Tensor:
        """See `Training`."""
        return self.executor.server.model

    def attachments(self) -> dict[str, Arrays | bytes]:
        """See `Training`."""
        return {ROLLOUTS: self.executor.collect_record()}

    def summarise(self, status: Outcome, timeline: Timeline) -> tuple[dict[str, Any], str]:
        """See `Training`: scores before and after, times, staleness, and what was thrown away."""
        initial = {row["name"]: row["value"] for row in reversed(self.writer.rows())}
        scores = {name: value for name, value in initial.items() if name.startswith("score")}
        summary = {
            **{name.replace("score", "score_before", 1): value for name, value in scores.items()},
            **self.last_measured(),
            **measure_rollouts(timeline, self.executor.collect_record()),
            "virtual_s": self.executor.now_s,
            "folds": self.executor.server.version,
            "timeline_sha256": timeline.sha256(),
        }
        return summary, "" if status == "done" else self._describe_divergence()

    def _describe_divergence(self) -> str:
        stage, rows = type(self.config.task.loss).__name__, self.writer.rows()
        return describe_divergence(stage, self.moment(), rows, "score", self.config.schedule.rate)


def measure_rollouts(timeline: Timeline, recorded: Arrays) -> dict[str, float]:
    """Figures of a run's rollouts: staleness, tokens a second, and what was thrown away.

    Args:
        timeline: timeline of the run.
        recorded: the record of its rollouts.

    Returns:
        ``staleness_tokens``: mean over trained tokens of the version that trained less the one that
        sampled; ``staleness_rollouts`` and ``staleness_most``: mean and largest one by a rollout's
        first token; ``tokens_per_s``: trained tokens a simulated second; ``thrown_away``: the share
        of rollouts. If there are any, ``thrown_tokens`` and ``thrown_reward`` are their mean length
        and reward, as ``trained_tokens`` and ``trained_reward`` are of the others.
    """
    rows = rollout_rows(timeline)
    if not len(rows):
        return {}
    trained = rows.where(rows.fate == TRAINED)
    age = trained.trained_version - trained.oldest_version
    by_token = (trained.trained_version - trained.mean_version) * trained.tokens
    seconds = float(timeline.folds.time_s[-1])
    figures = {
        "staleness_tokens": float(by_token.sum() / trained.tokens.sum()),
        "staleness_rollouts": float(age.mean()),
        "staleness_most": int(age.max()),
        "tokens_per_s": float(trained.tokens.sum()) / seconds if seconds else math.inf,
        "thrown_away": 1.0 - len(trained) / len(rows),
    }
    is_rewarded = ~np.isnan(recorded[REWARD])
    for name, keep in (
        ("trained", recorded["fate"] == TRAINED),
        ("thrown", recorded["fate"] != TRAINED),
    ):
        if (keep & is_rewarded).any():
            figures[f"{name}_tokens"] = float(recorded["tokens"][keep & is_rewarded].mean())
            figures[f"{name}_reward"] = float(recorded[REWARD][keep & is_rewarded].mean())
    return figures

"""The result of `lagbench.rollouts`: scores before and after, staleness, speed, what was lost."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import nn

from harness.base.errors import UserError
from harness.experiment.experiment import AnyExperiment
from harness.judge.bounds import positive_ci, share_ci
from harness.judge.interval import Interval
from harness.judge.statistics import mean_ci
from harness.rollouts.executor import REWARD
from harness.rollouts.policy import Weights
from harness.rollouts.records import figures_of, load_record
from harness.store import Run

FIGURES = {
    "staleness of tokens": "staleness_tokens",
    "largest staleness": "staleness_most",
    "tokens/s, simulated": "tokens_per_s",
    "rollouts thrown away": "thrown_away",
    "tokens of an answer": "trained_tokens",
    "reward in training": "trained_reward",
    "simulated seconds": "virtual_s",
}
"""Rows of the printed table below the scores, and figures of a run's summary."""


MOST_WEIGHT = 0.05
"""Largest share of one prompt in the score without a line that says so."""


@dataclass(frozen=True)
class RolloutResult:
    """Result of `lagbench.rollouts`: the runs of all seeds; prints as a table.

    Attributes:
        runs: a run for each seed.
        config: experiment of the first run.
    """

    runs: Sequence[Run]
    config: AnyExperiment = field(repr=False, compare=False)

    def interval(self, figure: str) -> Interval:
        """The mean of a figure of the runs' summaries over seeds, with its 95% interval.

        The interval of a share stays between 0 and 1, and that of a figure that cannot be negative
        does not fall below 0. Scores count as shares if every reward lay between 0 and 1.

        Args:
            figure: its name, such as ``"score"``, ``"score_before"`` training or
                ``"staleness_tokens"``; ``"thrown_away/3"`` is the share of rollouts of difficulty 3
                that were thrown away.

        Raises:
            UserError: no run has it.
        """
        values = [float(figures[figure]) for figures in self._figures if figure in figures]
        if not values:
            names = sorted({name for figures in self._figures for name in figures})
            raise UserError(f"{figure!r} is no figure; allowed: {', '.join(names)}")
        kind, _, difficulty = figure.partition("/")
        if not all(map(math.isfinite, values)):  # of a run that diverged
            return mean_ci(values)
        is_score = kind.startswith("score")
        if kind == "thrown_away" or (is_score and self._rewards_are_shares):
            return share_ci(values, self._weigh(difficulty) if is_score else 0.0)
        return (
            positive_ci(values)
            if kind in FIGURES.values() and "reward" not in kind
            else mean_ci(values)
        )

    @cached_property
    def _figures(self) -> list[dict[str, Any]]:
        """The summary of each run, with the shares thrown away by difficulty."""
        return [figures_of(run) for run in self.runs]

    @cached_property
    def _rewards_are_shares(self) -> bool:
        """Whether every known reward lay between 0 and 1."""
        every = np.concatenate([load_record(run)[REWARD] for run in self.runs])
        rewards = every[~np.isnan(every)]
        return bool(((rewards >= 0.0) & (rewards <= 1.0)).all())

    def _weigh(self, difficulty: str) -> float:
        """The share of one held-out problem in a score."""
        task = self.config.task
        problems = task.problems.held_out(task.held_out)
        same = [problem for problem in problems if difficulty in ("", str(problem.difficulty))]
        return 1.0 / len(same)

    def model(self, seed: int | None = None) -> nn.Module:
        """The trained policy of a seed, by default of the first one.

        Raises:
            UserError: there is no such seed.
        """
        runs = [run for run in self.runs if seed in (None, run.config["seed"])]
        if not runs:
            allowed = ", ".join(str(run.config["seed"]) for run in self.runs)
            raise UserError(f"seed: {seed}; allowed: {allowed}")
        task = self.config.task
        sizes = task.problems.vocabulary, task.problems.context
        policy = task.policy.make(*sizes, task.start.seed)
        return Weights(policy).load(torch.as_tensor(runs[0].model))

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        count = len(self.runs)
        diverged = sum(run.status != "done" for run in self.runs)
        lost = f", {diverged} diverged" if diverged else ""
        yield f"{count} seed{'' if count == 1 else 's'}{lost}, 95% intervals of means over seeds"
        yield f"{'score':24} {'before':>24} {'after':>24}"
        weight = self._weigh("")
        for name in ("score", *self._difficulty_names("score")):
            pair = (name.replace("score", "score_before", 1), name)
            before, after = (self.interval(figure).show(3) for figure in pair)
            label = name.replace("score/", "  difficulty ").replace(
                "score", f"{1 / weight:.0f} held-out prompts"
            )
            yield f"{label:24} {before:>24} {after:>24}"
        if weight > MOST_WEIGHT:
            yield f"one prompt is {weight:.2g} of the score; test= takes more prompts"
        for label, name in FIGURES.items():
            if any(name in run.summary for run in self.runs):
                yield f"{label:24} {'':24} {self.interval(name).show(3):>24}"
            if name == "thrown_away" and self.interval(name).estimate > 0.0:
                for figure in self._difficulty_names(name):
                    line = figure.replace("thrown_away/", "  difficulty ")
                    yield f"{line:24} {'':24} {self.interval(figure).show(3):>24}"

    def _difficulty_names(self, kind: str) -> list[str]:
        """The names of a figure for each difficulty, if there are several."""
        every = {name for summary in self._figures for name in summary}
        parts = {name for name in every if name.startswith(f"{kind}/")}
        names = sorted(parts, key=lambda name: int(name.partition("/")[2]))
        return names if len(names) > 1 else []

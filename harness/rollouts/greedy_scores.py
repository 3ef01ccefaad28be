"""Scores of a policy: greedy answers on held-out problems, and the share of sampled ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from torch import nn

from harness.rollouts.problems import Problem, Problems, check_reward
from harness.rollouts.sampling import draw_uniforms, sample, sample_greedily

__all__ = ["Score", "score_greedily", "score_samples"]


class Score(NamedTuple):
    """Mean reward of greedy answers.

    Attributes:
        mean: over all problems.
        by_difficulty: over those of each difficulty.
        tokens: mean number of tokens.
    """

    mean: float
    by_difficulty: dict[int, float]
    tokens: float


def score_greedily(policy: nn.Module, problems: Problems, held_out: Sequence[Problem]) -> Score:
    """Score the most probable answers of held-out problems; equal prompts are answered once."""
    unique = {each.prompt: each for each in held_out}
    prefixes = [np.array(prompt, np.int64) for prompt in unique]
    answers = sample_greedily(policy, prefixes, problems.context)
    pairs = zip(unique, answers, strict=True)
    given = {prompt: answer.tolist() for prompt, answer in pairs}
    found = {
        each.prompt: check_reward(problems.reward(each, given[each.prompt]))
        for each in unique.values()
    }
    rewards = np.array([found[each.prompt] for each in held_out])
    classes = np.array([each.difficulty for each in held_out])
    by_class = {k: float(rewards[classes == k].mean()) for k in np.unique(classes).tolist()}
    tokens = float(np.mean([len(given[each.prompt]) for each in held_out]))
    return Score(float(rewards.mean()), by_class, tokens)


def score_samples(
    policy: nn.Module, problems: Problems, given: Sequence[Problem], seed: int
) -> float:
    """Mean reward of one sampled answer for each problem."""
    prefixes = [np.array(each.prompt, np.int64) for each in given]
    numbers = np.arange(len(given))
    draws = draw_uniforms(seed, numbers, np.zeros_like(numbers), problems.context)
    found = sample(policy, prefixes, draws)
    pairs = zip(given, found, strict=True)
    return float(np.mean([problems.reward(each, one.tokens.tolist()) for each, one in pairs]))

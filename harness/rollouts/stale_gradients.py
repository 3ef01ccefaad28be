"""The bias of stale rollouts' gradients: how far their mean is from that of fresh ones.

A policy is trained without an allowance, and its versions are kept. At some of them the gradient of
the loss on rollouts that a version S steps before has sampled is compared with that on fresh
rollouts of the same prompts. Two things make the difference of the means visible. The stale mean is
taken over the fresh rollouts, weighted by the exact ratio of both versions' probabilities of a
group: the difference of a group is then small where the versions are close, and zero where they
are equal. And the squared norm of a mean is estimated from products of different blocks of groups,
so that the scatter of sampling adds nothing to it.

Shape letters: N tokens of a block, P parameters, K stalenesses, B blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from harness.experiment.contract import Configuration, Progress, Watch
from harness.experiment.experiment import AnyExperiment, plain
from harness.experiment.task import one_thread
from harness.rollouts.executor import RolloutExecutor
from harness.rollouts.learning import score_tokens
from harness.rollouts.losses import Loss, TokenProbabilities, group_advantages
from harness.rollouts.policy import Weights
from harness.rollouts.rollout_config import rollouts_of, start_of
from harness.rollouts.sampling import Completion, draw_uniforms
from harness.rollouts.starting import initial
from harness.store import Run, RunWriter, Store

APART = 3 << 40
"""Number of the first prompt that is measured with; training has those before, from 0."""


@dataclass(frozen=True)
class StaleGradientConfig(Configuration):
    """A measurement of the bias of stale rollouts' gradients.

    Args:
        training: makes the versions, without an allowance; the gradient is that of its loss.
        stalenesses: S of K comparisons, in steps of the trainer.
        versions: versions at which gradients are measured, each at least the largest S.
        blocks: independent blocks of groups at each of them, at least 2.
        groups: groups of a block, each of another prompt.
    """

    training: AnyExperiment
    stalenesses: tuple[int, ...]
    versions: tuple[int, ...]
    blocks: int
    groups: int

    @property
    def seed(self) -> int:
        """Seed of the training and of the rollouts that are measured with."""
        return self.training.seed

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values: what the run's identity hashes."""
        return plain(self) | {"seed": self.seed}

    def execute(self, store: Store, watch: Watch) -> Run:
        """See `Configuration`.

        The summary has unbiased estimates of the bias's squared norm, ``bias_square/S``, each a
        mean over versions, which may be negative.
        """

        def execute(writer: RunWriter) -> None:
            with one_thread():
                start = initial(start_of(self.training), store, watch)
                watch(Progress(writer.hash, 0.0, 1.0, "gradients of stale rollouts"))
                writer.finish("done", _measure(self, start))

        return store.obtain(self.to_dict(), execute)


class Groups(NamedTuple):
    """Fresh rollouts of a block, those of a group side by side.

    Attributes:
        rows: tokens of prompt and answer of each rollout.
        rewards: float64 ``[groups, rollouts of a group]``.
    """

    rows: Sequence[tuple[np.ndarray, np.ndarray]]
    rewards: Tensor


class GradientComparison(NamedTuple):
    """Gradients of a block, float64.

    Attributes:
        fresh: of the loss on the fresh rollouts ``[P]``.
        difference: of the loss on stale rollouts, less that ``[K, P]``.
    """

    fresh: Tensor
    difference: Tensor


def compare_gradients(
    weights: Weights,
    loss: Loss,
    groups: Groups,
    model: Tensor,
    behaviours: Sequence[Tensor],
    temperature: float = 1.0,
) -> GradientComparison:
    """Gradients at ``model [P]`` of the mean over rollouts of the sum of their tokens' losses.

    The expectation over fresh groups of each difference is the bias of stale ones of the same
    prompts: every group is weighted by its probability under the older version over that under
    ``model``, and the loss is given the older version's probabilities of its tokens.

    Args:
        weights: overwritten.
        loss: the loss; one that masks tokens by their rank does so within the block.
        groups: rollouts that ``model`` has sampled.
        model: the parameters at which gradients are taken; proximal, too.
        behaviours: K older versions ``[P]``.
        temperature: of sampling.
    """
    with torch.no_grad():
        scores = [
            score_tokens(weights.load(vector), groups.rows, temperature)[0] for vector in behaviours
        ]
    scored, _ = score_tokens(weights.load(model), groups.rows, temperature)
    counts = torch.tensor([len(answer) for _, answer in groups.rows], device=scored.device)
    owner = torch.arange(len(counts), device=scored.device).repeat_interleave(counts)
    advantages = group_advantages(groups.rewards).flatten().to(scored.device).float()[owner]
    size = groups.rewards.shape[1]
    slopes_fresh = _slopes(loss, scored, scored.detach(), advantages)
    coefficients = [slopes_fresh]
    for behaviour in scores:
        logs = torch.zeros(len(counts) // size, dtype=torch.float64, device=scored.device)
        logs.index_add_(0, owner // size, (behaviour - scored.detach()).double())
        slopes = _slopes(loss, scored, behaviour, advantages)
        coefficients.append(logs.exp().float()[owner // size] * slopes - slopes_fresh)
    gradients = [_pull(weights, scored, vector) / len(counts) for vector in coefficients]
    return GradientComparison(gradients[0], torch.stack(gradients[1:]))


def _slopes(loss: Loss, scored: Tensor, behaviour: Tensor, advantages: Tensor) -> Tensor:
    """Derivatives ``[N]`` of the loss by the logarithms ``scored [N]``."""
    leaf = scored.detach().requires_grad_()
    tokens = TokenProbabilities(leaf, behaviour, scored.detach(), advantages)
    cast(Any, loss.terms(tokens).sum()).backward()
    assert leaf.grad is not None
    return leaf.grad


def _pull(weights: Weights, scored: Tensor, coefficients: Tensor) -> Tensor:
    """The gradient ``[P]``, float64 on the processor, of ``(coefficients * scored).sum()``."""
    parts = torch.autograd.grad(
        scored, list(weights.module.parameters()), coefficients, retain_graph=True
    )
    return torch.cat([part.flatten() for part in parts]).double().cpu()


def estimate_square_norm(blocks: Tensor) -> float:
    """Unbiased estimate of the squared norm of the expectation of ``blocks [B, P]``.

    It is the mean of the products of different blocks, and may be negative.

    Raises:
        ValueError: fewer than two blocks.
    """
    count = len(blocks)
    if count < 2:
        raise ValueError(f"{count} blocks; allowed: at least 2")
    total = blocks.sum(0)
    return float((total @ total - blocks.square().sum()) / (count * (count - 1)))


def _measure(config: StaleGradientConfig, start: Tensor) -> dict[str, float]:
    """Summary of the measurement."""
    executor, task = RolloutExecutor(config.training, start), config.training.task
    models = [executor.server.model.clone()]
    while len(models) <= max(config.versions):
        executor.advance()
        models.append(executor.server.model.clone())
    squares = list[list[float]]()
    for version in config.versions:
        behaviours = [models[version - staleness] for staleness in config.stalenesses]
        rows = [
            compare_gradients(
                executor.weights, task.loss,
                _sample(config, executor.weights, models[version], version, block),
                models[version], behaviours, task.temperature,
            )
            for block in range(config.blocks)
        ]  # fmt: skip
        differences = torch.stack([row.difference for row in rows], 1)
        squares.append([estimate_square_norm(row) for row in differences])
    means = np.mean(squares, axis=0).tolist()
    pairs = zip(config.stalenesses, means, strict=True)
    return {f"bias_square/{staleness}": mean for staleness, mean in pairs}


def _sample(
    config: StaleGradientConfig, weights: Weights, model: Tensor, version: int, block: int
) -> Groups:
    """Groups of a block, sampled by a version; no prompt number is used twice."""
    training, task = config.training, config.training.task
    group, problems = rollouts_of(training).group, task.problems
    begin = APART + (version * config.blocks + block) * config.groups
    questions = [problems.train(begin + k, training.seed) for k in range(config.groups)]
    questions = [problem for problem in questions for _ in range(group)]
    prompts = [np.array(problem.prompt, np.int64) for problem in questions]
    numbers = np.arange(begin * group, begin * group + len(questions))
    draws = draw_uniforms(training.seed, numbers, np.zeros_like(numbers), problems.context)
    policy = weights.load(model)
    answers: Sequence[Completion] = task.policy.sample(policy, prompts, draws, task.temperature)
    rewards = [
        problems.reward(problem, answer.tokens.tolist())
        for problem, answer in zip(questions, answers, strict=True)
    ]
    rows = [(prompt, answer.tokens) for prompt, answer in zip(prompts, answers, strict=True)]
    return Groups(rows, torch.tensor(rewards, dtype=torch.float64).view(-1, group))

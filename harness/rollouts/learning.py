"""A trainer's step on a batch of rollouts: advantages, gradients, and what is measured of them.

Shape letters: B groups of G rollouts, N tokens of a batch, P parameters, V tokens of the
vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

from harness.algorithms.contract import Server
from harness.algorithms.descent import LocalOptimizer
from harness.algorithms.stale import ServerDescent
from harness.experiment.experiment import AnyExperiment
from harness.rollouts.losses import TokenProbabilities, cosine, group_advantages, measure
from harness.rollouts.policy import Weights
from harness.rollouts.rollout_config import rollouts_of

CHUNK = 64
"""Rollouts that are computed together."""

LAST = "last_gradient"
"""Name of the last step's gradient ``[P]`` in the trainer's state."""


class Rollout(NamedTuple):
    """A rollout with its reward.

    Attributes:
        prompt: int64 tokens of its prompt.
        tokens: int64 ``[n]`` tokens of its answer.
        log_probs: float32 ``[n]``, the logarithms of the probabilities that they were sampled with.
        reward: its reward.
    """

    prompt: np.ndarray
    tokens: np.ndarray
    log_probs: np.ndarray
    reward: float


def score_tokens(
    policy: nn.Module, rows: Sequence[tuple[np.ndarray, np.ndarray]], temperature: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Logarithms of the probabilities of all answers' tokens ``[N]``, and their entropies ``[N]``.

    Args:
        policy: the module.
        rows: tokens of prompt and answer; fastest with those of similar length side by side.
        temperature: of the distribution ``softmax(logits / temperature)``.
    """
    device = next(policy.parameters()).device
    log_probs, entropies = list[Tensor](), list[Tensor]()
    for begin in range(0, len(rows), CHUNK):
        chunk = rows[begin : begin + CHUNK]
        tokens = np.zeros((len(chunk), max(len(p) + len(a) for p, a in chunk)), np.int64)
        is_answer = np.zeros(tokens.shape, np.bool_)
        for row, (prompt, answer) in enumerate(chunk):
            begins, ends = len(prompt), len(prompt) + len(answer)
            tokens[row, :begins], tokens[row, begins:ends] = prompt, answer
            is_answer[row, begins:ends] = True
        inputs = torch.as_tensor(tokens, device=device)
        at = torch.as_tensor(is_answer[:, 1:], device=device)
        logits = cast(Tensor, policy(inputs[:, :-1]))[at]
        scores = (logits / temperature).log_softmax(1)
        log_probs.append(scores.gather(1, inputs[:, 1:][at].unsqueeze(1)).squeeze(1))
        fixed = scores.detach()
        entropies.append(-(fixed.exp() * fixed).sum(1))
    return torch.cat(log_probs), torch.cat(entropies)


class _Part(NamedTuple):
    """Rollouts of an optimizer step, by length, and what is known of their N tokens."""

    rows: list[tuple[np.ndarray, np.ndarray]]
    behaviour: Tensor
    advantages: Tensor


@dataclass(frozen=True)
class Learner:
    """Takes the steps of the trainer.

    Args:
        weights: the policy's parameters; overwritten.
        config: the experiment: loss, optimizer, rate.
    """

    weights: Weights
    config: AnyExperiment

    @property
    def optimizer(self) -> LocalOptimizer:
        """The server's optimizer."""
        return cast(ServerDescent, self.config.algorithm).optimizer

    def start(self, model: Tensor) -> Server:
        """The trainer's state with the parameters ``model [P]``."""
        server = Server(model.clone())
        server.tensors = dict(self.optimizer.start(server.model.unsqueeze(0)))
        server.tensors[LAST] = torch.zeros_like(model)
        return server

    def step(self, server: Server, groups: Sequence[Sequence[Rollout]]) -> dict[str, float]:
        """Train on a batch of B groups; ``server`` becomes its next version, in place.

        Returns:
            ``uneven``: the share of groups of unequal rewards. If any group is trained on, also the
            means over optimizer steps of ``loss``, of `measure`, of the gradient's norm before it
            is clipped, and of its cosine with the gradient of the step before.
        """
        rewards = torch.tensor([[row.reward for row in group] for group in groups])
        advantages = group_advantages(rewards.double()).float()
        uneven = (rewards != rewards[:, :1]).any(1)
        chosen = [k for k in range(len(groups)) if self.config.task.even or bool(uneven[k])]
        split = np.array_split(chosen, rollouts_of(self.config).steps)
        cuts: list[list[int]] = [cut.tolist() for cut in split if len(cut)]
        parts = [self._part([groups[k] for k in cut], advantages[cut]) for cut in cuts]
        # With one part, the parameters at the beginning are those of its own step.
        proximal: list[Tensor | None] = [None] * len(parts)
        if len(parts) > 1:
            with torch.no_grad():
                proximal = [self._score(server, part)[0] for part in parts]
        pairs = zip(parts, proximal, strict=True)
        figures = [self._descend(server, part, before) for part, before in pairs]
        server.version += 1
        means = {
            name: float(np.mean([row[name] for row in figures])) for name in (figures or [{}])[0]
        }
        return {"uneven": float(uneven.double().mean()), **means}

    def _part(self, groups: Sequence[Sequence[Rollout]], advantages: Tensor) -> _Part:
        every = [rollout for group in groups for rollout in group]
        lengths = np.array([len(rollout.prompt) + len(rollout.tokens) for rollout in every])
        order: list[int] = np.argsort(lengths, kind="stable").tolist()
        rows = [every[k] for k in order]
        counts = torch.tensor([len(rollout.tokens) for rollout in rows])
        behaviour = torch.as_tensor(np.concatenate([rollout.log_probs for rollout in rows]))
        device = self.weights.vector.device
        return _Part(
            [(rollout.prompt, rollout.tokens) for rollout in rows],
            behaviour.to(device),
            advantages.reshape(-1)[order].repeat_interleave(counts).to(device),
        )

    def _score(self, server: Server, part: _Part) -> tuple[Tensor, Tensor]:
        policy = self.weights.load(server.model)
        return score_tokens(policy, part.rows, self.config.task.temperature)

    def _descend(self, server: Server, part: _Part, proximal: Tensor | None) -> dict[str, float]:
        """Take one optimizer step."""
        task, (log_probs, entropy) = self.config.task, self._score(server, part)
        before = log_probs.detach() if proximal is None else proximal
        tokens = TokenProbabilities(log_probs, part.behaviour, before, part.advantages)
        loss = task.loss.terms(tokens).mean()
        gradient = self.weights.slope(loss)
        norm = float((gradient @ gradient).sqrt())
        figures = {
            "loss": float(loss.detach()),
            **measure(task.loss, tokens._replace(log_probs=log_probs.detach()), entropy),
            "gradient_norm": norm,
            "cosine": cosine(gradient, server.tensors[LAST]),
        }
        server.tensors[LAST].copy_(gradient)
        if task.clip is not None and norm > task.clip:
            gradient *= task.clip / norm
        model, state = server.model.unsqueeze(0), dict(server.tensors)
        del state[LAST]
        direction = gradient.unsqueeze(0)
        self.optimizer.direct_(direction, model, state, cast(Any, self.weights))
        server.model.sub_(direction[0], alpha=self.config.schedule.rate)
        return figures

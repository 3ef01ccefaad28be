"""The supervised start of a policy, kept in the store as a run of its own."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from harness.algorithms.descent import AdamW
from harness.algorithms.saved import to_array
from harness.base.errors import UserError
from harness.experiment.contract import Progress, Watch
from harness.rollouts.learning import score_tokens
from harness.rollouts.policy import Weights
from harness.rollouts.problems import Problem
from harness.rollouts.rollout_config import StartConfig
from harness.rollouts.sampling import score_samples
from harness.store import Run, RunWriter, Store
from harness.store.schema import MODEL

APART = 1 << 40
"""First number of the start's own problems; those of its measurement begin at twice that."""


def initial(config: StartConfig, store: Store, watch: Watch) -> Tensor:
    """The parameters ``[P]`` that training starts from; without steps, those of the policy as made.

    Raises:
        UserError: the start did not reach its share of right answers, or went beyond it.
    """
    if not config.start.steps:
        return Weights(_make(config)).vector
    return torch.as_tensor(begin(config, store.needing(MODEL), watch).model)


def begin(config: StartConfig, store: Store, watch: Watch) -> Run:
    """Load the start from the store, or train it."""

    def execute(writer: RunWriter) -> None:
        model, steps, share = _train(config, writer, watch)
        writer.attach_arrays(MODEL, {"model": to_array(model)})
        writer.finish("done", {"steps": steps, "share_right": share})

    return store.obtain(config.to_dict(), execute)


def _make(config: StartConfig) -> Any:
    problems = config.problems
    policy = config.policy.make(problems.vocabulary, problems.context, config.start.seed)
    return policy.to(config.device)


def _train(config: StartConfig, writer: RunWriter, watch: Watch) -> tuple[Tensor, int, float]:
    """Train to the first measurement that ends it: parameters, steps, share of right answers."""
    start, problems = config.start, config.problems
    weights, optimizer = Weights(_make(config)), AdamW()
    model = weights.vector.clone()
    state = dict(optimizer.start(model.unsqueeze(0)))
    measured = [problems.train(2 * APART + k, start.seed) for k in range(start.measured)]
    if not all(problem.solution for problem in measured):
        raise UserError("start.steps: the problems have no solutions; allowed: 0")
    step, share = 0, 0.0
    for step in range(start.steps + 1):
        if step % start.every == 0 or step == start.steps:
            share = score_samples(weights.load(model), problems, measured, start.seed)
            writer.log("share_right", share, fold=step, time_s=0.0, epoch=step / start.steps)
            text = f"right answers {share:.1%}"
            watch(Progress(writer.hash, step, start.steps, text, "steps at most"))
            if share >= start.least or step == start.steps:
                break
        begin = APART + step * start.minibatch
        examples = [problems.train(begin + k, start.seed) for k in range(start.minibatch)]
        direction = _gradient(weights, model, examples).unsqueeze(0)
        optimizer.direct_(direction, model.unsqueeze(0), state, cast(Any, weights))
        model.sub_(direction[0], alpha=start.rate)
    if not start.least <= share <= start.most:
        text = f"after {step} steps {share:.1%} of the answers are right"
        form = f"from {start.least:.1%} to {start.most:.1%}, by other steps, rate or every"
        raise UserError(f"start: {text}; allowed: {form}")
    return model, step, share


def _gradient(weights: Weights, model: Tensor, examples: list[Problem]) -> Tensor:
    """The gradient ``[P]`` of the mean of ``-log pi`` over the tokens of right answers."""
    examples.sort(key=lambda example: len(example.prompt) + len(example.solution))
    pairs = [(example.prompt, example.solution) for example in examples]
    rows = [(np.array(a, np.int64), np.array(b, np.int64)) for a, b in pairs]
    return weights.slope(-score_tokens(weights.load(model), rows)[0].mean())

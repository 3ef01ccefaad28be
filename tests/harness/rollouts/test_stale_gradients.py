"""The bias of stale rollouts' gradients, against an enumeration of all groups; and collapses."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import pytest
import torch

from harness.algorithms.descent import Momentum
from harness.algorithms.stale import ServerDescent
from harness.experiment.experiment import Experiment
from harness.experiment.run import run as execute
from harness.rollouts.executor import RolloutExecutor
from harness.rollouts.learning import LAST
from harness.rollouts.losses import Naive, Reinforce
from harness.rollouts.policy import Weights
from harness.rollouts.problems import Addition
from harness.rollouts.protocol import Rollouts
from harness.rollouts.rollout_config import start_of
from harness.rollouts.sampling import draw_uniforms, sample, score_samples
from harness.rollouts.sources import SmallTransformer
from harness.rollouts.stability import APART, StabilityConfig
from harness.rollouts.stale_gradients import (
    Groups,
    StaleGradientConfig,
    compare_gradients,
    estimate_square_norm,
)
from harness.rollouts.starting import initial
from harness.rollouts.task import Policy
from harness.simulator.cluster import Cluster
from harness.store import Store
from tests.harness.rollouts.ones import configure
from tests.silence import silent

VOCABULARY, CONTEXT, PROMPT = 3, 3, 1
ANSWERS = [(0,), *product((1, 2), range(VOCABULARY))]
"""All answers to a prompt of one token: 0 ends one, and the context has room for two."""


@dataclass(frozen=True)
class EvenLength(Addition):
    """Rewards an untrained policy, too."""

    name = "even-length"

    def is_right(self, prompt: str, answer: str) -> bool:
        return len(answer) % 2 == 0


@pytest.fixture(scope="module")
def training() -> Experiment[Policy]:
    return configure(
        cluster=Cluster.of(1, step_s=1.0), seed=5, evaluations=4,
        protocol=Rollouts(slots=16, group=4, batch=4, eta=0.0, sync_s=0.0),
        policy=SmallTransformer(8, 1, 2), problems=EvenLength(1, 0.0, least=1), loss=Reinforce(),
        even=True, updates=4, held_out=10,
    )  # fmt: skip


def naive_logs(policy: torch.nn.Module, answer: Sequence[int]) -> torch.Tensor:
    """Logarithms of the probabilities of an answer's tokens."""
    tokens = torch.tensor([[PROMPT, *answer]])
    logs = policy(tokens[:, :-1]).log_softmax(2)[0]
    return logs.gather(1, tokens[0, 1:, None])[:, 0]


def naive_mean_gradient(weights: Weights, model, behaviour, clip: float) -> torch.Tensor:
    """Expected gradient of PPO on groups of two that ``behaviour`` samples, by enumeration."""
    with torch.no_grad():
        policy = weights.load(behaviour)
        known = {answer: naive_logs(policy, answer) for answer in ANSWERS}
    policy, loss = weights.load(model), torch.zeros(())
    for pair in product(ANSWERS, ANSWERS):
        chance = float(torch.cat([known[answer] for answer in pair]).sum().exp())
        rewards = torch.tensor([float(sum(answer) % 2) for answer in pair])
        advantages = (rewards - rewards.mean()) / (rewards.std(correction=0) + 1e-4)
        for answer, advantage in zip(pair, advantages, strict=True):
            ratio = (naive_logs(policy, answer) - known[answer]).exp()
            cut = ratio.clamp(1.0 - clip, 1.0 + clip)
            loss = loss - chance * torch.minimum(ratio * advantage, cut * advantage).sum() / 2.0
    return weights.slope(loss).double()


@pytest.mark.parametrize("clip", [0.2, 1e-3])
def test_the_mean_difference_over_all_groups_is_the_bias(clip):
    weights = Weights(SmallTransformer(4, 1, 1).make(VOCABULARY, CONTEXT, 3))
    random = torch.Generator().manual_seed(1)
    model = weights.vector + 0.3 * torch.randn(len(weights.vector), generator=random)
    behaviour = model + 0.02 * torch.randn(len(model), generator=random)
    stale, fresh = (naive_mean_gradient(weights, model, b, clip) for b in (behaviour, model))
    found = torch.zeros_like(stale)
    prompt = np.array([PROMPT])
    for pair in product(ANSWERS, ANSWERS):
        with torch.no_grad():
            policy = weights.load(model)
            chance = float(torch.cat([naive_logs(policy, each) for each in pair]).sum().exp())
        rewards = torch.tensor([[float(sum(each) % 2) for each in pair]], dtype=torch.float64)
        groups = Groups([(prompt, np.array(each)) for each in pair], rewards)
        compared = compare_gradients(weights, Naive(clip), groups, model, [behaviour, model])
        assert not compared.difference[1].any()  # nothing is stale
        found += chance * compared.difference[0]
    bias = stale - fresh
    assert float((found - bias).norm()) < 1e-3 * float(bias.norm())


def test_without_staleness_it_is_the_gradient_of_the_trainers_step(training):
    executor = RolloutExecutor(training, initial(start_of(training), None, silent))
    model, problems = executor.server.model.clone(), training.task.problems
    executor.advance()  # groups 0 to 3
    each = [problems.train(number // 4, training.seed) for number in range(16)]
    prompts = [np.array(one.prompt, np.int64) for one in each]
    numbers = np.arange(len(each))
    draws = draw_uniforms(training.seed, numbers, np.zeros_like(numbers), problems.context)
    answers = [one.tokens for one in sample(executor.weights.load(model), prompts, draws)]
    told = zip(each, answers, strict=True)
    rewards = [problems.reward(problem, answer.tolist()) for problem, answer in told]
    pairs = list(zip(prompts, answers, strict=True))
    groups = Groups(pairs, torch.tensor(rewards, dtype=torch.float64).view(4, 4))
    found = compare_gradients(executor.weights, training.task.loss, groups, model, [model]).fresh
    a_token = found * len(pairs) / sum(map(len, answers))
    assert a_token.norm() > 0.0
    last = executor.server.tensors[LAST]
    torch.testing.assert_close(a_token.float(), last, rtol=1e-4, atol=1e-7)


def test_a_squared_norm_is_the_mean_product_of_different_blocks():
    blocks = torch.randn(5, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    naive = [blocks[a] @ blocks[b] for a in range(5) for b in range(5) if a != b]
    assert estimate_square_norm(blocks) == pytest.approx(float(np.mean(naive)))
    with pytest.raises(ValueError, match="at least 2"):
        estimate_square_norm(blocks[:1])


def test_a_measurement_is_kept_and_has_a_bias_for_each_staleness(training, tmp_path):
    asked = StaleGradientConfig(training, (1, 4), (4,), 4, 4)
    run = execute(asked, Store(tmp_path), silent)
    assert run.summary.keys() == {"bias_square/1", "bias_square/4"}
    assert execute(asked, Store(tmp_path), silent).hash == run.hash


def test_a_training_that_collapses_ends_there_and_another_is_trained_to_its_end(training, tmp_path):
    calm = training.vary(algorithm=ServerDescent(Momentum(momentum=0.0)), updates=5).with_rate(1e-6)
    stable = execute(StabilityConfig(calm, every=2, probe=32), Store(tmp_path), silent)
    assert stable.summary["updates"] == 5
    assert "collapse" not in stable.summary
    assert stable.curve("reward")[0].tolist() == [0.0, 0.4, 0.8, 1.0]
    problems = training.task.problems
    prompts = [problems.train(APART + k, training.seed) for k in range(32)]
    policy = training.task.policy.make(problems.vocabulary, problems.context, 0)
    before = score_samples(policy, problems, prompts, training.seed)
    assert stable.summary["reward_before"] == before
    wild = calm.vary(updates=50).with_rate(1e3)
    found = execute(StabilityConfig(wild, every=2, probe=32), Store(tmp_path), silent).summary
    assert found["collapse"] == found["updates"] < 50
    assert found["reward"] <= 0.5 * before

"""Sampling: one distribution, whatever is computed together; a policy as one vector."""

import itertools

import numpy as np
import pytest
import torch
from torch import nn

from harness.base.errors import UserError
from harness.rollouts.policy import Weights
from harness.rollouts.problems import END
from harness.rollouts.sampling import draw_uniforms, sample, sample_greedily
from harness.rollouts.sources import SmallTransformer

VOCABULARY, CONTEXT = 5, 12
pytestmark = pytest.mark.usefixtures("_one_thread")


def make_policy(seed=0, scale=20.0, width=16):
    made = SmallTransformer(width, 2, 2).make(VOCABULARY, CONTEXT, seed)
    with torch.no_grad():
        made.out.weight.mul_(scale)  # so that answers differ
    return made


class Wrapped(nn.Module):
    """The same policy, computed as any module."""

    def __init__(self, policy):
        super().__init__()
        self.policy = policy

    def forward(self, tokens):
        return self.policy(tokens)


def draw(count, seed=0, attempt=0):
    return draw_uniforms(seed, np.arange(count), np.full(count, attempt), CONTEXT)


def make_prefixes(count):
    random = np.random.default_rng(1)
    return [random.integers(0, VOCABULARY, random.integers(1, 8)) for _ in range(count)]


def are_equal(first, second):
    return all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


class Plain(nn.Module):
    """A causal mean of embeddings."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.out = nn.Embedding(VOCABULARY, 8), nn.Linear(8, VOCABULARY)

    def forward(self, tokens):
        counts = torch.arange(1, tokens.shape[1] + 1).unsqueeze(1)
        return self.out(3.0 * self.embed(tokens).cumsum(1) / counts)


KINDS = {"compiled": make_policy(), "module": Wrapped(make_policy()), "plain": Plain()}


@pytest.mark.parametrize("policy", KINDS.values(), ids=KINDS)
def test_a_rollout_is_the_same_bits_whatever_is_sampled_with_it(policy):
    prefixes, draws = make_prefixes(150), draw(150)
    together = sample(policy, prefixes, draws)
    order = np.random.default_rng(2).permutation(150)[:90].tolist()
    again = sample(policy, [prefixes[k] for k in order], draws[order])
    assert all(are_equal(together[k], each) for k, each in zip(order, again, strict=True))
    for k in range(0, 150, 30):
        (alone,) = sample(policy, [prefixes[k]], draws[k : k + 1])
        assert are_equal(alone, together[k])


@pytest.mark.parametrize("policy", KINDS.values(), ids=KINDS)
def test_a_rollout_that_is_continued_from_kept_tokens_with_the_same_weights_is_the_same(policy):
    prefixes, draws = make_prefixes(80), draw(80)
    whole = sample(policy, prefixes, draws)
    kept = [len(each.tokens) // 2 for each in whole]
    begun = [
        np.append(p, each.tokens[:k]) for p, each, k in zip(prefixes, whole, kept, strict=True)
    ]
    rest = sample(policy, begun, draws)
    for k, first, second in zip(kept, whole, rest, strict=True):
        assert are_equal((first.tokens[k:], first.log_probs[k:]), second)


@pytest.mark.parametrize("policy", KINDS.values(), ids=KINDS)
def test_tokens_are_the_inverse_of_the_distribution_and_have_its_probabilities(policy):
    prefixes, draws = make_prefixes(70), draw(70)
    found = sample(policy, prefixes, draws)
    for prefix, numbers, (tokens, log_probs) in zip(prefixes, draws, found, strict=True):
        so_far = prefix.tolist()
        for token, log_prob in zip(tokens.tolist(), log_probs.tolist(), strict=True):
            with torch.no_grad():
                logits = policy(torch.tensor([so_far]))[0, -1].double()
            chances = logits.softmax(0).cumsum(0)
            assert token == int((chances <= numbers[len(so_far)]).sum())
            assert log_prob == pytest.approx(float(logits.log_softmax(0)[token]), abs=1e-5)
            so_far.append(token)
        assert tokens[-1] == END or len(so_far) == CONTEXT
        assert END not in tokens[:-1]


def test_answers_have_the_frequencies_of_the_policy():
    policy = SmallTransformer(8, 1, 1).make(3, 4, seed=3)
    with torch.no_grad():
        policy.out.weight.mul_(40.0)
    count = 4000
    draws = draw_uniforms(5, np.arange(count), np.zeros(count, int), 4)
    found = sample(policy, [np.array([1])] * count, draws)
    seen = {}
    for each in found:
        key = tuple(each.tokens.tolist())
        seen[key] = seen.get(key, 0) + 1
    total = 0.0
    for answer in itertools.product(range(3), repeat=3):
        if END in answer[:-1]:
            answer = answer[: answer.index(END) + 1]
            if seen.get(answer) is None:
                continue
        with torch.no_grad():
            table = policy(torch.tensor([[1, *answer]]))[0].log_softmax(1)
        chance = float(sum(table[k, token] for k, token in enumerate(answer)).exp())
        share = seen.pop(answer, None)
        if share is not None:
            total += chance
            assert share / count == pytest.approx(chance, abs=4 * (chance / count) ** 0.5 + 1e-3)
    assert not seen
    assert total == pytest.approx(1.0, abs=0.02)


def test_the_numbers_of_a_rollout_are_its_own():
    draws = draw_uniforms(0, np.array([0, 1, 7]), np.array([0, 0, 0]), CONTEXT)
    assert are_equal(draw_uniforms(0, np.array([7]), np.array([0]), CONTEXT)[0:1], draws[2:])
    assert np.array_equal(draw_uniforms(0, np.array([7]), np.array([0]), 5)[0], draws[2, :5])
    others = [draw_uniforms(1, np.array([7]), np.array([0]), CONTEXT)]
    others += [draw_uniforms(0, np.array([7]), np.array([1]), CONTEXT)]
    assert all(not np.any(each == draws[2]) for each in others)
    many = draw_uniforms(0, np.arange(500), np.zeros(500, int), CONTEXT)
    assert len(np.unique(many)) == many.size
    assert many.mean() == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("policy", KINDS.values(), ids=KINDS)
def test_a_greedy_answer_takes_the_most_probable_tokens(policy):
    prefixes = make_prefixes(70)
    for prefix, answer in zip(prefixes, sample_greedily(policy, prefixes, CONTEXT), strict=True):
        so_far = prefix.tolist()
        for token in answer.tolist():
            with torch.no_grad():
                assert token == int(policy(torch.tensor([so_far]))[0, -1].argmax())
            so_far.append(token)


def test_a_low_temperature_is_nearly_greedy():
    policy, prefixes = make_policy(), make_prefixes(40)
    cold = sample(policy, prefixes, draw(40), temperature=1e-4)
    greedy = sample_greedily(policy, prefixes, CONTEXT)
    assert all(np.array_equal(a.tokens, b) for a, b in zip(cold, greedy, strict=True))


@pytest.mark.parametrize("wrap", [lambda policy: policy, Wrapped], ids=["compiled", "module"])
def test_logits_that_are_not_finite_end_every_rollout(wrap):
    policy = make_policy()
    with torch.no_grad():
        policy.out.bias.fill_(torch.nan)
    found = sample(wrap(policy), make_prefixes(70), draw(70))
    assert all(each.tokens.tolist() == [END] for each in found)
    assert all(np.isnan(each.log_probs).all() for each in found)


def test_weights_are_one_vector_that_the_module_reads():
    policy, other = make_policy(seed=1), make_policy(seed=2)
    weights, there = Weights(policy), Weights(other)
    tokens = torch.tensor([[1, 2, 3]])
    expected = other(tokens)
    assert torch.equal(weights.load(there.vector.clone())(tokens), expected)
    slope = weights.slope(policy(tokens).square().sum()).clone()
    expected = torch.autograd.grad(other(tokens).square().sum(), list(other.parameters()))
    assert torch.equal(slope, torch.cat([each.reshape(-1) for each in expected]))
    assert torch.equal(weights.slope(policy(tokens).square().sum()), slope)


def test_frozen_parameters_stay_as_they_are():
    policy = make_policy(seed=1)
    policy.token.weight.requires_grad_(False)
    before, count = policy.token.weight.clone(), sum(p.numel() for p in policy.parameters())
    weights = Weights(policy)
    assert len(weights.vector) == count - before.numel()
    weights.load(weights.vector + 1.0)
    assert torch.equal(policy.token.weight, before)
    assert weights.matrices(weights.vector[None])[0].shape[1] == CONTEXT


def test_sizes_of_policies():
    counts = [
        sum(each.numel() for each in SmallTransformer(*size).make(18, 51, 0).parameters())
        for size in ((64, 2, 4), (128, 4, 4), (256, 4, 4))
    ]
    assert [round(count / 1e6, 1) for count in counts] == [0.1, 0.8, 3.2]


def test_a_policy_of_other_numbers_is_refused():
    with pytest.raises(UserError, match="float64 parameters; allowed: float32"):
        Weights(nn.Linear(2, 2).double())
    with pytest.raises(UserError, match="no parameters"):
        Weights(nn.ReLU())
    with pytest.raises(UserError, match="heads: 3 does not divide width 16"):
        SmallTransformer(16, 2, 3)

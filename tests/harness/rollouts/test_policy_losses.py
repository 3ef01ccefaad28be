"""Losses against autograd token by token, and against sums over all answers of a small policy."""

import itertools
import math

import pytest
import torch

from harness.base.errors import UserError
from harness.rollouts.losses import (
    Decoupled,
    Naive,
    Reinforce,
    SecondMoment,
    TokenProbabilities,
    cosine,
    group_advantages,
    measure,
)

CLIP, BOUND, MOST = 0.2, 0.04, 1.5


def draw_tokens(count=60, spread=0.4):
    random = torch.Generator().manual_seed(3)
    normal = lambda: torch.randn(count, generator=random, dtype=torch.float64)  # noqa: E731
    behaviour = -normal().abs() - 0.1
    proximal, log_probs = behaviour + spread * normal(), behaviour + spread * normal()
    return TokenProbabilities(log_probs.requires_grad_(), behaviour, proximal, normal())


def one_by_one(tokens, loss_of):
    """The gradient by each token's logarithm, with Python numbers and autograd of one token."""
    total, slopes = 0.0, []
    for row in zip(*(each.detach().tolist() for each in tokens), strict=True):
        x = torch.tensor(row[0], dtype=torch.float64, requires_grad=True)
        loss = loss_of(x, *row[1:])
        total += float(loss.detach())
        slopes.append(float(torch.autograd.grad(loss, x, allow_unused=True)[0] or 0.0))
    return total / len(slopes), [slope / len(slopes) for slope in slopes]


def clip_by_cases(ratio, advantage):
    """min(r A, clip(r) A) by its four cases."""
    if advantage > 0 and ratio > 1 + CLIP:
        return torch.tensor((1 + CLIP) * advantage, dtype=torch.float64, requires_grad=True) + 0.0
    if advantage < 0 and ratio < 1 - CLIP:
        return torch.tensor((1 - CLIP) * advantage, dtype=torch.float64, requires_grad=True) + 0.0
    return ratio * advantage


def reinforce(x, behaviour, proximal, advantage):
    return -x * advantage


def naive(x, behaviour, proximal, advantage):
    return -clip_by_cases(torch.exp(x - behaviour), advantage)


def decoupled(x, behaviour, proximal, advantage):
    weight = math.exp(proximal - behaviour)
    return -weight * clip_by_cases(torch.exp(x - proximal), advantage)


def truncated(x, behaviour, proximal, advantage):
    weight = min(MOST, math.exp(proximal - behaviour))
    return -weight * clip_by_cases(torch.exp(x - proximal), advantage)


@pytest.mark.parametrize(
    ("loss", "oracle"),
    [
        (Reinforce(), reinforce),
        (Naive(CLIP), naive),
        (Decoupled(CLIP), decoupled),
        (Decoupled(CLIP, MOST), truncated),
    ],
)
def test_loss_and_gradient_are_those_of_each_token(loss, oracle):
    tokens = draw_tokens()
    value = loss.terms(tokens).mean()
    slope = torch.autograd.grad(value, tokens.log_probs)[0]
    expected, slopes = one_by_one(tokens, oracle)
    assert float(value) == pytest.approx(expected, rel=1e-12)
    assert slope.tolist() == pytest.approx(slopes, rel=1e-9, abs=1e-15)


def test_tokens_that_are_cut_are_those_without_a_gradient():
    tokens = draw_tokens()
    for loss in (Reinforce(), Naive(CLIP), Decoupled(CLIP), SecondMoment(BOUND)):
        slope = torch.autograd.grad(loss.terms(tokens).sum(), tokens.log_probs)[0]
        assert loss.is_cut(tokens).tolist() == (slope == 0.0).tolist(), loss
    assert not Reinforce().is_cut(tokens).any()
    assert Naive(CLIP).is_cut(tokens).any()


def test_second_moment_masks_the_fewest_tokens_of_largest_ratio():
    tokens = draw_tokens()
    logs = [a - b for a, b in zip(*(each.tolist() for each in tokens[:2]), strict=True)]
    left = sorted(range(len(logs)), key=lambda k: logs[k] ** 2)
    while sum(logs[k] ** 2 for k in left) / len(left) > BOUND:
        left.pop()
    cut = SecondMoment(BOUND).is_cut(tokens)
    assert sorted(left) == [k for k, masked in enumerate(cut.tolist()) if not masked]
    assert 0 < len(left) < len(logs)
    expected = sum(-math.exp(logs[k]) * float(tokens.advantages[k]) for k in left) / len(logs)
    assert float(SecondMoment(BOUND).terms(tokens).mean()) == pytest.approx(expected)


def test_second_moment_masks_nothing_of_fresh_tokens_and_may_mask_all():
    tokens = draw_tokens()
    fresh = tokens._replace(behaviour=tokens.log_probs.detach())
    assert not SecondMoment(BOUND).is_cut(fresh).any()
    far = tokens._replace(behaviour=tokens.log_probs.detach() - 1.0)
    assert SecondMoment(BOUND).is_cut(far).all()


def test_all_losses_have_the_same_gradient_on_fresh_tokens():
    tokens = draw_tokens()
    now = tokens.log_probs.detach()
    fresh = TokenProbabilities(tokens.log_probs, now, now, tokens.advantages)
    losses = Reinforce(), Naive(), Decoupled(), Decoupled(truncate=2.0), SecondMoment()
    slopes = [torch.autograd.grad(each.terms(fresh).mean(), fresh.log_probs)[0] for each in losses]
    for slope in slopes[1:]:
        torch.testing.assert_close(slope, slopes[0], rtol=1e-12, atol=1e-15)


def answers_of(logits):
    """All answers of two tokens out of three, with their logarithms under ``logits [2, 3]``."""
    table = logits.log_softmax(1)
    for answer in itertools.product(range(3), repeat=2):
        yield answer, torch.stack([table[0, answer[0]], table[1, answer[1]]])


def test_the_mean_gradient_over_all_answers_is_that_of_the_expected_reward():
    random = torch.Generator().manual_seed(5)
    logits = torch.randn(2, 3, generator=random, dtype=torch.float64).requires_grad_()
    reward = {
        answer: float(k * k % 5) for k, answer in enumerate(itertools.product(range(3), repeat=2))
    }
    pairs = list(answers_of(logits))
    value = sum(logs.sum().exp() * reward[answer] for answer, logs in pairs)
    expected = torch.autograd.grad(value, logits, retain_graph=True)[0]
    mean = torch.zeros_like(logits)
    for answer, logs in pairs:
        now = logs.detach()
        given = torch.full((2,), reward[answer], dtype=torch.float64)
        tokens = TokenProbabilities(logs, now, now, given)
        surrogate = Reinforce().terms(tokens).sum()
        slope = torch.autograd.grad(surrogate, logits, retain_graph=True)[0]
        mean -= now.sum().exp() * slope
    torch.testing.assert_close(mean, expected)


def test_the_decoupled_weight_corrects_the_behaviour_of_one_token():
    random = torch.Generator().manual_seed(6)
    old, now = (torch.randn(4, generator=random, dtype=torch.float64) for _ in range(2))
    now.requires_grad_()
    advantages = torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=torch.float64)
    logs, behaviour = now.log_softmax(0), old.log_softmax(0)
    tokens = TokenProbabilities(logs, behaviour, logs.detach(), advantages)
    terms = Decoupled().terms(tokens)
    mean = torch.autograd.grad((behaviour.exp() * terms).sum(), now, retain_graph=True)[0]
    expected = torch.autograd.grad(-(logs.exp() * advantages).sum(), now)[0]
    torch.testing.assert_close(mean, expected)


def test_divergence_is_estimated_without_bias_and_weights_are_counted():
    random = torch.Generator().manual_seed(7)
    behaviour, proximal = (
        torch.randn(6, generator=random, dtype=torch.float64).log_softmax(0) for _ in range(2)
    )
    exact = float((behaviour.exp() * (behaviour - proximal)).sum())
    entropy, one = torch.full((1,), 0.25), torch.ones(1, dtype=torch.float64)
    mean = 0.0
    for k in range(6):
        row = slice(k, k + 1)
        tokens = TokenProbabilities(proximal[row], behaviour[row], proximal[row], one)
        found = measure(Decoupled(), tokens, entropy)
        mean += float(behaviour[k].exp()) * found["kl"]
        assert found["kl"] >= 0.0
        assert found["effective_sample_size"] == pytest.approx(1.0)
        assert found["entropy"] == 0.25
    assert mean == pytest.approx(exact)


def test_effective_sample_size_and_clipped_shares_by_hand():
    weights = torch.tensor([1.0, 1.0, 2.0, 4.0], dtype=torch.float64)
    ratios = torch.tensor([1.5, 1.0, 0.5, 0.9], dtype=torch.float64)
    advantages = torch.tensor([1.0, 1.0, -1.0, -1.0], dtype=torch.float64)
    zeros = torch.zeros(4, dtype=torch.float64)
    tokens = TokenProbabilities(ratios.log() + weights.log(), zeros, weights.log(), advantages)
    found = measure(Decoupled(), tokens, zeros)
    assert found["effective_sample_size"] == pytest.approx(8.0**2 / (4 * 22.0))
    assert (found["clipped_positive"], found["clipped_negative"]) == (0.5, 0.5)
    assert measure(Reinforce(), tokens, zeros)["clipped_positive"] == 0.0


def test_advantages_are_centred_and_scaled_in_each_group():
    rewards = torch.tensor([[0.0, 1.0, 1.0, 0.0], [1.0, 1.0, 1.0, 1.0]], dtype=torch.float64)
    found = group_advantages(rewards)
    edge = 0.5 / (0.5 + 1e-4)
    assert found[0].tolist() == pytest.approx([-edge, edge, edge, -edge])
    assert found[1].tolist() == [0.0] * 4


def test_cosine_of_gradients():
    first = torch.tensor([3.0, 4.0])
    assert cosine(first, torch.tensor([4.0, -3.0])) == 0.0
    assert cosine(first, -2.0 * first) == pytest.approx(-1.0)
    assert cosine(first, torch.zeros(2)) == 0.0


@pytest.mark.parametrize(
    "make", [lambda: Naive(0.0), lambda: Decoupled(truncate=-1.0), lambda: SecondMoment(0.0)]
)
def test_limits_of_settings(make):
    with pytest.raises(UserError, match="allowed"):
        make()

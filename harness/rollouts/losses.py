"""Policy-gradient losses on stale rollouts, their advantages, and what is recorded of them.

All tokens of a batch are rows of vectors ``[N]``, with three logarithms of their probabilities:
under the present parameters (``log_probs``, the only one with a gradient), under those that
sampled them (``behaviour``), and under those at which the trainer's step began (``proximal``). A
loss is a mean over all N tokens; tokens that it masks count as zeros.

- Proximal policy optimization: Schulman et al. (arXiv 1707.06347), equation 7.
- Decoupled: Hilton et al. (arXiv 2110.00641), and AReaL (arXiv 2505.24298), section 5.2.
- Second-moment trust: M2PO (arXiv 2510.01161).
- Advantages within a group: Shao et al. (arXiv 2402.03300), section 4.1.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from harness.base.settings import Spec, setting

SPREAD = 1e-4
"""Added to the deviation of a group's rewards."""


def group_advantages(rewards: Tensor) -> Tensor:
    """``(reward - mean) / (deviation + 1e-4)`` in each group of ``rewards [groups, G]``.

    The deviation is that of the group itself, a mean over G.
    """
    centred = rewards - rewards.mean(1, keepdim=True)
    return centred / (centred.square().mean(1, keepdim=True).sqrt() + SPREAD)


class TokenProbabilities(NamedTuple):
    """Logarithms of the probabilities of N tokens, in nats, and their rollouts' advantages.

    Attributes:
        log_probs: under the present parameters, with a gradient.
        behaviour: under the parameters that sampled each token.
        proximal: under the parameters at which the trainer's step began.
        advantages: of each token's rollout.
    """

    log_probs: Tensor
    behaviour: Tensor
    proximal: Tensor
    advantages: Tensor


class Loss(ABC):
    """Base class of policy-gradient losses; a run file can name any dataclass of this kind."""

    @abstractmethod
    def terms(self, tokens: TokenProbabilities) -> Tensor:
        """The loss of each token ``[N]``."""

    def is_cut(self, tokens: TokenProbabilities) -> Tensor:
        """Whether a token has no gradient because of a clip or a mask, ``[N]``."""
        return torch.zeros_like(tokens.advantages, dtype=torch.bool)


@dataclass(frozen=True)
class Reinforce(Spec, Loss):
    """No correction: ``-log pi A``."""

    name = "none"

    def terms(self, tokens: TokenProbabilities) -> Tensor:
        """See `Loss`."""
        return -tokens.log_probs * tokens.advantages


def _clip_surrogate(ratio: Tensor, advantages: Tensor, clip: float) -> Tensor:
    """``min(ratio A, clip(ratio, 1 +- clip) A)``."""
    return torch.minimum(ratio * advantages, ratio.clamp(1.0 - clip, 1.0 + clip) * advantages)


def _is_beyond(ratio: Tensor, advantages: Tensor, clip: float) -> Tensor:
    """Whether the clip decides: above it with a positive advantage, below it with a negative."""
    above, below = ratio > 1.0 + clip, ratio < 1.0 - clip
    return torch.where(advantages > 0.0, above, below & (advantages < 0.0))


@dataclass(frozen=True)
class Naive(Spec, Loss):
    """Proximal policy optimization as if the rollouts were fresh: the ratio to the behaviour.

    ``-min(r A, clip(r, 1 +- clip) A)`` with ``r = pi / pi_behaviour``.

    Attributes:
        clip: largest deviation of the ratio from 1 that is learnt from.
    """

    name = "naive"

    clip: float = setting(0.2, above=0.0, at_most=100.0)

    def terms(self, tokens: TokenProbabilities) -> Tensor:
        """See `Loss`."""
        ratio = (tokens.log_probs - tokens.behaviour).exp()
        return -_clip_surrogate(ratio, tokens.advantages, self.clip)

    def is_cut(self, tokens: TokenProbabilities) -> Tensor:
        """See `Loss`."""
        ratio = (tokens.log_probs.detach() - tokens.behaviour).exp()
        return _is_beyond(ratio, tokens.advantages, self.clip)


@dataclass(frozen=True)
class Decoupled(Spec, Loss):
    """The clip around the parameters at which the step began, and a weight for the staleness.

    ``-w min(r A, clip(r, 1 +- clip) A)`` with ``r = pi / pi_proximal`` and ``w = pi_proximal /
    pi_behaviour``.

    Attributes:
        clip: largest deviation of the ratio from 1 that is learnt from.
        truncate: largest weight ``w``; larger ones are cut to it. Without it none is.
    """

    name = "decoupled"

    clip: float = setting(0.2, above=0.0, at_most=100.0)
    truncate: float | None = setting(None, above=0.0, at_most=1e6)

    def terms(self, tokens: TokenProbabilities) -> Tensor:
        """See `Loss`."""
        weight = (tokens.proximal - tokens.behaviour).exp()
        if self.truncate is not None:
            weight = weight.clamp(max=self.truncate)
        ratio = (tokens.log_probs - tokens.proximal).exp()
        return -weight * _clip_surrogate(ratio, tokens.advantages, self.clip)

    def is_cut(self, tokens: TokenProbabilities) -> Tensor:
        """See `Loss`."""
        ratio = (tokens.log_probs.detach() - tokens.proximal).exp()
        return _is_beyond(ratio, tokens.advantages, self.clip)


@dataclass(frozen=True)
class SecondMoment(Spec, Loss):
    """M2PO: ``-r A`` with ``r = pi / pi_behaviour``, without the tokens of largest ``(log r)^2``.

    As many tokens are masked as bring the mean of ``(log r)^2`` of the others within the bound.

    Attributes:
        bound: largest mean of ``(log r)^2``, in nats squared.
    """

    name = "m2po"

    bound: float = setting(0.04, above=0.0, at_most=1e6)

    def terms(self, tokens: TokenProbabilities) -> Tensor:
        """See `Loss`."""
        ratio = (tokens.log_probs - tokens.behaviour).exp()
        return -(ratio * tokens.advantages).masked_fill(self.is_cut(tokens), 0.0)

    def is_cut(self, tokens: TokenProbabilities) -> Tensor:
        """See `Loss`."""
        squares = (tokens.log_probs.detach() - tokens.behaviour).double().square()
        ordered, order = squares.sort(stable=True)
        counts = torch.arange(1, len(ordered) + 1, device=ordered.device)
        # The means grow with the tokens, so that those within the bound are the first ones.
        count = int((ordered.cumsum(0) / counts <= self.bound).sum())
        cut = torch.ones_like(squares, dtype=torch.bool)
        cut[order[:count]] = False
        return cut


def measure(loss: Loss, tokens: TokenProbabilities, entropy: Tensor) -> dict[str, float]:
    """Figures of a batch, as the trainer's step begins.

    Args:
        loss: the loss.
        tokens: the batch's N tokens.
        entropy: entropy ``[N]`` of the present distribution at each of them, in nats.

    Returns:
        ``effective_sample_size``: ``(sum w)^2 / (N sum w^2)`` of the weights ``w = pi_proximal /
        pi_behaviour``; ``clipped_positive`` and ``clipped_negative``: the share of tokens without
        a gradient among those of positive and of negative advantage, 0 if there are none;
        ``kl``: of the behaviour from the proximal distribution, in nats a token, by the estimate
        ``w - 1 - log w``, which has the right mean and is never negative; and ``entropy``.
    """
    log_weight = (tokens.proximal - tokens.behaviour).double()
    weight = log_weight.exp()
    cut = loss.is_cut(tokens)
    signs = {"positive": tokens.advantages > 0.0, "negative": tokens.advantages < 0.0}
    shares = {
        f"clipped_{sign}": float(cut[rows].double().mean()) if bool(rows.any()) else 0.0
        for sign, rows in signs.items()
    }
    return {
        "effective_sample_size": float(weight.sum() ** 2 / (len(weight) * weight.square().sum())),
        **shares,
        "kl": float((weight - 1.0 - log_weight).mean()),
        "entropy": float(entropy.double().mean()),
    }


def cosine(first: Tensor, second: Tensor) -> float:
    """The cosine of the angle between two gradients ``[P]``; 0 if one of them is zero."""
    a, b = first.double(), second.double()
    sizes = float((a @ a * (b @ b)).sqrt())
    return float(a @ b) / sizes if sizes else 0.0

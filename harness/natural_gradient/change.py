# torch.linalg says no types:
# pyright: reportUnknownMemberType=false
"""How far one minibatch may move a network: the max-change of two generations of Kaldi.

Shape letters: R replicas, N rows of a minibatch, m inputs, n outputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from harness.base.errors import UserError
from harness.natural_gradient.estimate import asking_is_free

Rate = float | Tensor
"""One learning rate, or one a replica: ``[R]``."""


@dataclass(frozen=True)
class PerSample:
    """Limit the mean change a sample may cause in a layer: Kaldi's nnet2.

    ``s = min(1, limit N / (rate γᵢ γₒ Σ |x̂| |d̂|))``.

    Args:
        limit: 0.075 to 0.1 in recipes for minibatches of 512.
        counts_rate: whether the rate is part of the change. Without it large minibatches move
            each layer by ``rate limit N`` at most, whatever their gradient.
    """

    limit: float = 0.075
    counts_rate: bool = True

    def __post_init__(self) -> None:
        _require_positive("PerSample.limit", self.limit)


@dataclass(frozen=True)
class PerComponent:
    """Limit the norm of each layer's change, then that of all layers together: nnet3.

    Args:
        each: the largest Euclidean norm of one layer's change of weights and biases.
        together: that of the whole network's, after each layer was limited.
    """

    each: float = 0.75
    together: float = 2.0

    def __post_init__(self) -> None:
        _require_positive("PerComponent.each", self.each)
        _require_positive("PerComponent.together", self.together)


def per_sample_share(
    change: PerSample, inputs: Tensor, outputs: Tensor, gain: Tensor, rate: Rate
) -> Tensor:
    """The s of `PerSample`, for one layer or, with an axis in front of all, for many.

    Args:
        change: the limit.
        inputs: squared lengths of the rows ``X - H W`` of the inputs, ``[R, N]``.
        outputs: those of the output derivatives, ``[R, N]``.
        gain: ``γᵢ γₒ``, ``[R]``.
        rate: of the summed loss.

    Returns:
        s, ``[R]``.
    """
    total = (inputs.sqrt() * outputs.sqrt()).sum(-1)
    total *= gain * (rate if change.counts_rate else 1.0)
    return torch.clamp(change.limit * inputs.shape[-1] / total, max=1.0)


def limited_(weight: Tensor, bias: Tensor | None, rate: Rate, most: float) -> Tensor:
    """Shrink a layer's direction where ``rate`` times its norm exceeds ``most``.

    Returns:
        The norm of the change that is left, ``[R]``.
    """
    squares = cast(Tensor, torch.linalg.vector_norm(weight, dim=(1, 2))).double().square_()
    if bias is not None:
        squares += cast(Tensor, torch.linalg.vector_norm(bias, dim=1)).double().square_()
    norm = squares.sqrt_() * rate
    share = torch.clamp(most / norm, max=1.0)
    if not asking_is_free(share) or bool((share < 1.0).any()):
        scale_(weight, bias, share)
    return norm * share


def scale_(weight: Tensor, bias: Tensor | None, scale: Tensor) -> None:
    """Multiply each replica's ``weight [R, n, m]`` and ``bias [R, n]`` by ``scale [R]``."""
    scale = scale.to(weight.dtype).unsqueeze(1)
    weight.mul_(scale.unsqueeze(2))
    if bias is not None:
        bias.mul_(scale)


def _require_positive(name: str, value: float) -> None:
    if not value > 0.0:
        raise UserError(f"natural gradient: {name} is {value}; allowed: above 0")

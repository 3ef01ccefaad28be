"""The replica stack: the parameters of R networks as one ``[R, P]`` tensor.

A read, a fold or an average is then one vector operation, and the gradients of many
replicas are one batched product. Views give each layer's ``[R, out, in]`` weights
without copying. Shape letters, here and in the rooms beside: R replicas, P parameters
of one network, B frames of a minibatch, D inputs, K targets.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor


class Affine(NamedTuple):
    """One affine layer of every replica: ``weight [R, out, in]`` and ``bias [R, out]``."""

    weight: Tensor
    bias: Tensor


@dataclass(frozen=True)
class Layout:
    """Where each layer of a feed-forward network lies in a parameter vector.

    Args:
        sizes: units of each level, input first, targets last, e.g. ``(429, 128, 352)``.
    """

    sizes: tuple[int, ...]

    @property
    def parameters(self) -> int:
        """P, the length of one network's parameter vector."""
        return sum(m * n + n for m, n in pairwise(self.sizes))

    def views(self, stack: Tensor) -> list[Affine]:
        """Per-layer views of a ``[R, P]`` stack; writing to them writes to the stack."""
        # One split, because a slice each takes as long as a small layer's product.
        parts, replicas = stack.split_with_sizes(self._lengths, 1), stack.shape[0]
        weights = zip(parts[::2], pairwise(self.sizes), strict=True)
        shaped = [part.view(replicas, n, m) for part, (m, n) in weights]
        return [Affine(*layer) for layer in zip(shaped, parts[1::2], strict=True)]

    @cached_property
    def _lengths(self) -> list[int]:
        """Of each layer's weights and biases, one after the other."""
        return [length for m, n in pairwise(self.sizes) for length in (m * n, n)]


def random_parameters(
    layout: Layout, generator: torch.Generator, hidden_gain: float = 1.0
) -> Tensor:
    """A ``[1, P]`` stack drawn with Glorot and Bengio's (2010) variance, biases zero.

    ``W ~ N(0, g^2 2 / (in + out))`` with g = ``hidden_gain`` between hidden levels and 1 at
    the input and output. Drawn in float64 on the CPU and rounded to float32, so that every
    device starts from the same bytes.

    Args:
        layout: the network's levels.
        generator: the source of randomness.
        hidden_gain: 4 suits the logistic sigmoid (Bengio 2012, arXiv 1206.5533, section
            5.3.6, equation 15). The first layer keeps 1: eleven nearly equal spliced frames
            add up in it.
    """
    stack = torch.zeros(1, layout.parameters, dtype=torch.float64)
    layers = layout.views(stack)
    for i, ((m, n), layer) in enumerate(zip(pairwise(layout.sizes), layers, strict=True)):
        gain = hidden_gain if 0 < i < len(layers) - 1 else 1.0
        noise = torch.randn(n, m, generator=generator, dtype=torch.float64)
        layer.weight[0] = noise * gain * (2.0 / (m + n)) ** 0.5
    return stack.float()

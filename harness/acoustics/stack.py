"""The replica stack: the parameters of R networks as one ``[R, P]`` tensor.

A read, a fold or an average is then one vector operation, and the gradients of many
replicas are one batched product. Views give each layer's ``[R, out, in]`` weights
without copying. Shape letters, here and in the rooms beside: R replicas, P parameters
of one network, B frames of a minibatch, D inputs, K targets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
        layers, at = [], 0
        for m, n in pairwise(self.sizes):
            weight = stack[:, at : at + m * n].unflatten(1, (n, m))
            layers.append(Affine(weight, stack[:, at + m * n : at + m * n + n]))
            at += m * n + n
        return layers


def random_parameters(layout: Layout, generator: torch.Generator) -> Tensor:
    """A ``[1, P]`` stack drawn with Glorot and Bengio's (2010) variance, biases zero.

    Drawn in float64 on the CPU and rounded to float32, so that every device starts from
    the same bytes. ``W ~ N(0, 2 / (in + out))``.
    """
    stack = torch.zeros(1, layout.parameters, dtype=torch.float64)
    for (m, n), layer in zip(pairwise(layout.sizes), layout.views(stack), strict=True):
        noise = torch.randn(n, m, generator=generator, dtype=torch.float64)
        layer.weight[0] = noise * (2.0 / (m + n)) ** 0.5
    return stack.float()


def stack_of(vectors: Sequence[Tensor]) -> Tensor:
    """The ``[R, P]`` stack of R parameter vectors ``[P]``."""
    return torch.stack(list(vectors))

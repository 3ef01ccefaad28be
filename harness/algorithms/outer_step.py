"""Outer steps: how a server moves its model towards the mean of its workers' models.

Each step's state is in the server's momenta. Shape letter: P parameters.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from harness.algorithms.contract import Server

MOMENTUM = "momentum"


@dataclass(frozen=True)
class Mean:
    """The model becomes the mean: paper 2."""

    def start(self, model: Tensor) -> dict[str, Tensor]:
        """No momentum."""
        del model
        return {}

    def step(self, server: Server, mean: Tensor) -> None:
        """``theta <- mean``, ``[P]``."""
        server.model.copy_(mean)


@dataclass(frozen=True)
class BlockMomentum:
    """Blockwise model-update filtering (Chen and Huo, ICASSP 2016, equations 2 to 4).

    ``D <- momentum D + rate (mean - theta)``, ``theta <- theta + D``: classical block momentum,
    workers go on from theta.

    Args:
        momentum: η, the block momentum; 1 - 1/W makes up for W workers.
        rate: ζ, the block learning rate.
    """

    momentum: float = 0.875
    rate: float = 1.0

    def start(self, model: Tensor) -> dict[str, Tensor]:
        """A momentum of zero."""
        return {MOMENTUM: torch.zeros_like(model)}

    def step(self, server: Server, mean: Tensor) -> None:
        """One filtered update of the model ``[P]``."""
        update = server.tensors[MOMENTUM]
        update.mul_(self.momentum).add_(mean - server.model, alpha=self.rate)
        server.model.add_(update)


@dataclass(frozen=True)
class OuterNesterov:
    """The outer step of DiLoCo (Douillard et al., arXiv 2311.08105): Nesterov on ``theta - mean``.

    ``D <- momentum D + (theta - mean)``, ``theta <- theta - rate (theta - mean + momentum D)``,
    as PyTorch's SGD with ``nesterov=True`` has it.

    Args:
        momentum: 0.9 there.
        rate: 0.7 there.
    """

    momentum: float = 0.9
    rate: float = 0.7

    def start(self, model: Tensor) -> dict[str, Tensor]:
        """A momentum of zero."""
        return {MOMENTUM: torch.zeros_like(model)}

    def step(self, server: Server, mean: Tensor) -> None:
        """One outer step of the model ``[P]``."""
        self.descend_(server.model, server.tensors[MOMENTUM], server.model - mean)

    def descend_(self, model: Tensor, speed: Tensor, slope: Tensor) -> None:
        """One step of a model ``[P]``, or of a part of it, along an outer gradient, all changed."""
        speed.mul_(self.momentum).add_(slope)
        model.sub_(slope.add_(speed, alpha=self.momentum), alpha=self.rate)

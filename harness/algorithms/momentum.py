"""Stochastic gradient descent with momentum, as a local optimizer.

Polyak 1964; Nesterov's as Sutskever et al. 2013 write it, in the form of ``torch.optim.SGD``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from harness.algorithms.local_optimizer import LocalOptimizer, State
from harness.base.settings import setting
from harness.networks.contract import Network


@dataclass(frozen=True)
class Momentum(LocalOptimizer):
    """``m <- momentum m + g``; the direction is m, or with ``nesterov`` ``g + momentum m``.

    Args:
        momentum: how much of m stays.
        nesterov: whether the direction looks one step ahead.
    """

    momentum: float = setting(0.9, at_least=0.0, at_most=1.0)
    nesterov: bool = False

    def start(self, replicas: Tensor) -> State:
        """A momentum of zero."""
        return {"momentum": torch.zeros_like(replicas)}

    def direct_(self, gradients: Tensor, replicas: Tensor, state: State, network: Network) -> None:
        """See `LocalOptimizer`."""
        del replicas, network
        momentum = state["momentum"].mul_(self.momentum).add_(gradients)
        if self.nesterov:
            gradients.add_(momentum, alpha=self.momentum)
        else:
            gradients.copy_(momentum)

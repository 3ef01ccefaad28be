"""AdamW as a local optimizer.

Loshchilov and Hutter (arXiv 1711.05101), algorithm 2.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from harness.algorithms.local_optimizer import LocalOptimizer, State
from harness.base.settings import setting
from harness.networks.contract import Network


@dataclass(frozen=True)
class AdamW(LocalOptimizer):
    """The direction is ``m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + epsilon) + decay theta``.

    ``m <- beta1 m + (1 - beta1) g`` and ``v <- beta2 v + (1 - beta2) g * g``, in a worker's t-th
    step.

    Args:
        beta1, beta2: how much of both means stays.
        epsilon: added to the root.
        decay: of the weights, in proportion to the rate.
    """

    beta1: float = setting(0.9, at_least=0.0, at_most=1.0)
    beta2: float = setting(0.999, at_least=0.0, at_most=1.0)
    epsilon: float = setting(1e-8, above=0.0)
    decay: float = setting(0.0, at_least=0.0)

    def start(self, replicas: Tensor) -> State:
        """Means of zero, and no steps."""
        steps = torch.zeros(len(replicas), dtype=torch.float64, device=replicas.device)
        both = {name: torch.zeros_like(replicas) for name in ("mean", "square")}
        return {**both, "steps": steps}

    def direct_(self, gradients: Tensor, replicas: Tensor, state: State, network: Network) -> None:
        """See `LocalOptimizer`."""
        del network
        steps = state["steps"].add_(1.0)
        mean = state["mean"].lerp_(gradients, 1.0 - self.beta1)
        square = state["square"].mul_(self.beta2)
        square.addcmul_(gradients, gradients, value=1.0 - self.beta2)
        unbiased = [(1.0 - beta**steps).unsqueeze(1) for beta in (self.beta1, self.beta2)]
        root = (square / unbiased[1].to(square.dtype)).sqrt_().add_(self.epsilon)
        torch.div(mean / unbiased[0].to(mean.dtype), root, out=gradients)
        gradients.add_(replicas, alpha=self.decay)

"""What workers of asynchronous outer loops contribute: how far local steps have moved them.

A difference ``read - moved`` enters the model whatever its version is by then. The rate is that
of local steps, of the mean gradient (see `local_descent`); the outer rate is the algorithm's own.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from harness.algorithms.contract import Algorithm, Memory, Server
from harness.algorithms.local_descent import Descent, local_steps
from harness.networks.contract import Minibatch, Network

PENDING = "pending"
"""The server's sum of contributions that have arrived and are not in the model."""


class Differences(Algorithm):
    """An algorithm with local steps from what was read.

    Attributes:
        descent: makes the local steps.
    """

    descent: Descent

    def start(self, model: Tensor) -> Server:
        """A server that holds a copy of ``model [P]``, and nothing that waits."""
        return Server(model.clone(), tensors={PENDING: torch.zeros_like(model)})

    def contribute(
        self,
        network: Network,
        replicas: Tensor,
        minibatches: Sequence[Minibatch],
        out: Tensor,
        rate: float,
        memory: Memory,
    ) -> Tensor:
        """Descend from each replica over its minibatches; ``read - moved`` into ``out [W, P]``."""
        out.copy_(replicas)
        losses = local_steps(self.descent, network, replicas, minibatches, rate, memory)
        out.sub_(replicas)
        return losses

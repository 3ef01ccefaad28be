"""What asynchronous SGD and its kin contribute: gradients summed over minibatches.

A kin differs in its fold. Rates are of the summed gradient, as in `AsyncSgd`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor

from harness.algorithms.async_sgd import AsyncSgd
from harness.algorithms.contract import Algorithm, Memory, Server
from harness.network import Minibatch, Network


class Gradients(Algorithm):
    """An algorithm whose contributions are those of `AsyncSgd`."""

    remembers: ClassVar[bool] = False

    def start(self, model: Tensor) -> Server:
        """A server that holds a copy of ``model [P]``."""
        return Server(model.clone())

    def contribute(
        self,
        network: Network,
        replicas: Tensor,
        minibatches: Sequence[Minibatch],
        out: Tensor,
        rate: float,
        memory: Memory,
    ) -> Tensor:
        """As `AsyncSgd` contributes."""
        return AsyncSgd().contribute(network, replicas, minibatches, out, rate, memory)

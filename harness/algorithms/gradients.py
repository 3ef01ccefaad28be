"""What asynchronous SGD and its kin have in common: a plain fold, and gradients to be folded.

A kin differs in one of them. Rates of `Gradients` are of the summed gradient, as in `AsyncSgd`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor

from harness.algorithms.async_sgd import AsyncSgd
from harness.algorithms.contract import Algorithm, Memory, Server
from harness.networks.contract import Minibatch, Network


class PlainFolds(Algorithm):
    """An algorithm whose server takes a step along whatever is contributed."""

    def start(self, model: Tensor) -> Server:
        """A server that holds a copy of ``model [P]``."""
        return Server(model.clone())

    def fold(
        self,
        server: Server,
        contributions: Tensor,
        staleness: Sequence[int],
        rate: float,
        workers: Sequence[int] = (),
        weights: Sequence[float] = (),
    ) -> None:
        """``theta <- theta - rate c`` for each of ``contributions [W, P]``, however stale."""
        del staleness, workers, weights
        for contribution in contributions:
            server.model.sub_(contribution, alpha=rate)
        server.version += 1


class Gradients(PlainFolds):
    """An algorithm whose contributions are those of `AsyncSgd`."""

    remembers: ClassVar[bool] = False

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

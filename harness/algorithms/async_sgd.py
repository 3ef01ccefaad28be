"""Asynchronous stochastic gradient descent: the server adds each gradient as it arrives.

Dean et al. 2012 (Downpour SGD); paper 1, section 2.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from harness.algorithms.blocks import fit_for_blocks, step_and_average
from harness.algorithms.contract import Memory, Server
from harness.algorithms.repeating import Repeating
from harness.algorithms.turns import FoldsInARow, Turns, one_by_one
from harness.networks.contract import Minibatch, Network

Scaling = Literal["plain", "memory_of_one"]


@dataclass(frozen=True)
class AsyncSgd(FoldsInARow, Repeating):
    """``theta <- theta - rate * g``, whatever g's staleness.

    Args:
        scaling: ``"plain"``, or ``"memory_of_one"``: paper 1's equation 2 with tau = t,
            an Adagrad that remembers only the present gradient, so that parameter ij moves
            by ``rate * g_ij / sqrt(K + g_ij^2)``.
        k: K of equation 2.
    """

    remembers: ClassVar[bool] = False

    scaling: Scaling = "plain"
    k: float = 1.0

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
        """Each worker's gradient summed over its minibatches, into ``out [W, P]``; losses ``[W]``.

        Between minibatches the replica descends on its own (Downpour's n_push > 1).
        """
        del memory
        losses = network.gradient(replicas, *minibatches[0], out)
        latest = out
        for minibatch in minibatches[1:]:
            self._step(replicas, latest, rate)
            latest = torch.empty_like(out)
            losses = losses + network.gradient(replicas, *minibatch, latest)
            out += latest
        return losses

    def fold(
        self,
        server: Server,
        contributions: Tensor,
        staleness: Sequence[int],
        rate: float,
        workers: Sequence[int] = (),
        weights: Sequence[float] = (),
    ) -> None:
        """Take one step along each of ``contributions [W, P]``; staleness does not matter here."""
        del staleness, workers, weights
        for contribution in contributions:
            self._step(server.model, contribution, rate)
        server.version += 1

    def fold_turns(self, server: Server, turns: Turns, rate: float) -> None:
        """The bytes of ``one_by_one``, in one pass over memory where steps are plain."""
        if not self.in_blocks(server.model):
            one_by_one(self, server, turns, rate)
            return
        step_and_average(server.model, None, turns, rate, ())
        server.version += len(turns.order)

    @property
    def repeats(self) -> bool:
        """Where steps are plain."""
        return self.scaling == "plain"

    def numbers(self, server: Server, rate: float) -> tuple[float, ...]:
        """The rate."""
        server.version += 1
        return (rate,)

    def fold_from(
        self, server: Server, before: Tensor, contributions: Tensor, numbers: Tensor
    ) -> None:
        """One step along each of ``contributions [W, P]``."""
        for contribution in contributions:
            torch.addcmul(before, contribution, numbers[0], value=-1.0, out=server.model)
            before = server.model

    def in_blocks(self, model: Tensor) -> bool:
        """Whether ``fold_turns`` may go block by block over ``model [P]``."""
        return self.scaling == "plain" and fit_for_blocks(model)

    def _step(self, model: Tensor, gradient: Tensor, rate: float) -> None:
        if self.scaling == "plain":
            model.sub_(gradient, alpha=rate)
        else:
            size = gradient.square().add_(self.k).sqrt_()
            model.addcdiv_(gradient, size, value=-rate)

"""Elastic averaging SGD: workers train on their own, tied to a centre by springs.

Zhang, Choromanska and LeCun (arXiv 1412.6651), without momentum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from harness.algorithms.contract import Algorithm, Memory, Server
from harness.algorithms.local_descent import PLAIN, Descent, local_steps
from harness.base.settings import setting
from harness.networks.contract import Minibatch, Network

LOCAL = "local"
"""The workers' own parameters, in their memory."""


@dataclass(frozen=True)
class Easgd(Algorithm):
    """``x <- x - alpha (x - centre)`` for a worker, ``centre <- centre + alpha (x - centre)``.

    The force is that of a contribution's beginning, and the first local step is from there; a
    difference handed in is ``centre - x``. In rounds the centre moves by ``beta`` along the mean.

    Args:
        descent: makes the local steps.
        alpha: the moving rate.
        beta: in rounds that of the centre, which in the paper is alpha times the workers.
        rounds: whether all workers exchange together, or each when it has made its steps.
    """

    descent: Descent = PLAIN
    alpha: float = setting(0.1, above=0.0, at_most=1.0)
    beta: float = setting(0.9, above=0.0, at_most=1.0)
    rounds: bool = False  # pyright: ignore[reportIncompatibleVariableOverride]

    def start(self, model: Tensor) -> Server:
        """A centre that is a copy of ``model [P]``."""
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
        """Give way to the spring and make the local steps; ``centre - x`` into ``out [W, P]``."""
        if LOCAL not in memory.tensors:
            memory.tensors[LOCAL] = replicas.clone()
        own = memory.tensors[LOCAL]
        torch.sub(replicas, own, out=out)
        losses = local_steps(self.descent, network, own, minibatches[:1], rate, memory)
        own.add_(out, alpha=self.alpha)
        if rest := minibatches[1:]:
            losses += local_steps(self.descent, network, own, rest, rate, memory)
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
        """The centre gives way to ``contributions [W, P]``."""
        del staleness, rate, workers, weights
        pull = self.beta if self.rounds else self.alpha
        server.model.sub_(torch.mean(contributions, 0), alpha=pull)
        server.version += 1

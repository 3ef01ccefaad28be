"""Eager DiLoCo: overlapped rounds in which a worker knows its own part before the others' comes.

Kale, Douillard and Donchev (arXiv 2502.12996): worker m goes on from an outer step along
``D_m(t) / W + (sum of the others' D(t - 1)) / W``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from harness.algorithms.contract import Algorithm, Memory, Server
from harness.algorithms.local_descent import PLAIN, Descent, local_steps
from harness.algorithms.outer_step import MOMENTUM, OuterNesterov
from harness.base.settings import setting
from harness.networks.contract import Minibatch, Network

LAST, AHEAD, SPEED = "last", "ahead", "speed"
"""A worker's last difference, how far it is ahead of the shared model, and the momentum of that."""


@dataclass(frozen=True)
class EagerDiLoCo(Algorithm):
    """A worker goes on from the shared model of a round ago, and its own steps since.

    An outer step is linear in its gradients. So the model of worker m, which has stepped along
    ``D(t - 1) + (D_m(t) - D_m(t - 1)) / W``, is the shared one, which has stepped along
    ``D(t - 1)``, plus an outer loop of the worker's own from zero along the rest. A pass begins
    with nothing under way, so from the shared model alone.

    Args:
        workers: W.
        descent: makes the local steps, in the paper AdamW.
        outer: the server's step, and the worker's.
    """

    rounds: ClassVar[bool] = True

    workers: int = setting(at_least=1)
    descent: Descent = PLAIN
    outer: OuterNesterov = field(default_factory=OuterNesterov)

    def trouble(self, workers: int, under_way: int) -> tuple[str, str] | None:
        """Other workers; or rounds without overlap, where a worker's own part would count twice."""
        if workers != self.workers:
            told = f"{self.workers} is not allowed; allowed: {workers}, as the run has"
            return "algorithm.workers", told
        if under_way == workers:
            return "protocol.overlap", "false is not allowed with EagerDiLoCo; allowed: true"
        return None

    def start(self, model: Tensor) -> Server:
        """A server that holds a copy of ``model [P]``, and a momentum of zero."""
        return Server(model.clone(), tensors={MOMENTUM: torch.zeros_like(model)})

    def contribute(
        self,
        network: Network,
        replicas: Tensor,
        minibatches: Sequence[Minibatch],
        out: Tensor,
        rate: float,
        memory: Memory,
    ) -> Tensor:
        """Local steps from the worker's own model; their difference into ``out [W, P]``."""
        known = memory.tensors
        if (
            memory.new_pass or LAST not in known
        ):  # nothing is under way: the shared model has it all
            known |= {name: torch.zeros_like(replicas) for name in (LAST, AHEAD, SPEED)}
        local = replicas.add_(known[AHEAD])
        out.copy_(local)
        losses = local_steps(self.descent, network, local, minibatches, rate, memory)
        out.sub_(local)
        news = (out - known[LAST]).div_(self.workers)
        self.outer.descend_(known[AHEAD], known[SPEED], news)
        known[LAST] = out.clone()
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
        """An outer step along the mean of ``contributions [W, P]``."""
        del staleness, rate, workers, weights
        slope = torch.mean(contributions, 0)
        self.outer.descend_(server.model, server.tensors[MOMENTUM], slope)
        server.version += 1

"""Asynchronous SGD with delay compensation: a gradient is corrected for what it has missed.

Zheng et al. (arXiv 1609.08326), with a constant lambda (DC-ASGD-c): the gradient at the
present model by Taylor's formula, its Hessian by ``lambda g * g`` on the diagonal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from harness.algorithms.contract import Server
from harness.algorithms.gradients import Gradients
from harness.base.errors import UserError
from harness.base.settings import setting


@dataclass(frozen=True)
class DelayCompensated(Gradients):
    """``theta <- theta - rate (g + strength g * g * (theta - theta_read))``.

    The paper's server keeps the model that each worker has read; this one the last models, so
    that it may be in shards and workers may have several contributions under way.

    Args:
        strength: lambda, of the summed gradient.
        history: versions that are kept: contributions may be so stale, less one.
    """

    strength: float = setting(0.04, at_least=0.0)
    history: int = setting(32, at_least=1, at_most=4096)

    def start(self, model: Tensor) -> Server:
        """A server that holds a copy of ``model [P]``, and room for the last models."""
        models = {_name(k): torch.zeros_like(model) for k in range(self.history)}
        models[_name(0)].copy_(model)
        return Server(model.clone(), past=models)

    def fold(
        self,
        server: Server,
        contributions: Tensor,
        staleness: Sequence[int],
        rate: float,
        workers: Sequence[int] = (),
        weights: Sequence[float] = (),
    ) -> None:
        """One corrected step along each of ``contributions [W, P]``.

        Raises:
            UserError: a contribution is staler than the history.
        """
        del workers, weights
        if server.restarts:  # one may have changed the model since the last fold
            self._keep(server)
        for gradient, tau in zip(contributions, staleness, strict=True):
            if tau >= self.history:
                least = f"at least {tau + 1}: a contribution is {tau} versions old"
                raise UserError(
                    f"algorithm.history: {self.history} is not allowed; allowed: {least}"
                )
            read = server.past[_name((server.changes - tau) % self.history)]
            missed = (server.model - read).mul_(gradient).mul_(gradient)
            server.model.sub_(missed.mul_(self.strength).add_(gradient), alpha=rate)
        server.version += 1
        self._keep(server)

    def _keep(self, server: Server) -> None:
        """Put a copy of the present model in its place."""
        server.past[_name(server.changes % self.history)].copy_(server.model)


def _name(place: int) -> str:
    """Name of a place for a model."""
    return f"version/{place}"

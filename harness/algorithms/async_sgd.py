"""Asynchronous SGD, its averaged and clipped forms, and descents of other optimizers.

- `AsyncSgd`: the server folds each gradient as it arrives. Dean et al. 2012 (Downpour SGD);
  paper 1, section 2.2.
- `AveragedSgd`: the deployed model is an average of the iterates. Polyak and Juditsky 1992; Xu 2011
  (arXiv 1107.2490); paper 1, sections 2.3 and 2.4.
- `ClippedSgd`: no step is longer than a limit, however stale. Erickson and Johansson (arXiv
  2606.13287), with a bound that does not depend on the largest delay.
- `AsyncDescent`: ``theta <- theta - rate U(g(theta_read))``, where U is the worker's optimizer
  (arXiv 2606.30634 for a staleness of 1).

`PlainFolds` and `Gradients` are bases: a plain fold, and gradients as contributions. Learning rates
of `Gradients` multiply the summed gradient, as in `AsyncSgd`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor

from harness.algorithms.contract import Algorithm, Fold, LocalWork, Server
from harness.algorithms.descent import PLAIN, Descent, local_direction
from harness.algorithms.schedules import rates_of
from harness.base.settings import setting

Scaling = Literal["plain", "memory_of_one"]


@dataclass(frozen=True)
class AsyncSgd(Algorithm):
    """``theta <- theta - rate * g``, whatever g's staleness.

    Args:
        scaling: ``"plain"``, or ``"memory_of_one"``: paper 1's equation 2 with tau = t,
            an Adagrad with only the present gradient in its sum, so that parameter ij moves
            by ``rate * g_ij / sqrt(K + g_ij^2)``.
        k: K of equation 2, for `memory_of_one`.

    Examples:
        >>> server = AsyncSgd().start(torch.zeros(2))
        >>> AsyncSgd().fold(server, Fold(torch.ones(1, 2), staleness=[3], rate=0.5))
        >>> server.model
        tensor([-0.5000, -0.5000])
    """

    remembers: ClassVar[bool] = False

    scaling: Scaling = "plain"
    k: float = 1.0

    def contribute(self, work: LocalWork) -> Tensor:
        """Write each worker's gradient, summed over its minibatches, to ``out``; losses ``[W]``.

        Between minibatches the replica descends by itself (Downpour's n_push > 1).
        """
        network, replicas, minibatches, out, rate, _ = work
        losses = network.gradient(replicas, *minibatches[0], out)
        latest = out
        for minibatch, lr in zip(minibatches[1:], rates_of(rate, len(minibatches)), strict=False):
            self._step(replicas, latest, lr)
            latest = torch.empty_like(out)
            losses = losses + network.gradient(replicas, *minibatch, latest)
            out += latest
        return losses

    def fold(self, server: Server, fold: Fold) -> None:
        """Take one step along each of ``contributions [W, P]``; staleness has no effect."""
        for contribution in fold.contributions.unbind():
            self._step(server.model, contribution, fold.rate)
        server.version += 1

    def _step(self, model: Tensor, gradient: Tensor, rate: float) -> None:
        if self.scaling == "plain":
            model.sub_(gradient, alpha=rate)
        else:
            size = gradient.square().add_(self.k).sqrt_()
            model.addcdiv_(gradient, size, value=-rate)


@dataclass(frozen=True)
class AveragedSgd(Algorithm):
    """The running average of iterates, and from a switch on the average of all iterates.

    Until the switch: ``average <- (1 - eta) average + eta theta``. From it on, with n
    iterates averaged so far (the running average counts as the first):
    ``average <- average + (theta - average) / (n + 1)``.

    A second average can span the last share s of all iterates, softly: polynomial decay (Shamir and
    Zhang 2013), ``window <- window + (theta - window) / (s (n - 1) + 1)`` at iterate n.

    Args:
        descent: the algorithm that moves theta.
        eta: the running average's rate; 0.01 throughout paper 1.
        considers: number of decisions about the switch per pass. The earlier the switch, the more
            early iterates stay in the average for good; the paper does not give this number.
        window: s, the share of the iterates that the second average spans; 0 for none.
    """

    remembers: ClassVar[bool] = False

    descent: AsyncSgd = field(default_factory=AsyncSgd)
    eta: float = 0.01
    considers: int = 10
    window: float = setting(0.0, at_least=0.0, at_most=1.0)

    def start(self, model: Tensor) -> Server:
        """A server with iterate and average both copies of ``model [P]``, before the switch."""
        server = self.descent.start(model)
        server.vectors["average"] = model.clone()
        server.numbers["averaged"] = 0.0
        if self.window:
            server.vectors["window"] = model.clone()
        return server

    def contribute(self, work: LocalWork) -> Tensor:
        """The descent's contributions."""
        return self.descent.contribute(work)

    def fold(self, server: Server, fold: Fold) -> None:
        """Move theta, then update the averages."""
        self.descent.fold(server, fold)
        server.vectors["average"].lerp_(server.model, self._weight(server))
        if self.window:
            weight = 1.0 / (self.window * (server.version - 1) + 1.0)
            server.vectors["window"].lerp_(server.model, weight)

    def _weight(self, server: Server) -> float:
        """The next iterate's weight in the average; after the switch this counts the iterate."""
        averaged = server.numbers["averaged"]
        if not averaged:
            return self.eta
        server.numbers["averaged"] = averaged + 1.0
        return 1.0 / (averaged + 1.0)

    def consider(self, server: Server, errors: Mapping[str, float]) -> dict[str, float]:
        """Switch to the full average once the running one beats the iterate on development data.

        Args:
            server: changed in place.
            errors: frame error rate of every candidate, by name.

        Returns:
            Events to log, by name; usually none.
        """
        if server.numbers["averaged"] or not errors["average"] < errors["iterate"]:
            return {}
        server.numbers["averaged"] = 1.0
        return {"switch": 1.0}


class PlainFolds(Algorithm):
    """Base of algorithms with a plain fold: one step along each contribution."""

    def fold(self, server: Server, fold: Fold) -> None:
        """``theta <- theta - rate c`` for each of ``contributions [W, P]``, however stale."""
        for contribution in fold.contributions:
            server.model.sub_(contribution, alpha=fold.rate)
        server.version += 1


class Gradients(PlainFolds):
    """Base of algorithms with the contributions of `AsyncSgd` and a fold of their own."""

    remembers: ClassVar[bool] = False

    def contribute(self, work: LocalWork) -> Tensor:
        """The contributions of `AsyncSgd`."""
        return AsyncSgd().contribute(work)


@dataclass(frozen=True)
class ClippedSgd(PlainFolds):
    """``theta <- theta - rate min(1, limit / |g|) g``, where |g| is the norm of the mean gradient.

    The worker clips, so that every shard of a server folds its part of one clipped gradient.

    Args:
        limit: largest norm of a contribution's gradient, mean over its frames.
    """

    remembers: ClassVar[bool] = False

    limit: float = setting(1.0, above=0.0)

    def contribute(self, work: LocalWork) -> Tensor:
        """Write clipped gradients, summed over frames, to ``out [W, P]``; losses ``[W]``."""
        losses = AsyncSgd().contribute(work)
        frames = sum(minibatch.targets.shape[1] for minibatch in work.minibatches)
        norms = work.out.square().sum(1, keepdim=True).sqrt_()
        # A gradient of zero gives infinity here, which the clamp turns into 1.
        work.out.mul_((self.limit * frames / norms).clamp_(max=1.0))
        return losses


@dataclass(frozen=True)
class AsyncDescent(PlainFolds):
    """``theta <- theta - rate U(g)``, with an optimizer U in each worker.

    A contribution is the mean direction of its minibatches at the model that was read. Learning
    rates multiply the mean gradient (see `descent`).

    Args:
        descent: U, each worker's optimizer.
    """

    descent: Descent = PLAIN

    def contribute(self, work: LocalWork) -> Tensor:
        """Write the directions to ``out [W, P]``; returns losses ``[W]``."""
        network, replicas, minibatches, out, rate, memory = work
        direction, losses = local_direction(
            self.descent, network, replicas, minibatches, rate, memory
        )
        out.copy_(direction)
        return losses

"""Asynchronous SGD, its averaged and clipped forms, and descents of other optimizers.

Asynchronous stochastic gradient descent: the server adds each gradient as it arrives. Dean et al.
2012 (Downpour SGD); paper 1, section 2.2.

Averaged SGD over any descent: the model deployed is an average of the iterates. Polyak and
Juditsky 1992; Xu 2011 (arXiv 1107.2490); paper 1, sections 2.3 and 2.4.

What asynchronous SGD and its kin have in common: a plain fold, and gradients to be folded. A kin
differs in one of them. Rates of `Gradients` are of the summed gradient, as in `AsyncSgd`.

Asynchronous SGD with clipped gradients: no step is longer than a limit, however stale. Erickson
and Johansson (arXiv 2606.13287), whose bound does not depend on the largest delay.

Asynchronous steps along the directions of any local optimizer. ``theta <- theta - rate
U(g(theta_read))``, where U is what a worker's optimizer makes of its gradients: how staleness and
optimizer go together (arXiv 2606.30634 for a staleness of 1).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor

from harness.algorithms.contract import (
    Algorithm,
    Fold,
    FoldsInARow,
    LocalWork,
    Repeating,
    Server,
    Turns,
    fold_one_by_one,
)
from harness.algorithms.descent import PLAIN, Descent, local_direction
from harness.algorithms.folding import is_fit_for_blocks, step_and_average, step_and_draw
from harness.base.settings import set_apart, setting

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

    def idle(self) -> Iterator[tuple[str, str]]:
        """Settings that another one switches off, and why."""
        if self.scaling == "plain":
            yield from ((name, "scaling is 'plain'") for name in set_apart(self, "k"))

    def start(self, model: Tensor) -> Server:
        """A server that holds a copy of ``model [P]``."""
        return Server(model.clone())

    def contribute(self, work: LocalWork) -> Tensor:
        """Each worker's gradient summed over its minibatches, into ``out [W, P]``; losses ``[W]``.

        Between minibatches the replica descends on its own (Downpour's n_push > 1).
        """
        network, replicas, minibatches, out, rate, _ = work
        losses = network.gradient(replicas, *minibatches[0], out)
        latest = out
        for minibatch in minibatches[1:]:
            self._step(replicas, latest, rate)
            latest = torch.empty_like(out)
            losses = losses + network.gradient(replicas, *minibatch, latest)
            out += latest
        return losses

    def fold(self, server: Server, fold: Fold) -> None:
        """Take one step along each of ``contributions [W, P]``; staleness does not matter here."""
        for contribution in fold.contributions:
            self._step(server.model, contribution, fold.rate)
        server.version += 1

    def fold_turns(self, server: Server, turns: Turns, rate: float) -> None:
        """The bytes of ``fold_one_by_one``, in one pass over memory where steps are plain."""
        if not self.can_fold_in_blocks(server.model):
            fold_one_by_one(self, server, turns, rate)
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

    def can_fold_in_blocks(self, model: Tensor) -> bool:
        """Whether ``fold_turns`` may go block by block over ``model [P]``."""
        return self.scaling == "plain" and is_fit_for_blocks(model)

    def _step(self, model: Tensor, gradient: Tensor, rate: float) -> None:
        if self.scaling == "plain":
            model.sub_(gradient, alpha=rate)
        else:
            size = gradient.square().add_(self.k).sqrt_()
            model.addcdiv_(gradient, size, value=-rate)


@dataclass(frozen=True)
class AveragedSgd(FoldsInARow, Repeating):
    """A running average at first, and from the switch on the average of all iterates.

    Until the switch: ``average <- (1 - eta) average + eta theta``. From it on, with n
    iterates averaged so far (the running average counts as the first):
    ``average <- average + (theta - average) / (n + 1)``.

    Args:
        descent: what moves theta.
        eta: the running average's rate; 0.01 throughout paper 1.
        considers: how often in a pass the switch is considered. The sooner, the more early
            iterates stay in the average for good; the paper does not say.
    """

    remembers: ClassVar[bool] = False

    descent: AsyncSgd = field(default_factory=AsyncSgd)
    eta: float = 0.01
    considers: int = 10  # pyright: ignore[reportIncompatibleVariableOverride]

    def start(self, model: Tensor) -> Server:
        """Iterate and average both start from ``model [P]``; no switch yet."""
        server = self.descent.start(model)
        server.vectors["average"] = model.clone()
        server.numbers["averaged"] = 0.0
        return server

    def contribute(self, work: LocalWork) -> Tensor:
        """As the descent contributes."""
        return self.descent.contribute(work)

    def fold(self, server: Server, fold: Fold) -> None:
        """Move theta, then draw the average towards it."""
        self.descent.fold(server, fold)
        server.vectors["average"].lerp_(server.model, self._weight(server))

    def fold_turns(self, server: Server, turns: Turns, rate: float) -> None:
        """The bytes of ``fold_one_by_one``, in one pass over memory where steps are plain."""
        if not self.descent.can_fold_in_blocks(server.model):
            fold_one_by_one(self, server, turns, rate)
            return
        weights = [self._weight(server) for _ in turns.order]
        step_and_average(server.model, server.vectors["average"], turns, rate, weights)
        server.version += len(turns.order)

    @property
    def repeats(self) -> bool:
        """Where the descent does."""
        return self.descent.repeats

    def numbers(self, server: Server, rate: float) -> tuple[float, ...]:
        """The rate, and the iterate's weight in the average."""
        return (*self.descent.numbers(server, rate), self._weight(server))

    def fold_from(
        self, server: Server, before: Tensor, contributions: Tensor, numbers: Tensor
    ) -> None:
        """Move theta and draw the average towards it, as one operation."""
        step_and_draw(before, contributions, numbers, server.model, server.vectors["average"])

    def _weight(self, server: Server) -> float:
        """The next iterate's weight in the average; from the switch on, the iterate is counted."""
        averaged = server.numbers["averaged"]
        if not averaged:
            return self.eta
        server.numbers["averaged"] = averaged + 1.0
        return 1.0 / (averaged + 1.0)

    def consider(self, server: Server, errors: Mapping[str, float]) -> dict[str, float]:
        """Begin the full average once the running one beats the iterate on the development set."""
        if server.numbers["averaged"] or not errors["average"] < errors["iterate"]:
            return {}
        server.numbers["averaged"] = 1.0
        return {"switch": 1.0}


class PlainFolds(Algorithm):
    """An algorithm whose server takes a step along whatever is contributed."""

    def start(self, model: Tensor) -> Server:
        """A server that holds a copy of ``model [P]``."""
        return Server(model.clone())

    def fold(self, server: Server, fold: Fold) -> None:
        """``theta <- theta - rate c`` for each of ``contributions [W, P]``, however stale."""
        for contribution in fold.contributions:
            server.model.sub_(contribution, alpha=fold.rate)
        server.version += 1


class Gradients(PlainFolds):
    """An algorithm whose contributions are those of `AsyncSgd`."""

    remembers: ClassVar[bool] = False

    def contribute(self, work: LocalWork) -> Tensor:
        """As `AsyncSgd` contributes."""
        return AsyncSgd().contribute(work)


@dataclass(frozen=True)
class ClippedSgd(PlainFolds):
    """``theta <- theta - rate min(1, limit / |g|) g``, where |g| is the norm of the mean gradient.

    The worker clips, so that every shard of a server folds its part of one clipped gradient.

    Args:
        limit: of the norm of a gradient's mean over the frames of its contribution.
    """

    remembers: ClassVar[bool] = False

    limit: float = setting(1.0, above=0.0)

    def contribute(self, work: LocalWork) -> Tensor:
        """Clipped gradients summed over frames, into ``out [W, P]``; losses ``[W]``."""
        losses = AsyncSgd().contribute(work)
        frames = sum(minibatch.targets.shape[1] for minibatch in work.minibatches)
        norms = work.out.square().sum(1, keepdim=True).sqrt_()
        work.out.mul_((self.limit * frames / norms).clamp_(max=1.0))
        return losses


@dataclass(frozen=True)
class AsyncDescent(PlainFolds):
    """A contribution is the mean direction of its minibatches at what was read.

    Rates are of the mean gradient (see `descent`). The optimizer's state is the worker's.

    Args:
        descent: what makes a direction of a gradient.
    """

    descent: Descent = PLAIN

    def contribute(self, work: LocalWork) -> Tensor:
        """The directions into ``out [W, P]``; losses ``[W]``."""
        network, replicas, minibatches, out, rate, memory = work
        direction, losses = local_direction(
            self.descent, network, replicas, minibatches, rate, memory
        )
        out.copy_(direction)
        return losses

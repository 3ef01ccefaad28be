"""Averaging in rounds: of gradients, of models with an outer step, and elastic.

Gradient averaging: every worker's gradient at one model, and one step along their mean. Paper 2,
section 3. Rates are of the mean gradient of a minibatch (see `descent`). Shape letters as
there.

Model averaging: workers train on their own for n minibatches, then agree on one model. Povey,
Zhang and Khudanpur (arXiv 1410.7455), section 2; paper 2, section 3. Who agrees on their mean
averages models; an outer step with a momentum makes it BMUF or DiLoCo.

Rates are of the mean gradient of a minibatch (see `descent`). Shape letters as there.

Outer steps: how a server moves its model towards the mean of its workers' models. Each step's
state is in the server's momenta. Shape letter: P parameters.

Elastic averaging SGD: workers train on their own, tied to a centre by springs. Zhang, Choromanska
and LeCun (arXiv 1412.6651), without momentum.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from harness.algorithms.contract import Algorithm, Fold, LocalWork, Repeating, Server
from harness.algorithms.descent import PLAIN, Descent, Restart, local_direction, local_steps
from harness.base.settings import set_apart, setting


@dataclass(frozen=True)
class GradientAveraging(Algorithm):
    """A contribution is a mean gradient; a fold goes one step along the mean of them all.

    Several minibatches of a contribution are all seen from the model that was read.

    Args:
        descent: what makes a direction of a gradient; `PLAIN` leaves it as it is.
        restart: when workers forget what the descent remembers.
    """

    rounds: ClassVar[bool] = True
    averages_gradients: ClassVar[bool] = True

    descent: Descent = PLAIN
    restart: Restart = "never"

    def start(self, model: Tensor) -> Server:
        """A server that holds a copy of ``model [P]``."""
        return Server(model.clone())

    def contribute(self, work: LocalWork) -> Tensor:
        """The mean direction a frame over each worker's minibatches, into ``out [W, P]``."""
        network, replicas, minibatches, out, rate, memory = work
        direction, losses = local_direction(
            self.descent, network, replicas, minibatches, rate, memory, self.restart
        )
        out.copy_(direction)
        return losses

    def fold(self, server: Server, fold: Fold) -> None:
        """One step along the mean of ``contributions [W, P]``; staleness does not matter here."""
        server.model.sub_(torch.mean(fold.contributions, 0), alpha=fold.rate)
        server.version += 1


MOMENTUM = "momentum"


@dataclass(frozen=True)
class Mean:
    """The model becomes the mean: paper 2."""

    def start(self, model: Tensor) -> dict[str, Tensor]:
        """No momentum."""
        del model
        return {}

    def step(self, server: Server, mean: Tensor) -> None:
        """``theta <- mean``, ``[P]``."""
        server.model.copy_(mean)


@dataclass(frozen=True)
class BlockMomentum:
    """Blockwise model-update filtering (Chen and Huo, ICASSP 2016, equations 2 to 4).

    ``D <- momentum D + rate (mean - theta)``, ``theta <- theta + D``: classical block momentum,
    workers go on from theta.

    Args:
        momentum: η, the block momentum; 1 - 1/W makes up for W workers.
        rate: ζ, the block learning rate.
    """

    momentum: float = 0.875
    rate: float = 1.0

    def start(self, model: Tensor) -> dict[str, Tensor]:
        """A momentum of zero."""
        return {MOMENTUM: torch.zeros_like(model)}

    def step(self, server: Server, mean: Tensor) -> None:
        """One filtered update of the model ``[P]``."""
        update = server.tensors[MOMENTUM]
        update.mul_(self.momentum).add_(mean - server.model, alpha=self.rate)
        server.model.add_(update)


@dataclass(frozen=True)
class OuterNesterov:
    """The outer step of DiLoCo (Douillard et al., arXiv 2311.08105): Nesterov on ``theta - mean``.

    ``D <- momentum D + (theta - mean)``, ``theta <- theta - rate (theta - mean + momentum D)``,
    as PyTorch's SGD with ``nesterov=True`` has it.

    Args:
        momentum: 0.9 there.
        rate: 0.7 there.
    """

    momentum: float = 0.9
    rate: float = 0.7

    def start(self, model: Tensor) -> dict[str, Tensor]:
        """A momentum of zero."""
        return {MOMENTUM: torch.zeros_like(model)}

    def step(self, server: Server, mean: Tensor) -> None:
        """One outer step of the model ``[P]``."""
        self.descend_(server.model, server.tensors[MOMENTUM], server.model - mean)

    def descend_(self, model: Tensor, speed: Tensor, slope: Tensor) -> None:
        """One step of a model ``[P]``, or of a part of it, along an outer gradient, all changed."""
        speed.mul_(self.momentum).add_(slope)
        model.sub_(slope.add_(speed, alpha=self.momentum), alpha=self.rate)


BEFORE = "before"
"""The server's vector that holds the model of the version before."""


@dataclass(frozen=True)
class ModelAveraging(Repeating):
    """A contribution is the parameters after local steps; a fold moves the model to their mean.

    With one local step of plain SGD a fold equals one step along the mean gradient. Where
    workers go on while their parameters travel, a contribution began at the version before:
    it then counts as the distance it went from there.

    Args:
        descent: the local steps: `PLAIN`, natural gradient, or a `LocalOptimizer`.
        restart: when workers forget what the descent remembers.
        outer: what is made of the way from the model to the mean.
    """

    rounds: ClassVar[bool] = True

    descent: Descent = PLAIN
    restart: Restart = "never"
    outer: Mean | BlockMomentum | OuterNesterov = field(default_factory=Mean)

    def start(self, model: Tensor) -> Server:
        """A server that holds a copy of ``model [P]``, and its outer step's momentum."""
        momenta = {BEFORE: model.clone(), **self.outer.start(model)}
        return Server(model.clone(), tensors=momenta)

    def contribute(self, work: LocalWork) -> Tensor:
        """Descend from each replica over its minibatches; parameters into ``out [W, P]``."""
        network, replicas, minibatches, out, rate, memory = work
        out.copy_(replicas)
        return local_steps(self.descent, network, out, minibatches, rate, memory, self.restart)

    def fold(self, server: Server, fold: Fold) -> None:
        """Move the model to the mean of ``contributions [W, P]``, by the outer step.

        Raises:
            ValueError: a contribution began more than one version ago.
        """
        mean = torch.mean(fold.contributions, 0)
        if any(fold.staleness):
            mean += server.model - _mean_start_model(server, fold.staleness)
        self._move(server, mean)
        server.version += 1

    @property
    def repeats(self) -> bool:
        """Where workers remember nothing."""
        return self.descent == PLAIN

    def numbers(self, server: Server, rate: float) -> tuple[float, ...]:
        """None."""
        del rate
        server.version += 1
        return ()

    def fold_from(
        self, server: Server, before: Tensor, contributions: Tensor, numbers: Tensor
    ) -> None:
        """Move to the mean of ``contributions [W, P]``, by the outer step."""
        del numbers
        server.model.copy_(before)
        self._move(server, torch.mean(contributions, 0))

    def _move(self, server: Server, mean: Tensor) -> None:
        server.tensors[BEFORE].copy_(server.model)
        self.outer.step(server, mean)


def _mean_start_model(server: Server, staleness: Sequence[int]) -> Tensor:
    """The mean ``[P]`` of the models at which contributions began."""
    if max(staleness) > 1:
        raise ValueError(f"a contribution {max(staleness)} versions old meets a memory of one")
    return torch.lerp(server.model, server.tensors[BEFORE], sum(staleness) / len(staleness))


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

    def idle(self) -> Iterator[tuple[str, str]]:
        """Settings that another one switches off, and why."""
        if not self.rounds:
            yield from ((name, "rounds is false") for name in set_apart(self, "beta"))

    def start(self, model: Tensor) -> Server:
        """A centre that is a copy of ``model [P]``."""
        return Server(model.clone())

    def contribute(self, work: LocalWork) -> Tensor:
        """Give way to the spring and make the local steps; ``centre - x`` into ``out [W, P]``."""
        network, replicas, minibatches, out, rate, memory = work
        if LOCAL not in memory.tensors:
            memory.tensors[LOCAL] = replicas.clone()
        own = memory.tensors[LOCAL]
        torch.sub(replicas, own, out=out)
        losses = local_steps(self.descent, network, own, minibatches[:1], rate, memory)
        own.add_(out, alpha=self.alpha)
        if rest := minibatches[1:]:
            losses += local_steps(self.descent, network, own, rest, rate, memory)
        return losses

    def fold(self, server: Server, fold: Fold) -> None:
        """The centre gives way to ``contributions [W, P]``."""
        pull = self.beta if self.rounds else self.alpha
        server.model.sub_(torch.mean(fold.contributions, 0), alpha=pull)
        server.version += 1

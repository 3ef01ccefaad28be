"""Averaging in rounds: of gradients, of models with an outer step, and elastic.

- `GradientAveraging`: one step along the mean of all workers' gradients at one model. Paper 2,
  section 3; with an optimizer, ``torch.nn.parallel.DistributedDataParallel``.
- `ModelAveraging`: workers take local steps over n minibatches, then the server moves to the mean
  of their models. Povey, Zhang and Khudanpur (arXiv 1410.7455), section 2; paper 2, section 3. An
  outer step with momentum makes it BMUF (`BlockMomentum`) or DiLoCo (`OuterNesterov`); its state is
  in the server's tensors.
- `Easgd`: elastic averaging SGD, with an elastic force between workers and a centre. Zhang,
  Choromanska and LeCun (arXiv 1412.6651), without momentum.

Learning rates multiply the mean gradient of a minibatch (see `descent`). Shape letters: W workers,
P parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, TypeGuard

import torch
from torch import Tensor

from harness.algorithms.contract import Algorithm, Fold, LocalWork, Server
from harness.algorithms.descent import (
    PLAIN,
    Descent,
    LocalOptimizer,
    Restart,
    local_direction,
    local_steps,
)
from harness.algorithms.schedules import StepRates, rates_of
from harness.algorithms.server_steps import ServerSteps, contribute_gradients, start_server_of
from harness.base.settings import setting
from harness.networks.contract import Network, RuledNetwork
from harness.networks.unused import Unused, find_unused


@dataclass(frozen=True)
class GradientAveraging(ServerSteps):
    """``theta <- theta - rate U(mean(g_w))`` over the mean gradients of all workers w.

    This is data-parallel training: the server clips the mean gradient, decays the parameters and
    has the only state of the optimizer U. Natural gradient is each worker's own: a worker clips its
    gradient and preconditions it, and directions are averaged. All minibatches of a contribution
    are evaluated at the model that was read.

    Args:
        descent: the optimizer U; `PLAIN` leaves gradients unchanged.
        restart: reset of the estimates of natural gradient: never, before each pass, or before each
            round.

    Examples:
        >>> server = GradientAveraging().start(torch.zeros(1))
        >>> GradientAveraging().fold(server, Fold(torch.tensor([[1.0], [3.0]]), [0, 0], rate=0.5))
        >>> server.model
        tensor([-1.])
    """

    rounds: ClassVar[bool] = True

    descent: Descent = PLAIN
    restart: Restart = "never"

    @property
    def optimizes_in_server(self) -> bool:
        """See `Algorithm`."""
        return isinstance(self.descent, LocalOptimizer)

    def trouble(self, workers: int, under_way: int) -> tuple[str, str] | None:
        """A restart of an optimizer in the server, which has no passes."""
        del workers, under_way
        if self.restart == "never" or not self.optimizes_in_server:
            return None
        reason = f"not allowed with {type(self.descent).__name__}; allowed: 'never'"
        return "algorithm.restart", f"{self.restart!r} is {reason}"

    def start(self, model: Tensor) -> Server:
        """A server with a copy of ``model [P]``, and the optimizer's initial state."""
        if isinstance(self.descent, LocalOptimizer):
            return start_server_of(self.descent, model)
        return super().start(model)

    def contribute(self, work: LocalWork) -> Tensor:
        """Write each worker's mean gradient, or direction, to ``out [W, P]``."""
        network, replicas, minibatches, out, rate, memory = work
        if self.follows_rules(network):
            return contribute_gradients(network.without_rules(), work)
        if self.optimizes_in_server:
            return contribute_gradients(network, work)
        direction, losses = local_direction(
            self.descent, network, replicas, minibatches, rate, memory, self.restart
        )
        out.copy_(direction)
        return losses

    def follows_rules(self, network: Network | None) -> TypeGuard[RuledNetwork]:
        """Whether the server applies a network's rules, to the mean gradient."""
        in_server = self.optimizes_in_server or self.descent == PLAIN
        return in_server and isinstance(network, RuledNetwork)

    def fold(self, server: Server, fold: Fold) -> None:
        """Take one step along the mean of ``contributions [W, P]``; staleness has no effect."""
        mean, unused = torch.mean(fold.contributions, 0, keepdim=True), Unused()
        if self.follows_rules(network := self._network):
            if every := find_unused(fold.contributions, network.sizes):
                unused = [sorted(set(every[0]).intersection(*every[1:]))]
            network.apply_rules_(mean, server.model.unsqueeze(0), unused)
        if isinstance(self.descent, LocalOptimizer):
            self.direct_(self.descent, server, mean, unused)
        server.model.sub_(mean[0], alpha=fold.rate)
        server.version += 1


MOMENTUM = "momentum"


@dataclass(frozen=True)
class Mean:
    """``theta <- mean``: paper 2."""

    def start(self, model: Tensor) -> dict[str, Tensor]:
        """No state."""
        del model
        return {}

    def step(self, server: Server, mean: Tensor) -> None:
        """``theta <- mean``, ``[P]``."""
        server.model.copy_(mean)


@dataclass(frozen=True)
class BlockMomentum:
    """Blockwise model-update filtering (Chen and Huo, ICASSP 2016, equations 2 to 4).

    ``D <- momentum D + rate (mean - theta)``, ``theta <- theta + D``: classical block momentum,
    workers start from theta.

    Args:
        momentum: η, the block momentum; 1 - 1/W for W workers.
        rate: ζ, the block learning rate.
    """

    momentum: float = 0.875
    rate: float = 1.0

    def start(self, model: Tensor) -> dict[str, Tensor]:
        """Zero momentum."""
        return {MOMENTUM: torch.zeros_like(model)}

    def step(self, server: Server, mean: Tensor) -> None:
        """Update the model ``[P]`` once."""
        update = server.tensors[MOMENTUM]
        update.mul_(self.momentum).add_(mean - server.model, alpha=self.rate)
        server.model.add_(update)


@dataclass(frozen=True)
class OuterNesterov:
    """The outer step of DiLoCo (Douillard et al., arXiv 2311.08105): Nesterov on ``theta - mean``.

    ``D <- momentum D + (theta - mean)``, ``theta <- theta - rate (theta - mean + momentum D)``,
    as in PyTorch's SGD with ``nesterov=True``.

    Args:
        momentum: Nesterov momentum of the outer step; 0.9 in the paper.
        rate: outer learning rate; 0.7 in the paper.
    """

    momentum: float = 0.9
    rate: float = 0.7

    def start(self, model: Tensor) -> dict[str, Tensor]:
        """Zero momentum."""
        return {MOMENTUM: torch.zeros_like(model)}

    def step(self, server: Server, mean: Tensor) -> None:
        """Take one outer step of the model ``[P]``."""
        self.descend_(server.model, server.tensors[MOMENTUM], server.model - mean)

    def descend_(self, model: Tensor, speed: Tensor, slope: Tensor) -> None:
        """Step a model ``[P]``, or a part of it, along an outer gradient; changes all three."""
        speed.mul_(self.momentum).add_(slope)
        model.sub_(slope.add_(speed, alpha=self.momentum), alpha=self.rate)


BEFORE = "before"
"""Name of the server's tensor with the model of the previous version."""


@dataclass(frozen=True)
class ModelAveraging(Algorithm):
    """``theta <- mean(theta_w)`` over the workers' parameters theta_w after their local steps.

    With one local step of plain SGD a fold equals one step along the mean gradient. In overlapped
    rounds a contribution started from the previous version; its displacement from there is then
    added to the present model.

    Args:
        descent: optimizer of local steps: `PLAIN`, natural gradient, or a `LocalOptimizer`.
        restart: reset of the workers' memories: never, before each pass, or before each round.
        outer: outer step from the model towards the mean.

    Examples:
        >>> server = ModelAveraging().start(torch.zeros(1))
        >>> ModelAveraging().fold(server, Fold(torch.tensor([[1.0], [3.0]]), [0, 0], rate=0.5))
        >>> server.model
        tensor([2.])
    """

    rounds: ClassVar[bool] = True

    descent: Descent = PLAIN
    restart: Restart = "never"
    outer: Mean | BlockMomentum | OuterNesterov = field(default_factory=Mean)

    def start(self, model: Tensor) -> Server:
        """A server with copies of ``model [P]``, and the outer step's momentum."""
        momenta = {BEFORE: model.clone(), **self.outer.start(model)}
        return Server(model.clone(), tensors=momenta)

    def contribute(self, work: LocalWork) -> Tensor:
        """Descend from each replica over its minibatches; writes parameters to ``out [W, P]``."""
        network, replicas, minibatches, out, rate, memory = work
        out.copy_(replicas)
        return local_steps(self.descent, network, out, minibatches, rate, memory, self.restart)

    def fold(self, server: Server, fold: Fold) -> None:
        """Move the model to the mean of ``contributions [W, P]``, by the outer step.

        Raises:
            ValueError: a contribution began more than one version ago.
        """
        mean = torch.mean(fold.contributions, 0)
        if any(fold.staleness):  # add displacements, not models, to the present model
            mean += server.model - _mean_start_model(server, fold.staleness)
        server.tensors[BEFORE].copy_(server.model)
        self.outer.step(server, mean)
        server.version += 1


def _mean_start_model(server: Server, staleness: Sequence[int]) -> Tensor:
    """The mean ``[P]`` of the models at which contributions started."""
    if max(staleness) > 1:
        raise ValueError(f"a contribution is {max(staleness)} versions old; allowed: at most 1")
    return torch.lerp(server.model, server.tensors[BEFORE], sum(staleness) / len(staleness))


LOCAL = "local"
"""Name of the workers' own parameters in their memory."""


@dataclass(frozen=True)
class Easgd(Algorithm):
    """``x <- x - alpha (x - centre)`` for a worker, ``centre <- centre + alpha (x - centre)``.

    A contribution is ``centre - x`` at its start; the first local step's gradient is taken at the
    same x, as in the paper's algorithm 1. That algorithm exchanges at once: the centre moves before
    the local steps. Here a worker has read the centre before its steps and its contribution arrives
    after them, so that without rounds the centre moves one such period later. In rounds it moves by
    ``beta`` along the mean contribution.

    Args:
        descent: optimizer of local steps.
        alpha: moving rate of a worker towards the centre, and without rounds also of the centre.
        beta: the centre's moving rate in rounds; in the paper, alpha times the number of workers.
        rounds: whether all workers exchange together, or each after its own local steps.
    """

    descent: Descent = PLAIN
    alpha: float = setting(0.1, above=0.0, at_most=1.0)
    beta: float = setting(0.9, above=0.0, at_most=1.0)
    rounds: bool = False  # pyright: ignore[reportIncompatibleVariableOverride]

    def contribute(self, work: LocalWork) -> Tensor:
        """Take the elastic step and local steps; writes ``centre - x`` to ``out [W, P]``."""
        network, replicas, minibatches, out, rate, memory = work
        if LOCAL not in memory.tensors:
            memory.tensors[LOCAL] = replicas.clone()
        local = memory.tensors[LOCAL]
        torch.sub(replicas, local, out=out)
        head, *tail = rates_of(rate, len(minibatches))
        losses = local_steps(self.descent, network, local, minibatches[:1], head, memory)
        # Only now: the gradient of the first step is taken before the elastic force moves x.
        local.add_(out, alpha=self.alpha)
        if batches := minibatches[1:]:
            losses += local_steps(self.descent, network, local, batches, StepRates(tail), memory)
        return losses

    def fold(self, server: Server, fold: Fold) -> None:
        """Move the centre along the mean of ``contributions [W, P]``."""
        pull = self.beta if self.rounds else self.alpha
        server.model.sub_(torch.mean(fold.contributions, 0), alpha=pull)
        server.version += 1

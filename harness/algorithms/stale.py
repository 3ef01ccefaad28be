"""Asynchronous algorithms that know how stale a contribution is, and outer loops.

Asynchronous SGD whose steps are the shorter the staler their gradients are. Zhang, Gupta, Lian and
Liu (arXiv 1511.05950): the rate is divided by the staleness.

Asynchronous SGD with delay compensation: a gradient is corrected for what it has missed. Zheng et
al. (arXiv 1609.08326), with a constant lambda (DC-ASGD-c): the gradient at the present model by
Taylor's formula, its Hessian by ``lambda g * g`` on the diagonal.

Ringmaster: asynchronous SGD that leaves out gradients with too large a delay. Maranjyan, Tyurin
and Richtárik (arXiv 2501.16168), algorithm 4.

FedBuff: asynchronous outer steps, each along the mean of a buffer of differences. Nguyen et al.
(arXiv 2106.06639), a difference weighted by 1 / sqrt(1 + tau).

Hogwild in parts: of every gradient only some components enter the model, drawn at random. Niu,
Recht, Ré and Wright (arXiv 1106.5730): an update of one component drawn from those of a gradient,
times their number, is the gradient in the mean.

What workers of asynchronous outer loops contribute: how far local steps have moved them. A
difference ``read - moved`` enters the model whatever its version is by then. The rate is that of
local steps, of the mean gradient (see `descent`); the outer rate is the algorithm's own.

Asynchronous steps along the directions of an optimizer that is the server's. ``theta <- theta -
rate U(g(theta_read))``, where U and what it remembers are the server's: it sees the gradients of
all workers in the order in which they are folded, each as stale as it is. This is what PyTorch's
and TensorFlow's parameter servers do, and Downpour with Adagrad (Dean et al. 2012); in
`AsyncDescent` every worker has an optimizer of its own. Of gradients of one staleness tau it is
the delayed optimizer of theory: ``theta_{t+1} = theta_t - rate U(g(theta_{t - tau}))``.

Delayed Nesterov: an asynchronous outer loop whose momentum moves every N arrivals only. Liu et al.
(arXiv 2401.09135), algorithm 3: asynchronous DiLoCo.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from harness.algorithms.async_sgd import Gradients
from harness.algorithms.averaging import MOMENTUM
from harness.algorithms.contract import Algorithm, Fold, LocalWork, Server
from harness.algorithms.descent import (
    PLAIN,
    AdamW,
    Descent,
    LocalOptimizer,
    State,
    local_steps,
    mean_gradient,
    mean_over,
)
from harness.base.errors import UserError
from harness.base.seeds import stream
from harness.base.settings import setting
from harness.networks.contract import Network, upload


@dataclass(frozen=True)
class StalenessAware(Gradients):
    """``theta <- theta - rate / max(1, tau) g`` of a gradient tau versions old."""

    def fold(self, server: Server, fold: Fold) -> None:
        """One step along each of ``contributions [W, P]``."""
        for contribution, tau in zip(fold.contributions, fold.staleness, strict=True):
            server.model.sub_(contribution, alpha=fold.rate / max(1, tau))
        server.version += 1


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
        models = {_name_of_version(k): torch.zeros_like(model) for k in range(self.history)}
        models[_name_of_version(0)].copy_(model)
        return Server(model.clone(), past=models)

    def fold(self, server: Server, fold: Fold) -> None:
        """One corrected step along each of ``contributions [W, P]``.

        Raises:
            UserError: a contribution is staler than the history.
        """
        if server.restarts:  # one may have changed the model since the last fold
            self._keep(server)
        for gradient, tau in zip(fold.contributions, fold.staleness, strict=True):
            if tau >= self.history:
                least = f"at least {tau + 1}: a contribution is {tau} versions old"
                raise UserError(
                    f"algorithm.history: {self.history} is not allowed; allowed: {least}"
                )
            read = server.past[_name_of_version((server.changes - tau) % self.history)]
            missed = (server.model - read).mul_(gradient).mul_(gradient)
            server.model.sub_(missed.mul_(self.strength).add_(gradient), alpha=fold.rate)
        server.version += 1
        self._keep(server)

    def _keep(self, server: Server) -> None:
        """Put a copy of the present model in its place."""
        server.past[_name_of_version(server.changes % self.history)].copy_(server.model)


def _name_of_version(place: int) -> str:
    """Name of a place for a model."""
    return f"version/{place}"


USED = "used"
"""The server's number of gradients used so far."""


@dataclass(frozen=True)
class Ringmaster(Gradients):
    """``theta <- theta - rate g`` if fewer than ``most`` gradients were used since g's read.

    A gradient that is left out makes a version too, which has the model of the one before; the
    paper's delay counts used ones only. So the server remembers at which versions the last
    ``most`` were used.

    Args:
        most: R, the delay from which on a gradient is not used.
    """

    in_shards: ClassVar[bool] = False

    most: int = setting(16, at_least=1, at_most=65536)

    def start(self, model: Tensor) -> Server:
        """A server that holds a copy of ``model [P]`` and has used nothing."""
        last = {_name_of_gradient(k): -1.0 for k in range(self.most)}
        return Server(model.clone(), numbers={USED: 0.0, **last})

    def fold(self, server: Server, fold: Fold) -> None:
        """A step along each of ``contributions [W, P]`` that is used."""
        for contribution, tau in zip(fold.contributions, fold.staleness, strict=True):
            place = _name_of_gradient(int(server.numbers[USED]) % self.most)
            if server.numbers[place] < server.changes - tau:
                server.model.sub_(contribution, alpha=fold.rate)
                server.numbers[place] = float(server.changes)
                server.numbers[USED] += 1.0
        server.version += 1


def _name_of_gradient(place: int) -> str:
    """Name of the place for when one of the last gradients was used, in changes of the model."""
    return f"used/{place}"


PENDING = "pending"
"""The server's sum of contributions that have arrived and are not in the model."""


class Differences(Algorithm):
    """An algorithm with local steps from what was read.

    Attributes:
        descent: makes the local steps.
    """

    descent: Descent

    def start(self, model: Tensor) -> Server:
        """A server that holds a copy of ``model [P]``, and nothing that waits."""
        return Server(model.clone(), tensors={PENDING: torch.zeros_like(model)})

    def contribute(self, work: LocalWork) -> Tensor:
        """Descend from each replica over its minibatches; ``read - moved`` into ``out [W, P]``."""
        network, replicas, minibatches, out, rate, memory = work
        out.copy_(replicas)
        losses = local_steps(self.descent, network, replicas, minibatches, rate, memory)
        out.sub_(replicas)
        return losses


@dataclass(frozen=True)
class FedBuff(Differences):
    """Every ``buffer`` arrivals ``theta <- theta - outer_rate mean((1 + tau)^-discount D)``.

    Every arrival makes a version; tau counts the steps of the model between read and arrival. For
    a difference that began before a failure of the server it counts the arrivals that were lost,
    and the restart as one more.

    Args:
        descent: makes the local steps.
        buffer: K, arrivals for a step.
        outer_rate: of a step; 1 moves the model to the mean of what was trained.
        discount: 0.5 in the paper; 0 for none.
    """

    descent: Descent = PLAIN
    buffer: int = setting(4, at_least=1)
    outer_rate: float = setting(1.0, above=0.0)
    discount: float = setting(0.5, at_least=0.0)

    def fold(self, server: Server, fold: Fold) -> None:
        """Buffer each of ``contributions [W, P]``; a step when the buffer is full."""
        pending, now = server.tensors[PENDING], server.folds
        for difference, tau in zip(fold.contributions, fold.staleness, strict=True):
            steps = now // self.buffer - (now - tau) // self.buffer
            pending.add_(difference, alpha=(1.0 + steps) ** -self.discount)
        server.version += 1
        if server.folds % self.buffer == 0:
            count = self.buffer * len(fold.contributions)
            server.model.sub_(pending, alpha=self.outer_rate / count)
            pending.zero_()


@dataclass(frozen=True)
class PartialFolds(Gradients):
    """``theta_i <- theta_i - rate / share g_i`` for each i with probability ``share``.

    Reads that find other versions at other components are those of a server in shards.

    Args:
        share: of the components.
        seed: of the draws, which are by version.
    """

    share: float = setting(0.5, above=0.0, at_most=1.0)
    seed: int = setting(0, at_least=0)

    def fold(self, server: Server, fold: Fold) -> None:
        """A step along the drawn components of each of ``contributions [W, P]``."""
        drawn = stream(self.seed, "partial folds", server.version)
        for contribution in fold.contributions:
            enters = torch.as_tensor(drawn.random(len(contribution)) < self.share)
            part = contribution * upload(enters, contribution.device)
            server.model.sub_(part, alpha=fold.rate / self.share)
        server.version += 1


@dataclass(frozen=True)
class ServerDescent(Algorithm):
    """A contribution is the mean gradient of its minibatches at what was read.

    Rates are of the mean gradient (see `descent`). A server in shards would cut the matrices
    that an optimizer may look at, so there are none.

    Args:
        optimizer: makes a direction of each gradient that is folded.
    """

    remembers: ClassVar[bool] = False
    in_shards: ClassVar[bool] = False
    _network: ClassVar[Network | None] = None

    optimizer: LocalOptimizer = field(default_factory=AdamW)

    def on(self, network: Network) -> ServerDescent:
        """See `Algorithm`: an optimizer may ask where layers lie."""
        placed = copy.copy(self)
        object.__setattr__(placed, "_network", network)  # no setting, so no field
        return placed

    def start(self, model: Tensor) -> Server:
        """A server that holds a copy of ``model [P]`` and what the optimizer knows at first."""
        server = Server(model.clone())
        _state_to_server(server, self.optimizer.start(server.model.unsqueeze(0)))
        return server

    def contribute(self, work: LocalWork) -> Tensor:
        """Mean gradients over each worker's minibatches, into ``out [W, P]``; losses ``[W]``."""
        gradient = partial(mean_gradient, work.network, work.replicas)
        return mean_over(gradient, work.minibatches, work.out)

    def fold(self, server: Server, fold: Fold) -> None:
        """A step along what the optimizer makes of each of ``contributions [W, P]``, in turn.

        Raises:
            ValueError: nobody has said on which network (`on`).
        """
        if self._network is None:
            raise ValueError("a ServerDescent folds on a network; see Algorithm.on")
        for contribution in fold.contributions:
            direction, state = contribution.clone().unsqueeze(0), _state_from_server(server)
            model = server.model.unsqueeze(0)
            self.optimizer.direct_(direction, model, state, self._network)
            _state_to_server(server, state)
            server.model.sub_(direction[0], alpha=fold.rate)
        server.version += 1


def _state_from_server(server: Server) -> State:
    """The optimizer's state, each tensor with one row: views of the server's."""
    return {name: momentum.unsqueeze(0) for name, momentum in server.tensors.items()}


def _state_to_server(server: Server, state: State) -> None:
    """Undo `_kept`. A count of steps stays where the model lies: a host that reads it waits."""
    server.tensors |= {name: tensor[0] for name, tensor in state.items()}


@dataclass(frozen=True)
class DelayedNesterov(Differences):
    """Between momentum steps ``theta <- theta - outer_rate (c momentum m + D / N)``.

    At every N-th arrival ``m <- momentum m + (mean of the last N)``, and then
    ``theta <- theta - outer_rate ((1 - c N + c) momentum m + D / N)``.

    Args:
        descent: makes the local steps.
        every: N.
        momentum: beta.
        outer_rate: epsilon.
        spread: c, the momentum's part in every step; from 0 to 1 / N.
    """

    descent: Descent = PLAIN
    every: int = setting(4, at_least=1)
    momentum: float = setting(0.9, at_least=0.0, at_most=1.0)
    outer_rate: float = setting(0.7, above=0.0)
    spread: float = setting(0.0, at_least=0.0, at_most=1.0)

    def start(self, model: Tensor) -> Server:
        """As any difference's, with a momentum of zero."""
        server = super().start(model)
        server.tensors[MOMENTUM] = torch.zeros_like(model)
        return server

    def fold(self, server: Server, fold: Fold) -> None:
        """A step along each of ``contributions [W, P]``, and what the momentum has to add."""
        pending, momentum = server.tensors[PENDING], server.tensors[MOMENTUM]
        n, share = self.every, self.spread
        pending.add_(fold.contributions.mean(0))
        server.version += 1
        if server.folds % n == 0:
            momentum.mul_(self.momentum).add_(pending, alpha=1.0 / n)
            pending.zero_()
            share = 1.0 - self.spread * n + self.spread
        step = fold.contributions.mean(0).div_(n).add_(momentum, alpha=share * self.momentum)
        server.model.sub_(step, alpha=self.outer_rate)

"""Asynchronous algorithms with staleness in their update, outer loops, and server optimizers.

- `StalenessAware`: the learning rate is divided by the staleness. Zhang, Gupta, Lian and Liu (arXiv
  1511.05950).
- `DelayCompensated`: a gradient is corrected for the folds since its read. Zheng et al. (arXiv
  1609.08326), with a constant lambda (DC-ASGD-c): the gradient at the present model by Taylor's
  formula, with the Hessian approximated by ``lambda g * g`` on the diagonal.
- `Ringmaster`: gradients with too large a delay are dropped. Maranjyan, Tyurin and Richtárik (arXiv
  2501.16168), algorithm 4.
- `FedBuff`: outer steps along the mean of a buffer of differences. Nguyen et al. (arXiv
  2106.06639), a difference weighted by 1 / sqrt(1 + tau).
- `PartialFolds`: Hogwild in parts: a random subset of each gradient's components enters the model.
  Niu, Recht, Ré and Wright (arXiv 1106.5730): an update of one component drawn from those of a
  gradient, times their number, has the gradient as its mean.
- `DelayedNesterov`: an outer loop with a momentum that changes at every N-th arrival only. Liu et
  al. (arXiv 2401.09135), algorithm 3: asynchronous DiLoCo.
- `ServerDescent`: ``theta <- theta - rate U(g(theta_read))`` with the optimizer U in the server: it
  receives the gradients of all workers in the order of their folds. This is the way of PyTorch's
  and TensorFlow's parameter servers, and of Downpour with Adagrad (Dean et al. 2012); in
  `AsyncDescent` every worker has its own optimizer. With one staleness tau for all gradients it is
  the delayed optimizer of theory: ``theta_{t+1} = theta_t - rate U(g(theta_{t - tau}))``.

Contributions of the outer loops are differences ``read - moved``, folded into the model's present
version. The schedule's learning rate is that of local steps, for the mean gradient (see `descent`);
the outer learning rate is a setting of the algorithm.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from harness.algorithms.async_sgd import Gradients
from harness.algorithms.averaging import MOMENTUM
from harness.algorithms.contract import Algorithm, Fold, LocalWork, Server
from harness.algorithms.descent import PLAIN, AdamW, Descent, LocalOptimizer, local_steps
from harness.algorithms.server_steps import ServerSteps, contribute_gradients, start_server_of
from harness.base.errors import UserError
from harness.base.seeds import stream
from harness.base.settings import setting
from harness.networks.contract import RuledNetwork, upload
from harness.networks.unused import Unused, find_unused


@dataclass(frozen=True)
class StalenessAware(Gradients):
    """``theta <- theta - rate / max(1, tau) g`` for a gradient g of staleness tau.

    Examples:
        >>> server = StalenessAware().start(torch.zeros(1))
        >>> StalenessAware().fold(server, Fold(torch.ones(1, 1), staleness=[4], rate=1.0))
        >>> server.model
        tensor([-0.2500])
    """

    def fold(self, server: Server, fold: Fold) -> None:
        """Take one step along each of ``contributions [W, P]``."""
        for contribution, tau in zip(fold.contributions, fold.staleness, strict=True):
            server.model.sub_(contribution, alpha=fold.rate / max(1, tau))
        server.version += 1


@dataclass(frozen=True)
class DelayCompensated(Gradients):
    """``theta <- theta - rate (g + strength g * g * (theta - theta_read))``.

    The paper's server keeps the model that each worker has read. This server keeps the last models,
    so that it may be sharded and workers may have several contributions in flight.

    Args:
        strength: lambda, for the gradient that the learning rate multiplies. The paper's is for a
            minibatch's mean gradient: where gradients are sums over B frames, divide it by B.
        history: number of versions that are kept; the largest allowed staleness is one less.
    """

    strength: float = setting(0.04, at_least=0.0)
    history: int = setting(32, at_least=1, at_most=4096)

    def start(self, model: Tensor) -> Server:
        """A server with a copy of ``model [P]``, and space for the last models."""
        models = {_name_of_version(k): torch.zeros_like(model) for k in range(self.history)}
        models[_name_of_version(0)].copy_(model)
        return Server(model.clone(), past=models)

    def fold(self, server: Server, fold: Fold) -> None:
        """Take one corrected step along each of ``contributions [W, P]``.

        Raises:
            UserError: a contribution is staler than the history allows.
        """
        if server.restarts:  # a restart may have changed the model since the last fold
            self._keep(server)
        for gradient, tau in zip(fold.contributions, fold.staleness, strict=True):
            if tau >= self.history:
                least = f"at least {tau + 1}: a contribution is {tau} versions old"
                raise UserError(
                    f"algorithm.history: {self.history} is not allowed; allowed: {least}"
                )
            past = server.past[_name_of_version((server.changes - tau) % self.history)]
            missed = (server.model - past).mul_(gradient).mul_(gradient)
            server.model.sub_(missed.mul_(self.strength).add_(gradient), alpha=fold.rate)
        server.version += 1
        self._keep(server)

    def _keep(self, server: Server) -> None:
        """Store a copy of the present model in its place of the ring."""
        server.past[_name_of_version(server.changes % self.history)].copy_(server.model)


def _name_of_version(place: int) -> str:
    """Name of a place in the ring of past models."""
    return f"version/{place}"


USED = "used"
"""Name of the server's count of gradients used so far."""


@dataclass(frozen=True)
class Ringmaster(Gradients):
    """``theta <- theta - rate g`` if fewer than ``most`` gradients were used since g's read.

    A dropped gradient makes a version, too, with an unchanged model, but the paper's delay counts
    used gradients only. So the server stores the versions at which the last ``most`` were used.

    Args:
        most: R, the least delay at which a gradient is dropped.

    Examples:
        >>> algorithm = Ringmaster(most=1)
        >>> server = algorithm.start(torch.zeros(1))
        >>> for tau in (0, 1):
        ...     algorithm.fold(server, Fold(torch.ones(1, 1), staleness=[tau], rate=0.5))
        >>> server.model
        tensor([-0.5000])
    """

    in_shards: ClassVar[bool] = False

    most: int = setting(16, at_least=1, at_most=65536)

    def start(self, model: Tensor) -> Server:
        """A server with a copy of ``model [P]``, and no gradient used."""
        times = {_name_of_gradient(k): -1.0 for k in range(self.most)}
        return Server(model.clone(), numbers={USED: 0.0, **times})

    def fold(self, server: Server, fold: Fold) -> None:
        """Take a step along each of ``contributions [W, P]`` that is not dropped."""
        for contribution, tau in zip(fold.contributions, fold.staleness, strict=True):
            # Oldest of the last R used gradients: if used after g's read, g's delay is R or more.
            place = _name_of_gradient(int(server.numbers[USED]) % self.most)
            if server.numbers[place] < server.changes - tau:
                server.model.sub_(contribution, alpha=fold.rate)
                server.numbers[place] = float(server.changes)
                server.numbers[USED] += 1.0
        server.version += 1


def _name_of_gradient(place: int) -> str:
    """Name of a place in the ring of times (in changes of the model) of the last used gradients."""
    return f"used/{place}"


PENDING = "pending"
"""Name of the server's sum of contributions that have arrived but are not yet in the model."""


class Differences(Algorithm):
    """Base of outer loops: contributions are the differences that local steps make.

    Attributes:
        descent: optimizer of local steps.
    """

    descent: Descent

    def start(self, model: Tensor) -> Server:
        """A server with a copy of ``model [P]``, and no pending contributions."""
        return Server(model.clone(), tensors={PENDING: torch.zeros_like(model)})

    def contribute(self, work: LocalWork) -> Tensor:
        """Descend from each replica over its minibatches; writes ``read - moved`` to ``out``."""
        network, replicas, minibatches, out, rate, memory = work
        out.copy_(replicas)
        losses = local_steps(self.descent, network, replicas, minibatches, rate, memory)
        out.sub_(replicas)
        return losses


@dataclass(frozen=True)
class FedBuff(Differences):
    """Every ``buffer`` arrivals ``theta <- theta - outer_rate mean((1 + tau)^-discount D)``.

    Every arrival makes a version; tau counts the steps of the model between read and arrival. For
    a difference that began before a server failure it includes the arrivals that were lost, and
    the restart as one more.

    Args:
        descent: optimizer of local steps.
        buffer: K, the number of arrivals per step.
        outer_rate: learning rate of a step; 1 moves the model to the mean of the trained ones.
        discount: exponent of the weight by staleness; 0.5 in the paper, 0 for equal weights.

    Examples:
        >>> algorithm = FedBuff(buffer=2)
        >>> server = algorithm.start(torch.zeros(1))
        >>> for difference in (1.0, 3.0):
        ...     algorithm.fold(server, Fold(torch.tensor([[difference]]), [0], rate=0.1))
        >>> server.model
        tensor([-2.])
    """

    descent: Descent = PLAIN
    buffer: int = setting(4, at_least=1)
    outer_rate: float = setting(1.0, above=0.0)
    discount: float = setting(0.5, at_least=0.0)

    def fold(self, server: Server, fold: Fold) -> None:
        """Buffer each of ``contributions [W, P]``; take a step when the buffer is full."""
        pending, folds = server.tensors[PENDING], server.folds
        for difference, tau in zip(fold.contributions, fold.staleness, strict=True):
            steps = folds // self.buffer - (folds - tau) // self.buffer
            pending.add_(difference, alpha=(1.0 + steps) ** -self.discount)
        server.version += 1
        if server.folds % self.buffer == 0:
            count = self.buffer * len(fold.contributions)
            server.model.sub_(pending, alpha=self.outer_rate / count)
            pending.zero_()


@dataclass(frozen=True)
class PartialFolds(Gradients):
    """``theta_i <- theta_i - rate / share g_i`` for each i with probability ``share``.

    Folds only: reads with different versions in different components occur with a sharded server.

    Args:
        share: expected share of the components that enter.
        seed: seed of the random subsets; each version has its own stream.
    """

    share: float = setting(0.5, above=0.0, at_most=1.0)
    seed: int = setting(0, at_least=0)

    def fold(self, server: Server, fold: Fold) -> None:
        """Take a step along the drawn components of each of ``contributions [W, P]``."""
        generator = stream(self.seed, "partial folds", server.version)
        for contribution in fold.contributions:
            enters = torch.as_tensor(generator.random(len(contribution)) < self.share)
            part = contribution * upload(enters, contribution.device)
            server.model.sub_(part, alpha=fold.rate / self.share)
        server.version += 1


@dataclass(frozen=True)
class ServerDescent(ServerSteps):
    """``theta <- theta - rate U(g)``, with one optimizer U in the server.

    A contribution is the mean gradient of its minibatches at the model that was read. Learning
    rates multiply the mean gradient (see `descent`). Shards are not allowed: they would cut weight
    matrices, which an optimizer may need whole.

    Args:
        optimizer: U, the server's optimizer.
    """

    remembers: ClassVar[bool] = False
    in_shards: ClassVar[bool] = False

    optimizer: LocalOptimizer = field(default_factory=AdamW)

    def start(self, model: Tensor) -> Server:
        """A server with a copy of ``model [P]``, and the optimizer's initial state."""
        return start_server_of(self.optimizer, model)

    def contribute(self, work: LocalWork) -> Tensor:
        """Write each worker's mean gradient to ``out [W, P]``; returns the losses ``[W]``."""
        return contribute_gradients(work.network, work)

    def fold(self, server: Server, fold: Fold) -> None:
        """Take a step along the optimizer's direction for each of ``contributions [W, P]``."""
        for direction in fold.contributions.clone().split_with_sizes([1] * len(fold.contributions)):
            network, unused = self._network, Unused()
            if isinstance(network, RuledNetwork):
                unused = find_unused(direction, network.sizes)
            self.direct_(self.optimizer, server, direction, unused)
            server.model.sub_(direction[0], alpha=fold.rate)
        server.version += 1


@dataclass(frozen=True)
class DelayedNesterov(Differences):
    """Between momentum steps ``theta <- theta - outer_rate (c momentum m + D / N)``.

    At every N-th arrival ``m <- momentum m + (mean of the last N)``, and then
    ``theta <- theta - outer_rate ((1 - c N + c) momentum m + D / N)``.

    Args:
        descent: optimizer of local steps.
        every: N, the number of arrivals between momentum steps.
        momentum: beta, the outer momentum.
        outer_rate: epsilon, the outer learning rate.
        spread: c, the momentum's share in every step; from 0 to 1 / N.
    """

    descent: Descent = PLAIN
    every: int = setting(4, at_least=1)
    momentum: float = setting(0.9, at_least=0.0, at_most=1.0)
    outer_rate: float = setting(0.7, above=0.0)
    spread: float = setting(0.0, at_least=0.0, at_most=1.0)

    def start(self, model: Tensor) -> Server:
        """The server of `Differences`, with zero momentum."""
        server = super().start(model)
        server.tensors[MOMENTUM] = torch.zeros_like(model)
        return server

    def fold(self, server: Server, fold: Fold) -> None:
        """Take a step along ``contributions [W, P]`` and the momentum's share."""
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

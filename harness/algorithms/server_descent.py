"""Asynchronous steps along the directions of an optimizer that is the server's.

``theta <- theta - rate U(g(theta_read))``, where U and what it remembers are the server's: it sees
the gradients of all workers in the order in which they are folded, each as stale as it is. This is
what PyTorch's and TensorFlow's parameter servers do, and Downpour with Adagrad (Dean et al. 2012);
in `AsyncDescent` every worker has an optimizer of its own. Of gradients of one staleness tau it is
the delayed optimizer of theory: ``theta_{t+1} = theta_t - rate U(g(theta_{t - tau}))``.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

from torch import Tensor

from harness.algorithms.adamw import AdamW
from harness.algorithms.contract import Algorithm, Memory, Server
from harness.algorithms.local_descent import mean_gradient, mean_over
from harness.algorithms.local_optimizer import LocalOptimizer, State
from harness.networks.contract import Minibatch, Network


@dataclass(frozen=True)
class ServerDescent(Algorithm):
    """A contribution is the mean gradient of its minibatches at what was read.

    Rates are of the mean gradient (see `local_descent`). A server in shards would cut the matrices
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
        _keep(server, self.optimizer.start(server.model.unsqueeze(0)))
        return server

    def contribute(
        self,
        network: Network,
        replicas: Tensor,
        minibatches: Sequence[Minibatch],
        out: Tensor,
        rate: float,
        memory: Memory,
    ) -> Tensor:
        """Mean gradients over each worker's minibatches, into ``out [W, P]``; losses ``[W]``."""
        del rate, memory
        return mean_over(partial(mean_gradient, network, replicas), minibatches, out)

    def fold(
        self,
        server: Server,
        contributions: Tensor,
        staleness: Sequence[int],
        rate: float,
        workers: Sequence[int] = (),
        weights: Sequence[float] = (),
    ) -> None:
        """A step along what the optimizer makes of each of ``contributions [W, P]``, in turn.

        Raises:
            ValueError: nobody has said on which network (`on`).
        """
        del staleness, workers, weights
        if self._network is None:
            raise ValueError("a ServerDescent folds on a network; see Algorithm.on")
        for contribution in contributions:
            direction, state = contribution.clone().unsqueeze(0), _kept(server)
            model = server.model.unsqueeze(0)
            self.optimizer.direct_(direction, model, state, self._network)
            _keep(server, state)
            server.model.sub_(direction[0], alpha=rate)
        server.version += 1


def _kept(server: Server) -> State:
    """The optimizer's state, each tensor with one row: views of the server's."""
    return {name: momentum.unsqueeze(0) for name, momentum in server.tensors.items()}


def _keep(server: Server, state: State) -> None:
    """Undo `_kept`. A count of steps stays where the model lies: a host that reads it waits."""
    server.tensors |= {name: tensor[0] for name, tensor in state.items()}

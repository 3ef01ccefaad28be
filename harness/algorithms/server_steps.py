"""Steps of an optimizer in the server: workers contribute gradients, and it has one state for all.

Parameters without gradient are marked in contributions: `harness.networks.unused`.

Shape letters: W workers, P parameters.
"""

from __future__ import annotations

import copy
from typing import ClassVar, Self

from torch import Tensor

from harness.algorithms.contract import Algorithm, LocalWork, Server
from harness.algorithms.descent import LocalOptimizer, mean_gradient, mean_over
from harness.networks.contract import Minibatch, Network, RuledNetwork
from harness.networks.unused import Unused, mark_unused_


class ServerSteps(Algorithm):
    """Base of algorithms whose folds need the network, e.g. its weight matrices."""

    _network: ClassVar[Network | None] = None

    def on(self, network: Network) -> Self:
        """See `Algorithm`."""
        bound = copy.copy(self)
        object.__setattr__(bound, "_network", network)  # not a setting, hence not a field
        return bound

    def direct_(
        self, optimizer: LocalOptimizer, server: Server, gradient: Tensor, unused: Unused
    ) -> None:
        """Turn a gradient ``[1, P]`` into the optimizer's direction, with its state in the server.

        Raises:
            ValueError: the algorithm is not bound to a network (`on`).
        """
        if self._network is None:
            raise ValueError(f"a {type(self).__name__} folds on a network; see Algorithm.on")
        state = {name: tensor.unsqueeze(0) for name, tensor in server.tensors.items()}
        model = server.model.unsqueeze(0)
        optimizer.direct_used_(gradient, model, state, self._network, unused)
        # Step counts stay on the device, so the host need not wait.
        server.tensors = {name: tensor[0] for name, tensor in state.items()}


def start_server_of(optimizer: LocalOptimizer, model: Tensor) -> Server:
    """A server with a copy of ``model [P]``, and the optimizer's initial state."""
    server = Server(model.clone())
    state = optimizer.start(server.model.unsqueeze(0))
    server.tensors |= {name: tensor[0] for name, tensor in state.items()}
    return server


def contribute_gradients(network: Network, work: LocalWork) -> Tensor:
    """Write each worker's mean gradient to ``work.out [W, P]``; returns the losses ``[W]``."""

    def write_gradient(minibatch: Minibatch, out: Tensor) -> Tensor:
        losses = mean_gradient(network, work.replicas, minibatch, out)
        if isinstance(network, RuledNetwork):
            mark_unused_(out, network.sizes, network.unused)
        return losses

    return mean_over(write_gradient, work.minibatches, work.out)

"""State of workers' replicas besides parameters, such as running statistics of BatchNorm.

A worker's state follows its own steps, in their order, whatever batches they are computed in. With
each contribution the worker sends the state after it; a fold makes it known at the server.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.algorithms.contract import Memories, Memory
from harness.algorithms.saved import Saved
from harness.networks.contract import Key, Network, State, StatefulNetwork


class ReplicaStates(Saved):
    """States of all workers' replicas; nothing for a network without any.

    Args:
        network: the network that is trained.

    Attributes:
        known: the state of each worker that came with its last folded contribution; every tensor
            is ``[1, ...]``.
    """

    SAVED = ("_live", "_sent", "known")

    def __init__(self, network: Network) -> None:
        self._network = network
        stateful = isinstance(network, StatefulNetwork)
        self._fresh: State = network.fresh_state() if stateful else {}
        self._live = Memories(begin=self._begin)
        self._sent: dict[Key, State] = {}
        self.known: dict[int, State] = {}

    def _begin(self) -> Memory:
        return Memory({name: tensor.clone() for name, tensor in self._fresh.items()})

    def bind(self, workers: Sequence[int]) -> Network:
        """The network for replicas of these workers, whose states its gradients change."""
        if not self._fresh:
            return self._network
        assert isinstance(self._network, StatefulNetwork)
        return self._network.with_state(self._live.join(workers).tensors)

    def send(self, keys: Sequence[Key]) -> None:
        """Copy the states after these contributions, the rows of the last `bind` in its order."""
        if self._fresh:
            joint = self._live.join([worker for worker, _ in keys]).tensors
            for row, key in enumerate(keys):
                # Copies: the next batch changes the joint rows in place.
                self._sent[key] = {n: t[row : row + 1].clone() for n, t in joint.items()}

    def fold(self, keys: Sequence[Key]) -> None:
        """Make the states known that came with these contributions."""
        if self._fresh:
            self.known |= {key[0]: self._sent.pop(key) for key in keys}

    def forget(self, keys: set[Key]) -> None:
        """Drop the states of contributions that are lost."""
        for key in keys & self._sent.keys():
            del self._sent[key]

    def tell(self) -> Mapping[int, State]:
        """The states that are known, of a network that has changed nothing else."""
        if isinstance(self._network, StatefulNetwork):
            self._network.check_constants()
        return self.known

"""State of workers' replicas besides parameters, such as running statistics of BatchNorm.

A worker's state follows its own steps, in their order, whatever batches they are computed in. With
each contribution the worker sends the state after it; a fold makes it known at the server.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from harness.algorithms.contract import Memories, Memory
from harness.networks.contract import Key, Network, State, StatefulNetwork

LIVE, SENT, KNOWN = "states/live/", "states/sent/", "states/known/"
"""Prefixes of a checkpoint's arrays: states of workers, with contributions, at the server."""


class ReplicaStates:
    """States of all workers' replicas; nothing for a network without any.

    Args:
        network: the network that is trained.

    Attributes:
        known: the state of each worker that came with its last folded contribution; every tensor
            is ``[1, ...]``.
    """

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

    def capture(self) -> dict[str, np.ndarray]:
        """All states as arrays, for `reinstate`."""
        if not self._fresh:
            return {}
        live = {f"{LIVE}{worker}": memory.tensors for worker, memory in self._live.split().items()}
        sent = {f"{SENT}{worker},{step}": state for (worker, step), state in self._sent.items()}
        return _to_arrays({**live, **sent}) | self.capture_known()

    def capture_known(self) -> dict[str, np.ndarray]:
        """The states at the server as arrays, for `restore_known`."""
        return _to_arrays({f"{KNOWN}{worker}": state for worker, state in self.known.items()})

    def restore_known(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Restore the states at the server: those of `capture_known`, and no others."""
        states = self._restore(arrays, KNOWN)
        self.known = {int(worker): state for worker, state in states.items()}

    def reinstate(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Restore the result of `capture`."""
        live, sent = (self._restore(arrays, prefix) for prefix in (LIVE, SENT))
        memories = {int(worker): Memory(state) for worker, state in live.items()}
        self._live = Memories(memories, begin=self._begin)
        self.restore_known(arrays)
        self._sent = {}
        for key, state in sent.items():
            worker, step = key.split(",")
            self._sent[int(worker), int(step)] = state

    def _restore(self, arrays: Mapping[str, np.ndarray], prefix: str) -> dict[str, State]:
        """The states with a prefix, by the rest of their names up to the next slash."""
        states: dict[str, State] = {}
        for path, array in arrays.items():
            if path.startswith(prefix):
                whose, _, name = path.removeprefix(prefix).partition("/")
                states.setdefault(whose, {})[name] = from_array(array, self._fresh[name])
        return states


def _to_arrays(states: Mapping[str, State]) -> dict[str, np.ndarray]:
    return {
        f"{whose}/{name}": to_array(tensor)
        for whose, state in states.items()
        for name, tensor in state.items()
    }


def to_array(tensor: Tensor) -> np.ndarray:
    """A copy of a tensor as an array; bfloat16, which NumPy lacks, by its bits as int16."""
    host = tensor.detach().cpu()
    return (host.view(torch.int16) if host.dtype == torch.bfloat16 else host).numpy().copy()


def from_array(array: np.ndarray, like: Tensor) -> Tensor:
    """The tensor of `to_array`, of the type and on the device of another."""
    tensor = torch.as_tensor(array)
    bits = like.dtype == torch.bfloat16 and tensor.dtype == torch.int16
    return (tensor.view(torch.bfloat16) if bits else tensor).to(like.device)

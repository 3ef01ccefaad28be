"""The contract of a network for algorithms, and copies of small tensors to its device.

Shape letters: W replicas at once, P parameters, B frames, D inputs, m and n units of two levels.

Copies go through pinned memory. From ordinary memory CUDA copies only once the device has finished
all earlier work, and the host waits for that; then the device idles until the next launch. A copy
from pinned memory is queued like a kernel. It suits small tensors that are copied repeatedly:
PyTorch keeps pinned memory until the copy is done, and reuses it for the next of its size.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from harness.networks.unused import Unused


class Minibatch(NamedTuple):
    """The frames of W minibatches of B frames: ``x [W, B, D]``, ``targets [W, B]`` (int64)."""

    x: Tensor
    targets: Tensor


Key = tuple[int, int]
"""Key of a contribution: (worker, first_step)."""

Gradient = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""``gradient(stack [W, P], x [W, B, D], targets [W, B], out [W, P]) -> summed losses [W]``."""


class Views(Protocol):
    """Views of layers in a stack, such as `harness.networks.feedforward.Layout`."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """Units of each level, input first."""
        ...

    def views(self, stack: Tensor) -> Sequence[tuple[Tensor, Tensor]]:
        """``weight [W, n, m]`` and ``bias [W, n]`` of each layer in a ``[W, P]`` stack."""
        ...


class Network(Protocol):
    """Interface of a network for algorithms, e.g. `harness.modules.network.ModuleNetwork`."""

    @property
    def gradient(self) -> Gradient:
        """Function that writes the loss's gradient, summed over each minibatch; see `Gradient`."""
        ...

    def matrices(self, stack: Tensor) -> Sequence[Tensor]:
        """Views ``[W, n, m]`` of the weight matrices in a ``[W, P]`` stack.

        Args:
            stack: parameters, a row for each replica.
        """
        ...


@runtime_checkable
class LayeredNetwork(Network, Protocol):
    """A network of affine layers only, as natural gradient needs it."""

    @property
    def layout(self) -> Views:
        """The views of the network's layers."""
        ...

    def backward(
        self,
        stack: Tensor,
        x: Tensor,
        targets: Tensor,
        visit: Callable[[int, Tensor, Tensor], None],
    ) -> Tensor:
        """Show every layer's inputs and derivatives to ``visit``.

        Args:
            stack: parameters ``[W, P]``.
            x: inputs ``[W, B, D]``.
            targets: ``[W, B]``.
            visit: called once a layer, last layer first, with its number, its inputs
                ``[W, B, m]`` and the derivatives of the summed loss at its outputs
                ``[W, B, n]``, which it may keep: they are not overwritten.

        Returns:
            The losses ``[W]``, summed over frames, in nats.
        """
        ...


class RuledNetwork(ABC):
    """A `Network` with rules for gradients, and parameters that may have none: a user's module.

    Attributes:
        sizes: number of elements of each parameter tensor.
        unused: parameters without gradient in the latest `gradient`.
    """

    sizes: list[int]
    unused: Unused

    @abstractmethod
    def without_rules(self) -> Network:
        """The network without clipping and decay."""

    @abstractmethod
    def part(self, ids: Sequence[int]) -> Network:
        """The network of some parameter tensors, which computes no gradients."""

    @abstractmethod
    def apply_rules_(self, gradients: Tensor, stack: Tensor, unused: Unused) -> None:
        """Clip each of the gradients ``[W, P]``, and add the decay of the used parameters."""


State = dict[str, Tensor]
"""State of replicas by name, each tensor with a row for each replica: ``[W, ...]``."""


@runtime_checkable
class StatefulNetwork(Network, Protocol):
    """A network whose gradients change state of a replica, such as running statistics."""

    def fresh_state(self) -> State:
        """The state of one replica before its first step; empty if gradients change none."""
        ...

    def check_constants(self) -> None:
        """Refuse a network whose gradients have changed more than states.

        Raises:
            UserError: they have.
        """
        ...

    def with_state(self, state: State) -> Network:
        """The network for W replicas, whose gradients read and change ``state`` in place."""
        ...


def upload(values: Tensor, device: torch.device) -> Tensor:
    """The values on a device, without a copy if they are there already."""
    if values.device.type == device.type == "cpu":
        return values
    pinned = device.type == "cuda" and not values.is_cuda
    # The host need not wait: PyTorch keeps the pinned memory until the copy is done.
    return (values.pin_memory() if pinned else values).to(device, non_blocking=True)

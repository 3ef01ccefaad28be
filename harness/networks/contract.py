"""The contract of a network for algorithms, and copies of small things to its device.

What those who train a network need of it, whatever it is.

Shape letters: W replicas at once, P parameters, B frames, D inputs, m and n units of two levels.

What the host gives a device while that is still at work. From ordinary memory CUDA copies only
once the device has done all it was told before, and the host waits for that; then the device waits
until it is told what comes next. From pinned memory the copy takes its turn. This is for what is
small and given again and again: PyTorch keeps pinned memory until the copy is done, and then for
the next of its size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor


class Minibatch(NamedTuple):
    """The frames of W minibatches of B frames: ``x [W, B, D]``, ``targets [W, B]`` (int64)."""

    x: Tensor
    targets: Tensor


Gradient = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""``gradient(stack [W, P], x [W, B, D], targets [W, B], out [W, P]) -> summed losses [W]``."""


class Views(Protocol):
    """Where layers lie in a stack, as `harness.networks.feedforward.Layout` says it."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """Units of each level, input first."""
        ...

    def views(self, stack: Tensor) -> Sequence[tuple[Tensor, Tensor]]:
        """``weight [W, n, m]`` and ``bias [W, n]`` of each layer in a ``[W, P]`` stack."""
        ...


class Network(Protocol):
    """What algorithms need of a network; `harness.modules.network.ModuleNetwork` has no more."""

    @property
    def gradient(self) -> Gradient:
        """The gradient of the loss, summed over each minibatch; `Gradient` has the shapes."""
        ...

    def matrices(self, stack: Tensor) -> Sequence[Tensor]:
        """Views ``[W, n, m]`` of the weight matrices in a ``[W, P]`` stack.

        Args:
            stack: parameters, a row for each replica.
        """
        ...


@runtime_checkable
class LayeredNetwork(Network, Protocol):
    """One of affine layers alone, as natural gradient needs it."""

    @property
    def layout(self) -> Views:
        """Where its layers lie."""
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


@runtime_checkable
class RepeatingNetwork(Network, Protocol):
    """One whose gradient asks a device for the same operations each time: they can be recorded."""

    @property
    def copy_type(self) -> torch.dtype | None:
        """The type of copies of the model that gradients need no more than; None for its own."""
        ...


def upload(values: Tensor, device: torch.device) -> Tensor:
    """The values on a device; those that lie there already as they are."""
    return pin_for_device(values, device).to(device, non_blocking=True)


def pin_for_device(values: Tensor, device: torch.device) -> Tensor:
    """The values, where a device can copy them from without the host waiting."""
    return values.pin_memory() if device.type == "cuda" and not values.is_cuda else values

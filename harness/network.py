"""What those who train a network need of it, whatever it is.

Shape letters: W replicas at once, P parameters, B frames, D inputs, m and n units of two levels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from torch import Tensor


class Minibatch(NamedTuple):
    """The frames of W minibatches of B frames: ``x [W, B, D]``, ``targets [W, B]`` (int64)."""

    x: Tensor
    targets: Tensor


Gradient = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""``gradient(stack [W, P], x [W, B, D], targets [W, B], out [W, P]) -> summed losses [W]``."""


class Views(Protocol):
    """Where layers lie in a stack, as `harness.acoustics.stack.Layout` says it."""

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
    """One of affine layers alone, as natural gradient needs it and `harness.acoustics.dnn` has."""

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

"""Hooks on linear and convolutional layers of any module, and the layers' natural gradient.

A convolution is an affine layer; its rows are the patches of its input, one per position. Each
layer's whole gradient is preconditioned, whatever computed it: `harness.natural_gradient.layer`.

Shape letters: N rows of a minibatch, m inputs, n outputs of a layer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, cast, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn import functional

from harness.natural_gradient.estimate import Rows, scale_
from harness.natural_gradient.layer import NaturalGradient, Sides
from harness.networks.contract import Network

Affine = nn.Linear | nn.Conv1d | nn.Conv2d

Reduction = Literal["mean", "sum"]
"""Whether a loss is the mean or the sum over rows."""


def is_affine(module: nn.Module) -> bool:
    """Whether a module is a linear layer, or a convolution of one group padded with zeros."""
    if isinstance(module, nn.Conv1d | nn.Conv2d):
        zeros = module.padding_mode == "zeros" and not isinstance(module.padding, str)
        return zeros and module.groups == 1
    return isinstance(module, nn.Linear)


@dataclass
class LayerHook:
    """One affine layer, with the inputs and output derivatives since they were last cleared.

    Args:
        module: the layer.
        seen: inputs and derivatives of each forward pass.
    """

    module: Affine
    seen: list[tuple[Tensor, Tensor]] = field(default_factory=list[tuple[Tensor, Tensor]])

    @property
    def appended(self) -> bool:
        """Whether a one, which carries the bias, is appended to its inputs."""
        return self.module.bias is not None

    @property
    def widths(self) -> tuple[int, int]:
        """Columns of its rows: m, or m + 1 with a bias, and n."""
        weight = self.module.weight
        return weight[0].numel() + self.appended, len(weight)

    def watch(self, module: nn.Module, args: Any, kwargs: Any, output: Tensor) -> None:
        """A forward hook: keep the inputs, and ask autograd for the outputs' derivatives."""
        del module
        if output.requires_grad:
            x = (args[0] if args else kwargs["input"]).detach()

            def keep(delta: Tensor) -> None:
                self.seen.append((x, delta.detach()))

            output.register_hook(keep)  # pyright: ignore[reportUnknownMemberType]

    def start(self, options: NaturalGradient) -> Sides:
        """Initial estimates for both sides, of one replica."""
        weight = self.module.weight
        return options.start_layer(self.widths, 1, weight.dtype, weight.device)

    def rows(self) -> tuple[Rows, Rows]:
        """Inputs and derivatives of all forward passes, one row a position: ``[1, N, m or n]``."""
        x, delta = (
            torch.cat(sides)
            for sides in zip(*(_unfold_rows(self.module, *pair) for pair in self.seen), strict=True)
        )
        dtype = self.module.weight.dtype
        return Rows(x.to(dtype).unsqueeze(0), self.appended), Rows(delta.to(dtype).unsqueeze(0))


@runtime_checkable
class HookableNetwork(Network, Protocol):
    """A network with hooks on its affine layers, one replica at a time, such as a user's module."""

    @property
    def layers(self) -> Sequence[LayerHook]:
        """The affine layers that have hooks."""
        ...

    @property
    def reduction(self) -> Reduction:
        """Whether the loss is the mean or the sum over rows."""
        ...

    def views_of(self, place: int, row: Tensor) -> tuple[Tensor, Tensor | None]:
        """Views of a layer's ``weight [n, ...]`` and ``bias [n]`` in a row ``[P]``."""
        ...

    def watch_gradient(
        self, stack: Tensor, x: Tensor, targets: Tensor, out: Tensor, visit: Callable[[int], None]
    ) -> Tensor:
        """As ``gradient``, one replica after another.

        Args:
            stack: see `harness.networks.contract.Gradient`.
            x: likewise.
            targets: likewise.
            out: likewise.
            visit: called with each replica's index, once its gradient is in ``out`` and while the
                hooks hold its rows.
        """
        ...


def _unfold_rows(module: Affine, x: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
    """Inputs ``[N, m]`` and derivatives ``[N, n]`` of one forward pass."""
    if isinstance(module, nn.Linear):
        return x.reshape(-1, x.shape[-1]), delta.reshape(-1, delta.shape[-1])
    places = len(module.kernel_size)
    if x.dim() == places + 1:  # one example without a batch
        x, delta = x.unsqueeze(0), delta.unsqueeze(0)
    options = {"dilation": module.dilation, "padding": module.padding, "stride": module.stride}
    numbers = {name: _two(cast("tuple[int, ...]", value), name) for name, value in options.items()}
    kernel = _two(module.kernel_size, "kernel")
    patches = functional.unfold(x if places == 2 else x.unsqueeze(2), kernel, **numbers)
    return patches.mT.flatten(0, 1), delta.flatten(2).mT.flatten(0, 1)


def _two(numbers: tuple[int, ...], name: str) -> tuple[int, ...]:
    """Settings of a 2-d convolution; a 1-d one is a convolution over height 1."""
    return numbers if len(numbers) == 2 else (0 if name == "padding" else 1, *numbers)


def naturalise_(
    options: NaturalGradient,
    layers: Sequence[LayerHook],
    gradients: Sequence[tuple[Tensor, Tensor | None]],
    estimates: Sequence[Sides],
    rates: Sequence[float],
    reduction: Reduction,
) -> list[Sides]:
    """Turn the gradients of layers into their natural-gradient directions, in place.

    Args:
        options: both sides' preconditioners and the max-change, which counts these layers.
        layers: hooks with recorded rows, at least one forward pass each.
        gradients: of each layer's ``weight [n, ...]`` and ``bias [n]``; overwritten.
        estimates: estimates of both sides of each layer.
        rates: learning rate of each layer, which the limit of changes needs.
        reduction: that of the loss; it sets the scale at which derivatives are compared.

    Returns:
        The next estimates of each layer.
    """
    after, directions, norms = list[Sides](), list[Tensor](), list[Tensor]()
    parts = zip(layers, gradients, estimates, rates, strict=True)
    for layer, (weight, bias), sides, rate in parts:
        rows, ends = layer.rows()
        scale = float(ends.x.shape[1]) if reduction == "mean" else 1.0
        latest, fi, fo, gain = options.precondition(rows, ends, sides, rate, scale)
        # A bias is the last of the columns, as its inputs are ones.
        columns = [weight.flatten(1), *(() if bias is None else (bias.unsqueeze(1),))]
        direction = torch.cat(columns, 1)[None]
        direction.baddbmm_(torch.bmm(direction, fi.basis.mT), fi.basis, alpha=-1)
        direction.baddbmm_(fo.basis.mT, torch.bmm(fo.basis, direction), alpha=-1)
        scale_([direction], gain)
        norms.append(options.limit_([direction], rate))
        directions.append(direction)
        after.append(latest)
    options.limit_together_(directions, norms)
    for (weight, bias), direction in zip(gradients, directions, strict=True):
        weight.copy_(direction[0, :, : weight[0].numel()].view_as(weight))
        if bias is not None:
            bias.copy_(direction[0, :, -1])
    return after

"""Natural gradient of an affine layer: both of its sides preconditioned, its change limited.

With inputs X (a one appended to each, which carries the bias) and output derivatives D of
the **summed** loss, a layer moves against ``s γᵢ γₒ D̂ᵀ X̂``, where ``X̂ = X - H W`` (Povey,
Zhang and Khudanpur, arXiv 1410.7455).

``X̂`` is linear in X, so ``D̂ᵀ X̂ = (I - WₒᵀWₒ) DᵀX (I - WᵢᵀWᵢ)``: the gradient itself is projected,
whatever has computed it.

Shape letters: R replicas, N rows of a minibatch, m inputs, n outputs, P parameters, k ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import cast

import torch
from torch import Tensor

from harness.natural_gradient.estimate import (
    Factor,
    Moment,
    PerComponent,
    PerSample,
    Preconditioner,
    Rows,
    identity_factor,
    limit_change_,
    materialise,
    per_sample_share,
    precondition,
    scale_,
)
from harness.networks.contract import LayeredNetwork, Minibatch


@dataclass(frozen=True)
class Sides:
    """Estimates for both sides of one layer; None for a side that is not preconditioned.

    Args:
        inputs: of the inputs, including the appended one.
        outputs: of the output derivatives.
    """

    inputs: Moment | None
    outputs: Moment | None

    def tensors(self) -> dict[str, Tensor]:
        """The whole state by name, for a checkpoint."""
        moments = {"inputs": self.inputs, "outputs": self.outputs}
        return {
            f"{side}.{name}": tensor
            for side, moment in moments.items()
            if moment is not None
            for name, tensor in moment.tensors().items()
        }

    @staticmethod
    def from_tensors(tensors: Mapping[str, Tensor]) -> Sides:
        """Rebuild the state from its `tensors`."""

        def moment(side: str) -> Moment | None:
            state = part(tensors, side)
            return Moment.from_tensors(state) if state else None

        return Sides(moment("inputs"), moment("outputs"))


@dataclass(frozen=True)
class NaturalGradient:
    """Natural-gradient descent of a feed-forward network.

    With both sides None only the limit remains: plain SGD under the same max-change.

    Args:
        inputs: preconditioner of the inputs of every layer; None for none.
        outputs: preconditioner of the output derivatives of every layer; None for none.
        max_change: limit of the change by one minibatch; None for no limit.
    """

    inputs: Preconditioner | None = field(default_factory=lambda: Preconditioner(30, 4))
    outputs: Preconditioner | None = field(default_factory=lambda: Preconditioner(60, 4))
    max_change: PerSample | PerComponent | None = None

    def start(
        self,
        sizes: Sequence[int],
        replicas: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> list[Sides]:
        """The initial state of every layer, also for a restart at a new epoch.

        Args:
            sizes: units of each level, input first.
            replicas: R.
            dtype: the parameters' precision.
            device: the parameters' device.
        """
        return [self.start_layer((m + 1, n), replicas, dtype, device) for m, n in pairwise(sizes)]

    def start_layer(
        self, widths: tuple[int, int], replicas: int, dtype: torch.dtype, device: torch.device | str
    ) -> Sides:
        """The initial state of a layer with rows of these numbers of columns; see `start`."""
        inputs, outputs = (
            options and options.start(replicas, width, dtype, device)
            for options, width in zip((self.inputs, self.outputs), widths, strict=True)
        )
        return Sides(inputs, outputs)

    def direction(
        self,
        network: LayeredNetwork,
        stack: Tensor,
        minibatch: Minibatch,
        state: Sequence[Sides],
        rate: float,
        out: Tensor,
        share: float = 1.0,
    ) -> tuple[Tensor, list[Sides]]:
        """Compute the direction of R replicas: the step is ``stack -= rate * out``.

        Args:
            network: computes the derivatives.
            stack: parameters ``[R, P]``.
            minibatch: ``x [R, N, D]`` and ``targets [R, N]``.
            state: of every layer, from `start` or the last call.
            rate: learning rate of the step, which the limit of changes needs.
            out: ``[R, P]``, overwritten.
            share: factor of the summed loss: ``1 / N`` for the direction of the mean.

        Returns:
            The summed losses ``[R]`` in nats, and the next state.
        """
        after, layers, norms = list(state), network.layout.views(out), list[Tensor]()

        def visit(i: int, x: Tensor, delta: Tensor) -> None:
            rows, ends = Rows(x, appended=True), Rows(delta)
            after[i], fi, fo, gain = self.precondition(rows, ends, after[i], rate * share)
            scale = gain.mul_(share)
            back, (weight, bias) = materialise(ends, fo).mT, layers[i]
            back.mul_(scale.to(back.dtype)[:, None, None])
            torch.bmm(back, materialise(rows, fi), out=weight)
            ones = 1.0 - torch.bmm(fi.along, fi.basis[:, :, -1:])  # the appended column of X̂
            torch.bmm(back, ones, out=bias.unsqueeze(2))
            norms.append(self.limit_(layers[i], rate))

        losses = network.backward(stack, minibatch.x, minibatch.targets, visit)
        self.limit_together_([out], norms)
        return losses, after

    def precondition(
        self, rows: Rows, ends: Rows, sides: Sides, rate: float, scale: float = 1.0
    ) -> tuple[Sides, Factor, Factor, Tensor]:
        """Precondition both sides of a layer.

        Args:
            rows: inputs ``[R, N, m]``.
            ends: derivatives at the outputs, ``[R, N, n]``.
            sides: the state so far.
            rate: learning rate, which `PerSample` needs.
            scale: see `harness.natural_gradient.estimate.precondition`, for the derivatives.

        Returns:
            The next state, the factors of both sides, and ``s γᵢ γₒ``, ``[R]``, float64.
        """
        inputs, fi = _one_side(self.inputs, sides.inputs, rows)
        outputs, fo = _one_side(self.outputs, sides.outputs, ends, scale)
        gain = fi.gain * fo.gain
        if isinstance(self.max_change, PerSample):
            gain = gain * per_sample_share(self.max_change, fi, fo, rate)
        return Sides(inputs, outputs), fi, fo, gain

    def limit_(self, direction: Sequence[Tensor], rate: float) -> Tensor:
        """Limit a layer's direction under `PerComponent`; returns the norm of the change, ``[R]``.

        Args:
            direction: weights and biases, ``[R, ...]``, in place.
            rate: learning rate of the step.
        """
        if isinstance(self.max_change, PerComponent):
            return limit_change_(direction, rate, self.max_change.each)
        return direction[0].new_zeros(len(direction[0]))

    def limit_together_(self, directions: Sequence[Tensor], norms: list[Tensor]) -> None:
        """Shrink the directions of all layers under `PerComponent.together`.

        Args:
            directions: ``[R, ...]``, in place.
            norms: of the change of each layer, ``[R]``, from `limit_`.
        """
        if norms and isinstance(self.max_change, PerComponent):
            norm = cast(Tensor, torch.stack(norms).norm(dim=0))  # pyright: ignore[reportUnknownMemberType]
            scale_(directions, torch.clamp(self.max_change.together / norm, max=1.0))


def _one_side(
    options: Preconditioner | None, moment: Moment | None, rows: Rows, scale: float = 1.0
) -> tuple[Moment | None, Factor]:
    """Call `precondition` for one side; without options the rows stay as they are."""
    if options is None or moment is None:
        return None, identity_factor(rows)
    return precondition(moment, rows, options, scale)


def part(tensors: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    """The tensors with names ``name.…``, by the rest of their names."""
    prefix = f"{name}."
    return {key.removeprefix(prefix): t for key, t in tensors.items() if key.startswith(prefix)}


def state_tensors(state: Sequence[Sides]) -> dict[str, Tensor]:
    """A network's whole state by name (``"2.inputs.basis"``), for a checkpoint."""
    return {
        f"{i}.{name}": tensor
        for i, sides in enumerate(state)
        for name, tensor in sides.tensors().items()
    }


def state_from_tensors(tensors: Mapping[str, Tensor], layers: int) -> list[Sides]:
    """The state of ``layers`` layers from its `state_tensors`."""
    return [Sides.from_tensors(part(tensors, str(i))) for i in range(layers)]

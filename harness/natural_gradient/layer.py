"""Natural gradient of an affine layer: both of its sides preconditioned, its change limited.

With inputs X (a one appended to each, which carries the bias) and output derivatives D of
the **summed** loss, a layer moves against ``s γᵢ γₒ D̂ᵀ X̂``, where ``X̂ = X - H W`` (Povey,
Zhang and Khudanpur, arXiv 1410.7455).

``X̂`` is linear in X, so ``D̂ᵀ X̂ = (I - WₒᵀWₒ) DᵀX (I - WᵢᵀWᵢ)``: `product_` computes the cheaper
side of this equation.

Shape letters: R replicas, N rows of a minibatch, m inputs, n outputs, P parameters, k ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from harness.natural_gradient.estimate import (
    Factor,
    Moment,
    PerComponent,
    PerSample,
    Preconditioner,
    Rate,
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


class Factors(NamedTuple):
    """Operands of a layer's direction ``scale D̂ᵀ X̂``.

    Args:
        rows: inputs, a one appended.
        ends: derivatives at the outputs.
        fi: factor of the inputs.
        fo: factor of the output derivatives.
        scale: ``s γᵢ γₒ``, ``[R]``, float64.
    """

    rows: Rows
    ends: Rows
    fi: Factor
    fo: Factor
    scale: Tensor


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

        def moment(options: Preconditioner | None, width: int) -> Moment | None:
            return options and options.start(replicas, width, dtype, device)

        return [
            Sides(moment(self.inputs, m + 1), moment(self.outputs, n)) for m, n in pairwise(sizes)
        ]

    def direction(
        self,
        network: LayeredNetwork,
        stack: Tensor,
        minibatch: Minibatch,
        state: Sequence[Sides],
        rate: Rate,
        out: Tensor,
    ) -> tuple[Tensor, list[Sides]]:
        """Compute the direction of R replicas: the step is ``stack -= rate * out``.

        Args:
            network: computes the derivatives.
            stack: parameters ``[R, P]``.
            minibatch: ``x [R, N, D]`` and ``targets [R, N]``.
            state: of every layer, from `start` or the last call.
            rate: learning rate for the summed loss, which the limit of changes needs.
            out: ``[R, P]``, overwritten.

        Returns:
            The summed losses ``[R]`` in nats, and the next state.
        """
        after, layers = list(state), network.layout.views(out)
        square = torch.zeros(len(out), dtype=torch.float64, device=out.device)

        def visit(i: int, x: Tensor, delta: Tensor) -> None:
            after[i], norm = self.direct_layer_(x, delta, after[i], rate, *layers[i])
            square.add_(norm.square())

        losses = network.backward(stack, minibatch.x, minibatch.targets, visit)
        if isinstance(self.max_change, PerComponent):
            share = torch.clamp(self.max_change.together / square.sqrt_(), max=1.0)
            out.mul_(share.to(out.dtype).unsqueeze(1))
        return losses, after

    def descend_(
        self,
        network: LayeredNetwork,
        stack: Tensor,
        minibatch: Minibatch,
        state: Sequence[Sides],
        rate: Rate,
        room: Tensor,
    ) -> tuple[Tensor, list[Sides]]:
        """One step of R replicas, ``stack -= rate * direction``, in place.

        Each layer moves as soon as its direction is computed, except under `PerComponent`, which
        needs the directions of all layers.

        Args:
            network: computes the derivatives.
            stack: parameters ``[R, P]``, moved.
            minibatch: ``x [R, N, D]`` and ``targets [R, N]``.
            state: of every layer, from `start` or the last call.
            rate: learning rate for the summed loss.
            room: scratch space ``[R, P]``, overwritten.

        Returns:
            As `direction`.
        """
        if isinstance(self.max_change, PerComponent):
            losses, after = self.direction(network, stack, minibatch, state, rate, room)
            stack.sub_(room.mul_(rate.unsqueeze(1) if isinstance(rate, Tensor) else rate))
            return losses, after
        after, layers = list(state), network.layout.views(stack)

        def visit(i: int, x: Tensor, delta: Tensor) -> None:
            after[i], factors = self._factors(x, delta, after[i], rate)
            add_product_(*factors._replace(scale=factors.scale * -rate), *layers[i])

        return network.backward(stack, minibatch.x, minibatch.targets, visit), after

    def direct_layer_(
        self, x: Tensor, delta: Tensor, sides: Sides, rate: Rate, weight: Tensor, bias: Tensor
    ) -> tuple[Sides, Tensor]:
        """Compute the direction of one layer from its inputs and output derivatives.

        Args:
            x: inputs ``[R, N, m]``.
            delta: derivatives of the summed loss at the outputs, ``[R, N, n]``.
            sides: the state so far.
            rate: see `direction`.
            weight: ``[R, n, m]``, overwritten with the weights' direction.
            bias: ``[R, n]``, likewise.

        Returns:
            The next state, and under `PerComponent` the norm of the change, ``[R]`` (else 0).
        """
        after, factors = self._factors(x, delta, sides, rate)
        product_(*factors, weight, bias)
        norm = torch.zeros_like(factors.scale)
        if isinstance(self.max_change, PerComponent):
            norm = limit_change_(weight, bias, rate, self.max_change.each)
        return after, norm

    def _factors(self, x: Tensor, delta: Tensor, sides: Sides, rate: Rate) -> tuple[Sides, Factors]:
        """The next state of a layer, and the operands of its direction."""
        rows, ends = Rows(x, appended=True), Rows(delta)
        if self.inputs is None and self.outputs is None and self.max_change is None:
            nothing = rows.x.new_zeros(0)  # the rows' lengths are not used
            fi, fo = identity_factor(rows, nothing), identity_factor(ends, nothing)
            return sides, Factors(rows, ends, fi, fo, fi.gain)
        inputs, fi = one_side(self.inputs, sides.inputs, rows)
        outputs, fo = one_side(self.outputs, sides.outputs, ends)
        scale = fi.gain * fo.gain
        if isinstance(self.max_change, PerSample):
            scale *= per_sample_share(self.max_change, fi.squares, fo.squares, scale, rate)
        return Sides(inputs, outputs), Factors(rows, ends, fi, fo, scale)


def one_side(
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


def product_(
    rows: Rows, ends: Rows, fi: Factor, fo: Factor, scale: Tensor, weight: Tensor, bias: Tensor
) -> None:
    """``[weight, bias] ← scale D̂ᵀ X̂``, without γ.

    Args:
        rows: inputs ``[R, N, m]``, a one appended.
        ends: derivatives at the outputs, ``[R, N, n]``.
        fi: factor of the inputs.
        fo: factor of the output derivatives.
        scale: ``[R]``.
        weight: ``[R, n, m]``, overwritten.
        bias: ``[R, n]``, overwritten.
    """
    cheap = _is_forming_cheaper(rows.x, ends.x, fi, fo)
    multiply = _multiply_formed if cheap else _project_product
    multiply(rows, ends, fi, fo, scale, weight, bias)


def add_product_(
    rows: Rows, ends: Rows, fi: Factor, fo: Factor, scale: Tensor, weight: Tensor, bias: Tensor
) -> None:
    """``[weight, bias] ← [weight, bias] + scale D̂ᵀ X̂``, without γ; arguments as `product_`'s.

    Adding within the product saves three passes over the weights, which matters with few rows.
    """
    x, delta = rows.x, ends.x
    if fi.rank + fo.rank and not _is_forming_cheaper(x, delta, fi, fo):
        product = torch.empty_like(weight), torch.empty_like(bias)
        _project_product(rows, ends, fi, fo, scale, *product)
        weight.add_(product[0])
        bias.add_(product[1])
        return
    back = (materialise(ends, fo) if fo.rank else delta) * scale.to(delta.dtype)[:, None, None]
    weight.baddbmm_(back.mT, materialise(rows, fi) if fi.rank else x)
    if not fi.rank:
        bias.add_(back.sum(1))
    else:
        ones = 1.0 - torch.bmm(fi.along, fi.basis[:, :, -1:])
        bias.unsqueeze(2).baddbmm_(back.mT, ones)


def project_(gradient: Tensor, inputs: Factor, outputs: Factor) -> None:
    """``G ← (I - WₒᵀWₒ) G (I - WᵢᵀWᵢ)``, in place, without γ.

    Args:
        gradient: G, ``[R, n, D]``; D = m + 1 for a layer with a bias, which is the last column.
        inputs: factor of the layer's inputs.
        outputs: factor of the layer's output derivatives.
    """
    gradient.baddbmm_(torch.bmm(gradient, inputs.basis.mT), inputs.basis, alpha=-1)
    gradient.baddbmm_(outputs.basis.mT, torch.bmm(outputs.basis, gradient), alpha=-1)


def _is_forming_cheaper(x: Tensor, delta: Tensor, fi: Factor, fo: Factor) -> bool:
    return forming_is_cheaper(x.shape[1], x.shape[2], delta.shape[2], fi.rank, fo.rank)


def forming_is_cheaper(count: int, m: int, n: int, ki: int, ko: int) -> bool:
    """Whether ``D̂ᵀ X̂`` from X̂ and D̂ takes fewer operations than projecting ``DᵀX``.

    Compares multiply-adds beyond H and one N by m by n product, which both ways need. Forming also
    writes X̂ and D̂ to memory, which costs about as much as its arithmetic, hence the factor 2.

    Args:
        count: N.
        m: inputs.
        n: outputs.
        ki: rank of the inputs' factor.
        ko: rank of the output derivatives' factor.
    """
    forming = 2 * count * (m * ki + n * ko)
    projecting = min(count, m) * n * ki + min(count, n) * m * ko + m * n * (ki + ko)
    return 0 < forming < projecting


def _multiply_formed(
    rows: Rows, ends: Rows, fi: Factor, fo: Factor, scale: Tensor, weight: Tensor, bias: Tensor
) -> None:
    """``scale D̂ᵀ X̂`` from X̂ and D̂: cheap with few rows."""
    ones = 1.0 - torch.bmm(fi.along, fi.basis[:, :, -1:])
    back = materialise(ends, fo).mul_(scale.to(weight.dtype)[:, None, None]).mT
    torch.bmm(back, materialise(rows, fi), out=weight)
    torch.bmm(back, ones, out=bias.unsqueeze(2))


def _project_product(
    rows: Rows, ends: Rows, fi: Factor, fo: Factor, scale: Tensor, weight: Tensor, bias: Tensor
) -> None:
    """``scale D̂ᵀ X̂`` from ``G = DᵀX``: cheap with many rows.

    ``G Wᵢᵀ = Dᵀ Hᵢ`` and ``Wₒ G = Hₒᵀ X``, so these two come from the smaller of G and rows.
    """
    x, delta = rows.x, ends.x
    torch.bmm(delta.mT, x, out=weight)
    torch.sum(delta, 1, out=bias)
    if fi.rank + fo.rank:
        count, m, n = x.shape[1], x.shape[2], delta.shape[2]
        right = torch.bmm(delta.mT, fi.along) if count < m else _right(weight, bias, fi)
        left = torch.bmm(fo.along.mT, x) if count < n else torch.bmm(fo.basis, weight)
        _subtract(weight, bias, fi, fo, right, left)
    scale_(weight, bias, scale)


def _right(weight: Tensor, bias: Tensor, inputs: Factor) -> Tensor:
    """``G Wᵢᵀ``, ``[R, n, kᵢ]``, for ``G = [weight, bias]``."""
    m = weight.shape[2]
    right = torch.bmm(weight, inputs.basis[:, :, :m].mT)
    return right.addcmul_(bias.unsqueeze(2), inputs.basis[:, :, m:].mT)


def _subtract(
    weight: Tensor, bias: Tensor, fi: Factor, fo: Factor, right: Tensor, left: Tensor
) -> None:
    """Subtract from G the parts along both sides' bases, as one product.

    ``G - (P - Wₒᵀ Wₒ P) Wᵢ - Wₒᵀ Q`` with ``P = G Wᵢᵀ`` (``right``) and ``Q = Wₒ G`` (``left``).
    """
    back = fo.basis.mT
    columns = torch.cat([torch.baddbmm(right, back, torch.bmm(fo.basis, right), alpha=-1), back], 2)
    m = weight.shape[2]
    weight.baddbmm_(columns, torch.cat([fi.basis[:, :, :m], left], 1), alpha=-1)
    end = torch.bmm(fo.basis, bias.unsqueeze(2))
    column = torch.cat([fi.basis[:, :, m:], end], 1)
    bias.unsqueeze(2).baddbmm_(columns, column, alpha=-1)

"""Natural gradient of an affine layer: both of its sides preconditioned, its change limited.

With inputs X (a one appended to each, which carries the bias) and output derivatives D of
the **summed** loss, a layer moves against ``s γᵢ γₒ D̂ᵀ X̂``, where ``X̂ = X - H W`` (Povey,
Zhang and Khudanpur, arXiv 1410.7455, section 3). As X̂ and D̂ are linear in X and D,
``D̂ᵀ X̂ = (I - WₒᵀWₒ) DᵀX (I - WᵢᵀWᵢ)``, and whichever side of the equation costs less is used.

Shape letters: R replicas, N rows of a minibatch, m inputs, n outputs, k ranks, P parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor

from harness.algorithms.contract import Minibatch
from harness.algorithms.natural_gradient import (
    Factor,
    Moment,
    Preconditioner,
    Rows,
    formed,
    precondition,
    untouched,
)
from harness.errors import UserError

Rate = float | Tensor
"""One learning rate, or one a replica: ``[R]``."""


@dataclass(frozen=True)
class PerSample:
    """Limit the mean change a sample may cause in a layer: Kaldi's nnet2.

    ``s = min(1, limit N / (rate γᵢ γₒ Σ |x̂| |d̂|))``.

    Args:
        limit: 0.075 to 0.1 in recipes for minibatches of 512.
        counts_rate: whether the rate is part of the change. Without it large minibatches move
            each layer by ``rate limit N`` at most, whatever their gradient.
    """

    limit: float = 0.075
    counts_rate: bool = True

    def __post_init__(self) -> None:
        _require_positive("PerSample.limit", self.limit)


@dataclass(frozen=True)
class PerComponent:
    """Limit the norm of each layer's change, then that of all layers together: nnet3.

    Args:
        each: the largest Euclidean norm of one layer's change of weights and biases.
        together: that of the whole network's, after each layer was limited.
    """

    each: float = 0.75
    together: float = 2.0

    def __post_init__(self) -> None:
        _require_positive("PerComponent.each", self.each)
        _require_positive("PerComponent.together", self.together)


@dataclass(frozen=True)
class Sides:
    """What is known of both sides of one layer; None where a side is left as it is.

    Args:
        inputs: of the inputs, the one included.
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
        """The state whose `tensors` these are."""

        def moment(side: str) -> Moment | None:
            own = part(tensors, side)
            return Moment.from_tensors(own) if own else None

        return Sides(moment("inputs"), moment("outputs"))


class Views(Protocol):
    """Where layers lie in a stack, as `harness.acoustics.stack.Layout` says it."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """Units of each level, input first."""
        ...

    def views(self, stack: Tensor) -> Sequence[tuple[Tensor, Tensor]]:
        """``weight [R, n, m]`` and ``bias [R, n]`` of each layer in a ``[R, P]`` stack."""
        ...


class Network(Protocol):
    """What natural gradient needs of a network, as `harness.acoustics.dnn.Dnn` offers it."""

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
        """Show every layer's inputs and derivatives to ``visit``; the summed losses ``[R]``."""
        ...


@dataclass(frozen=True)
class NaturalGradient:
    """Natural-gradient descent of a feed-forward network.

    With both sides None only the limit remains: plain SGD under the same max-change.

    Args:
        inputs: how the inputs of every layer are preconditioned, or None for not at all.
        outputs: the same for the output derivatives.
        max_change: how far one minibatch may move the parameters; None for any distance.
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
        """The state before the first minibatch, and after it was thrown away at a new epoch.

        Args:
            sizes: units of each level, input first.
            replicas: R.
            dtype: the parameters' precision.
            device: where they are.
        """

        def moment(options: Preconditioner | None, width: int) -> Moment | None:
            return options and options.start(replicas, width, dtype, device)

        return [
            Sides(moment(self.inputs, m + 1), moment(self.outputs, n)) for m, n in pairwise(sizes)
        ]

    def direction(
        self,
        network: Network,
        stack: Tensor,
        minibatch: Minibatch,
        state: Sequence[Sides],
        rate: Rate,
        out: Tensor,
    ) -> tuple[Tensor, list[Sides]]:
        """The direction against which R replicas move: ``stack -= rate * out`` is the step.

        Args:
            network: what computes derivatives.
            stack: parameters ``[R, P]``.
            minibatch: ``x [R, N, D]`` and ``targets [R, N]``.
            state: of every layer, from `start` or the last call.
            rate: known here because changes are limited.
            out: ``[R, P]``, overwritten.

        Returns:
            The summed losses ``[R]`` in nats, and the next state.
        """
        after, layers = list(state), network.layout.views(out)
        square = torch.zeros(len(out), dtype=torch.float64, device=out.device)

        def visit(i: int, x: Tensor, delta: Tensor) -> None:
            after[i], norm = self.of_layer(x, delta, after[i], rate, *layers[i])
            square.add_(norm.square())

        losses = network.backward(stack, minibatch.x, minibatch.targets, visit)
        if isinstance(self.max_change, PerComponent):
            share = torch.clamp(self.max_change.together / square.sqrt_(), max=1.0)
            out.mul_(share.to(out.dtype).unsqueeze(1))
        return losses, after

    def of_layer(
        self,
        x: Tensor,
        delta: Tensor,
        sides: Sides,
        rate: Rate,
        weight: Tensor,
        bias: Tensor,
    ) -> tuple[Sides, Tensor]:
        """The direction of one layer, from what its two sides saw.

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
        rows, ends = Rows(x, appended=True), Rows(delta)
        inputs, fi = one_side(self.inputs, sides.inputs, rows)
        outputs, fo = one_side(self.outputs, sides.outputs, ends)
        scale = fi.gain * fo.gain
        if isinstance(self.max_change, PerSample):
            scale *= per_sample_share(self.max_change, fi, fo, rate)
        if _forming_is_cheaper(x, delta, fi.rank, fo.rank):
            _multiply_formed(rows, ends, fi, fo, scale, weight, bias)
        else:
            _project_product(rows, ends, fi, fo, scale, weight, bias)
        norm = torch.zeros_like(scale)
        if isinstance(self.max_change, PerComponent):
            norm = limited_(weight, bias, rate, self.max_change.each)
        return Sides(inputs, outputs), norm


def limited_(weight: Tensor, bias: Tensor | None, rate: Rate, most: float) -> Tensor:
    """Shrink a layer's direction where ``rate`` times its norm exceeds ``most``.

    Returns:
        The norm of the change that is left, ``[R]``.
    """
    squares = torch.linalg.vector_norm(weight, dim=(1, 2)).double().square_()
    if bias is not None:
        squares += torch.linalg.vector_norm(bias, dim=1).double().square_()
    norm = squares.sqrt_() * rate
    share = torch.clamp(most / norm, max=1.0)
    if bool((share < 1.0).any()):
        scale_(weight, bias, share)
    return norm * share


def per_sample_share(change: PerSample, inputs: Factor, outputs: Factor, rate: Rate) -> Tensor:
    """The s of `PerSample`, ``[R]``, for the two factors of one layer."""
    total = (inputs.squares.sqrt() * outputs.squares.sqrt()).sum(1)
    total *= inputs.gain * outputs.gain * (rate if change.counts_rate else 1.0)
    return torch.clamp(change.limit * inputs.squares.shape[1] / total, max=1.0)


def project_(weight: Tensor, bias: Tensor | None, inputs: Factor, outputs: Factor) -> None:
    """``G ← (I - WₒᵀWₒ) G (I - WᵢᵀWᵢ)`` for ``G = [weight, bias]``, in place, without γ.

    Args:
        weight: ``[R, n, m]``.
        bias: ``[R, n]``; None if the inputs have no one appended.
        inputs: the factor of the layer's inputs.
        outputs: that of its output derivatives.
    """
    right = _right(weight, bias, inputs)
    _subtract(weight, bias, inputs, outputs, right, torch.bmm(outputs.basis, weight))


def one_side(
    options: Preconditioner | None, moment: Moment | None, rows: Rows, scale: float = 1.0
) -> tuple[Moment | None, Factor]:
    """One call of `precondition`, or of nothing where a side is left as it is."""
    if options is None or moment is None:
        return None, untouched(rows)
    return precondition(moment, rows, options, scale)


def _forming_is_cheaper(x: Tensor, delta: Tensor, ki: int, ko: int) -> bool:
    """Compare multiply-adds beyond H and one N by m by n product, which both ways need.

    Forming also writes X̂ and D̂ to memory, which costs about as much as its arithmetic.
    """
    count, m, n = x.shape[1], x.shape[2], delta.shape[2]
    forming = 2 * count * (m * ki + n * ko)
    projecting = min(count, m) * n * ki + min(count, n) * m * ko + m * n * (ki + ko)
    return 0 < forming < projecting


def _multiply_formed(
    rows: Rows, ends: Rows, fi: Factor, fo: Factor, scale: Tensor, weight: Tensor, bias: Tensor
) -> None:
    """``scale D̂ᵀ X̂`` from X̂ and D̂ themselves: cheap where rows are few."""
    ones = 1.0 - torch.bmm(fi.along, fi.basis[:, :, -1:])
    back = formed(ends, fo).mul_(scale.to(weight.dtype)[:, None, None]).mT
    torch.bmm(back, formed(rows, fi), out=weight)
    torch.bmm(back, ones, out=bias.unsqueeze(2))


def _project_product(
    rows: Rows, ends: Rows, fi: Factor, fo: Factor, scale: Tensor, weight: Tensor, bias: Tensor
) -> None:
    """``scale D̂ᵀ X̂`` from ``G = DᵀX``: cheap where rows are many.

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


def _right(weight: Tensor, bias: Tensor | None, inputs: Factor) -> Tensor:
    """``G Wᵢᵀ``, ``[R, n, kᵢ]``, for ``G = [weight, bias]``."""
    m = weight.shape[2]
    right = torch.bmm(weight, inputs.basis[:, :, :m].mT)
    if bias is not None:
        right.addcmul_(bias.unsqueeze(2), inputs.basis[:, :, m:].mT)
    return right


def scale_(weight: Tensor, bias: Tensor | None, scale: Tensor) -> None:
    """Multiply each replica's ``weight [R, n, m]`` and ``bias [R, n]`` by ``scale [R]``."""
    scale = scale.to(weight.dtype).unsqueeze(1)
    weight.mul_(scale.unsqueeze(2))
    if bias is not None:
        bias.mul_(scale)


def _subtract(
    weight: Tensor, bias: Tensor | None, fi: Factor, fo: Factor, right: Tensor, left: Tensor
) -> None:
    """G less what both sides shrink, as one product.

    ``G - (P - Wₒᵀ Wₒ P) Wᵢ - Wₒᵀ Q`` with ``P = G Wᵢᵀ`` (``right``) and ``Q = Wₒ G`` (``left``).
    """
    back = fo.basis.mT
    columns = torch.cat([torch.baddbmm(right, back, torch.bmm(fo.basis, right), alpha=-1), back], 2)
    m = weight.shape[2]
    weight.baddbmm_(columns, torch.cat([fi.basis[:, :, :m], left], 1), alpha=-1)
    if bias is not None:
        end = torch.bmm(fo.basis, bias.unsqueeze(2))
        last = torch.cat([fi.basis[:, :, m:], end], 1)
        bias.unsqueeze(2).baddbmm_(columns, last, alpha=-1)


def part(tensors: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    """The tensors below ``name.``, by what remains of their names."""
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
    """The state of so many layers whose `state_tensors` these are."""
    return [Sides.from_tensors(part(tensors, str(i))) for i in range(layers)]


def _require_positive(name: str, value: float) -> None:
    if not value > 0.0:
        raise UserError(f"natural gradient: {name} is {value}; allowed: above 0")

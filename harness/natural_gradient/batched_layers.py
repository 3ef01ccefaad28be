"""Natural-gradient steps of all layers at once: sides of equal width as one batch.

With few rows, the overhead of calls dominates a step's time. The sides of G layers of the same
width are then concatenated along the replica axis, ``[G R, N, D]``, and preconditioned by one call.
The mathematics is that of `layer`, layer by layer.

Shape letters: R replicas, N rows of a minibatch, D columns of a row, L layers.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
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
    asking_is_free,
    materialise,
    per_sample_share,
    precondition,
)
from harness.natural_gradient.layer import NaturalGradient, Sides, forming_is_cheaper
from harness.networks.contract import LayeredNetwork, Minibatch

FEW = 2**18
"""Largest ``R N D`` of a layer for which a call costs more than copying the rows into a batch."""


@dataclass(frozen=True)
class Group:
    """The same side of all layers of one width.

    Args:
        layers: indices of the layers.
        moment: their estimates, ``[G R, k, D]``, in the order of ``layers``.
    """

    layers: tuple[int, ...]
    moment: Moment


@dataclass(frozen=True)
class Joint:
    """Estimates of both sides of every layer, grouped by width."""

    inputs: tuple[Group, ...]
    outputs: tuple[Group, ...]


def may_join(
    descent: NaturalGradient, sizes: Sequence[int], replicas: int, frames: int, device: torch.device
) -> bool:
    """Whether steps of all layers at once are possible and faster.

    Args:
        descent: must precondition both sides, and have no limit across layers.
        sizes: units of each level, input first.
        replicas: R.
        frames: N.
        device: on a GPU calls always cost more than copying the rows.
    """
    inputs, outputs = descent.inputs, descent.outputs
    if inputs is None or outputs is None or isinstance(descent.max_change, PerComponent):
        return False
    if device.type != "cpu":
        return min(sizes) > 1
    is_small = replicas * frames * max(sizes) <= FEW
    ranks = ((m, n, min(inputs.rank, m), min(outputs.rank, n - 1)) for m, n in pairwise(sizes))
    return is_small and min(sizes) > 1 and all(forming_is_cheaper(frames, *rank) for rank in ranks)


def join(state: Sequence[Sides]) -> Joint:
    """Group the layers' estimates by width.

    Raises:
        ValueError: a side has no estimate.
    """
    return Joint(_groups([s.inputs for s in state]), _groups([s.outputs for s in state]))


def part(joint: Joint) -> list[Sides]:
    """Split grouped estimates into those of each layer: the inverse of `join`."""
    inputs, outputs = _moments_by_layer(joint.inputs), _moments_by_layer(joint.outputs)
    return [Sides(inputs[i], outputs[i]) for i in range(len(inputs))]


def step_(
    descent: NaturalGradient,
    network: LayeredNetwork,
    stack: Tensor,
    minibatch: Minibatch,
    joint: Joint,
    rate: Rate,
) -> tuple[Tensor, Joint]:
    """One step of R replicas, ``stack -= rate * direction``, in place.

    Args:
        descent: settings for which `may_join` holds.
        network: computes the derivatives.
        stack: parameters ``[R, P]``, moved.
        minibatch: ``x [R, N, D]`` and ``targets [R, N]``.
        joint: from `join` or the last step.
        rate: learning rate for the summed loss.

    Returns:
        The summed losses ``[R]`` in nats, and the next estimates.
    """
    xs, deltas = dict[int, Tensor](), dict[int, Tensor]()

    def visit(i: int, x: Tensor, delta: Tensor) -> None:
        xs[i], deltas[i] = x, delta

    losses = network.backward(stack, minibatch.x, minibatch.targets, visit)
    assert descent.inputs is not None
    assert descent.outputs is not None
    inputs, x = _sides(joint.inputs, xs, descent.inputs, appended=True)
    outputs, d = _sides(joint.outputs, deltas, descent.outputs)
    scale = _scales(descent, x, d, len(stack), rate).to(stack.dtype)
    layers = network.layout.views(stack)
    for run in _alike([weight for weight, _ in layers]):
        _add_products_(
            [layers[i] for i in run], x.select(run), d.select(run), scale[run[0] : run[-1] + 1]
        )
    return losses, Joint(inputs, outputs)


class Call(NamedTuple):
    """One call of `precondition`: its arguments, without the options."""

    moment: Moment
    rows: Rows
    scale: float = 1.0


def precondition_all(calls: Sequence[Call], options: Preconditioner) -> list[tuple[Moment, Factor]]:
    """Apply `precondition` to several sides; sides of one kind with few rows form one batch.

    Args:
        calls: of any widths, numbers of rows, scales and numbers of earlier calls.
        options: of all sides.

    Returns:
        The result of `precondition` for each call, in their order.
    """
    alike = dict[Hashable, list[int]]()
    for i, call in enumerate(calls):
        alike.setdefault(_kind(call) if call.rows.x.numel() <= FEW else i, []).append(i)
    results = dict[int, tuple[Moment, Factor]]()
    for places in alike.values():
        batch = [calls[i] for i in places]
        rows = Rows(_concat([call.rows.x for call in batch]), batch[0].rows.appended)
        moment = _joint_moment([call.moment for call in batch])
        after, factor = precondition(moment, rows, options, batch[0].scale)
        results |= dict(zip(places, _split_batch(after, factor, len(places)), strict=True))
    return [results[i] for i in range(len(calls))]


def _kind(call: Call) -> Hashable:
    """Properties that sides of one batch have in common."""
    x, moment = call.rows.x, call.moment
    return x.shape, call.rows.appended, call.scale, moment.calls, x.dtype, x.device


def _split_batch(moment: Moment, factor: Factor, sides: int) -> list[tuple[Moment, Factor]]:
    """The estimates and factors of each of the ``sides`` sides of a batch."""
    factors = [Factor(*parts) for parts in zip(*(t.chunk(sides) for t in factor), strict=True)]
    return list(zip(_moments(moment, sides), factors, strict=True))


def _moments(moment: Moment, sides: int) -> list[Moment]:
    tensors = {name: getattr(moment, name).chunk(sides) for name in Moment.TENSORS}
    return [
        Moment(**{name: parts[i] for name, parts in tensors.items()}, calls=moment.calls)
        for i in range(sides)
    ]


class _Hat(NamedTuple):
    """The same side of layers of one width, preconditioned, without γ.

    Args:
        layers: indices of the layers.
        rows: ``X - H W``, ``[G R, N, m]``, without the appended column.
        ones: the appended column, preconditioned, ``[G R, N, 1]``; unused where there is none.
        squares: squared lengths of the rows, ``[G R, N]``.
        gain: γ, ``[G R]``.
    """

    layers: tuple[int, ...]
    rows: Tensor
    ones: Tensor
    squares: Tensor
    gain: Tensor


class _Hats(NamedTuple):
    """One side of all layers, preconditioned, grouped by width."""

    groups: Sequence[_Hat]

    def select(self, run: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Rows and ones of consecutive layers of one width."""
        group = next(candidate for candidate in self.groups if run[0] in candidate.layers)
        replicas = len(group.gain) // len(group.layers)
        start = group.layers.index(run[0]) * replicas
        whose = slice(start, start + len(run) * replicas)
        return group.rows[whose], group.ones[whose]

    def order_by_layer(self, tensors: Sequence[Tensor], replicas: int) -> Tensor:
        """Tensors of the groups, ``[G R, ...]``, as one in the order of layers, ``[L, R, ...]``."""
        parts = dict[int, Tensor]()
        for group, t in zip(self.groups, tensors, strict=True):
            parts |= dict(zip(group.layers, t.chunk(len(group.layers)), strict=True))
        ordered = [parts[i] for i in range(len(parts))]
        joint = tensors[0] if len(tensors) == 1 else torch.cat(ordered)
        return joint.view(len(ordered), replicas, *joint.shape[1:])


def _sides(
    groups: Sequence[Group],
    tensors: dict[int, Tensor],
    options: Preconditioner,
    appended: bool = False,
) -> tuple[tuple[Group, ...], _Hats]:
    """The next estimates of one side of all layers, and this minibatch's preconditioned rows."""
    after, hats = list[Group](), list[_Hat]()
    for group in groups:
        rows = Rows(_concat([tensors[i] for i in group.layers]), appended)
        moment, factor = precondition(group.moment, rows, options)
        after.append(Group(group.layers, moment))
        ones = factor.squares
        if appended:
            ones = 1.0 - torch.bmm(factor.along, factor.basis[:, :, -1:])
        hats.append(
            _Hat(group.layers, materialise(rows, factor), ones, factor.squares, factor.gain)
        )
    return tuple(after), _Hats(hats)


def _scales(
    descent: NaturalGradient, inputs: _Hats, outputs: _Hats, replicas: int, rate: Rate
) -> Tensor:
    """``-rate s γᵢ γₒ`` of every layer, ``[L, R]``, float64."""
    i, o = (
        side.order_by_layer([hat.gain for hat in side.groups], replicas)
        for side in (inputs, outputs)
    )
    gain = i * o
    scale = gain * -rate
    if isinstance(descent.max_change, PerSample):
        x, d = (
            side.order_by_layer([hat.squares for hat in side.groups], replicas)
            for side in (inputs, outputs)
        )
        scale *= per_sample_share(descent.max_change, x, d, gain, rate)
    return scale


def _alike(weights: Sequence[Tensor]) -> list[range]:
    """Runs of layers of equal shape that are contiguous in the stack."""
    lengths = [w.shape[1] * (w.shape[2] + 1) for w in weights]
    offsets = [w.storage_offset() for w in weights]
    starts = [
        i
        for i in range(len(weights))
        if not i
        or weights[i].shape != weights[i - 1].shape
        or offsets[i] != offsets[i - 1] + lengths[i - 1]
    ]
    return [range(a, b) for a, b in pairwise([*starts, len(weights)])]


def _add_products_(
    layers: Sequence[tuple[Tensor, Tensor]],
    inputs: tuple[Tensor, Tensor],
    outputs: tuple[Tensor, Tensor],
    scale: Tensor,
) -> None:
    """``[weight, bias] ← [weight, bias] + scale D̂ᵀ X̂`` of a run of layers.

    A CPU adds to each layer within the product. On a GPU a launch per layer costs more than
    writing the products of all layers and adding them at once.

    Args:
        layers: weights and biases of each, ``[R, n, m]`` and ``[R, n]``.
        inputs: ``X̂`` of all and the ones appended to it, ``[G R, N, m]`` and ``[G R, N, 1]``.
        outputs: ``D̂``, ``[G R, N, n]``.
        scale: ``[G, R]``.
    """
    back = (outputs[0] * scale.reshape(-1, 1, 1)).mT
    if asking_is_free(back) or len(layers) == 1:
        parts = (t.chunk(len(layers)) for t in (back, *inputs))
        for (weight, bias), end, x, ones in zip(layers, *parts, strict=True):
            weight.baddbmm_(end, x)
            bias.unsqueeze(2).baddbmm_(end, ones)
        return
    weights, biases = (_stack_views(views) for views in zip(*layers, strict=True))
    weights.add_(torch.bmm(back, inputs[0]).view_as(weights))
    biases.add_(torch.bmm(back, inputs[1]).view_as(biases))


def _stack_views(parts: Sequence[Tensor]) -> Tensor:
    """One view ``[G, ...]`` of equally shaped views of one stack at equal distances."""
    # `_alike` has checked that the distances are equal, so no copy is needed.
    view = parts[0]
    apart = parts[1].storage_offset() - view.storage_offset()
    return view.as_strided((len(parts), *view.shape), (apart, *view.stride()))


def _groups(moments: Sequence[Moment | None]) -> tuple[Group, ...]:
    by_width = dict[int, list[int]]()
    for i, moment in enumerate(moments):
        if moment is None:
            raise ValueError(f"layer {i} has a side without an estimate")
        by_width.setdefault(moment.basis.shape[2], []).append(i)
    return tuple(
        Group(tuple(layers), _joint_moment([m for i in layers if (m := moments[i])]))
        for layers in by_width.values()
    )


def _joint_moment(moments: Sequence[Moment]) -> Moment:
    tensors = {name: _concat([getattr(m, name) for m in moments]) for name in Moment.TENSORS}
    return Moment(**tensors, calls=moments[0].calls)


def _concat(tensors: Sequence[Tensor]) -> Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(tuple(tensors))


def _moments_by_layer(groups: Sequence[Group]) -> dict[int, Moment]:
    moments = dict[int, Moment]()
    for group in groups:
        moments |= dict(zip(group.layers, _moments(group.moment, len(group.layers)), strict=True))
    return moments

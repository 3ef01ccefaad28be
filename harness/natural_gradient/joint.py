"""Natural-gradient steps of all layers at once: sides of equal width as one batch.

Where rows are few, calls take most of a step's time. The sides of G layers that have the same
width then stand one behind another on the replica axis, ``[G R, N, D]``, and
are preconditioned by one call. The mathematics is that of `layer`, layer by layer.

Shape letters: R replicas, N rows of a minibatch, D columns of a row, L layers.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from harness.natural_gradient.change import PerComponent, PerSample, Rate, per_sample_share
from harness.natural_gradient.estimate import Moment, Preconditioner, Rows
from harness.natural_gradient.layer import NaturalGradient, Sides
from harness.natural_gradient.precondition import Factor, formed, precondition
from harness.natural_gradient.product import forming_is_cheaper
from harness.network import LayeredNetwork, Minibatch

FEW = 2**18
"""Elements of a layer's rows, ``R N D``, up to which calls cost more than copying the rows."""


@dataclass(frozen=True)
class Group:
    """The same side of layers as wide as each other.

    Args:
        layers: which.
        moment: their estimates, ``[G R, k, D]``, in the order of ``layers``.
    """

    layers: tuple[int, ...]
    moment: Moment


@dataclass(frozen=True)
class Joint:
    """What is known of both sides of every layer, joined by width."""

    inputs: tuple[Group, ...]
    outputs: tuple[Group, ...]


def may_join(
    descent: NaturalGradient, sizes: Sequence[int], replicas: int, frames: int, device: torch.device
) -> bool:
    """Whether steps of all layers at once are possible, and the faster way.

    Args:
        descent: both of its sides must be preconditioned, and its limit one layer's own.
        sizes: units of each level, input first.
        replicas: R.
        frames: N.
        device: a graphics processor has room for more rows before copying them costs.
    """
    inputs, outputs = descent.inputs, descent.outputs
    if inputs is None or outputs is None or isinstance(descent.max_change, PerComponent):
        return False
    few = device.type != "cpu" or replicas * frames * max(sizes) <= FEW
    ranks = ((m, n, min(inputs.rank, m), min(outputs.rank, n - 1)) for m, n in pairwise(sizes))
    return few and min(sizes) > 1 and all(forming_is_cheaper(frames, *each) for each in ranks)


def join(state: Sequence[Sides]) -> Joint:
    """The layers' estimates, joined by width.

    Raises:
        ValueError: a side has no estimate.
    """
    return Joint(_groups([s.inputs for s in state]), _groups([s.outputs for s in state]))


def part(joint: Joint) -> list[Sides]:
    """The estimates layer by layer: `join` undone."""
    inputs, outputs = _by_layer(joint.inputs), _by_layer(joint.outputs)
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
        descent: one that `may_join`.
        network: what computes derivatives.
        stack: parameters ``[R, P]``, moved.
        minibatch: ``x [R, N, D]`` and ``targets [R, N]``.
        joint: from `join` or the last step.
        rate: of the summed loss.

    Returns:
        The summed losses ``[R]`` in nats, and the next estimates.
    """
    xs, deltas = dict[int, Tensor](), dict[int, Tensor]()

    def visit(i: int, x: Tensor, delta: Tensor) -> None:
        xs[i], deltas[i] = x, delta

    losses = network.backward(stack, minibatch.x, minibatch.targets, visit)
    assert descent.inputs is not None
    assert descent.outputs is not None
    inputs, fi = _sides(joint.inputs, xs, descent.inputs, appended=True)
    outputs, fo = _sides(joint.outputs, deltas, descent.outputs)
    scale = _scales(descent, fi, fo, rate).to(stack.dtype)
    for i, (weight, bias) in enumerate(network.layout.views(stack)):
        back = (fo[i].hat * scale[i]).mT
        weight.baddbmm_(back, fi[i].hat)
        bias.unsqueeze(2).baddbmm_(back, fi[i].ones)
    return losses, Joint(inputs, outputs)


class Call(NamedTuple):
    """One call of `precondition`: its arguments, without the options."""

    moment: Moment
    rows: Rows
    scale: float = 1.0


def together(calls: Sequence[Call], options: Preconditioner) -> list[tuple[Moment, Factor]]:
    """`precondition` of several sides that share options; alike ones with few rows as one batch.

    Args:
        calls: of any widths, numbers of rows, scales and numbers of calls before.
        options: of all of them.

    Returns:
        What `precondition` returns, for each in its order.
    """
    alike = dict[Hashable, list[int]]()
    for i, call in enumerate(calls):
        alike.setdefault(_kind(call) if call.rows.x.numel() <= FEW else i, []).append(i)
    done = dict[int, tuple[Moment, Factor]]()
    for places in alike.values():
        some = [calls[i] for i in places]
        rows = Rows(_joined([call.rows.x for call in some]), some[0].rows.appended)
        moment = _joint_moment([call.moment for call in some])
        after, factor = precondition(moment, rows, options, some[0].scale)
        done |= dict(zip(places, _apart(after, factor, len(places)), strict=True))
    return [done[i] for i in range(len(calls))]


def _kind(call: Call) -> Hashable:
    """What sides must share to go through one call."""
    x, moment = call.rows.x, call.moment
    return x.shape, call.rows.appended, call.scale, moment.calls, x.dtype, x.device


def _apart(moment: Moment, factor: Factor, sides: int) -> list[tuple[Moment, Factor]]:
    """The estimates and factors of so many sides that were one batch."""
    factors = [Factor(*parts) for parts in zip(*(t.chunk(sides) for t in factor), strict=True)]
    return list(zip(_moments(moment, sides), factors, strict=True))


def _moments(moment: Moment, sides: int) -> list[Moment]:
    tensors = {name: getattr(moment, name).chunk(sides) for name in Moment.TENSORS}
    return [
        Moment(**{name: parts[i] for name, parts in tensors.items()}, calls=moment.calls)
        for i in range(sides)
    ]


@dataclass(frozen=True)
class _Side:
    """One layer's preconditioned side without γ: ``hat [R, N, D]``, and the ones appended to it."""

    hat: Tensor
    ones: Tensor
    squares: Tensor
    gain: Tensor


def _sides(
    groups: Sequence[Group],
    seen: dict[int, Tensor],
    options: Preconditioner,
    appended: bool = False,
) -> tuple[tuple[Group, ...], list[_Side]]:
    """The next estimates of one side of all layers, and what this minibatch's rows became."""
    after, sides = list[Group](), dict[int, _Side]()
    for group in groups:
        rows = Rows(_joined([seen[i] for i in group.layers]), appended)
        moment, factor = precondition(group.moment, rows, options)
        after.append(Group(group.layers, moment))
        sides |= dict(zip(group.layers, _split(rows, factor, len(group.layers)), strict=True))
    return tuple(after), [sides[i] for i in range(len(sides))]


def _split(rows: Rows, factor: Factor, layers: int) -> list[_Side]:
    hat, ones = formed(rows, factor), factor.squares
    if rows.appended:
        ones = 1.0 - torch.bmm(factor.along, factor.basis[:, :, -1:])
    parts = (t.chunk(layers) for t in (hat, ones, factor.squares, factor.gain))
    return [_Side(*each) for each in zip(*parts, strict=True)]


def _scales(
    descent: NaturalGradient, inputs: Sequence[_Side], outputs: Sequence[_Side], rate: Rate
) -> Tensor:
    """``-rate s γᵢ γₒ`` of every layer, ``[L, R, 1, 1]``, float64."""
    gain = torch.stack([i.gain * o.gain for i, o in zip(inputs, outputs, strict=True)])
    scale = gain * -rate
    if isinstance(descent.max_change, PerSample):
        x, d = (torch.stack([side.squares for side in sides]) for sides in (inputs, outputs))
        scale *= per_sample_share(descent.max_change, x, d, gain, rate)
    return scale[:, :, None, None]


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
    tensors = {name: _joined([getattr(m, name) for m in moments]) for name in Moment.TENSORS}
    return Moment(**tensors, calls=moments[0].calls)


def _joined(tensors: Sequence[Tensor]) -> Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(tuple(tensors))


def _by_layer(groups: Sequence[Group]) -> dict[int, Moment]:
    found = dict[int, Moment]()
    for group in groups:
        found |= dict(zip(group.layers, _moments(group.moment, len(group.layers)), strict=True))
    return found

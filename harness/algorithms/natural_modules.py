"""Natural gradient of anybody's module: its affine layers watched, the rest plain.

What workers remember has the names that it has of a network of affine layers alone.

Shape letters: W workers, P parameters.
"""

from __future__ import annotations

import torch
from torch import Tensor

from harness.algorithms.contract import Memory
from harness.algorithms.memories import rows_of, united
from harness.base.errors import UserError
from harness.natural_gradient import NaturalGradient
from harness.natural_gradient.layer import Sides, state_from_tensors, state_tensors
from harness.natural_gradient.seen import WatchedNetwork, naturalise_
from harness.networks.contract import Minibatch


def started(descent: NaturalGradient, network: WatchedNetwork, workers: int) -> dict[str, Tensor]:
    """What workers know of a module's layers before their first minibatch.

    Raises:
        UserError: it has no layer that can be watched.
    """
    if not network.layers:
        told = "none of this module can be watched; allowed: Linear, Conv1d, Conv2d of one group"
        raise UserError(f"descent: natural gradient is of layers; {told}")
    one = state_tensors([layer.start(descent) for layer in network.layers])
    return united([one] * workers)


def direction_of_module(
    descent: NaturalGradient,
    network: WatchedNetwork,
    stack: Tensor,
    memory: Memory,
    rate: float,
    minibatch: Minibatch,
    out: Tensor,
) -> Tensor:
    """The directions of one minibatch, of parameters outside the layers the plain gradient.

    Args:
        descent: how layers are preconditioned.
        network: the module.
        stack: parameters ``[W, P]``, left alone.
        memory: the workers', changed in place.
        rate: that the step will have: changes are limited.
        minibatch: W minibatches.
        out: ``[W, P]``, overwritten.

    Returns:
        The losses ``[W]``.
    """
    after: list[dict[str, Tensor]] = []

    def visit(worker: int) -> None:
        own = rows_of(memory.tensors, slice(worker, worker + 1))
        known = state_from_tensors(own, len(network.layers))
        after.append(state_tensors(_of_one(descent, network, out[worker], known, rate)))

    losses = network.watched(stack, *minibatch, out, visit)
    if any(
        not torch.equal(each[name], t)
        for each in after
        for name, t in after[0].items()
        if not t.dim()
    ):
        raise UserError(
            "descent: a layer that some workers use and others do not; allowed: neither"
        )
    memory.tensors |= united(after)
    return losses


def _of_one(
    descent: NaturalGradient,
    network: WatchedNetwork,
    row: Tensor,
    known: list[Sides],
    rate: float,
) -> list[Sides]:
    """Make the direction of the gradient in a row ``[P]``; what is known afterwards."""
    used = [place for place, layer in enumerate(network.layers) if layer.seen]
    places = [network.views_of(place, row) for place in used]
    made = [_joined(*each) for each in places]
    layers, sides = [network.layers[place] for place in used], [known[place] for place in used]
    after = naturalise_(descent, layers, made, sides, [rate] * len(used), network.reduction)
    for (weight, bias), direction in zip(places, made, strict=True):
        weight.flatten(1).copy_(direction[0, :, : weight[0].numel()])
        if bias is not None:
            bias.copy_(direction[0, :, -1])
    found = dict(zip(used, after, strict=True))
    return [found.get(place, sides) for place, sides in enumerate(known)]


def _joined(weight: Tensor, bias: Tensor | None) -> Tensor:
    """A copy ``[1, n, m]`` of a layer's gradient, a bias as its last column."""
    flat = weight.flatten(1)
    return (flat.clone() if bias is None else torch.cat([flat, bias.unsqueeze(1)], 1)).unsqueeze(0)

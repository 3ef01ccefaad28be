"""Data with numbers that are not finite, told apart from a learning rate that is too large."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch

from harness.base.errors import UserError
from harness.modules.network import (
    copy_module,
    own_loss,
    preserve_generators,
    trainable_parameters,
)
from harness.modules.problem import Arrays, Problem
from harness.modules.trees import Call, leaves, unwrap

BLOCK = 4096
"""Examples that are looked at together."""

AROUND = 32
"""Examples with which the one at fault is tried, as some layers need several."""


class Suspect(NamedTuple):
    """The first example of a user's data with a number that is not finite.

    Attributes:
        told: the argument, the place and the number, e.g. ``"data: input[17, 3] is nan"``.
        some: a few examples, it among them.
    """

    told: str
    some: Arrays


def find_suspects(data: Mapping[str, Arrays | None]) -> list[Suspect]:
    """Of each of a user's arguments the first example with a number that is not finite.

    Args:
        data: examples by the argument's name; of a stream those in memory are looked at.
    """
    found = (_find_suspect(what, each) for what, each in data.items() if each is not None)
    return [each for each in found if each is not None]


def _find_suspect(what: str, data: Arrays) -> Suspect | None:
    names = [*["input"] * len(leaves(data.x)), *["target"] * len(leaves(data.y))]
    count = min(len(data), len(data.tensors()[0]))
    for begin in range(0, count, BLOCK):
        block = data[begin : min(begin + BLOCK, count)]
        for name, tensor in zip(names, block.tensors(), strict=True):
            if tensor.is_floating_point() and not (finite := torch.isfinite(tensor)).all():
                first = [int(place) for place in (~finite).nonzero()[0]]
                row = begin + first[0]
                place = ", ".join(map(str, [row, *first[1:]]))
                start = max(0, min(row, count - AROUND))
                told = f"{what}: {name}[{place}] is {float(tensor[tuple(first)])}"
                return Suspect(told, data[start : start + AROUND])
    return None


@torch.no_grad()
def check_suspects(suspects: Sequence[Suspect], problem: Problem, device: str) -> None:
    """Reject data with a number for which the loss is not finite, before a rate is blamed.

    A module that expects such numbers, and has a finite loss with them, is left alone.

    Args:
        suspects: see `find_suspect`.
        problem: module and loss.
        device: where they are computed.

    Raises:
        UserError: the loss before training is not finite.
    """
    module = problem.module(0)
    floats = next(iter(trainable_parameters(module).values())).dtype
    call = Call.from_module(module, needs_labels=problem.loss is own_loss)
    for suspect in suspects:
        some, tried = suspect.some.to(device, floats), copy_module(module).to(device)
        with preserve_generators():
            outputs = call.run(tried, some.x, some.y)
            found = float(problem.loss(outputs, unwrap(some.y)))
        if not math.isfinite(found):
            told = f"{suspect.told}, with which the loss is {found} before training"
            raise UserError(f"{told}; allowed: numbers for which it is finite")

"""Parameters without gradient in a step: optimizers of torch leave them alone.

In a contribution to a server with an optimizer, such a parameter is marked by negative zeros, which
no sum feels: code that does not ask for the marks computes the same.

Shape letters: W replicas, P parameters.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

Unused = list[list[int]]
"""Numbers of the parameter tensors without gradient, of each replica; empty if all have one."""


def columns_of(sizes: Sequence[int], numbers: Sequence[int]) -> Tensor:
    """Columns in a ``[W, P]`` stack of some parameter tensors, of which ``sizes`` has the elements.

    Example:
        >>> columns_of((2, 1, 3), (0, 2))
        tensor([0, 1, 3, 4, 5])
    """
    columns = torch.arange(sum(sizes)).split_with_sizes(list(sizes))
    return torch.cat([columns[number] for number in numbers])


def fill_unused_(stack: Tensor, sizes: Sequence[int], unused: Unused, value: float) -> None:
    """Write a value to the parameters without gradient of each row of a stack ``[W, P]``."""
    for row, missing in zip(stack, unused, strict=False):
        if missing:
            row[columns_of(sizes, missing)] = value


def mark_unused_(gradients: Tensor, sizes: Sequence[int], unused: Unused) -> None:
    """Mark the parameters without gradient in gradients ``[W, P]``, and no others."""
    gradients.add_(0.0)  # makes a computed negative zero positive
    fill_unused_(gradients, sizes, unused, -0.0)


def find_unused(gradients: Tensor, sizes: Sequence[int]) -> Unused:
    """The parameters that are marked in each of the gradients ``[W, P]``.

    Example:
        >>> find_unused(torch.tensor([[-0.0, -0.0, 1.0], [0.0, -0.0, 2.0]]), sizes=(2, 1))
        [[0], []]
    """
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[gradients.element_size()]
    marks = gradients.view(bits) == torch.iinfo(bits).min  # the sign alone: negative zero
    if not marks.any():
        return []
    flags = [part.all(1) for part in marks.split_with_sizes(list(sizes), 1)]
    return [torch.nonzero(row).flatten().tolist() for row in torch.stack(flags, 1)]  # pyright: ignore[reportUnknownMemberType]

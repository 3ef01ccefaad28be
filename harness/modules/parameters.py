"""Where the parameters of a module lie in a vector ``[P]``.

Shape letters, here and beside: W replicas, P parameters of one, B examples of a minibatch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, cast

import torch
from torch import Tensor, nn

from harness.base.errors import UserError

WITHOUT_NUMPY = {"torch.bfloat16", "torch.float8_e4m3fn", "torch.float8_e5m2"}
"""Precisions of parameters that could not be stored."""


@dataclass(frozen=True)
class Parameters:
    """The parameters that are trained, in the module's own order; tied ones count once.

    Args:
        names: as ``module.named_parameters()`` has them.
        shapes: of each.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, module: nn.Module) -> Parameters:
        """Those of a module that ask for a gradient.

        Raises:
            UserError: there are none, or they are of several precisions.
        """
        found = trained(module)
        kinds = {str(parameter.dtype) for parameter in found.values()}
        if len(kinds) != 1:
            told = f"of {' and '.join(sorted(kinds))}" if kinds else "none that ask for a gradient"
            raise UserError(f"model: parameters {told}; allowed: some, all of one precision")
        if kinds & WITHOUT_NUMPY:
            told = "allowed: float32 or float64, e.g. model.float()"
            raise UserError(f"model: parameters of {kinds.pop()}, which NumPy has not; {told}")
        return cls(tuple(found), tuple(tuple(p.shape) for p in found.values()))

    @property
    def count(self) -> int:
        """P."""
        return sum(self._lengths)

    @cached_property
    def _lengths(self) -> list[int]:
        return [prod(shape) for shape in self.shapes]

    def split(self, stack: Tensor) -> list[Tensor]:
        """Views ``[W, *shape]`` of a stack ``[W, P]``, one a parameter."""
        parts = stack.split_with_sizes(self._lengths, 1)
        return [p.view(len(stack), *shape) for p, shape in zip(parts, self.shapes, strict=True)]

    def views(self, model: Tensor) -> Sequence[Tensor]:
        """Views ``[*shape]`` of a vector ``[P]``, one a parameter."""
        return _unflattened(model, self._like)

    @cached_property
    def _like(self) -> list[Tensor]:
        """Nothing but the shapes."""
        return [torch.empty(shape, device="meta") for shape in self.shapes]


# In one call: a view each takes as long as a small layer's product.
_unflattened = cast(
    Callable[[Tensor, Sequence[Tensor]], Sequence[Tensor]],
    cast(Any, torch._C)._nn.unflatten_dense_tensors,  # pyright: ignore[reportPrivateUsage]
)


def trained(module: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that ask for a gradient, by name.

    Raises:
        UserError: one of them has no shape yet.
    """
    found = {name: p for name, p in module.named_parameters() if p.requires_grad}
    lazy = [n for n, p in found.items() if isinstance(p, nn.parameter.UninitializedParameter)]
    if lazy:
        raise UserError(f"model: {lazy[0]!r} has no shape yet; allowed: a module that has run once")
    return found


def flat(tensors: Sequence[Tensor]) -> Tensor:
    """Tensors one after the other as a vector of their own."""
    return torch.cat([each.detach().flatten() for each in tensors])

"""A causal transformer over tokens, and parameters as one vector.

A policy is a `torch.nn.Module` from tokens ``[B, T]`` to logits ``[B, T, V]``, causal: the logits
at a place depend on the tokens up to it. `Weights` holds its parameters as one vector, so that
versions of it can be kept and exchanged.

Shape letters: B rollouts, T tokens, V tokens of the vocabulary, P parameters, C context, L layers,
H heads, D width, W rows.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from harness.base.errors import UserError


class Block(nn.Module):
    """Attention and a perceptron, each after a normalisation and added to their input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend, self.join = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """``[B, T, D]`` to ``[B, T, D]``."""
        rows, long, width = x.shape
        three = self.attend(self.before(x)).view(rows, long, 3, self.heads, -1)
        query, key, value = three.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.join(mixed.transpose(1, 2).reshape(rows, long, width))
        return x + self.down(torch.relu(self.up(self.between(x))))


class Transformer(nn.Module):
    """A causal transformer with learned places.

    Args:
        vocabulary: V.
        context: C, the largest number of tokens.
        width: D, a multiple of ``heads``.
        layers: L.
        heads: H.

    Attributes:
        sizes: the arguments.
    """

    def __init__(self, vocabulary: int, context: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.sizes = vocabulary, context, width, layers, heads
        self.token, self.place = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.last, self.out = nn.LayerNorm(width), nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits ``[B, T, V]`` after each of the tokens ``[B, T]``."""
        x = self.token(tokens) + self.place.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = cast(Block, block)(x)
        return self.out(self.last(x))


class Weights:
    """The parameters of a module as one vector ``[P]``, and their gradient as another.

    The module's parameters become views of the vectors, so a version is exchanged by one copy.

    Parameters without ``requires_grad`` are left out, and stay as they are.

    Args:
        module: the module, on its device; its parameters change with the vector.

    Raises:
        UserError: it has no parameters, or some that are not 32-bit numbers.
    """

    def __init__(self, module: nn.Module) -> None:
        self.parameters = [p for p in module.parameters() if p.requires_grad]
        parameters = self.parameters
        kinds = {str(p.dtype).removeprefix("torch.") for p in parameters}
        if kinds != {"float32"}:
            dtypes = " and ".join(sorted(kinds)) or "no"
            raise UserError(f"policy: it has {dtypes} parameters; allowed: float32 ones")
        self.module = module
        self.vector = torch.cat([p.detach().reshape(-1) for p in parameters])
        self.gradient = torch.zeros_like(self.vector)
        at = 0
        for p in parameters:
            place = slice(at, at := at + p.numel())
            p.data = self.vector[place].view_as(p)
            p.grad = self.gradient[place].view_as(p)

    def matrices(self, stack: Tensor) -> list[Tensor]:
        """Views ``[W, n, m]`` of the weight matrices in ``stack [W, P]``; see `Network`."""
        sizes = [p.numel() for p in self.parameters]
        pairs = zip(self.parameters, stack.split_with_sizes(sizes, 1), strict=True)
        return [part.view(len(stack), *p.shape) for p, part in pairs if p.ndim == 2]

    def load(self, version: Tensor) -> nn.Module:
        """The module with the parameters ``version [P]``."""
        self.vector.copy_(version)
        return self.module

    def slope(self, loss: Tensor) -> Tensor:
        """The gradient ``[P]`` of a loss by the present parameters; overwritten by the next."""
        self.gradient.zero_()
        cast(Any, loss).backward()
        return self.gradient

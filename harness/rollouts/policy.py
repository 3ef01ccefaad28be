"""A causal transformer over tokens, steps from a cache, and parameters as one vector.

A policy is a `torch.nn.Module` from tokens ``[B, T]`` to logits ``[B, T, V]``, causal: the logits
at a place depend on the tokens up to it. `Weights` holds its parameters as one vector, so that
versions of it can be kept and exchanged.

Shape letters: B rollouts, T tokens, V tokens of the vocabulary, P parameters, W rows of a step,
C context, L layers, H heads, D width.
"""

from __future__ import annotations

from typing import Any, Protocol, cast, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn import functional

from harness.base.errors import UserError

__all__ = ["Decoding", "Transformer", "Weights"]

Cache = list[tuple[Tensor, Tensor]]
"""Keys ``[W, H, D / H, C]`` and values ``[W, H, C, D / H]`` of each layer."""


@runtime_checkable
class Decoding(Protocol):
    """A policy that computes one token after another from a cache of the earlier ones."""

    def new_cache(self, rows: int) -> Any:
        """A cache of W rollouts without tokens."""
        ...

    def step(self, tokens: Tensor, places: Tensor, cache: Any) -> Tensor:
        """Logits ``[W, V]`` after one more token of each rollout; changes the cache in place.

        A row depends on its own earlier tokens alone, and a token at place 0 begins a rollout.

        Args:
            tokens: the tokens ``[W]``.
            places: their places ``[W]``, from 0.
            cache: from `new_cache`.
        """
        ...


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
        return self._finish(x, mixed.transpose(1, 2).reshape(rows, long, width))

    def step(self, x: Tensor, places: Tensor, hidden: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """``[W, D]`` at ``places [W]``; ``hidden [W, 1, 1, C]`` is -inf at later places."""
        rows, width = x.shape
        three = self.attend(self.before(x)).view(rows, 3, self.heads, -1)
        every = torch.arange(rows, device=x.device)
        key[every, :, :, places], value[every, :, places] = three[:, 1], three[:, 2]
        scores = torch.matmul(three[:, 0].unsqueeze(2), key).mul_(three.shape[3] ** -0.5)
        mixed = torch.matmul(scores.add_(hidden).softmax(3), value)
        return self._finish(x, mixed.reshape(rows, width))

    def _finish(self, x: Tensor, mixed: Tensor) -> Tensor:
        x = x + self.join(mixed)
        return x + self.down(torch.relu(self.up(self.between(x))))


class Transformer(nn.Module):
    """A causal transformer with learned places; see `Decoding` for its cache.

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

    def new_cache(self, rows: int) -> Cache:
        """See `Decoding`."""
        _, context, width, _, heads = self.sizes
        key = self.out.weight.new_zeros(rows, heads, width // heads, context)
        value = key.transpose(2, 3).contiguous()
        return [(key.clone(), value.clone()) for _ in self.blocks]

    def step(self, tokens: Tensor, places: Tensor, cache: Cache) -> Tensor:
        """See `Decoding`."""
        later = torch.arange(self.sizes[1], device=tokens.device) > places.unsqueeze(1)
        hidden = torch.zeros(later.shape, device=tokens.device).masked_fill_(later, -torch.inf)
        x = self.token(tokens) + self.place(places)
        for block, (key, value) in zip(self.blocks, cache, strict=True):
            x = cast(Block, block).step(x, places, hidden[:, None, None], key, value)
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
        self.parameters = [each for each in module.parameters() if each.requires_grad]
        parameters = self.parameters
        kinds = {str(each.dtype).removeprefix("torch.") for each in parameters}
        if kinds != {"float32"}:
            there = " and ".join(sorted(kinds)) or "no"
            raise UserError(f"policy: it has {there} parameters; allowed: float32 ones")
        self.module = module
        self.vector = torch.cat([each.detach().reshape(-1) for each in parameters])
        self.gradient = torch.zeros_like(self.vector)
        at = 0
        for each in parameters:
            place = slice(at, at := at + each.numel())
            each.data = self.vector[place].view_as(each)
            each.grad = self.gradient[place].view_as(each)

    def matrices(self, stack: Tensor) -> list[Tensor]:
        """Views ``[W, n, m]`` of the weight matrices in ``stack [W, P]``; see `Network`."""
        sizes = [each.numel() for each in self.parameters]
        pairs = zip(self.parameters, stack.split_with_sizes(sizes, 1), strict=True)
        return [part.view(len(stack), *each.shape) for each, part in pairs if each.ndim == 2]

    def load(self, version: Tensor) -> nn.Module:
        """The module with the parameters ``version [P]``."""
        self.vector.copy_(version)
        return self.module

    def slope(self, loss: Tensor) -> Tensor:
        """The gradient ``[P]`` of a loss by the present parameters; overwritten by the next."""
        self.gradient.zero_()
        cast(Any, loss).backward()
        return self.gradient

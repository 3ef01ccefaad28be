"""The gradient of any module under any loss, over the replica stack.

One replica at a time, gradients are what ``loss(module(x), y).backward()`` gives, to the bit:
the module's parameters become views of the replica's row. Several at once are one call of
`torch.func.vmap`, whose products are batched and whose sums therefore may round otherwise.

To an algorithm a minibatch of the user's is *one* frame, whose loss is what the user's function
returns. So a rate multiplies the gradient of that loss, whether it is a sum or a mean.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import compress
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from harness.modules.draws import seed_generators
from harness.modules.parameters import Parameters, trained
from harness.natural_gradient.layer_hooks import Affine, Reduction, Watched, is_affine

Loss = Callable[[Tensor, Tensor], Tensor]
"""``loss(outputs, targets)``: one number a minibatch, a mean or a sum over its examples."""


class Drawing(NamedTuple):
    """Inputs of a module that draws at random, in place of ``Minibatch.x``.

    Args:
        x: ``[W, 1, B, ...]``.
        keys: what each replica's generator is seeded with.
    """

    x: Tensor
    keys: Sequence[int]

    def expand(self, *shape: int) -> Drawing:
        """The one replica's inputs and draws for several."""
        return Drawing(self.x.expand(*shape), list(self.keys) * shape[0])


class ModuleNetwork:
    """See `harness.networks.contract.Network`.

    Args:
        module: a copy is taken; it trains in the mode it has.
        loss: what is descended on.
        together: computed at once are so many replicas or more; None for one by one always.
        reduction: whether the loss is the mean or the sum over examples.
    """

    def __init__(
        self,
        module: nn.Module,
        loss: Loss,
        *,
        together: int | None = None,
        reduction: Reduction = "mean",
    ) -> None:
        self.module, self.loss, self.together = copy.deepcopy(module), loss, together
        self.reduction: Reduction = reduction
        self.parameters = Parameters.of(self.module)
        self._trained = list(trained(self.module).values())
        self._taken()  # what the copied module brought along
        tables = {id(m.weight) for m in self.module.modules() if isinstance(m, nn.Embedding)}
        self._matrices = [p.dim() == 2 and id(p) not in tables for p in self._trained]
        scalar = grad_and_value(self._loss_at)
        self._all = vmap(scalar, in_dims=(0, 0, 0))

    def gradient(self, stack: Tensor, x: Tensor, targets: Tensor, out: Tensor) -> Tensor:
        """The gradient of each replica's loss on its minibatch.

        Args:
            stack: parameters ``[W, P]``.
            x: inputs ``[W, 1, B, ...]``, or a `Drawing`.
            targets: ``[W, 1, B, ...]``.
            out: gradients ``[W, P]``, overwritten.

        Returns:
            The losses ``[W]``.
        """
        if isinstance(x, Drawing):
            return self._one_by_one(stack, x.x, targets, out, x.keys)
        if self.together is None or len(stack) < self.together:
            return self._one_by_one(stack, x, targets, out, [None] * len(stack))
        parts = self.parameters.split(stack)
        gradients, losses = self._all(parts, x[:, 0], targets[:, 0])
        for view, gradient in zip(self.parameters.split(out), gradients, strict=True):
            view.copy_(gradient)
        return cast(Tensor, losses)

    def matrices(self, stack: Tensor) -> list[Tensor]:
        """Views ``[W, n, m]`` of parameters with two dimensions, but for those of embeddings."""
        return list(compress(self.parameters.split(stack), self._matrices))

    @property
    def layers(self) -> list[Watched]:
        """The affine layers whose parameters are trained, and are no other module's too."""
        return [layer for layer, _ in self._affine]

    def watchable(self) -> tuple[int, list[str]]:
        """How many layers can be watched, and which parameters are of none."""
        inside = {place for _, places in self._affine for place in places}
        names = enumerate(self.parameters.names)
        return len(self._affine), [name for place, name in names if place not in inside]

    def views_of(self, place: int, row: Tensor) -> tuple[Tensor, Tensor | None]:
        """See `harness.natural_gradient.layer_hooks.WatchedNetwork`."""
        views, (weight, *bias) = self.parameters.views(row), self._affine[place][1]
        return views[weight], views[bias[0]] if bias else None

    @cached_property
    def _affine(self) -> list[tuple[Watched, list[int]]]:
        """Each layer, and where its weight and bias stand among what is trained."""
        places, modules = {id(p): i for i, p in enumerate(self._trained)}, [*self.module.modules()]
        owned = Counter(id(p) for m in modules for p in m.parameters(recurse=False))
        found: list[tuple[Watched, list[int]]] = []
        for module in filter(is_affine, modules):
            own = dict(module.named_parameters(recurse=False))
            known = "weight" in own and all(id(p) in places for p in own.values())
            if known and all(owned[id(p)] == 1 for p in own.values()):
                found.append(
                    (Watched(cast("Affine", module)), [places[id(p)] for p in own.values()])
                )
        return found

    def watched(
        self, stack: Tensor, x: Tensor, targets: Tensor, out: Tensor, visit: Callable[[int], None]
    ) -> Tensor:
        """See `harness.natural_gradient.layer_hooks.WatchedNetwork`."""
        keys = x.keys if isinstance(x, Drawing) else [None] * len(stack)
        inputs, losses = x.x if isinstance(x, Drawing) else x, list[Tensor]()
        hooks = [w.module.register_forward_hook(w.watch, with_kwargs=True) for w in self.layers]
        try:
            for w, key in enumerate(keys):
                losses.append(self._one(stack[w], inputs[w, 0], targets[w, 0], out[w], key))
                visit(w)
                for layer in self.layers:
                    layer.seen.clear()
        finally:
            for hook in hooks:
                hook.remove()
        return torch.stack(losses)

    def at(self, model: Tensor) -> nn.Module:
        """The module with its parameters in ``model [P]``: what changes them changes it."""
        for parameter, view in zip(self._trained, self.parameters.views(model), strict=True):
            parameter.data = view
        return self.module

    def _loss_at(self, parts: Sequence[Tensor], x: Tensor, targets: Tensor) -> Tensor:
        named = dict(zip(self.parameters.names, parts, strict=True))
        return self.loss(functional_call(self.module, named, (x,)), targets)

    def _one_by_one(
        self,
        stack: Tensor,
        x: Tensor,
        targets: Tensor,
        out: Tensor,
        keys: Sequence[int | None],
    ) -> Tensor:
        losses = [
            self._one(stack[w], x[w, 0], targets[w, 0], out[w], key) for w, key in enumerate(keys)
        ]
        return torch.stack(losses)

    def _one(self, row: Tensor, x: Tensor, targets: Tensor, out: Tensor, key: int | None) -> Tensor:
        if key is not None:
            seed_generators(key)
        module = self.at(row)
        with torch.enable_grad():
            loss = self.loss(module(x), targets)
            # As a plain loop does: `torch.autograd.grad` looks at every input again, which takes as
            # long as a small layer.
            torch.autograd.backward(loss, inputs=self._trained)
        torch.cat(self._taken(), out=out)
        return loss.detach()

    def _taken(self) -> list[Tensor]:
        """The gradients that a backward pass left, flat; zeros where a parameter had no part."""
        found = [torch.zeros_like(p) if p.grad is None else p.grad for p in self._trained]
        for parameter in self._trained:
            parameter.grad = None
        return [gradient.flatten() for gradient in found]

"""Any module as a network over the replica stack: gradients and parameters.

One replica at a time, gradients are those of ``loss(module(x), y).backward()``, to the bit: the
module's parameters become views of the replica's row. Several replicas at once are one call of
`torch.func.vmap`, whose products are batched, so that their sums may round differently.

To an algorithm, a user's minibatch is *one* frame, whose loss is the value of the user's function.
So a learning rate multiplies the gradient of that loss, whether it is a sum or a mean.

`Parameters` is the layout of a module's parameters in a vector ``[P]``. Random numbers come from
the global generators with a seed; the user's state of them is restored.

Shape letters in this package: W replicas, P parameters of one, B examples of a minibatch.
"""

from __future__ import annotations

import copy
import pickle
import random
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from itertools import compress
from math import prod
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.utils.checkpoint import (
    checkpoint,  # pyright: ignore[reportUnknownVariableType]
)

from harness.base.errors import UserError, describe_raised
from harness.base.settings import setting
from harness.modules.buffers import Buffers, check_constants
from harness.modules.values import Axes, Call, Parts, Value, join_outputs, unwrap
from harness.natural_gradient.layer_hooks import Affine, LayerHook, Reduction, is_affine
from harness.networks.contract import RuledNetwork, State
from harness.networks.unused import Unused, fill_unused_


@dataclass(frozen=True)
class GradientRules:
    """Changes of the gradient of one minibatch before its optimizer.

    The rules apply to every minibatch of every worker, whatever the algorithm and the optimizer;
    where a server steps along the mean gradient (`GradientAveraging`), it clips and decays that
    one.

    Args:
        clip: largest norm of a worker's gradient over all parameters, as in
            ``torch.nn.utils.clip_grad_norm_``; with ``"sync"``, of the mean gradient. None for no
            limit.
        weight_decay: multiple of the parameters that is added to each gradient after clipping, as
            in ``torch.optim.SGD``; ``"adamw"``, ``"muon"`` and ``"ngsgd"`` decay beside the
            gradient. 0 for all by default, also for ``"adamw"``, where torch has 0.01.
        accumulate: equal parts of each minibatch that are computed one after the other, and whose
            outputs are joined for its loss: the step is that of the whole, except that batch
            normalisation sees a part at a time. Outputs that cannot be joined are computed whole.
    """

    clip: float | None = setting(None, above=0.0)
    weight_decay: float = setting(0.0, at_least=0.0)
    accumulate: int = setting(1, at_least=1)

    def clip_(self, gradient: Sequence[Tensor]) -> None:
        """Scale a gradient, a tensor for each parameter, in place."""
        if self.clip is None:
            return
        norm = torch.nn.utils.get_total_norm(gradient)
        share = torch.clamp(self.clip / (norm + 1e-6), max=1.0)
        for part in gradient:
            part.mul_(share)

    def decay_(self, gradients: Tensor, stack: Tensor) -> None:
        """Add the decay of parameters to gradients of their shape, in place."""
        if self.weight_decay:
            gradients.add_(stack, alpha=self.weight_decay)


NO_RULES = GradientRules()


Loss = Callable[[Any, Any], Tensor]
"""``loss(outputs, targets)``: one number for a minibatch, or for a whole development set."""


Metric = Callable[[Any, Any], Tensor]
"""``metric(outputs, targets)``: one number for a whole development set."""

OWN_LOSS = "model"
"""Name of the loss that a model computes itself."""

AskedLoss = Loss | Literal["model"]
"""A loss function, or `OWN_LOSS`."""


def own_loss(outputs: Any, targets: object) -> Tensor:
    """The ``loss`` of a model's outputs, as Hugging Face's models have it.

    Raises:
        UserError: the outputs have none.
    """
    del targets  # the model got them as ``labels``
    if isinstance(outputs, Mapping):
        loss = cast("Mapping[str, Any]", outputs).get("loss")
    else:
        loss = getattr(outputs, "loss", None)
    if loss is None:
        mistake = f"a {type(cast('object', outputs)).__name__} without 'loss'"
        raise UserError(f"loss: 'model': {mistake}; allowed: a function of outputs and targets")
    return cast(Tensor, loss)


class Drawing(NamedTuple):
    """Inputs of a module that draws at random, in place of ``Minibatch.x``.

    Args:
        x: ``[W, 1, B, ...]``, or several inputs as one.
        keys: seed of the generator for each replica, ``[W]``.
    """

    x: Value
    keys: Sequence[int]


class ModuleNetwork(RuledNetwork):
    """A module under a loss as a network; see `harness.networks.contract.Network`.

    Args:
        module: copied; its mode (training or evaluation) is kept.
        loss: the loss function.
        together: from this number of replicas on, they are computed at once; None for never.
        is_batchable: asked when there are so many first: whether they can be.
        reduction: whether the loss is the mean or the sum over examples.
        axes: dimensions along which outputs of microbatches are joined; None if they cannot be:
            then a minibatch is computed whole.
        rules: microbatches, clipping and weight decay.
        changing: names of the buffers that training changes; each replica has its own.
        autocast: type that PyTorch casts to in forward passes and losses of gradients, if any.
        device: where the module's copy is; None for where the module is.
    """

    def __init__(
        self,
        module: nn.Module,
        loss: Loss,
        *,
        together: int | None = None,
        is_batchable: Callable[[], bool] = lambda: True,
        reduction: Reduction = "mean",
        axes: Axes | None = None,
        rules: GradientRules = NO_RULES,
        changing: Sequence[str] = (),
        autocast: torch.dtype | None = None,
        device: str | None = None,
    ) -> None:
        self.rules = rules
        self.module, self.loss, self.together = copy_module(module).to(device), loss, together
        self._start = module
        self._is_batchable = is_batchable
        self.buffers = Buffers.from_module(self.module, changing)
        self._state: State = {}
        self._autocast = autocast
        self.reduction: Reduction = reduction
        self._axes = axes
        self.call = Call.from_module(self.module, needs_labels=loss is own_loss)
        self.parameters = Parameters.from_module(self.module)
        self._trained = tuple(trainable_parameters(self.module).values())
        self.sizes = self.parameters.lengths
        self.unused: Unused = []
        self._unused_at_once: list[int] | None = None
        self._views: dict[int, Sequence[Tensor]] = {}
        for parameter in self._trained:  # gradients that the user's module had
            parameter.grad = None
        tables = {id(m.weight) for m in self.module.modules() if isinstance(m, nn.Embedding)}
        self._matrices = [p.dim() == 2 and id(p) not in tables for p in self._trained]
        scalar = grad_and_value(self._loss_at)
        self._all = vmap(scalar, in_dims=(0, 0, 0))

    def gradient(self, stack: Tensor, x: Value | Drawing, targets: Value, out: Tensor) -> Tensor:
        """Compute the gradient of each replica's loss on its minibatch.

        Buffers that training changes are those of `with_state`; without, all replicas share them.

        Args:
            stack: parameters ``[W, P]``.
            x: inputs ``[W, 1, B, ...]``, several as one, or a `Drawing`.
            targets: ``[W, 1, B, ...]``, or several.
            out: gradients ``[W, P]``, overwritten.

        Returns:
            The losses ``[W]``.
        """
        self.unused = []
        losses = self._take_gradient(stack, x, targets, out)
        self.apply_rules_(out, stack, self.unused)
        return losses

    def apply_rules_(self, gradients: Tensor, stack: Tensor, unused: Unused) -> None:
        """See `harness.networks.contract.RuledNetwork`."""
        self._clip_rows(gradients)
        self._decay_rows(gradients, stack, unused)

    def _clip_rows(self, rows: Tensor) -> None:
        """Clip each of the gradients ``[W, P]``, in place."""
        if self.rules.clip is not None:
            for row in rows:
                self.rules.clip_(self.parameters.views(row))

    def _decay_rows(self, rows: Tensor, stack: Tensor, unused: Unused) -> None:
        """Add the decay of parameters that have a gradient to gradients ``[W, P]``."""
        if self.rules.weight_decay and any(unused):
            fill_unused_(stack := stack.clone(), self.sizes, unused, 0.0)
        self.rules.decay_(rows, stack)

    def without_rules(self) -> ModuleNetwork:
        """See `harness.networks.contract.RuledNetwork`; the module itself is shared."""
        rules = GradientRules(accumulate=self.rules.accumulate)
        if rules == self.rules:
            return self
        bare = copy.copy(self)
        bare.rules = rules
        return bare

    def part(self, ids: Sequence[int]) -> ModuleNetwork:
        """See `harness.networks.contract.RuledNetwork`."""
        reduced, layout = copy.copy(self), self.parameters
        names, shapes = tuple(layout.names[k] for k in ids), tuple(layout.shapes[k] for k in ids)
        reduced.parameters, reduced.sizes = Parameters(names, shapes), [self.sizes[k] for k in ids]
        reduced._matrices = [self._matrices[k] for k in ids]
        return reduced

    def _take_gradient(
        self, stack: Tensor, x: Value | Drawing, targets: Value, out: Tensor
    ) -> Tensor:
        """The gradient of `gradient`, before clipping and decay."""
        if isinstance(x, Drawing):
            return self._one_by_one(stack, x.x, targets, out, x.keys)
        is_apart = self.together is None or len(stack) < self.together
        if is_apart or self.rules.accumulate > 1 or not self._is_batchable():
            return self._one_by_one(stack, x, targets, out, [None] * len(stack))
        if self._unused_at_once is None:  # the same in every step, as `vmap` allows no branches
            self._one(0, stack, x, targets, out, None)
            self._unused_at_once = self.unused[0]
        self.unused = [self._unused_at_once] * len(stack)
        parts = self.parameters.split(stack)
        gradients, losses = self._all(parts, unwrap(x[:, 0]), unwrap(targets[:, 0]))
        for view, gradient in zip(self.parameters.split(out), gradients, strict=True):
            view.copy_(gradient)
        return cast(Tensor, losses)

    def matrices(self, stack: Tensor) -> list[Tensor]:
        """Views ``[W, n, m]`` of two-dimensional parameters, except embeddings."""
        return list(compress(self.parameters.split(stack), self._matrices))

    @property
    def layers(self) -> list[LayerHook]:
        """Affine layers with all parameters trained, and none shared with another module."""
        return [layer for layer, _ in self._affine]

    def views_of(self, place: int, row: Tensor) -> tuple[Tensor, Tensor | None]:
        """See `harness.natural_gradient.layer_hooks.HookableNetwork`."""
        views, (weight, *bias) = self.parameters.views(row), self._affine[place][1]
        return views[weight], views[bias[0]] if bias else None

    @cached_property
    def _affine(self) -> list[tuple[LayerHook, list[int]]]:
        """Each layer of `layers`, with the indices of its weight and bias in `_trained`."""
        places, modules = {id(p): i for i, p in enumerate(self._trained)}, [*self.module.modules()]
        owned = Counter(id(p) for m in modules for p in m.parameters(recurse=False))
        layers: list[tuple[LayerHook, list[int]]] = []
        for module in filter(is_affine, modules):
            parameters = dict(module.named_parameters(recurse=False))
            ids = [id(parameter) for parameter in parameters.values()]
            is_alone = all(key in places and owned[key] == 1 for key in ids)
            if is_alone and "weight" in parameters:
                layers.append((LayerHook(cast("Affine", module)), [places[key] for key in ids]))
        return layers

    def watch_gradient(
        self,
        stack: Tensor,
        x: Value | Drawing,
        targets: Value,
        out: Tensor,
        visit: Callable[[int], None],
    ) -> Tensor:
        """See `harness.natural_gradient.layer_hooks.HookableNetwork`."""
        keys = x.keys if isinstance(x, Drawing) else [None] * len(stack)
        inputs, losses = x.x if isinstance(x, Drawing) else x, list[Tensor]()
        self.unused = []
        hooks = [w.module.register_forward_hook(w.watch, with_kwargs=True) for w in self.layers]
        try:
            for w, key in enumerate(keys):
                losses.append(self._one(w, stack, inputs, targets, out, key))
                self._clip_rows(out[w : w + 1])
                visit(w)
                for layer in self.layers:
                    layer.seen.clear()
        finally:
            for hook in hooks:
                hook.remove()
        self._decay_rows(out, stack, self.unused)
        return torch.stack(losses)

    def fresh_state(self) -> State:
        """See `harness.networks.contract.StatefulNetwork`: buffers before training."""
        return self.buffers.fresh()

    def check_constants(self) -> None:
        """See `harness.networks.contract.StatefulNetwork`."""
        changing = [name for name, _ in self.buffers.places]
        check_constants(self.module, self._start, [*changing, *self.parameters.names])

    def with_state(self, state: State) -> ModuleNetwork:
        """See `harness.networks.contract.StatefulNetwork`; the module itself is shared."""
        bound = copy.copy(self)
        bound._state = state
        return bound

    def bind_parameters(self, model: Tensor) -> nn.Module:
        """The module with its parameters as views of ``model [P]``, without a copy."""
        if self._trained[0].data_ptr() != model.data_ptr():  # else they are, as in a lone worker's
            for parameter, view in zip(self._trained, self._views_of(model), strict=True):
                parameter.data = view
        return self.module

    def _views_of(self, row: Tensor) -> Sequence[Tensor]:
        """Views ``[*shape]`` of a row ``[P]``, one for each parameter."""
        # A worker's rows are the same at each step: views of small ones are kept.
        views = self._views.get(address := row.data_ptr())
        if views is None:
            views = self.parameters.views(row)
            if row.numel() <= SMALL:
                if len(self._views) == ROWS:
                    self._views.clear()
                self._views[address] = views  # which keep the memory at this address
        return views

    def loss_of(self, module: nn.Module, x: Value, targets: Value) -> Tensor:
        """The loss of a module's outputs for one minibatch."""
        if self._autocast is not None:
            with torch.autocast(x.device.type, self._autocast):
                return self.loss(self._run_parts(module, x, targets), unwrap(targets))
        return self.loss(self._run_parts(module, x, targets), unwrap(targets))

    def _run_parts(self, module: nn.Module, x: Value, targets: Value) -> Any:
        """The outputs for a minibatch, of its microbatches one after the other.

        Activations of a microbatch are computed again when its gradient is, so that only outputs
        are kept; but not where a second forward pass would change buffers once more.
        """
        parts = self.rules.accumulate
        if parts == 1 or self._axes is None:
            return self.call.run(module, x, targets)
        size, run = len(x) // parts, cast(Callable[..., Any], self.call.run_on_copies)
        if not self.buffers.places:
            run = cast(Callable[..., Any], partial(checkpoint, run, use_reentrant=False))
        rows = [slice(k * size, (k + 1) * size) for k in range(parts)]
        outputs = [run(module, x[part], targets[part]) for part in rows]
        try:
            return join_outputs(outputs, self._axes)
        except UserError:  # as where the length of sequences depends on the part
            if self.buffers.places:
                raise
            return self.call.run(module, x, targets)

    def _loss_at(self, parts: Sequence[Tensor], x: Parts, targets: Parts) -> Tensor:
        parameters = dict(zip(self.parameters.names, parts, strict=True))
        outputs = functional_call(self.module, parameters, *self.call.arguments(x, targets))
        return self.loss(outputs, targets)

    def _one_by_one(
        self, stack: Tensor, x: Value, targets: Value, out: Tensor, keys: Sequence[int | None]
    ) -> Tensor:
        losses = [self._one(w, stack, x, targets, out, key) for w, key in enumerate(keys)]
        return losses[0].view(1) if len(losses) == 1 else torch.stack(losses)

    def _one(
        self, w: int, stack: Tensor, xs: Value, all_targets: Value, out: Tensor, key: int | None
    ) -> Tensor:
        """Write the gradient of replica ``w`` to its row; returns its loss."""
        x, targets = xs[w, 0], all_targets[w, 0]
        if key is not None:
            seed_generators(key)
        module = self.bind_parameters(stack[w])
        bound = self.buffers.bind(self._state, w) if self._state else []
        with torch.enable_grad():
            loss = self.loss_of(module, x, targets)
            # `loss.backward()` without its checks, which take as long as several small layers.
            gradients: Sequence[Tensor | None] = _run_backward(
                *((loss,), (_unit(loss.dtype, loss.device),), False, False, self._trained),
                allow_unreachable=True,
                accumulate_grad=False,
            )
        self.unused.append([k for k, gradient in enumerate(gradients) if gradient is None])
        dense = [_densify(*pair) for pair in zip(gradients, self._trained, strict=True)]
        _copy_each(self._views_of(out[w]), dense)
        self.buffers.write_back(self._state, w, bound)
        return loss.detach()


def _densify(gradient: Tensor | None, parameter: Tensor) -> Tensor:
    """A gradient as a dense tensor; zeros for a parameter without one."""
    if gradient is None:
        return torch.zeros_like(parameter)
    return gradient.to_dense() if gradient.is_sparse else gradient


@lru_cache(maxsize=8)
def _unit(dtype: torch.dtype, device: torch.device) -> Tensor:
    """The derivative of a loss by itself."""
    return torch.ones((), dtype=dtype, device=device)


_run_backward = cast(Callable[..., Any], cast(Any, torch.autograd.graph)._engine_run_backward)

_copy_each = cast(Callable[..., None], cast(Any, torch)._foreach_copy_)


TOO_NARROW = {"torch.float8_e4m3fn", "torch.float8_e5m2"}
"""Types in which parameters are not trained: they have no sums."""


@dataclass(frozen=True)
class Parameters:
    """Layout of the trained parameters in a vector, in the module's order; tied ones count once.

    Args:
        names: names as in ``module.named_parameters()``.
        shapes: shape of each parameter.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def from_module(cls, module: nn.Module) -> Parameters:
        """The layout of the parameters of a module that require a gradient.

        Raises:
            UserError: there are none, they are of several precisions, or of eight bits.
        """
        trained = trainable_parameters(module)
        kinds = {str(parameter.dtype) for parameter in trained.values()}
        if len(kinds) != 1:
            mistake = f"parameters of {' and '.join(sorted(kinds))}; allowed: of one precision"
            none = "no parameter requires a gradient; allowed: at least one"
            raise UserError(f"model: {mistake if kinds else none}")
        if kinds & TOO_NARROW:
            mistake = "allowed: bfloat16, float16, float32 or float64, e.g. model.float()"
            raise UserError(f"model: parameters of {kinds.pop()}; {mistake}")
        return cls(tuple(trained), tuple(tuple(p.shape) for p in trained.values()))

    @property
    def count(self) -> int:
        """P, the number of trained parameters."""
        return sum(self.lengths)

    @cached_property
    def lengths(self) -> list[int]:
        """Number of elements of each parameter."""
        return [prod(shape) for shape in self.shapes]

    def split(self, stack: Tensor) -> list[Tensor]:
        """Views ``[W, *shape]`` of a stack ``[W, P]``, one for each parameter."""
        parts = stack.split_with_sizes(self.lengths, 1)
        return [p.view(len(stack), *shape) for p, shape in zip(parts, self.shapes, strict=True)]

    def views(self, model: Tensor) -> Sequence[Tensor]:
        """Views ``[*shape]`` of a vector ``[P]``, one for each parameter."""
        return _unflattened(model, self._like)

    @cached_property
    def _like(self) -> list[Tensor]:
        """Tensors without data that carry the shapes."""
        return [torch.empty(shape, device="meta") for shape in self.shapes]


# One call for all views: a call for each takes as long as a small layer's product.
_unflattened = cast(
    Callable[[Tensor, Sequence[Tensor]], Sequence[Tensor]],
    cast(Any, torch._C)._nn.unflatten_dense_tensors,  # pyright: ignore[reportPrivateUsage]
)


def copy_module(module: nn.Module) -> nn.Module:
    """A deep copy of a module, with the attributes of its parameters.

    Raises:
        UserError: the module holds something that cannot be copied, or a hook of a parameter.
    """
    for name, parameter in module.named_parameters():
        hooks = parameter._backward_hooks, getattr(parameter, "_post_accumulate_grad_hooks", None)
        if any(hooks):
            mistake = f"the parameter {name!r} has a hook, which copies and checkpoints do not keep"
            raise UserError(f"model: {mistake}; allowed: the same in forward, or a parametrization")
    # Tensors that are computed from others, such as a pruned weight, refuse to be copied.
    values = [value for submodule in module.modules() for value in vars(submodule).values()]
    computed = [t for t in values if isinstance(t, Tensor) and t.grad_fn is not None]
    try:
        copied = copy.deepcopy(module, {id(t): t.detach().clone() for t in computed})
    except Exception as error:  # of whatever the user's module holds
        mistake = f"cannot be copied ({describe_raised(error)})"
        allowed = "allowed: what holds no lock, open file, generator or result of a computation"
        raise UserError(f"model: {mistake}; {allowed}") from error
    for old, new in zip(module.parameters(), copied.parameters(), strict=True):
        vars(new).update(vars(old))
    return copied


def trainable_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that require a gradient, by name.

    Raises:
        UserError: one of them has no shape yet.
    """
    trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
    tensors = *module.named_parameters(), *module.named_buffers()
    lazy = [name for name, tensor in tensors if nn.parameter.is_lazy(tensor)]
    if lazy:
        raise UserError(f"model: {lazy[0]!r} has no shape yet; allowed: a module that has run once")
    return trained


def flat(tensors: Sequence[Tensor]) -> Tensor:
    """Tensors flattened and concatenated in a new vector."""
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


CPU = torch.device("cpu")


@contextmanager
def preserve_generators() -> Generator[None]:
    """Restore the global generators of `torch`, `numpy` and `random` at the end of the block."""
    of_numpy, of_python = np.random.get_state(), random.getstate()
    with torch.random.fork_rng():  # pyright: ignore[reportUnknownMemberType]
        try:
            yield
        finally:
            np.random.set_state(of_numpy)
            random.setstate(of_python)


def seed_generators(seed: int) -> None:
    """Seed the global generators of `torch`, `numpy` and `random` with ``seed``, of 63 bits."""
    # `torch.manual_seed` formats this thread's stack for each kind of device that is not there.
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


@contextmanager
def use_seed(seed: int) -> Generator[None]:
    """Seed the global generators for the block, and restore them at its end."""
    with preserve_generators():
        seed_generators(seed)
        yield


def state_of_generators(device: torch.device = CPU) -> bytes:
    """State of the global generators that code on this device draws from."""
    on_gpu = device.type == "cuda"
    of_torch = torch.cuda.get_rng_state(device) if on_gpu else torch.get_rng_state()
    return pickle.dumps((of_torch.numpy(), np.random.get_state(), random.getstate()))


ROWS, SMALL = 8, 2**16
"""Largest number of rows of which views are kept, and of parameters in such a row."""

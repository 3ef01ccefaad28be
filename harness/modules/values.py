"""Inputs, targets and outputs of a module: tensors, or several of them as one.

A `Tree` has the methods of a tensor that concern its leading dimensions, which all its tensors
share. So the examples of a module with several inputs are gathered, split and sent as one tensor
is. `Call` passes them to the module.

Outputs for parts of a set of examples are joined to those of the whole set; its loss or metric is
that of the set, whatever it does with its examples. They can be joined if each tensor in them has
one dimension that grows with the examples, and if those of an example do not depend on the others.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from harness.base.errors import UserError

Axes = Sequence[int | None]
"""The dimension of the examples in each tensor of a module's outputs; None in place of a None."""

WHOLE = "accumulate: outputs of parts cannot be joined, so minibatches are computed whole"
"""A line for the user."""

ROUNDING, TF32 = 0.7, 2.0**-10
"""Power of the machine epsilon by which outputs of equal examples may differ in other company, and
that epsilon where a GPU multiplies in TensorFloat-32."""


def find_axes(outputs: Any, longer: Any) -> Axes | None:
    """The dimensions along which a module's outputs are joined; None if they cannot be.

    Args:
        outputs: for some examples.
        longer: for more examples.
    """
    (parts, structure), (wholes, other) = tree_flatten(outputs), tree_flatten(longer)
    if structure != other:
        return None
    axes: list[int | None] = []
    for part, whole in zip(parts, wholes, strict=True):
        if part is None and whole is None:
            axes.append(None)
            continue
        if not (isinstance(part, Tensor) and isinstance(whole, Tensor)):
            return None
        grown = [a for a, size in enumerate(part.shape) if whole.shape[a : a + 1] != (size,)]
        if part.dim() != whole.dim() or len(grown) != 1:
            return None
        axes.append(grown[0])
    return axes


def are_equal(outputs: Any, others: Any) -> bool:
    """Whether outputs are equal but for rounding."""
    pairs = zip(tree_flatten(outputs)[0], tree_flatten(others)[0], strict=True)
    return all(_are_equal(*pair) for pair in pairs if isinstance(pair[0], Tensor))


def _are_equal(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape or not one.is_floating_point():
        return torch.equal(one, other)
    scale = float(one.nan_to_num().abs().max()) if one.numel() else 0.0
    bound = torch.finfo(one.dtype).eps ** ROUNDING if one.device.type == "cpu" else TF32
    return torch.allclose(one, other, rtol=0.0, atol=bound * scale, equal_nan=True)


def join_outputs(parts: Sequence[Any], axes: Axes) -> Any:
    """The outputs for all examples of several parts.

    Raises:
        UserError: further dimensions differ between parts.
    """
    try:
        return _map(_join, axes, *parts)
    except RuntimeError as error:
        reason = "outputs of parts of a minibatch differ in shape"
        raise UserError(f"accumulate: {reason} ({error}); allowed: 1") from error


def _join(axis: int, *parts: Tensor) -> Tensor:
    return torch.cat(parts, axis)


def _map(function: Callable[..., Tensor], axes: Axes, *outputs: Any) -> Any:
    """Outputs of the function's results, called with each axis and the tensors of all outputs."""
    columns = zip(*(tree_flatten(each)[0] for each in outputs), strict=True)
    results = [a if a is None else function(a, *c) for a, c in zip(axes, columns, strict=True)]
    return tree_unflatten(results, tree_flatten(outputs[0])[1])


def join_alike(
    parts: Iterable[Any], some: Any, rows: Tensor, count: int
) -> tuple[Any, Axes] | None:
    """Outputs of all parts and their axes; None if company changes those of an example.

    Args:
        parts: outputs for parts of a set, with any number of examples.
        some: those for some of its examples, computed together.
        rows: numbers of these examples.
        count: number of all examples.
    """
    at = iter(parts)
    first = next(at)
    if (axes := find_axes(first, some)) is None:
        return None

    def take(axis: int, tensor: Tensor) -> Tensor:
        each = cast(Tensor, tensor.unflatten(axis, (count, -1)))
        return each.index_select(axis, rows.to(tensor.device)).flatten(axis, axis + 1)

    further = [*at]
    try:
        joined = _map(_join, axes, first, *further)
        alike = are_equal(some, _map(take, axes, joined))
    except RuntimeError:  # as where the length of sequences depends on the part
        return None
    return (joined, axes) if alike else None


@dataclass(frozen=True)
class Classes:
    """The classes among a module's targets.

    Attributes:
        count: number of outputs for a target.
        ignored: classes that the loss ignores as targets, such as that of padding.
        axis: the dimension of the classes in the outputs.
        mistake: why outputs and targets cannot be compared; empty if they can.
    """

    count: int
    ignored: tuple[int, ...] = ()
    axis: int = -1
    mistake: str = ""

    def counts(self, targets: Tensor) -> Tensor:
        """Whether each target is a class, and one that the loss does not ignore."""
        ignored = torch.tensor(self.ignored, dtype=torch.long, device=targets.device)
        return (targets >= 0) & (targets < self.count) & ~torch.isin(targets.long(), ignored)


def logits_of(outputs: Any) -> Any:
    """Outputs that are a tensor, or those named ``logits``; None without."""
    if isinstance(outputs, Mapping):
        return cast("Mapping[str, Any]", outputs).get("logits")
    return outputs if isinstance(outputs, Tensor) else getattr(outputs, "logits", None)


def class_axes(outputs: Tensor, targets: Tensor) -> list[int]:
    """The dimensions that classes can have in outputs ``[N, ..., C]`` or ``[N, C, ...]``.

    Args:
        outputs: of a module.
        targets: ``[N, ...]``.
    """
    shapes = {-1: outputs.shape[:-1], 1: outputs.shape[:1] + outputs.shape[2:]}
    if outputs.dim() < 2 or outputs.numel() == targets.numel():
        return []
    return [axis for axis, shape in shapes.items() if targets.shape == shape][: outputs.dim() - 1]


OTHER = "the loss compares outputs with other classes than the targets, as with the next ones"
UNDECIDED = "classes of outputs {} can be along two dimensions"


def find_classes(loss: Any, outputs: Any, targets: Any) -> Classes | None:
    """The classes of outputs and targets; None if these are not for several classes.

    The shapes tell where they are. Where one class alone lessens the loss, this is the target. A
    target is ignored if equal outputs for all classes have no derivative at it.

    Args:
        loss: the loss function.
        outputs: for a minibatch, with their graph.
        targets: of the minibatch.
    """
    logits = logits_of(outputs)
    if not (isinstance(logits, Tensor) and isinstance(targets, Tensor)):
        return None
    if targets.is_floating_point() or not (axes := class_axes(logits, targets)):
        return None
    if len(axes) > 1:
        return Classes(logits.shape[-1], mistake=UNDECIDED.format(list(logits.shape)))
    (axis,), ignored, mistake = axes, set[int](), ""
    level = _find_slope(loss, torch.zeros_like(logits), targets)
    if level is not None:
        counts = level.ne(0).any(axis)
        ignored = set(map(int, targets[~counts])) - set(map(int, targets[counts]))
    if not _wants_targets(level, axis, targets):
        slope = _find_slope(loss, logits, targets, outputs)
        wants = [_wants_targets(s, axis, targets) for s in (level, slope)]
        mistake = OTHER if False in wants and True not in wants else ""
    return Classes(logits.shape[axis], tuple(sorted(ignored)), axis, mistake)


def _find_slope(loss: Any, logits: Tensor, targets: Tensor, outputs: Any = None) -> Tensor | None:
    """The derivatives of a loss by logits, which are all outputs or among them; None without."""
    try:
        with torch.enable_grad():
            at = logits if outputs is not None else logits.requires_grad_()
            total = loss(at if outputs is None else outputs, targets)
            return torch.autograd.grad(total, at, retain_graph=True, allow_unused=True)[0]
    except Exception:  # of a loss that needs other outputs
        return None


def _wants_targets(slope: Tensor | None, axis: int, targets: Tensor) -> bool | None:
    """Whether a class that alone lessens the loss is the target; None where none is alone."""
    if slope is None:
        return None
    lessens = slope < 0
    is_alone = lessens.sum(axis) == 1
    if not is_alone.any():
        return None
    return bool((lessens.int().argmax(axis) == targets)[is_alone].all())


Parts = Tensor | tuple["Parts", ...] | dict[str, "Parts"]
"""A tensor, or tensors in tuples and dicts, as a module takes them."""


@dataclass(frozen=True, eq=False)
class Tree:
    """Tensors in tuples or dicts, whose leading dimensions are the same.

    Args:
        parts: the tuple or dict; it may be nested.
    """

    parts: Parts

    def __len__(self) -> int:
        return len(self.first)

    def __getitem__(self, index: Any) -> Tree:
        return self.map(lambda tensor: tensor[index])

    @property
    def first(self) -> Tensor:
        """The first tensor."""
        return leaves(self)[0]

    @property
    def shape(self) -> torch.Size:
        """Shape of the first tensor; only leading dimensions are those of all."""
        return self.first.shape

    @property
    def device(self) -> torch.device:
        """Device of the tensors."""
        return self.first.device

    def map(self, function: Callable[[Tensor], Tensor]) -> Tree:
        """A tree of the function's results."""
        return Tree(tree_map(function, self.parts))


Value = Tensor | Tree
"""Inputs or targets: a tensor, or several as one."""


def map_tensors(function: Callable[[Tensor], Tensor], value: Value) -> Value:
    """The function's result for a tensor, or a tree of its results."""
    return value.map(function) if isinstance(value, Tree) else function(value)


def unwrap(value: Value) -> Parts:
    """A tensor itself, or the tuple or dict of a tree."""
    return value.parts if isinstance(value, Tree) else value


def leaves(value: Value) -> list[Tensor]:
    """All tensors, in their order."""
    return tree_leaves(unwrap(value))


def describe_structure(value: Value | Parts, name: str) -> Any:
    """The tuple or dict with the path of each tensor in its place, in plain JSON values.

    Example:
        >>> describe_structure(Tree({"ids": torch.zeros(1), "sizes": (torch.ones(1),)}), "x")
        {'ids': 'x/ids', 'sizes': ['x/sizes/0']}
    """
    parts = value.parts if isinstance(value, Tree) else value
    if isinstance(parts, Tensor):
        return name
    if isinstance(parts, tuple):
        return [describe_structure(part, f"{name}/{place}") for place, part in enumerate(parts)]
    return {key: describe_structure(part, f"{name}/{key}") for key, part in parts.items()}


def join(function: Callable[[list[Tensor]], Tensor], values: Sequence[Value]) -> Value:
    """Stack or concatenate values, tensor by tensor.

    Raises:
        RuntimeError: their structures differ, or the shapes of their tensors do.
    """
    try:
        joined = tree_map(lambda *column: function([*column]), *map(unwrap, values))
    except (TypeError, ValueError) as error:
        raise RuntimeError("values of unequal structure") from error
    return _wrap(joined)


def read_value(value: Any, tensor_of: Callable[[Any], Tensor]) -> Value:
    """A user's value as tensors: an array, or a tuple, list or dict with arrays in it.

    Args:
        value: the value; a tuple or list of plain numbers is one array.
        tensor_of: converts one array.
    """
    return _wrap(_read(value, tensor_of))


def _read(value: Any, tensor_of: Callable[[Any], Tensor]) -> Parts:
    if isinstance(value, Mapping):
        table = cast("Mapping[Any, Any]", value)
        return {str(key): _read(part, tensor_of) for key, part in table.items()}
    if has_arrays(value):
        return tuple(_read(part, tensor_of) for part in value)
    return tensor_of(value)


def has_arrays(value: Any) -> bool:
    """Whether a value is a tuple or list with arrays, tensors or dicts in it, not of numbers."""
    if not isinstance(value, tuple | list):
        return False
    values = cast("Sequence[Any]", value)
    return any(isinstance(e, Tensor | np.ndarray | Mapping) or has_arrays(e) for e in values)


def _wrap(parts: Parts) -> Value:
    return parts if isinstance(parts, Tensor) else Tree(parts)


LABELS = "labels"
"""Name of targets among the inputs of a module, as in Hugging Face's models."""


@dataclass(frozen=True)
class Call:
    """The way a module is called: ``model(x)``, ``model(*x)`` or ``model(**x)``.

    A dict of which no name is a parameter comes whole, ``model(x)``.

    Args:
        names: of the parameters; None if it takes any.
        takes_labels: whether inputs in a dict are accompanied by ``labels``, the targets.
        needs_labels: whether all inputs are.
    """

    names: frozenset[str] | None = None
    takes_labels: bool = False
    needs_labels: bool = False

    @classmethod
    def from_module(cls, module: nn.Module, *, needs_labels: bool = False) -> Call:
        """The way of a module, by the parameters of its ``forward``.

        Raises:
            UserError: it takes no labels, which it needs.
        """
        try:
            parameters = inspect.signature(module.forward).parameters
        except (TypeError, ValueError):  # a function without a signature
            parameters = dict[str, inspect.Parameter]()
        takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        if needs_labels and parameters and not (takes_any or LABELS in parameters):
            mistake = f"'model', but {type(module).__name__}.forward takes no {LABELS!r}"
            raise UserError(f"loss: {mistake}; allowed: a function of outputs and targets")
        names = None if takes_any or not parameters else frozenset(parameters)
        return cls(names, LABELS in parameters, needs_labels)

    def arguments(self, x: Parts, targets: Parts) -> tuple[tuple[Parts, ...], dict[str, Parts]]:
        """Positional and keyword arguments of the module."""
        if isinstance(x, dict) and (self.names is None or self.names & x.keys()):
            labels = self.takes_labels or self.needs_labels
            return (), ({**x, LABELS: targets} if labels else x)
        labelled = {LABELS: targets} if self.needs_labels else {}
        return (x if isinstance(x, tuple) else (x,)), labelled

    def run(self, module: nn.Module, x: Value, targets: Value) -> Any:
        """The module's outputs for a minibatch."""
        args, keywords = self.arguments(unwrap(x), unwrap(targets))
        return module(*args, **keywords)

    def run_on_copies(self, module: nn.Module, x: Value, targets: Value) -> Any:
        """The outputs where inputs are needed once more, as a module may write them."""
        return self.run(module, *(map_tensors(torch.clone, value) for value in (x, targets)))

"""Several tensors as one: the inputs or targets of a module in a tuple, a dict, or nested.

A `Tree` has the methods of a tensor that concern its leading dimensions, which all its tensors
share. So the examples of a module with several inputs are gathered, split and sent as one tensor
is. `Call` passes them to the module.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from harness.base.errors import UserError

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

"""The state of a run in progress as arrays and JSON, and back.

A class that derives from `Saved` names the attributes that a resume needs. Their values are
numbers, texts, arrays, tensors, dataclasses and named tuples of the harness, other `Saved` objects,
and dictionaries, lists and tuples of all these. `pack` divides them into arrays, named by their
place, and JSON; `unpack` makes equal values, and `put` puts them where the present ones are.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import is_dataclass
from typing import Any, ClassVar, cast

import numpy as np
import torch
from torch import Tensor

Arrays = dict[str, np.ndarray]

PLAIN = (bool, int, float, str, type(None))

ARRAY, TENSOR, BITS, PAIRS, TUPLE = "array", "tensor", "bfloat16", "pairs", "tuple"
"""Kinds of values in facts; a dataclass or named tuple is of the kind of its class's name."""

OURS = "harness."
"""Begin of the modules whose classes facts may name."""


class Saved:
    """Base of classes with state that a resume needs: the attributes named in ``SAVED``."""

    SAVED: ClassVar[tuple[str, ...]] = ()

    def state(self) -> dict[str, Any]:
        """The values by name, not copied; those of a `Saved` attribute are its own `state`."""
        return {name: getattr(self, name) for name in self.SAVED}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the values of `state`, in their order."""
        for name, value in state.items():
            present = getattr(self, name)
            # An attribute that was changed in place may be a property.
            if (value := put(present, value)) is not present:
                setattr(self, name, value)


def state_of(value: Any) -> Any:
    """The `state` of a value that has one, else the value."""
    return value.state() if hasattr(value, "state") else value


def pack(value: Any) -> tuple[Arrays, Any]:
    """Divide a value into copies of its arrays and JSON, for `unpack`."""
    arrays: Arrays = {}
    return arrays, _pack(value, "", arrays)


def _pack(value: Any, place: str, arrays: Arrays) -> Any:
    if isinstance(value, PLAIN):
        return value
    if isinstance(value, Tensor | np.ndarray):
        if place in arrays:
            raise ValueError(f"two arrays at {place}")
        arrays[place] = to_array(value) if isinstance(value, Tensor) else value.copy()
        if isinstance(value, Tensor):
            return {BITS if value.dtype == torch.bfloat16 else TENSOR: place}
        return {ARRAY: place}
    value = state_of(value)
    below = f"{place}/" if place else ""
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value).items()
        return {PAIRS: [[_pack(k, "", {}), _pack(v, f"{below}{k}", arrays)] for k, v in items]}
    kind = cast("type[Any]", type(value))
    if kind in (list, tuple):
        parts = [_pack(part, f"{below}{k}", arrays) for k, part in enumerate(value)]
        return parts if kind is list else {TUPLE: parts}
    content = {name: _pack(getattr(value, name), below + name, arrays) for name in _names_of(kind)}
    return {f"{kind.__module__}:{kind.__name__}": content}


def _names_of(kind: Any) -> Iterable[str]:
    """The fields of a named tuple's or dataclass's class."""
    return getattr(kind, "_fields", None) or kind.__dataclass_fields__


def unpack(arrays: Mapping[str, np.ndarray], facts: Any, device: torch.device | str) -> Any:
    """A value equal to that of `pack`, its tensors on a device.

    Raises:
        ValueError: the facts name a class that is not the harness's.
    """
    if isinstance(facts, PLAIN):
        return facts
    if isinstance(facts, list):
        return [unpack(arrays, part, device) for part in cast("list[Any]", facts)]
    ((kind, content),) = facts.items()
    if kind == ARRAY:
        return arrays[content]
    if kind in (TENSOR, BITS):
        tensor = torch.as_tensor(arrays[content]).to(device)
        return tensor.view(torch.bfloat16) if kind == BITS else tensor
    if kind == PAIRS:
        return dict(unpack(arrays, pair, device) for pair in content)
    if kind == TUPLE:
        return tuple(unpack(arrays, content, device))
    values = {name: unpack(arrays, part, device) for name, part in content.items()}
    return _class_named(kind)(**values)


def _class_named(kind: str) -> Any:
    """A dataclass or owner tuple of the harness, which the code that restores it has imported."""
    module, _, name = kind.partition(":")
    owner = getattr(sys.modules.get(module), name, None) if module.startswith(OURS) else None
    if not (is_dataclass(owner) or hasattr(owner, "_fields")):
        raise ValueError(f"{kind} is no dataclass of the harness")
    return owner


def put(present: Any, value: Any) -> Any:
    """A value in the place of a present one, which is changed in place where it can be.

    Tensors of the same shape are overwritten, since others may be views of them.
    """
    if hasattr(present, "with_state"):  # of the simulator, which knows no `Saved`
        return present.with_state(value)
    if hasattr(present, "restore"):
        present.restore(value)
        return present
    if isinstance(present, Tensor) and isinstance(value, Tensor) and present.shape == value.shape:
        return present.copy_(value)
    if isinstance(present, dict):
        items, entries = cast("dict[Any, Any]", present), cast("dict[Any, Any]", value)
        merged = {key: put(items.get(key), entry) for key, entry in entries.items()}
        items.clear()
        items |= merged
        return items
    return value


def to_array(tensor: Tensor) -> np.ndarray:
    """A copy of a tensor as an array; bfloat16, which NumPy lacks, by its bits as int16."""
    host = tensor.detach().cpu()
    return (host.view(torch.int16) if host.dtype == torch.bfloat16 else host).numpy().copy()


def from_array(array: np.ndarray, like: Tensor) -> Tensor:
    """The tensor of `to_array`, of the type and on the device of another."""
    tensor = torch.as_tensor(array)
    bits = like.dtype == torch.bfloat16 and tensor.dtype == torch.int16
    return (tensor.view(torch.bfloat16) if bits else tensor).to(like.device)

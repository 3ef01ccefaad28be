"""A device that is not there: which tensors would live on it, and what would pass to the host.

Within `LogicalDevice` some tensors live on a device of its own: those that are made there, and
whatever is computed from them. It is said to be a CUDA device, so code takes the ways it would take
on one; storages stay in the host's memory. Counted are

* launches: dispatched operations with a result of their own on the device, views not among them;
* round trips: the host waits for a value (``item``, ``float``, ``if tensor``, ``cpu``, ``numpy``,
  a result whose shape depends on values, a factorisation that is checked);
* uploads: copies from the host's ordinary memory, for which it waits until the device has done all
  before; from pinned memory a copy that is said not to block takes its turn like a launch;
* mixes: operations of a tensor there with one of the host, which a real device refuses.
  Numbers without a dimension are allowed there, and so here; ``copy_`` from the host is a launch.

A real device may launch several kernels for one operation, and none for another: launches are
comparable with each other, not with a profile.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

DEVICE = torch.device("cuda", 7)
"""What tensors that live there say of themselves."""
NAMES = ("cpu", str(DEVICE))

_GETTER = torch.Tensor.device.__get__  # pyright: ignore[reportAttributeAccessIssue]
_IS_CUDA = torch.Tensor.is_cuda.__get__  # pyright: ignore[reportAttributeAccessIssue]
_TO_HOST = {Tensor.cpu, Tensor.numpy, Tensor.tolist, Tensor.__array__}
_WAITS = {
    "aten._local_scalar_dense",
    "aten.nonzero",
    "aten.masked_select",
    "aten.equal",
    "aten._linalg_eigh",  # torch looks whether it converged
}
_GIVES = {torch.tensor, torch.as_tensor, Tensor.to, Tensor.cuda, Tensor.new_tensor}
"""They copy what the host has to the device that is named."""
_VIEWS = {"aten.detach", "aten.alias", "aten.lift_fresh"}


@dataclass
class Counts:
    """What happened, by operation; where, for round trips and mixes.

    Attributes:
        launches: of each operation.
        round_trips, uploads, mixes: the operation, and the line that asked for it.
    """

    launches: Counter[str] = field(default_factory=Counter[str])
    round_trips: Counter[str] = field(default_factory=Counter[str])
    uploads: Counter[str] = field(default_factory=Counter[str])
    mixes: Counter[str] = field(default_factory=Counter[str])


class LogicalDevice:
    """Counts what passes between host and device while it is in force.

    Example:
        >>> with LogicalDevice() as device:
        ...     x = device.holds(torch.ones(3))
        ...     y = x * 2.0
        >>> device.counts.launches
        Counter({'aten.mul': 1})
    """

    def __init__(self) -> None:
        self.counts = Counts()
        self._here: dict[int, StorageWeakRef] = {}
        self._pinned: dict[int, StorageWeakRef] = {}
        self._modes = [_Functions(self), _Operations(self)]

    def __enter__(self) -> LogicalDevice:
        for mode in self._modes:
            mode.__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        for mode in reversed(self._modes):
            mode.__exit__(*raised)

    def holds(self, tensor: Tensor) -> Tensor:
        """The tensor, from now on living on the device."""
        return _noted(tensor, self._here)

    def has(self, tensor: Tensor) -> bool:
        """Whether the tensor lives on the device."""
        return _is_noted(tensor, self._here)

    def pinned(self, tensor: Tensor) -> Tensor:
        """A copy of the host's tensor in pinned memory."""
        return _noted(tensor.clone(), self._pinned)

    def waited(self, operation: str) -> None:
        """The host waited for a value."""
        self.counts.round_trips[f"{operation} at {_asked()}"] += 1

    def given(self, operation: str, source: Any, blocking: bool) -> None:
        """The device was given what the host has."""
        fast = isinstance(source, Tensor) and _is_noted(source, self._pinned) and not blocking
        if not fast:
            self.counts.uploads[f"{operation} at {_asked()}"] += 1

    def mixed(self, operation: str) -> None:
        """An operation took tensors of both."""
        self.counts.mixes[f"{operation} at {_asked()}"] += 1


class _Functions(TorchFunctionMode):
    """What is asked for by name of a device, before it is carried out on the host."""

    def __init__(self, device: LogicalDevice) -> None:
        super().__init__()
        self.device = device

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        first = args[0] if args and isinstance(args[0], Tensor) else None
        if first is not None and func in (_GETTER, _IS_CUDA):
            real = func(*args)
            return real if not self.device.has(first) else DEVICE if func == _GETTER else True
        if first is not None and func is Tensor.pin_memory:
            return self.device.pinned(first)
        if first is not None and func in _TO_HOST and self.device.has(first):
            self.device.waited(f"Tensor.{func.__name__}")
            return func(_apart(first), *args[1:], **kwargs)
        like = [each for each in args[1:] if isinstance(each, Tensor)]
        if func == Tensor.to and any(map(self.device.has, like)):
            return self._moved(func, first, DEVICE, args, kwargs)
        asked = [each for each in (*args, *kwargs.values()) if _names_a_device(each)]
        if not asked:
            return func(*args, **kwargs)
        return self._moved(func, first, asked[0], args, kwargs)

    def _moved(
        self,
        func: Callable[..., Any],
        first: Tensor | None,
        asked: torch.device | str,
        args: Any,
        kwargs: Any,
    ) -> Any:
        """Made on a device that is named, or copied to it."""
        there = torch.device(asked) == DEVICE
        plain = [_host(each) for each in args]
        named = {key: _host(each) for key, each in kwargs.items()}
        found = func(*plain, **named)
        if not isinstance(found, Tensor):
            return found
        was = first is not None and self.device.has(first)
        if func is Tensor.to and was and not there:
            self.device.waited("Tensor.to the host")
        if func in _GIVES and there and not was:
            self.device.given(func.__name__, first, not kwargs.get("non_blocking", False))
            self.device.counts.launches["upload"] += 1
        if there == self.device.has(found):
            return found
        return (
            self.device.holds(found.clone() if found is first else found)
            if there
            else _apart(found)
        )


class _Operations(TorchDispatchMode):
    """What is carried out."""

    def __init__(self, device: LogicalDevice) -> None:
        super().__init__()
        self.device = device

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = f"{func.namespace}.{func._opname}"
        taken = list(_tensors((args, kwargs)))
        there = [each for each in taken if self.device.has(each)]
        found = func(*args, **kwargs)
        if not there:
            return found
        if name in _WAITS or _by_mask(name, taken):
            self.device.waited(name)
        elif not func.is_view and name not in _VIEWS:
            self.device.counts.launches[name] += 1
        if name == "aten.copy_" and not self.device.has(taken[1]):
            self.device.given(name, taken[1], not (args[2:] and args[2]))
        apart = any(each.dim() and not self.device.has(each) for each in taken)
        if apart and not (name == "aten.copy_" and self.device.has(taken[0])):
            self.device.mixed(name)
        for each in _tensors(found):
            self.device.holds(each)
        return found


def _noted(tensor: Tensor, among: dict[int, StorageWeakRef]) -> Tensor:
    """The tensor, whose storage is known among these from now on."""
    storage = tensor.untyped_storage()
    among[storage._cdata] = StorageWeakRef(storage)
    return tensor


def _is_noted(tensor: Tensor, among: dict[int, StorageWeakRef]) -> bool:
    """Whether the tensor's storage is among these."""
    kept = among.get(tensor.untyped_storage()._cdata)
    return kept is not None and not kept.expired()


def _by_mask(name: str, taken: Sequence[Tensor]) -> bool:
    """Whether elements are picked by a mask: how many there are is asked on the host."""
    return name.startswith("aten.index") and any(each.dtype == torch.bool for each in taken)


def _tensors(tree: Any) -> Iterator[Tensor]:
    return (leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor))


def _names_a_device(value: Any) -> bool:
    return isinstance(value, torch.device) or (isinstance(value, str) and value in NAMES)


def _host(value: Any) -> Any:
    return (
        torch.device("cpu") if _names_a_device(value) and torch.device(value) == DEVICE else value
    )


def _apart(tensor: Tensor) -> Tensor:
    """A copy that lives on the host."""
    return torch.from_numpy(tensor.numpy().copy())


def _asked() -> str:
    """The line of the project, or else of whoever asks, that led to the operation."""
    first, frame = "", sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        where = f"{file.rpartition('/harness/')[2]}:{frame.f_lineno}"
        if "/harness/" in file and "/tests/" not in file:
            return where
        outside = file != __file__ and "/torch/" not in file
        first, frame = first or (where if outside else ""), frame.f_back
    return first

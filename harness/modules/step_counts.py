"""The three parts of a training step's time: launches of operators, memory traffic, arithmetic.

A step takes ``operators * operator_s + moved_bytes / memory_bytes_per_s + flops / flops_per_s``
seconds. The step has the counts, a machine the rates. `StepCounter` counts while a step is
executed; `Counts` are its counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from harness.simulator import Workload

ALLOCATIONS = ("empty", "new_empty")
"""Beginnings of the names of operators that allocate memory and launch nothing."""

PICKING = {"index_select", "index", "gather", "embedding"}
"""Operators that read as many bytes of their first operand as they return."""

UNREAD = {
    *("copy_", "zero_", "fill_", "new_zeros", "new_ones", "new_full"),
    *("zeros_like", "ones_like", "full_like", "rand_like", "randn_like"),
}
"""Operators that do not read their first operand: they overwrite it, or take its shape."""

_aten: Any = torch.ops.aten
_flash: Any = flop_registry[_aten._scaled_dot_product_flash_attention]
_flash_backward: Any = flop_registry[_aten._scaled_dot_product_flash_attention_backward]

ON_CPU: dict[Any, Callable[..., int]] = {
    _aten._scaled_dot_product_flash_attention_for_cpu: _flash,
    _aten._scaled_dot_product_flash_attention_for_cpu_backward: _flash_backward,
}
"""Operations of CPU kernels that PyTorch's registry lacks; those of the GPU kernels."""


class Counts(NamedTuple):
    """Counts of a step.

    Attributes:
        operators: launched operators, in forward and backward passes and the update.
        moved_bytes: bytes that they read and write.
        flops: operations of matrix products and convolutions.
    """

    operators: float
    moved_bytes: float
    flops: float

    def workload(self, minibatch: int, parameter_bytes: float) -> Workload:
        """The workload of a step with a minibatch of so many examples."""
        work = minibatch, self.flops / minibatch, parameter_bytes
        return Workload(*work, float(self.operators), float(self.moved_bytes))


class StepCounter(TorchDispatchMode):
    """Counts the operators that are executed while it is active.

    Views and allocations launch nothing. An operator reads its operands and writes its results,
    each element in memory once.

    Attributes:
        counts: the counts so far.
    """

    def __init__(self) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]
        self.counts = Counts(0, 0, 0)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """See `torch.utils._python_dispatch.TorchDispatchMode`."""
        kwargs = kwargs or {}
        results = func(*args, **kwargs)
        operators, moved, flops = self.counts
        packet = func.overloadpacket
        formula: Any = flop_registry.get(packet) or ON_CPU.get(packet)
        if formula is not None:
            flops += formula(*args, **kwargs, out_val=results)
        if _is_launched(func, args, kwargs, results):
            operators, moved = operators + 1, moved + _count_bytes(func, args, kwargs, results)
        self.counts = Counts(operators, moved, flops)
        return results


def _is_launched(func: Any, args: Any, kwargs: Any, results: Any) -> bool:
    """Whether an operator computes anything; no view and no allocation does."""
    if func.is_view or func._opname.startswith(ALLOCATIONS):
        return False
    if func._schema.is_mutable:
        return True
    addresses = {tensor.untyped_storage().data_ptr() for tensor in _tensors((args, kwargs))}
    return any(tensor.untyped_storage().data_ptr() not in addresses for tensor in _tensors(results))


def _count_bytes(func: Any, args: Any, kwargs: Any, results: Any) -> int:
    """Bytes that an operator reads and writes."""
    operands, written = list[Tensor](), list[Tensor]()
    for place, argument in enumerate(func._schema.arguments):
        tensors = list(_tensors(args[place] if place < len(args) else kwargs.get(argument.name)))
        is_written = argument.alias_info is not None and argument.alias_info.is_write
        written += tensors if is_written else []
        if place == 0 and func._opname in PICKING:
            operands += _tensors(results)
        elif not argument.is_out and not (place == 0 and func._opname in UNREAD):
            operands += tensors
    addresses = {tensor.data_ptr() for tensor in written}
    written += [tensor for tensor in _tensors(results) if tensor.data_ptr() not in addresses]
    return sum(map(_size, [*operands, *written]))


def _size(tensor: Tensor) -> int:
    """Bytes of the elements in memory; expanded ones are there once."""
    shape = zip(tensor.shape, tensor.stride(), strict=True)
    return tensor.element_size() * math.prod(length for length, stride in shape if stride)


def _tensors(tree: Any) -> Iterator[Tensor]:
    return (leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor))

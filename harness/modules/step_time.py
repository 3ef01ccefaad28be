"""Simulated cost of a user's step: its operators, memory traffic and arithmetic, counted.

A step takes ``operators * operator_s + moved_bytes / memory_bytes_per_s + flops / flops_per_s``
seconds. `StepCounter` counts while a step is executed. Counts are the same everywhere; a device
of a cluster has its own rates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from harness.base.errors import UserError
from harness.base.settings import format_seconds
from harness.modules.network import trainable_parameters
from harness.modules.parts import ModuleParts
from harness.modules.settings import ModuleTable, is_finite
from harness.simulator.cluster import Cluster, Device, Workload

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


def charge(
    table: ModuleTable,
    problem: ModuleParts,
    machine: Cluster,
    *,
    accumulate: int = 1,
    work: Workload | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> tuple[Cluster, Workload]:
    """The cluster to simulate, and its workload; see `check_charge`.

    Args:
        table: what the user says of the module, ``charge_for`` among it.
        problem: the trained problem.
        machine: the user's cluster.
        accumulate: microbatches of a minibatch, each of them a counted step.
        work: the workload for ``"cluster"``; None for that of ``machine``.
        say: receives a line on devices without a rate.
    """
    charged, size, step_s = table.charge_for, table.minibatch, table.step_seconds
    if charged == "cluster":
        charged = work or machine.workload
    if isinstance(charged, Workload):
        return machine, charged
    if charged is not None:
        problem = ModuleParts(charged, problem.loss, problem.train, problem.dev, None, {})
    travels = problem.bytes_of_number * problem.parameters().count
    if isinstance(step_s, int | float):
        same = {name: Device(launch_s=float(step_s)) for name in machine.devices}
        return replace(machine, devices=same), Workload(size, 0.0, travels)
    if all(d.achieved_flops_per_s is None for d in machine.devices.values()):
        steps = " or ".join({format_seconds(d.launch_s): 0 for d in machine.devices.values()})
        say(f"a step takes {steps} on {machine.name!r} whatever the model: no achieved_flops_per_s")
        return machine, Workload(size, 0.0, travels)
    counts = count_step(problem, size // accumulate)
    return machine, Counts(*(accumulate * count for count in counts)).workload(size, travels)


def check_charge(table: ModuleTable, machine: Cluster) -> None:
    """Reject charges that the cluster cannot have, and contradictory ones.

    Raises:
        UserError: a value that is not allowed.
    """
    charged, step_s = table.charge_for, table.step_seconds
    if charged == "cluster" and machine.workload is None:
        reason = f"cluster {machine.name!r} has no [workload]"
        raise UserError(f"charge_for: 'cluster'; {reason}; allowed: a module or a Workload")
    if not isinstance(charged, nn.Module | Workload | None) and charged != "cluster":
        reason = "allowed: a torch.nn.Module, a Workload, or 'cluster'"
        raise UserError(f"charge_for: {charged!r}; {reason}")
    if step_s != "count" and not (is_finite(step_s) and step_s >= 0.0):
        raise UserError(f"step_seconds: {step_s!r}; allowed: 'count' or seconds, from 0")
    if step_s != "count" and isinstance(charged, Workload | str):
        reason = "allowed: without charge_for, which says it already"
        raise UserError(f"step_seconds: {step_s!r}; {reason}")


def count_step(problem: ModuleParts, minibatch: int) -> Counts:
    """Counts of a plain step on the CPU (forward, backward, SGD), the same on every machine."""
    network, model = problem.network(0, minibatch, "cpu"), problem.initial(0)
    module, examples = network.bind_parameters(model), problem.train[:minibatch]
    examples = examples.to("cpu", model.dtype)
    # The update is one operator, as on a GPU.
    optimizer = torch.optim.SGD(trainable_parameters(module).values(), 1e-6, foreach=True)
    with StepCounter() as counter:
        optimizer.zero_grad()
        network.loss_of(module, examples.x, examples.y).backward()  # pyright: ignore[reportUnknownMemberType]
        optimizer.step()  # pyright: ignore[reportUnknownMemberType]
    return counter.counts

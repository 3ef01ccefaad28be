"""Simulated cost of a user's step: its three parts, counted, and compared with its time here.

A step takes ``operators * operator_s + moved_bytes / memory_bytes_per_s + flops / flops_per_s``
seconds. `StepCounter` counts while a step is executed. Counts are the same everywhere; a device
of a cluster has its own rates. `StepConfig` measures a step and the rates of this machine. If the
step takes longer here than its counts predict, they are charged as larger: by the least relative
corrections, in the sense of least squares, that explain the measured time.
"""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from harness.base.errors import UserError
from harness.base.settings import find_changed, format_quantity, format_seconds
from harness.experiment.contract import Configuration, Watch
from harness.modules.allowed import is_finite
from harness.modules.network import preserve_generators, trainable_parameters
from harness.modules.parts import ModuleParts
from harness.modules.settings import ModuleTable
from harness.simulator import Cluster, Device, Workload
from harness.store import Run, RunWriter, Store

WARM, LEAST, LONGEST_S = 3, 10, 0.05
"""Warm-up steps; smallest number of timed steps; timed seconds after which timing ends."""

SIDE = 512
"""Rows and columns of the matrices in the product that measures this machine's FLOP rate."""

COPIED_BYTES = 2**26
"""Bytes of the copy that measures this machine's memory bandwidth: more than caches hold."""

LAYERS = 8
"""Layers of the perceptron of four units that measures this machine's time of an operator."""


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


@dataclass(frozen=True)
class StepConfig(Configuration):
    """Configuration of a step-time measurement, made once for each machine and store.

    Args:
        problem: the module, loss and data of the step.
        minibatch: examples in the step.
        device: ``"cpu"`` or ``"cuda"``.
    """

    problem: ModuleParts
    minibatch: int
    device: str

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values for the identity, including the processor's name."""
        self.problem.inspect(self.minibatch, self.device)  # finds what identifies it
        identity = self.problem.to_identity()
        step = {key: identity[key] for key in ("model", "loss", "autocast") if key in identity}
        size = {"minibatch": self.minibatch, "device": self.device}
        return {"is": "StepConfig", **step, **size, "machine": machine(self.device)}

    def execute(self, store: Store, watch: Watch) -> Run:
        """Measure the seconds of a step, and this machine's rates of its three parts."""
        del watch  # it takes seconds

        def measure(writer: RunWriter) -> None:
            threads = torch.get_num_threads()
            torch.set_num_threads(1)
            try:
                with preserve_generators():
                    counts = count_step(self.problem, self.minibatch)
                    step_s = _measure_seconds(_step(self), self.device)
                    rates = _measure_rates(self.device)
            finally:
                torch.set_num_threads(threads)
            writer.finish("done", {"step_s": step_s, **rates, **counts._asdict()})

        return store.obtain(self.to_dict(), measure)


@dataclass(frozen=True)
class StepMeasurement:
    """A measured step: its counts, its time here, and the rates of this machine.

    Args:
        counts: counts of the step.
        step_s: measured seconds.
        operator_s: seconds of a launch.
        memory_bytes_per_s: bandwidth of memory.
        flops_per_s: operations a second of a large product.
    """

    counts: Counts
    step_s: float
    operator_s: float
    memory_bytes_per_s: float
    flops_per_s: float

    @classmethod
    def from_summary(cls, summary: Mapping[str, Any]) -> StepMeasurement:
        """From what `StepConfig` stored."""
        rates = (summary[name] for name in list(cls.__annotations__)[1:])
        return cls(Counts(*(summary[name] for name in Counts._fields)), *rates)

    @property
    def predicted_s(self) -> tuple[float, float, float]:
        """Seconds of launches, memory traffic and arithmetic that the counts predict."""
        operators, moved, flops = self.counts
        arithmetic = flops / self.flops_per_s
        return operators * self.operator_s, moved / self.memory_bytes_per_s, arithmetic

    @property
    def charged(self) -> Counts:
        """The counts, corrected if the measured time is longer than the predicted one.

        Of all relative corrections c that explain it, ``t @ (1 + c) = step_s`` for the predicted
        times t, those with the least sum of squares: ``c = t (step_s - sum(t)) / (t @ t)``.
        """
        times = self.predicted_s
        missing = max(0.0, self.step_s - sum(times)) / sum(time**2 for time in times)
        counts = zip(self.counts, times, strict=True)
        return Counts(*(count * (1.0 + missing * time) for count, time in counts))

    def describe(self) -> str:
        """One line: the measured time, and what the cluster is charged for in its place."""
        step, counts = format_seconds(self.step_s), describe_counts(self.charged)
        return f"a step takes {step} here; the cluster is charged for {counts} (or: step_seconds=)"


def describe_counts(counts: Counts) -> str:
    """The counts of a step in words."""
    return (
        f"{counts.operators:.0f} operators, {format_quantity(counts.moved_bytes, 'B')} moved and"
        f" {format_quantity(counts.flops, 'FLOP')}"
    )


def charge(
    table: ModuleTable,
    problem: ModuleParts,
    machine: Cluster,
    *,
    accumulate: int = 1,
    work: Workload | None = None,
    measure: Callable[[ModuleParts, int], StepMeasurement] | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> tuple[Cluster, Workload]:
    """The cluster to simulate, and its workload; see `check_charge`.

    Args:
        table: what the user says of the module, ``charge_for`` among it.
        problem: the trained problem.
        machine: the user's cluster.
        accumulate: microbatches of a minibatch, each of them a counted step.
        work: the workload for ``"cluster"``; None for that of ``machine``.
        measure: measures a step with so many examples, for ``"measure"``.
        say: receives a line on the measured step, or on devices without a rate.
    """
    charged, size, step_s = table.charge_for, table.minibatch, table.step_seconds
    if charged == "cluster":
        charged = work or machine.workload
    if isinstance(charged, Workload):
        return machine, charged
    if charged is not None:
        problem = ModuleParts(charged, problem.loss, problem.train, problem.dev, None, {})
    travels = table.parameter_bytes
    if travels is None:
        travels = problem.bytes_of_number * problem.parameters().count
    if table.flops_per_example is not None:
        return machine, Workload(size, table.flops_per_example, travels)
    if isinstance(step_s, int | float):
        same = {name: Device(launch_s=float(step_s)) for name in machine.devices}
        return replace(machine, devices=same), Workload(size, 0.0, travels)
    if all(d.achieved_flops_per_s is None for d in machine.devices.values()):
        steps = " or ".join({format_seconds(d.launch_s): 0 for d in machine.devices.values()})
        say(f"a step takes {steps} on {machine.name!r} whatever the model: no achieved_flops_per_s")
        return machine, Workload(size, 0.0, travels)
    part = size // accumulate
    if step_s == "count" or measure is None:
        counts = count_step(problem, part)
    else:
        measured = measure(problem, part)
        say(measured.describe())
        counts = measured.charged
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
    if step_s not in ("measure", "count") and not (is_finite(step_s) and step_s >= 0.0):
        reason = "allowed: 'measure', 'count' or seconds, from 0"
        raise UserError(f"step_seconds: {step_s!r}; {reason}")
    figures = find_changed(table, "parameter_bytes", "flops_per_example", "step_seconds")
    if figures and isinstance(charged, Workload | str):
        reason = "allowed: without charge_for, which says it already"
        raise UserError(f"{figures[0]}: {getattr(table, figures[0])!r}; {reason}")
    if table.flops_per_example is None:
        return
    if "step_seconds" in figures:
        raise UserError(f"step_seconds: {step_s!r}; allowed: without flops_per_example")
    if all(device.achieved_flops_per_s is None for device in machine.devices.values()):
        reason = f"no device of cluster {machine.name!r} has achieved_flops_per_s"
        raise UserError(f"flops_per_example: {reason}; allowed: step_seconds")


def count_step(problem: ModuleParts, minibatch: int) -> Counts:
    """Counts of one step on the CPU, the same on every machine."""
    step = _step(StepConfig(problem, minibatch, "cpu"))
    with StepCounter() as counter:
        step()
    return counter.counts


def machine(device: str) -> str:
    """Model name of the GPU or processor."""
    if device == "cuda":
        return torch.cuda.get_device_name()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _step(config: StepConfig) -> Callable[[], object]:
    """A function that does one plain step: forward, backward, SGD update."""
    problem, size = config.problem, config.minibatch
    network = problem.network(0, size, config.device)
    model = problem.initial(0).to(config.device)
    module = network.bind_parameters(model)
    examples = problem.train[:size].to(config.device, model.dtype)
    return _training_step(module, lambda: network.loss_of(module, examples.x, examples.y))


def _training_step(module: nn.Module, loss: Callable[[], Tensor]) -> Callable[[], object]:
    """A function that does one step of SGD, whose update is one operator, as on a GPU."""
    optimizer = torch.optim.SGD(trainable_parameters(module).values(), 1e-6, foreach=True)

    def step() -> None:
        optimizer.zero_grad()
        loss().backward()  # pyright: ignore[reportUnknownMemberType]
        optimizer.step()  # pyright: ignore[reportUnknownMemberType]

    return step


@lru_cache(maxsize=2)
def _measure_rates(device: str) -> dict[str, float]:
    """This machine's seconds of an operator, bandwidth of memory, and operations a second."""
    layers = [nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(LAYERS)]
    small, x = nn.Sequential(*layers).to(device), torch.ones(4, 4, device=device)
    step = _training_step(small, lambda: small(x).square().mean())
    with StepCounter() as counter:
        step()
    source = torch.ones(COPIED_BYTES // 4, device=device)
    target = torch.empty_like(source)
    step_s = _measure_seconds(step, device)
    copy_s = _measure_seconds(lambda: target.copy_(source), device)
    matrix = torch.randn(SIDE, SIDE, device=device)
    product_s = _measure_seconds(lambda: matrix @ matrix, device)
    return {
        "operator_s": step_s / counter.counts.operators,
        "memory_bytes_per_s": 2.0 * COPIED_BYTES / copy_s,
        "flops_per_s": 2.0 * SIDE**3 / product_s,
    }


def _measure_seconds(work: Callable[[], object], device: str) -> float:
    """Median seconds of some work."""
    # CPU time of this process, which the load by other programs affects least.
    clock = time.process_time if device == "cpu" else time.perf_counter
    for _ in range(WARM):
        work()
    seconds: list[float] = []
    while len(seconds) < LEAST or sum(seconds) < LONGEST_S:
        start = clock()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        seconds.append(clock() - start)
    return median(seconds)

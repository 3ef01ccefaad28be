"""What a module, its loss and its metrics are, found out by running copies of them once.

`inspect_module` finds whether a module draws random numbers, whether its loss is a mean or a sum,
along which dimensions outputs are joined, and which buffers training changes; it refuses what
cannot be trained. `is_batchable` finds whether replicas can be computed at once.

`refuse_hidden_state` finds state that is neither a parameter nor a buffer. Attributes, closures and
globals are one for all simulated workers and no part of a checkpoint, so a result must not depend
on what a call leaves in them. If calls write any, copies are called with the same data, once at
first and once after other data, and compared. What is the same then (a stored activation, a cached
mask) or only grows (a log) is harmless and stays, but what calls so change of globals, closures and
classes identifies no run.

`StepCounter` counts what a step costs while it is executed: its operators, memory traffic and
arithmetic. A step takes
``operators * operator_s + moved_bytes / memory_bytes_per_s + flops / flops_per_s`` seconds. Counts
are the same everywhere; a device of a cluster has its own rates.
"""

from __future__ import annotations

import copy
import functools
import math
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from harness.base.errors import RAISED, UserError, describe_raised
from harness.base.settings import format_count
from harness.experiment.digests import HOOKS, OWN, PLAIN, Seen, attributes, digest_of_code
from harness.modules.buffers import find_changed_buffers, get_versions
from harness.modules.network import (
    Loss,
    Metric,
    ModuleNetwork,
    Parameters,
    copy_module,
    flat,
    own_loss,
    preserve_generators,
    state_of_generators,
    trainable_parameters,
)
from harness.modules.values import (
    Axes,
    Call,
    Classes,
    Value,
    find_classes,
    join,
    join_alike,
    join_outputs,
    map_tensors,
    unwrap,
)
from harness.natural_gradient.layer_hooks import Reduction
from harness.simulator.cluster import Workload

NOT_STATE = frozenset(vars(nn.Module()))
"""Attributes of every module: its parameters, buffers, submodules, hooks and mode."""

ADVICE = {
    "model": "a buffer: self.register_buffer(name, tensor), written in place",
    "loss": "a function of outputs and targets alone; what it keeps is a buffer of the model",
    "metric": "a function of outputs and targets alone",
}
"""What to do instead, by the part that holds the state."""


class Frozen(NamedTuple):
    """A variable at a moment.

    Attributes:
        label: its name in messages.
        digest: of its value; its type's name if the value has none.
        size: number of entries of a collection; 0 of another value.
    """

    label: str
    digest: str
    size: int


def refuse_hidden_state(
    parts: Mapping[str, Any], call: Callable[[Mapping[str, Any], bool], Sequence[float]]
) -> set[str]:
    """Refuse what keeps state between calls outside of parameters and buffers.

    Args:
        parts: model, loss and metrics by the name that messages have for them.
        call: calls the parts once, and gives loss and scores; with True on other data of the same
            shapes.

    Returns:
        What calls change without harm, as `digests` name it.

    Raises:
        UserError: one of the parts does.
    """
    copied = _copy(parts)
    if all(_is_torchs(part) for part in parts.values()):
        call(copied, False)
        return set()
    before = _freeze(copied)
    values, once = call(copied, False), _freeze(copied)
    if once == before:
        _call_elsewhere(copied, call)  # what is written there may wait for other data
        if _freeze(copied) == before:
            return set()
    changed = _copy(parts)
    _call_elsewhere(changed, call)
    again, twice = call(changed, False), _freeze(changed)
    # Attributes last: one may hold a function, and so what its globals hold.
    keys = sorted(twice, key=lambda key: (key[1].startswith("."), key))
    written = [key for key in keys if twice[key] != before.get(key)]
    for key in written:
        (part, _), now, then = key, twice[key], once.get(key, before.get(key))
        is_log = then is not None and now.size > then.size and str(again) == str(values)
        if (then is None or now.digest != then.digest) and not is_log:
            name = f"{part}: {now.label!r}"
            mistake = f"{name} changes from call to call, and is neither parameter nor buffer"
            shared = "simulated workers would share it, a resumed run would lose it"
            raise UserError(f"{mistake}: {shared}; allowed: {ADVICE[part.partition(':')[0]]}")
    return {key for _, key in written if "." in key and not key.startswith(".")}


def _is_torchs(part: Any) -> bool:
    """Whether a part is made of PyTorch's layers and functions only, which hide no state."""
    if not isinstance(part, nn.Module):
        # not by `__module__`, which `functools.wraps` copies
        package = str(getattr(part, "__globals__", {}).get("__name__")).partition(".")[0]
        return isinstance(part, FunctionType) and package in ("torch", *OWN)
    return all(
        type(layer).__module__.startswith("torch.nn.modules.")
        and "forward" not in vars(layer)
        and not any(vars(layer).get(name) for name in HOOKS)
        for layer in part.modules()
    )


def _call_elsewhere(
    parts: Mapping[str, Any], call: Callable[[Mapping[str, Any], bool], object]
) -> None:
    """Call a model with other data and weights; its parameters and buffers are as before then."""
    model: nn.Module = parts["model"]
    weights = [(p, p.detach().clone()) for p in model.parameters()]
    buffers = [
        (m, n, t.clone()) for m in model.modules() for n, t in m.named_buffers(recurse=False)
    ]
    _scale(model, 0.9)
    call(parts, True)
    for parameter, value in weights:
        parameter.data.copy_(value)
    for module, name, value in buffers:
        setattr(module, name, value)


def _copy(parts: Mapping[str, Any]) -> dict[str, Any]:
    """Copies of the parts, with smaller weights; a function is itself."""
    copied: dict[str, Any] = {}
    for name, part in parts.items():
        try:
            copied[name] = copy_module(part) if name == "model" else copy.deepcopy(part)
        except UserError:
            raise
        except Exception:  # of whatever a user's object holds
            copied[name] = part
    _scale(copied["model"], 0.9)  # so that an average of them in an attribute moves
    return copied


def _freeze(parts: Mapping[str, Any]) -> dict[tuple[str, str], Frozen]:
    """Attributes, globals and closures of the parts as they are now, by part and name."""
    frozen: dict[tuple[str, str], Frozen] = {}
    state = Seen(parts["model"])
    for part, value in parts.items():
        for label, content in _attributes(value, is_loss=part != "model"):
            frozen[part, f".{label}"] = _freeze_value(label, content, state)
        visited = Seen(parts["model"])
        digest_of_code(value, visited=visited)
        for key, variable in visited.variables.items():
            frozen[part, key] = _freeze_value(*variable, state)
    return frozen


def _freeze_value(label: str, value: Any, state: Seen) -> Frozen:
    is_collection = isinstance(value, list | deque | dict | set)
    size = len(cast("list[object]", value)) if is_collection else 0
    if type(value) in PLAIN:  # most attributes of layers; a digest of each takes 0.3 ms
        return Frozen(label, repr(value), 0)
    try:
        return Frozen(label, digest_of_code(value, visited=copy.copy(state)), size)
    except UserError:  # of what nothing readable tells from another value
        return Frozen(label, type(value).__name__, size)


def _attributes(part: Any, *, is_loss: bool) -> Iterator[tuple[str, Any]]:
    """The attributes of a part's objects that calls can write.

    Args:
        part: model, loss or metric.
        is_loss: whether buffers are among them: only those of the model are carried.
    """
    if isinstance(part, nn.Module):
        submodules = cast("Iterator[tuple[str, nn.Module]]", part.named_modules())
        for prefix, module in submodules:
            table = {name: v for name, v in vars(module).items() if name not in NOT_STATE}
            table |= dict(module.named_buffers(recurse=False)) if is_loss else {}
            yield from ((f"{prefix}.{name}".removeprefix("."), v) for name, v in table.items())
    elif isinstance(part, MethodType):
        yield from _attributes(part.__self__, is_loss=is_loss)
    elif isinstance(part, functools.partial):
        yield from _attributes(cast(Any, part).func, is_loss=is_loss)
        yield from part.keywords.items()
        yield "an argument of partial", part.args
    elif not isinstance(part, type | FunctionType | BuiltinFunctionType | str):
        yield from attributes(part).items()


AT_ONCE = 16
"""Replicas from which a CPU is faster with all at once than one by one (docs/api.md)."""

AT_ONCE_ON_A_GPU = 2

APART = 1e-3
"""Largest relative difference between two computations that are taken to be the same."""

FURTHER = 3
"""Calls after the first one in which writes of buffers are seen."""

Run = Callable[[Value, Value], Any]
"""A module's outputs for inputs and targets."""

SLOW = "batching rule"
"""Part of PyTorch's warning about an operation that `vmap` computes replica by replica."""


@dataclass(frozen=True)
class Inspection:
    """Properties of a module and its loss, as found by running them.

    Attributes:
        draws: whether the module draws random numbers in training.
        together: number of replicas from which on they are computed at once, if they can be; None
            for never.
        reduction: whether the loss is the mean or the sum over examples.
        changing: names of the buffers that training changes.
        axes: dimensions along which outputs of parts of a minibatch are joined, if they can be.
        classes: of outputs and targets; None if they are not for several classes.
    """

    draws: bool
    together: int | None
    reduction: Reduction = "mean"
    changing: tuple[str, ...] = ()
    axes: Axes | None = None
    classes: Classes | None = None


def inspect_module(module: nn.Module, loss: Loss, x: Value, targets: Value) -> Inspection:
    """Inspect a module by running a copy on one minibatch.

    Args:
        module: the module, left unchanged.
        loss: loss function of its outputs and targets.
        x: inputs ``[B, ...]``, or several.
        targets: ``[B, ...]``, or several.

    Raises:
        UserError: it fails, or its loss is not one number.
    """
    inspection = _run_module(copy_module(module), loss, x, targets)
    on_cpu = x.device.type == "cpu"
    has_convolutions = any(parameter.dim() > 2 for parameter in module.parameters())
    # Several at once would share their buffers; convolutions are faster one by one on a CPU.
    if inspection.draws or inspection.changing or (on_cpu and has_convolutions):
        return inspection
    return replace(inspection, together=AT_ONCE if on_cpu else AT_ONCE_ON_A_GPU)


def _run_module(module: nn.Module, loss: Loss, x: Value, targets: Value) -> Inspection:
    """Compute one loss, and that of the examples repeated.

    Raises:
        UserError: see `inspect_module`.
    """
    Parameters.from_module(module)
    _scale(module, 0.9)  # so that an average of the weights that starts from them moves
    before = get_versions(module)
    generators = state_of_generators(x.device)
    call = Call.from_module(module, needs_labels=loss is own_loss)
    run = partial(call.run_on_copies, module)
    with preserve_generators(), torch.enable_grad():
        with _name_failure("model", len(x)):
            outputs = run(x, targets)
        with _name_failure("loss", len(x)):
            total: Any = loss(outputs, unwrap(targets))
        draws = generators != state_of_generators(x.device)
    if not torch.is_tensor(total) or total.dim() != 0 or not total.is_floating_point():
        shape = _describe_shape(total)
        raise UserError(f"loss: {shape}; allowed: one number for a minibatch, a tensor of shape []")
    if not total.requires_grad:
        raise UserError("loss: does not depend on the model's parameters; nothing can be trained")
    if not _find_leaves(total) <= set(module.parameters()):
        mistake = "depends on parameters that are not the model's, which would not be trained"
        raise UserError(f"loss: {mistake}; allowed: registered parameters, with loss='model'")
    if any(True for _ in module.buffers()):
        with preserve_generators(), torch.enable_grad():
            for _ in range(FURTHER):
                run(x, targets)
    changing = find_changed_buffers(module, before)
    with preserve_generators(), torch.no_grad():
        classes = find_classes(loss, outputs, unwrap(targets))
        axes = _find_axes(module, run, x, targets)
        reduction = _find_reduction(module, run, loss, x, targets, axes)
    return Inspection(draws, None, reduction, changing, axes, classes)


def _scale(module: nn.Module, factor: float, shift: float = 0.0) -> None:
    for parameter in trainable_parameters(module).values():
        parameter.data.mul_(factor).add_(shift)


def _find_leaves(value: Tensor) -> set[Tensor]:
    """The tensors that a gradient of ``value`` would be accumulated in."""
    leaves, visited, waiting = set[Tensor](), set[Any](), [cast(Any, value.grad_fn)]
    while waiting:
        step = waiting.pop()
        if step is not None and step not in visited:
            visited.add(step)
            if (variable := getattr(step, "variable", None)) is not None:
                leaves.add(variable)
            waiting += [following for following, _ in step.next_functions]
    return leaves


@torch.no_grad()
def try_metrics(
    module: nn.Module,
    metrics: Mapping[str, Metric],
    x: Value,
    targets: Value,
    call: Call,
    data: str | None = None,
) -> list[float]:
    """The metrics of some examples, to find mistakes before training.

    Args:
        module: the module, put into evaluation mode.
        metrics: metrics by name.
        x: inputs ``[B, ...]``, or several.
        targets: ``[B, ...]``, or several.
        call: the way the module is called.
        data: argument that is at fault; None for the model or a metric.

    Raises:
        UserError: a metric fails, or does not return one number.
    """
    scores = list[float]()
    with preserve_generators():
        with _name_failure(data or "model", len(x), ""):
            outputs = call.run_on_copies(module.eval(), x, targets)
        for name, metric in metrics.items():
            with _name_failure(data or f"metric: {name}", len(x), ""):
                score: Any = metric(outputs, unwrap(targets))
            try:
                scores.append(float(score))
            except (TypeError, ValueError, RuntimeError) as error:
                mistake = f"{name}: {_describe_shape(score)}; allowed: one number for a set"
                raise UserError(f"metric: {mistake}") from error
    return scores


@contextmanager
def _name_failure(part: str, count: int, of: str = "a minibatch of ") -> Generator[None]:
    """Report an error of the user's code on its first examples in one line.

    Raises:
        UserError: the code raised an error.
    """
    try:
        yield
    except UserError:
        raise
    except RAISED as error:
        line = describe_raised(error).partition("\n")[0]
        size = format_count(count, "example")
        raise UserError(f"{part}: fails on {of}{size}: {line}") from error


def _describe_shape(value: object) -> str:
    """The shape of a tensor; the class of any other value."""
    return f"shape {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__


def _find_axes(module: nn.Module, run: Run, x: Value, targets: Value) -> Axes | None:
    """The dimensions along which outputs of parts of a minibatch are joined, if they can be.

    Layers of torch are put into evaluation mode, as those that draw differ from call to call, and
    batch normalisation is to see a part at a time; all others too if there still is a draw.
    """
    for submodule in module.modules():
        submodule.training &= not type(submodule).__module__.startswith("torch.")
    cut, generators = min(2, len(x) // 2), state_of_generators(x.device)
    try:
        outputs = run(x, targets)
        if generators != state_of_generators(x.device):
            module.eval()
            outputs = run(x, targets)
        parts = [run(x[part], targets[part]) for part in (slice(cut), slice(cut, None))]
        joined = join_alike(parts, outputs, torch.arange(len(x)), len(x))
    except Exception:  # of a module for one size of minibatches
        return None
    return joined and joined[1]


def _find_reduction(
    module: nn.Module, run: Run, loss: Loss, x: Value, targets: Value, axes: Axes | None
) -> Reduction:
    """Whether the loss of all examples given twice is the same or twice as large.

    Raises:
        UserError: it is 0 for several models, and so both.
    """
    xs, ys = (join(torch.cat, [value, value]) for value in (x, targets))
    once = 0.0
    for change in ((1.0, 0.0), (-1.0, 0.0), (1.0, 1.0)):  # the last moves zeros, too
        _scale(module, *change)
        try:
            outputs = run(x, targets)
            once = float(loss(outputs, unwrap(targets)))
            if once != 0.0 and math.isfinite(once):
                doubled = run(xs, ys) if axes is None else join_outputs([outputs, outputs], axes)
                twice = float(loss(doubled, unwrap(ys)))
                return "sum" if abs(twice - 2.0 * once) <= APART * abs(once) else "mean"
        except Exception:  # of what is for one size of minibatches
            return "mean"
    if once == 0.0:
        mistake = f"0 on {format_count(len(x), 'example')} for each of several models"
        raise UserError(f"loss: {mistake}, so neither a mean nor a sum; allowed: one that differs")
    return "mean"


def is_batchable(module: nn.Module, loss: Loss, x: Value, targets: Value) -> bool:
    """Whether two replicas can be computed at once with the gradients of each alone."""
    # Two different rows, so that a module that mixes up replicas is found.
    model = flat(list(trainable_parameters(module).values()))
    stack = torch.stack([model, 0.9 * model])
    xs, ys = (join(torch.stack, [value, value]) for value in (x, targets))
    xs, ys = (map_tensors(lambda t: t.unsqueeze(1), value) for value in (xs, ys))
    alone, together = torch.empty_like(stack), torch.empty_like(stack)
    with warnings.catch_warnings(record=True) as messages, torch.no_grad():
        warnings.simplefilter("always")
        try:
            ModuleNetwork(module, loss, together=2).gradient(stack, xs, ys, together)
        except Exception:  # any operation that vmap does not support
            return False
    if any(SLOW in str(warning.message) for warning in messages):
        return False
    with torch.no_grad():
        ModuleNetwork(module, loss).gradient(stack, xs, ys, alone)
    apart = (together - alone).square().sum(), alone.square().sum()
    return bool(apart[0] <= APART**2 * apart[1])


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

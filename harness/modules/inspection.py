"""What a module, its loss and its metrics are, found out by running copies of them once.

`inspect_module` finds whether a module draws random numbers, whether its loss is a mean or a sum,
along which dimensions outputs are joined, and which buffers training changes; it refuses what
cannot be trained. `is_batchable` finds whether replicas can be computed at once.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from harness.base.errors import RAISED, UserError, describe_raised
from harness.base.settings import format_count
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
from harness.modules.outputs import Axes, Classes, find_classes, join_alike, join_outputs
from harness.modules.trees import Call, Value, join, map_tensors, unwrap
from harness.natural_gradient.layer_hooks import Reduction

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

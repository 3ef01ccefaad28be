"""What a module is like, found by running it: does it draw, does it batch, can it be shared?"""

from __future__ import annotations

import copy
import warnings
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from harness.base.errors import UserError
from harness.modules.draws import generators_kept, state_of_generator
from harness.modules.network import Loss, ModuleNetwork
from harness.modules.parameters import Parameters, flat, trained
from harness.natural_gradient.layer_hooks import Reduction

AT_ONCE = 16
"""Replicas from which a processor is quicker with all at once than one by one (docs/api.md)."""
AT_ONCE_ON_A_GPU = 2
APART = 1e-3
"""Relative difference between both ways beyond which they are taken to compute other things."""
SLOW = "batching rule"
"""What PyTorch warns of where an operation is done replica by replica after all."""


@dataclass(frozen=True)
class Inspected:
    """What was found.

    Attributes:
        draws: whether the module uses random numbers as it trains.
        together: from how many replicas on they are computed at once; None for never.
        reduction: whether the loss is the mean or the sum over examples.
    """

    draws: bool
    together: int | None
    reduction: Reduction = "mean"


def inspected(module: nn.Module, loss: Loss, x: Tensor, targets: Tensor) -> Inspected:
    """Run a module once or twice on one minibatch.

    Args:
        module: left as it is.
        loss: of its outputs.
        x: inputs ``[B, ...]``.
        targets: ``[B, ...]``.

    Raises:
        UserError: it fails, its loss is no one number, or training changes one of its buffers.
    """
    draws, reduction = _runs(copy.deepcopy(module), loss, x, targets)
    if draws:
        return Inspected(draws, None, reduction)
    on_cpu = x.device.type == "cpu"
    if on_cpu and any(parameter.dim() > 2 for parameter in module.parameters()):
        return Inspected(draws, None, reduction)  # convolutions one by one are quicker there
    least = AT_ONCE if on_cpu else AT_ONCE_ON_A_GPU
    return Inspected(draws, least if _batches(module, loss, x, targets) else None, reduction)


def _runs(module: nn.Module, loss: Loss, x: Tensor, targets: Tensor) -> tuple[bool, Reduction]:
    """One step without its end; whether random numbers were drawn, and what the loss is.

    Raises:
        UserError: see `inspected`.
    """
    Parameters.of(module)
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    known = state_of_generator(x.device)
    with generators_kept(), torch.enable_grad():
        try:
            outputs = module(x)
            found = loss(outputs, targets)
        except Exception as error:
            raise UserError(
                f"model: fails on a minibatch of {len(x)} examples: {type(error).__name__}:"
                f" {str(error).splitlines()[0] if str(error) else ''}"
            ) from error
        drawn = not torch.equal(known, state_of_generator(x.device))
    if not torch.is_tensor(found) or found.dim() != 0 or not found.is_floating_point():
        told = f"shape {list(found.shape)}" if torch.is_tensor(found) else type(found).__name__
        raise UserError(f"loss: {told}; allowed: one number for a minibatch, a tensor of shape []")
    if not found.requires_grad:
        raise UserError("loss: does not depend on the model's parameters; nothing can be trained")
    for name, buffer in module.named_buffers():
        if not torch.equal(buffer, before[name]):
            raise UserError(
                f"model: buffer {name!r} changes as it trains, which replicas cannot share;"
                " allowed: layers without running statistics (LayerNorm, GroupNorm,"
                " track_running_stats=False)"
            )
    return drawn, "sum" if _doubles(loss, outputs, targets, float(found.detach())) else "mean"


@torch.no_grad()
def _doubles(loss: Loss, outputs: object, targets: Tensor, once: float) -> bool:
    """Whether a loss of every example twice is twice the loss: then it sums over examples."""
    if not isinstance(outputs, Tensor) or outputs.shape[:1] != targets.shape[:1]:
        return False
    try:
        twice = float(loss(torch.cat([outputs, outputs]), torch.cat([targets, targets])))
    except Exception:  # a loss for minibatches of one size, which can be no sum over any
        return False
    return once != 0.0 and abs(twice - 2.0 * once) <= APART * abs(once)


def _batches(module: nn.Module, loss: Loss, x: Tensor, targets: Tensor) -> bool:
    """Whether two replicas can be computed at once, and give what each gives alone."""
    model = flat(list(trained(module).values()))
    stack = torch.stack([model, 0.9 * model])
    xs, ys = (torch.stack([each, each]).unsqueeze(1) for each in (x, targets))
    alone, both = torch.empty_like(stack), torch.empty_like(stack)
    with warnings.catch_warnings(record=True) as said, torch.no_grad():
        warnings.simplefilter("always")
        try:
            ModuleNetwork(module, loss, together=2).gradient(stack, xs, ys, both)
        except Exception:  # whatever vmap cannot follow
            return False
    if any(SLOW in str(warning.message) for warning in said):
        return False
    with torch.no_grad():
        ModuleNetwork(module, loss).gradient(stack, xs, ys, alone)
    apart = (both - alone).square().sum(), alone.square().sum()
    return bool(apart[0] <= APART**2 * apart[1])

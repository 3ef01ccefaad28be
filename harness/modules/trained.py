"""Trained modules of finished runs: their parameters, and the buffers that training changed."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import nn

from harness.algorithms.saved import from_array
from harness.base.errors import UserError
from harness.modules.network import Parameters, trainable_parameters
from harness.store import Run
from harness.store.schema import STATE


@torch.no_grad()
def load_into(module: nn.Module, run: Run, worker: int = 0) -> nn.Module:
    """Copy the trained parameters and buffers of a run into a module of the same kind.

    Args:
        module: a module as it was trained: the same parameters require a gradient.
        run: a finished run.
        worker: whose buffers, if each worker has its own (``buffers="local"``).

    Returns:
        The module.

    Raises:
        UserError: the run has other parameters or buffers, or no trained module of a program or
            run file.
    """
    if run.config.get("is") != "ModuleConfig":
        raise UserError(f"run: {run.config.get('is')} of {run.dir}; allowed: the run of a module")
    layout, stored = Parameters.from_module(module), run.model
    if layout.count != len(stored):
        mistake = f"{layout.count} trained parameters, the run has {len(stored)}"
        raise UserError(f"model: {mistake}; allowed: the module that was trained")
    trained = list(trainable_parameters(module).values())
    model = from_array(stored, trained[0])
    for parameter, view in zip(trained, layout.views(model), strict=True):
        parameter.copy_(view)
    if (run.dir / STATE).exists():
        _load_buffers(module, run.arrays(STATE), worker)
    return module


def _load_buffers(module: nn.Module, stored: Mapping[str, np.ndarray], worker: int) -> None:
    """Copy buffers into a module.

    Raises:
        UserError: the module has none of a name, or the run no such worker.
    """
    buffers = dict(module.named_buffers())
    for name, rows in stored.items():
        if name not in buffers:
            raise UserError(f"model: no buffer {name!r}; allowed: the module that was trained")
        if not 0 <= worker < max(len(rows), 1) and len(rows) > 1:
            raise UserError(f"worker: {worker}; allowed: from 0 to {len(rows) - 1}")
        row = rows[worker if len(rows) > 1 else 0]
        buffers[name].copy_(from_array(np.asarray(row), buffers[name]))


def describe_module(module: nn.Module) -> str:
    """Class and size of a module in words.

    Example:
        >>> describe_module(nn.Linear(64, 10))
        'Linear with 650 trained parameters'
    """
    count = sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)
    return f"{type(module).__name__} with {count:,} trained parameters"

"""How precisely the products of a gradient are computed; everything else stays in float32.

``tf32`` multiplies numbers of 10 bits behind the point, on GPUs from Ampere on. ``bf16`` rounds
both factors to bfloat16 (7 bits), adds up in float32 and rounds the product to bfloat16, as
`torch.autocast` does; processors with AMX and GPUs have units for it.

Parameters, activations, the loss, folds and averages are float32 with any of them, and so are
forward passes that only score a model.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor

from harness.base.errors import UserError

Precision = Literal["float32", "tf32", "bf16"]


def check(precision: Precision, device: str) -> None:
    """Refuse what no device of a kind can do.

    Args:
        precision: asked for.
        device: ``"cpu"`` or ``"cuda"``.

    Raises:
        UserError: TF32 without a GPU.
    """
    if precision == "tf32" and device == "cpu":
        raise UserError("precision: tf32 is not possible on cpu; allowed there: float32, bf16")


def check_here(precision: Precision, device: str) -> None:
    """Refuse what this machine cannot do.

    Raises:
        UserError: its GPU is older than Ampere, whose units have neither TF32 nor bfloat16.
    """
    if precision != "float32" and device == "cuda" and torch.cuda.get_device_capability()[0] < 8:
        name = torch.cuda.get_device_name()
        raise UserError(f"precision: {precision} is not possible on {name}; allowed: float32")


@contextmanager
def products_in(precision: Precision) -> Generator[None]:
    """Products of float32 matrices on a GPU are TF32 inside, if that is asked for."""
    if precision != "tf32":
        yield
        return
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def narrowed(tensor: Tensor, precision: Precision) -> Tensor:
    """A factor as it enters products."""
    return tensor.bfloat16() if precision == "bf16" else tensor

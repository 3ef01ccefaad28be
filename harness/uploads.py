"""What the host gives a device while that is still at work.

From ordinary memory CUDA copies only once the device has done all it was told before, and the host
waits for that; then the device waits until it is told what comes next. From pinned memory the copy
takes its turn. This is for what is small and given again and again: PyTorch keeps pinned memory
until the copy is done, and then for the next of its size.
"""

from __future__ import annotations

import torch
from torch import Tensor


def uploaded(values: Tensor, device: torch.device) -> Tensor:
    """The values on a device; those that lie there already as they are."""
    return ready(values, device).to(device, non_blocking=True)


def ready(values: Tensor, device: torch.device) -> Tensor:
    """The values, where a device can copy them from without the host waiting."""
    return values.pin_memory() if device.type == "cuda" and not values.is_cuda else values

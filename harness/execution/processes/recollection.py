"""What a worker remembers, as a message: for a checkpoint, and back to it afterwards."""

from __future__ import annotations

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save  # pyright: ignore[reportUnknownVariableType]
from torch import Tensor

from harness.algorithms.contract import Memory
from harness.execution.processes.headers import FrameHeader, GarbageReceived

LARGEST = 2**32
"""Bytes that a worker may remember; more is no message of ours."""


def packed(memory: Memory) -> Tensor:
    """Its tensors as bytes ``[n]``."""
    named = {name: tensor.contiguous() for name, tensor in memory.tensors.items()}
    return torch.frombuffer(bytearray(save(named)), dtype=torch.uint8)


def unpacked(words: Tensor, device: torch.device) -> Memory:
    """Undo `packed`, amid a pass.

    Raises:
        GarbageReceived: they are no such bytes.
    """
    try:
        named = load(words.numpy().tobytes())
    except SafetensorError as error:
        raise GarbageReceived("no memory of a worker") from error
    return Memory({name: tensor.to(device) for name, tensor in named.items()}, new_pass=False)


def body_of(header: FrameHeader) -> Tensor:
    """Where the bytes land that a header announces.

    Raises:
        GarbageReceived: there are too many.
    """
    if header.steps > LARGEST:
        raise GarbageReceived(f"a memory of {header.steps} bytes")
    return torch.empty(header.steps, dtype=torch.uint8)

"""Memories of several workers as one, so that their contributions are computed as one batch."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from harness.algorithms.contract import Memory

Kind = tuple[()] | tuple[bool, tuple[tuple[str, float], ...]]
"""What memories must share to be joined; nothing, of those that are empty."""


def kind_of(memory: Memory) -> Kind:
    """Whether a pass is new, and the numbers in it, which have no row for each worker."""
    numbers = ((name, t.item()) for name, t in sorted(memory.tensors.items()) if not t.dim())
    return memory.new_pass, tuple(numbers)


def joined(memories: Sequence[Memory]) -> Memory:
    """One memory with the rows of all, which are of one kind; that of one worker is itself."""
    first = memories[0]
    if len(memories) == 1:
        return first
    rows = {
        name: torch.cat([memory.tensors[name] for memory in memories]) if tensor.dim() else tensor
        for name, tensor in first.tensors.items()
    }
    return Memory(rows, first.new_pass)


def part_into(memories: Sequence[Memory], whole: Memory) -> None:
    """Give every memory its rows of the whole, which `joined` made and a contribution changed."""
    if len(memories) == 1:
        return
    for place, memory in enumerate(memories):
        own = slice(place, place + 1)
        memory.new_pass = whole.new_pass
        memory.tensors = {name: t[own] if t.dim() else t for name, t in whole.tensors.items()}

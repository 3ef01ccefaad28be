"""Memories of several workers as one, so that their contributions are computed as one batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

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
    return Memory(united([memory.tensors for memory in memories]), first.new_pass)


def part_into(memories: Sequence[Memory], whole: Memory) -> None:
    """Give every memory its rows of the whole, which `joined` made and a contribution changed."""
    if len(memories) == 1:
        return
    for place, memory in enumerate(memories):
        memory.new_pass = whole.new_pass
        memory.tensors = rows_of(whole.tensors, slice(place, place + 1))


def rows_of(tensors: Mapping[str, Tensor], few: slice) -> dict[str, Tensor]:
    """What some workers remember; numbers are those of all."""
    return {name: t[few] if t.dim() else t for name, t in tensors.items()}


def united(parts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """What workers remember, one after the other; numbers are those of the first."""
    return {
        name: torch.cat([part[name] for part in parts]) if first.dim() else first
        for name, first in parts[0].items()
    }

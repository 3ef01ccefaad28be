"""Memories of several workers as one, so that their contributions are computed as one batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from harness.algorithms.contract import Memory

Kind = tuple[()] | tuple[bool, tuple[tuple[str, float], ...]]
"""What memories must share to be joined; nothing, of those that are empty."""


def kind_of(memory: Memory) -> Kind:
    """Whether a pass is new, and the numbers in a memory, which have no row for each worker."""
    if not memory.tensors:
        return ()
    numbers = ((name, t.item()) for name, t in sorted(memory.tensors.items()) if not t.dim())
    return memory.new_pass, tuple(numbers)


class Memories:
    """The memory of every worker, addressed by the worker's number.

    Contributions that are computed as one batch share one joint memory with a row for each of
    their workers. It stays joint until other workers, or the same in another order, compute
    together: rounds of all workers copy nothing from one to the next.

    Args:
        each: memories by worker.
    """

    def __init__(self, each: Mapping[int, Memory] | None = None) -> None:
        self._each = dict(each or {})
        self._batch: tuple[int, ...] = ()
        self._joint = Memory()

    def join(self, workers: Sequence[int]) -> Memory:
        """One memory with the rows of several workers in their order, to be changed in place.

        Args:
            workers: whose memories are of one kind (`kinds`).
        """
        if tuple(workers) != self._batch:
            self._part()
            own = [self._each.setdefault(worker, Memory()) for worker in workers]
            self._batch, self._joint = tuple(workers), _join(own)
        return self._joint

    def kinds(self, workers: Sequence[int]) -> list[Kind]:
        """The part of each worker's memory that memories must share to be joined."""
        joint, together = kind_of(self._joint), set(self._batch)
        return [
            joint if worker in together else kind_of(self._each.get(worker, Memory()))
            for worker in workers
        ]

    def by_worker(self) -> dict[int, Memory]:
        """Each worker's memory."""
        self._part()
        return self._each

    def begin_pass(self) -> None:
        """Tell every worker that its next contribution is the first of a pass over the data."""
        for memory in (self._joint, *self._each.values()):
            memory.new_pass = True

    def _part(self) -> None:
        """Give each worker of the joint memory its rows."""
        for place, worker in enumerate(self._batch):
            tensors = self._joint.tensors
            if len(self._batch) > 1:  # numbers are copied: each worker goes on counting by itself
                own = rows_of(tensors, slice(place, place + 1))
                tensors = {name: t if t.dim() else t.clone() for name, t in own.items()}
            self._each[worker] = Memory(tensors, self._joint.new_pass)
        self._batch, self._joint = (), Memory()


def _join(memories: Sequence[Memory]) -> Memory:
    """One memory with the rows of all; that of one worker is its own."""
    first = memories[0]
    if len(memories) == 1:
        return first
    return Memory(united([memory.tensors for memory in memories]), first.new_pass)


def rows_of(tensors: Mapping[str, Tensor], few: slice) -> dict[str, Tensor]:
    """What some workers remember; numbers are those of all."""
    return {name: t[few] if t.dim() else t for name, t in tensors.items()}


def united(parts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """What workers remember, one after the other; numbers are those of the first."""
    return {
        name: torch.cat([part[name] for part in parts]) if first.dim() else first
        for name, first in parts[0].items()
    }

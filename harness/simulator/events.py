"""Pending events in a total order: time, then priority, then sequence.

The heap is three parallel arrays with its size and a sequence counter in a fourth, so that
it can live in a kernel's state, be saved and be restored. Priority and sequence share one
integer: ``key = priority · 2⁵⁶ + sequence``. The sequence counts insertions, so no two keys
are equal and the order never depends on how the heap happens to be laid out.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from harness.simulator.jit import kernel

__all__ = ["Heap", "new_heap", "pop", "priority_of", "push"]

PRIORITY_SHIFT = 56
SIZE, SEQUENCE = 0, 1


class Heap(NamedTuple):
    """A binary min-heap of events.

    Attributes:
        time_s: [C] when.
        key: [C] priority and sequence in one number.
        who: [C] whom the event concerns.
        counts: [2] number of pending events, number of events ever inserted.
    """

    time_s: Any
    key: Any
    who: Any
    counts: Any


def new_heap(capacity: int) -> Heap:
    """An empty heap for at most ``capacity`` pending events."""
    return Heap(
        np.zeros(capacity),
        np.zeros(capacity, np.int64),
        np.zeros(capacity, np.int64),
        np.zeros(2, np.int64),
    )


@kernel
def priority_of(key: int) -> int:
    """The priority inside a key."""
    return key >> PRIORITY_SHIFT


@kernel
def push(heap: Heap, time_s: float, priority: int, who: int) -> None:
    """Insert an event; of equal time and priority, the one inserted first comes first."""
    time, key, whom, counts = heap
    mine = (priority << PRIORITY_SHIFT) + counts[SEQUENCE]
    counts[SEQUENCE] += 1
    place = counts[SIZE]
    counts[SIZE] += 1
    while place > 0:
        above = (place - 1) >> 1
        if time[above] < time_s or (time[above] == time_s and key[above] < mine):
            break
        time[place], key[place], whom[place] = time[above], key[above], whom[above]
        place = above
    time[place], key[place], whom[place] = time_s, mine, who


@kernel
def pop(heap: Heap) -> tuple[float, int, int]:
    """Remove the first event and return (time, priority, who); the heap must not be empty."""
    time, key, whom, counts = heap
    first = (time[0], key[0] >> PRIORITY_SHIFT, whom[0])
    counts[SIZE] -= 1
    size = counts[SIZE]
    time_s, mine, who = time[size], key[size], whom[size]
    place = 0
    while True:
        below = 2 * place + 1
        if below >= size:
            break
        right = below + 1
        if right < size and (
            time[right] < time[below] or (time[right] == time[below] and key[right] < key[below])
        ):
            below = right
        if time_s < time[below] or (time_s == time[below] and mine < key[below]):
            break
        time[place], key[place], whom[place] = time[below], key[below], whom[below]
        place = below
    time[place], key[place], whom[place] = time_s, mine, who
    return first

"""Pending events in a total order: time, then priority, then sequence.

The heap is an array of events with its size and a sequence counter in a second one, so that
it can live in a kernel's state, be saved and be restored. Priority and sequence share one
integer: ``key = priority · 2⁵⁶ + sequence``. The sequence counts insertions, so no two keys
are equal and the order never depends on how the heap happens to be laid out.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from harness.simulator.jit import kernel

__all__ = ["Heap", "first_s", "new_heap", "pop", "push"]

EVENT = np.dtype([("time_s", np.float64), ("key", np.int64), ("who", np.int64)])
PRIORITY_SHIFT = 56
SIZE, SEQUENCE = 0, 1


class Heap(NamedTuple):
    """A binary min-heap.

    Attributes:
        events: [C] of `EVENT`: when, priority and sequence, whom it concerns.
        counts: [2] number of pending events, number of events ever inserted.
    """

    events: Any
    counts: Any


def new_heap(capacity: int) -> Heap:
    """An empty heap for at most ``capacity`` pending events."""
    return Heap(np.zeros(capacity, EVENT), np.zeros(2, np.int64))


@kernel
def before(time_s: float, key: int, other: Any) -> bool:
    """Whether (time, key) comes before another event."""
    return time_s < other.time_s or (time_s == other.time_s and key < other.key)


@kernel
def first_s(heap: Heap) -> float:
    """The time of the first event, infinity if there is none."""
    return heap.events[0].time_s if heap.counts[SIZE] > 0 else np.inf


@kernel
def push(heap: Heap, time_s: float, priority: int, who: int) -> None:
    """Insert an event; of equal time and priority, the one inserted first comes first."""
    events, counts = heap
    key = (priority << PRIORITY_SHIFT) + counts[SEQUENCE]
    place = counts[SIZE]
    counts[SEQUENCE] += 1
    counts[SIZE] += 1
    while place > 0:
        above = (place - 1) >> 1
        if not before(time_s, key, events[above]):
            break
        events[place] = events[above]
        place = above
    events[place].time_s = time_s
    events[place].key = key
    events[place].who = who


@kernel
def pop(heap: Heap) -> tuple[float, int, int]:
    """Remove the first event and return (time, priority, who); the heap must not be empty."""
    events, counts = heap
    first = (events[0].time_s, events[0].key >> PRIORITY_SHIFT, events[0].who)
    counts[SIZE] -= 1
    size = counts[SIZE]
    time_s, key, who = events[size].time_s, events[size].key, events[size].who
    place, below = 0, 1
    while below < size:
        right = below + 1
        if right < size and before(events[right].time_s, events[right].key, events[below]):
            below = right
        if before(time_s, key, events[below]):
            break
        events[place] = events[below]
        place, below = below, 2 * below + 1
    events[place].time_s = time_s
    events[place].key = key
    events[place].who = who
    return first

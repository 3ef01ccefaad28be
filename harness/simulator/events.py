"""Pending events in a total order: time, then priority, then sequence.

The heap is an array of events with its size and a sequence counter in a second one, so that
it can live in a kernel's state, be saved and be restored. Priority and sequence share one
integer: ``key = priority · 2⁵⁶ + sequence``. The sequence counts insertions, so no two keys
are equal and the order never depends on how the heap happens to be laid out.

Where every worker has at most one pending event and all events are of one kind, a tournament
is three times as fast: a tree whose leaves are the workers and whose every node holds the
earlier of its two children. The places an update visits depend on the worker alone, so a
processor can fetch them all at once, and choosing the earlier one needs no branch.

Events that are inserted in order of their times, or nearly so, need neither: they wait in a
queue, first in, first out.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from harness.simulator.jit import kernel, part

__all__ = [
    "Heap",
    "Queue",
    "append",
    "clear",
    "enter",
    "first_s",
    "head_s",
    "new_heap",
    "new_queue",
    "new_tournament",
    "pop",
    "push",
    "scratch",
    "soon",
    "take",
    "withdraw",
]

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
    events, counts = heap.events, heap.counts
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
    events, counts = heap.events, heap.counts
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


ENTRY = np.dtype([("time_s", np.float64), ("key", np.int64)])
WHO_BITS = 24
WHO = (1 << WHO_BITS) - 1
_NOBODY = 1 << 62
LINE_BYTES = 64


def from_a_line(rows: int, kind: Any) -> Any:
    """[rows] of zeros that begin where a cache line does, so that rivals share a line."""
    size = rows * kind.itemsize
    memory = np.zeros(size + LINE_BYTES, np.uint8)
    skipped = -memory.ctypes.data % LINE_BYTES
    return memory[skipped : skipped + size].view(kind)


def new_tournament(workers: int) -> Any:
    """[2N] of `ENTRY` without a pending event; the first event is entry 1, leaf w is N + w."""
    entries = from_a_line(2 * workers, ENTRY)
    entries["time_s"] = np.inf
    entries["key"] = _NOBODY
    return entries


@kernel
def enter(entries: Any, who: int, time_s: float, order: int) -> None:
    """Worker ``who``'s event is at ``time_s``; of equal times, the smaller ``order`` is first."""
    set_leaf(entries, who, time_s, (order << WHO_BITS) | who)


@kernel
def scratch(entries: Any, who: int) -> None:
    """Worker ``who`` has no pending event."""
    set_leaf(entries, who, np.inf, _NOBODY)


@kernel
def set_leaf(entries: Any, who: int, time_s: float, key: int) -> None:
    """Change a leaf and the nodes above it."""
    place = (len(entries) >> 1) + who
    if entries[place].time_s == np.inf:
        rise(entries, place, time_s, key)
        return
    entries[place].time_s = time_s
    entries[place].key = key
    while place > 1:
        rival = entries[place ^ 1]
        rival_s, rival_key = rival.time_s, rival.key
        loses = (rival_s < time_s) | ((rival_s == time_s) & (rival_key < key))
        time_s = rival_s if loses else time_s
        key = rival_key if loses else key
        place >>= 1
        entries[place].time_s = time_s
        entries[place].key = key


@part
def rise(entries: Any, place: int, time_s: float, key: int) -> None:
    """Enter a leaf that had no event: it takes the place of whatever it comes before."""
    while place > 0:
        later = entries[place]
        if later.time_s < time_s or (later.time_s == time_s and later.key <= key):
            break
        entries[place].time_s = time_s
        entries[place].key = key
        place >>= 1


WAITING = np.dtype([("time_s", np.float64), ("who", np.int64)])
FIRST, WAIT = 0, 1


class Queue(NamedTuple):
    """A ring of events in order of time; of equal times, the one appended first is first.

    Attributes:
        events: [C] of `WAITING`: when, and whom it concerns.
        counts: [2] where in the ring the first event is, and how many there are.
    """

    events: Any
    counts: Any


def new_queue(capacity: int) -> Queue:
    """An empty queue for at most ``capacity`` events."""
    return Queue(from_a_line(capacity, WAITING), np.zeros(2, np.int64))


@kernel
def head_s(queue: Queue) -> float:
    """The time of the first event, infinity if there is none."""
    return queue.events[queue.counts[FIRST]].time_s if queue.counts[WAIT] > 0 else np.inf


@kernel
def append(queue: Queue, time_s: float, who: int) -> None:
    """Insert an event from the end: it goes before those that are later, and they are few."""
    events, room = queue.events, len(queue.events)
    place = queue.counts[FIRST] + queue.counts[WAIT]
    place = place - room if place >= room else place
    for _ in range(queue.counts[WAIT]):
        above = place - 1 if place > 0 else room - 1
        if events[above].time_s <= time_s:
            break
        events[place] = events[above]
        place = above
    events[place].time_s = time_s
    events[place].who = who
    queue.counts[WAIT] += 1


@kernel
def take(queue: Queue) -> tuple[float, int]:
    """Remove the first event and return (time, who); the queue must not be empty."""
    place, room = queue.counts[FIRST], len(queue.events)
    queue.counts[FIRST] = place + 1 if place + 1 < room else 0
    queue.counts[WAIT] -= 1
    return queue.events[place].time_s, queue.events[place].who


@part
def soon(queue: Queue, ahead: int) -> int:
    """Whom the event concerns that is so many behind the first, or the last one; -1 if none."""
    behind = min(ahead, queue.counts[WAIT] - 1)
    if behind < 0:
        return -1
    place = queue.counts[FIRST] + behind
    room = len(queue.events)
    return queue.events[place - room if place >= room else place].who


@kernel
def clear(queue: Queue) -> None:
    """Remove all events."""
    queue.counts[WAIT] = 0


@kernel
def withdraw(queue: Queue, who: int) -> None:
    """Remove an event from anywhere in the queue, if it is there: only where that is rare."""
    events, counts, room = queue.events, queue.counts, len(queue.events)
    kept = 0
    for passed in range(counts[WAIT]):
        event = events[(counts[FIRST] + passed) % room]
        if event.who != who:
            events[(counts[FIRST] + kept) % room] = event
            kept += 1
    counts[WAIT] = kept

# pyright: reportMissingImports=false, reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Pending events in a total order, and the compilation of kernels that handle them.

Events are ordered by time, then priority, then sequence. `Heap` is an array of events with its size
and a sequence counter in a second array, so a kernel's state can contain it, and it can be saved
and restored. Priority and sequence share one integer: ``key = priority · 2⁵⁶ + sequence``. The
sequence counts insertions, so no two keys are equal and the order never depends on the layout of
the heap.

If every worker has at most one pending event and all events are of one kind, a tournament
is three times as fast: a tree with the workers as leaves; every node holds the earlier of its two
children. The nodes that an update visits depend on the worker alone, and the choice of the earlier
one needs no branch.

Events that are inserted in order of their times, or nearly so, need neither: they wait in a
`Queue`, first in, first out.

`kernel`, `loop` and `part` compile functions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np

from harness.kernels import compiling

_F = TypeVar("_F", bound=Callable[..., Any])

# Kernels allocate no arrays, so reference counts of their arguments are not needed;
# with the counting a fold takes five times as long.
_OPTIONS = {"_nrt": False}


def kernel(function: _F) -> _F:
    """Compile for other kernels, which pass named tuples by address, and for Python."""
    return compiling.callable_part(function, **_OPTIONS)


def loop(function: _F) -> _F:
    """Compile for Python only, with the fields of its named tuples as local variables.

    A loop of few instructions keeps them in registers; by address it would take 1.6 times as
    long. It should call functions compiled by `part`: kernels get addresses, so a tuple would be
    copied before each call.
    """
    return compiling.kernel(function, **_OPTIONS)


def part(function: _F) -> _F:
    """Compile inline into every kernel that calls it."""
    return compiling.kernel(function, inline="always", **_OPTIONS)


EVENT = np.dtype([("time_s", np.float64), ("key", np.int64), ("who", np.int64)])

PRIORITY_SHIFT = 56

SIZE, SEQUENCE = 0, 1


class Heap(NamedTuple):
    """A binary min-heap.

    Attributes:
        events: [C] of `EVENT`: time, priority and sequence, and the worker or slot concerned.
        counts: [2] number of pending events, number of events ever inserted.
    """

    events: Any
    counts: Any


def new_heap(capacity: int) -> Heap:
    """An empty heap for at most ``capacity`` pending events."""
    return Heap(np.zeros(capacity, EVENT), np.zeros(2, np.int64))


@kernel
def is_before(time_s: float, key: int, event: Any) -> bool:
    """Whether (time, key) comes before another event."""
    return time_s < event.time_s or (time_s == event.time_s and key < event.key)


@kernel
def first_s(heap: Heap) -> float:
    """The time of the first event, infinity if there is none."""
    return heap.events[0].time_s if heap.counts[SIZE] > 0 else np.inf


@kernel
def push(heap: Heap, time_s: float, priority: int, owner: int) -> None:
    """Insert an event; of equal times and priorities, the event inserted first comes first."""
    events, counts = heap.events, heap.counts
    key = (priority << PRIORITY_SHIFT) + counts[SEQUENCE]
    place = counts[SIZE]
    counts[SEQUENCE] += 1
    counts[SIZE] += 1
    while place > 0:
        above = (place - 1) >> 1
        if not is_before(time_s, key, events[above]):
            break
        events[place] = events[above]
        place = above
    events[place].time_s = time_s
    events[place].key = key
    events[place].who = owner


@kernel
def pop(heap: Heap) -> tuple[float, int, int]:
    """Remove the first event; returns its time, priority and worker. Not for an empty heap."""
    events, counts = heap.events, heap.counts
    event = (events[0].time_s, events[0].key >> PRIORITY_SHIFT, events[0].who)
    counts[SIZE] -= 1
    size = counts[SIZE]
    # The last event takes the first one's place, and sinks below those that come before it.
    time_s, key, owner = events[size].time_s, events[size].key, events[size].who
    place, below = 0, 1
    while below < size:
        right = below + 1
        if right < size and is_before(events[right].time_s, events[right].key, events[below]):
            below = right
        if is_before(time_s, key, events[below]):
            break
        events[place] = events[below]
        place, below = below, 2 * below + 1
    events[place].time_s = time_s
    events[place].key = key
    events[place].who = owner
    return event


ENTRY = np.dtype([("time_s", np.float64), ("key", np.int64)])

WHO_BITS = 24

WHO = (1 << WHO_BITS) - 1

_NOBODY = 1 << 62


def new_tournament(workers: int) -> Any:
    """[2N] of `ENTRY` without a pending event; entry 1 is the first event, entry N + w leaf w."""
    entries = np.zeros(2 * workers, ENTRY)
    entries["time_s"] = np.inf
    entries["key"] = _NOBODY
    return entries


@kernel
def enter(entries: Any, owner: int, time_s: float, order: int) -> None:
    """Set a worker's pending event; of equal times, the smaller ``order`` is first."""
    set_leaf(entries, owner, time_s, (order << WHO_BITS) | owner)


@kernel
def scratch(entries: Any, owner: int) -> None:
    """Remove a worker's pending event."""
    set_leaf(entries, owner, np.inf, _NOBODY)


@kernel
def set_leaf(entries: Any, owner: int, time_s: float, key: int) -> None:
    """Change a leaf and update the nodes above it."""
    place = (len(entries) >> 1) + owner
    # Into an empty leaf, an event can only make nodes earlier: `rise` may stop half-way up.
    if entries[place].time_s == np.inf:
        rise(entries, place, time_s, key)
        return
    entries[place].time_s = time_s
    entries[place].key = key
    while place > 1:
        rival = entries[place ^ 1]
        rival_s, rival_key = rival.time_s, rival.key
        # Not ``or`` and ``and``: a branch here would be mispredicted half of the time.
        loses = (rival_s < time_s) | ((rival_s == time_s) & (rival_key < key))
        time_s = rival_s if loses else time_s
        key = rival_key if loses else key
        place >>= 1
        entries[place].time_s = time_s
        entries[place].key = key


@part
def rise(entries: Any, place: int, time_s: float, key: int) -> None:
    """Set a leaf that had no event, in every node above it with a later event."""
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
        events: [C] of `WAITING`: time, and the worker or slot concerned.
        counts: [2] index of the first event in the ring, and number of events.
    """

    events: Any
    counts: Any


def new_queue(capacity: int) -> Queue:
    """An empty queue for at most ``capacity`` events."""
    return Queue(np.zeros(capacity, WAITING), np.zeros(2, np.int64))


def waiting(queue: Queue) -> Any:
    """[U] workers or slots of the events, in order."""
    start, count = queue.counts.tolist()
    return queue.events["who"][np.arange(start, start + count) % len(queue.events)]


@kernel
def head_s(queue: Queue) -> float:
    """The time of the first event, infinity if there is none."""
    return queue.events[queue.counts[FIRST]].time_s if queue.counts[WAIT] > 0 else np.inf


@kernel
def append(queue: Queue, time_s: float, owner: int) -> None:
    """Insert an event in order of time, searching from the end, where few are later."""
    events, room = queue.events, len(queue.events)
    place = queue.counts[FIRST] + queue.counts[WAIT]
    place = place - room if place >= room else place
    for _ in range(queue.counts[WAIT]):
        above = place - 1 if place > 0 else room - 1
        # Also at equal times, so that the event appended first stays first.
        if events[above].time_s <= time_s:
            break
        events[place] = events[above]
        place = above
    events[place].time_s = time_s
    events[place].who = owner
    queue.counts[WAIT] += 1


@kernel
def take(queue: Queue) -> tuple[float, int]:
    """Remove the first event; returns its time and worker. Not for an empty queue."""
    place, room = queue.counts[FIRST], len(queue.events)
    queue.counts[FIRST] = place + 1 if place + 1 < room else 0
    queue.counts[WAIT] -= 1
    return queue.events[place].time_s, queue.events[place].who


@kernel
def withdraw(queue: Queue, owner: int) -> None:
    """Remove a worker's event from anywhere in the queue, if present; takes linear time."""
    events, counts, room = queue.events, queue.counts, len(queue.events)
    count = 0
    for passed in range(counts[WAIT]):
        event = events[(counts[FIRST] + passed) % room]
        if event.who != owner:
            events[(counts[FIRST] + count) % room] = event
            count += 1
    counts[WAIT] = count

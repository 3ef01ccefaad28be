# pyright: reportMissingImports=false, reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Pending events in a total order, and the compilation of kernels that handle them.

Whatever has events, such as a worker or a message, has at most one pending. So pending events are a
tournament: a tree with their owners as leaves; every node holds the earlier of its two children.
The nodes that an update visits depend on the owner alone, and the choice of the earlier one needs
no branch: three times as fast as a heap. Events are ordered by time, then by a key that no other
event has, mostly the number of events scheduled before it (`Agenda`).

Events that are inserted in order of their times, or nearly so, wait in a `Queue`, first in, first
out. All are arrays, so a kernel's state can contain them, and be saved and restored.

`kernel` and `part` compile functions.
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


def part(function: _F) -> _F:
    """Compile inline into every kernel that calls it."""
    return compiling.kernel(function, inline="always", **_OPTIONS)


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
        if entries[place].key == key and entries[place].time_s == time_s:
            break  # nothing changes above, either
        entries[place].time_s = time_s
        entries[place].key = key


class Agenda(NamedTuple):
    """A tournament in which, of equal times, the event scheduled first comes first.

    Attributes:
        entries: [2N] of `ENTRY`.
        count: [1] number of events ever scheduled.
    """

    entries: Any
    count: Any


def new_agenda(owners: int) -> Agenda:
    """An agenda without a pending event."""
    return Agenda(new_tournament(owners), np.zeros(1, np.int64))


@kernel
def set_event(agenda: Agenda, owner: int, time_s: float) -> None:
    """Set an owner's pending event."""
    enter(agenda.entries, owner, time_s, agenda.count[0])
    agenda.count[0] += 1


@kernel
def first_s(agenda: Agenda) -> float:
    """The time of the first event, infinity if there is none."""
    return agenda.entries[1].time_s


@kernel
def take_event(agenda: Agenda) -> int:
    """Remove the first event; returns its owner. Not for an empty agenda."""
    owner = agenda.entries[1].key & WHO
    scratch(agenda.entries, owner)
    return owner


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

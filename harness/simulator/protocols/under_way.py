"""Contributions read and not yet folded, out of the rows in which a kernel keeps them.

Sorting numbers is several times as fast as sorting references to them, and a pass over rows of two
lines of a cache each as fast as the memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from harness.simulator.events import WHO, WHO_BITS
from harness.simulator.jit import kernel
from harness.simulator.prefetch import prefetch
from harness.simulator.timeline import IN_FLIGHT, Contributions

__all__ = ["rows_under_way"]

AHEAD = 16
"""Rows between asking for one and reading it."""


def rows_under_way(
    rows: Any, phases: tuple[int, int], depth: int = 1, steps: int = 1
) -> Contributions:
    """The rows in any of the phases from the first to the last one, by first step.

    Args:
        rows: [C] with ``phase``, ``first_step``, ``read_version`` and ``read_at_s``.
        phases: the first and the last.
        depth: rows a worker.
        steps: minibatches of each contribution, of which first steps are multiples.
    """
    ordered = np.empty(len(rows), np.int64)
    ordered = np.sort(ordered[: write_keys(rows, *phases, steps, ordered)])
    count, places = len(ordered), ordered & WHO
    found = Contributions(
        fold=np.full(count, IN_FLIGHT, np.int64),
        worker=(places // depth if depth > 1 else places).astype(np.int32),
        read_version=np.empty(count, np.int64),
        read_time_s=np.empty(count),
        first_step=(ordered >> WHO_BITS) * steps,
        steps=np.full(count, steps, np.int32),
    )
    write_reads(rows, places, found.read_version, found.read_time_s)
    return found


@kernel
def write_keys(rows: Any, first: int, last: int, steps: int, keys: Any) -> int:
    """Put first step and place of each row under way into one number; returns how many."""
    count = 0
    for place in range(len(rows)):
        if first <= rows[place].phase <= last:
            keys[count] = (rows[place].first_step // steps << WHO_BITS) | place
            count += 1
    return count


@kernel
def write_reads(rows: Any, places: Any, read_version: Any, read_at_s: Any) -> None:
    """Put what was read at ``places``, and when, into the columns."""
    last = len(places) - 1
    for row in range(len(places)):
        prefetch(rows, places[min(row + AHEAD, last)])
        read_version[row] = rows[places[row]].read_version
        read_at_s[row] = rows[places[row]].read_at_s

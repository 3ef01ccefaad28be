"""What is kept of a long simulation: sums over batches of folds, and single contributions.

Neither grows with the run: batches are merged as it goes on, and of many contributions some stand
for all.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.simulator.timeline import Timeline

__all__ = ["Batches", "Floats", "Samples", "Stretch", "nothing"]

Floats = NDArray[np.float64]

MOST_SAMPLES = 1 << 20
"""Contributions that are kept one by one."""


class Batches(NamedTuple):
    """[B] sums over equally many folds each.

    Attributes:
        seconds: that they took.
        minibatches: in the model since; those that a restart of the server undid are not.
        contributions: that were folded.
        staleness, lag_s: of these.
    """

    seconds: Floats
    minibatches: Floats
    contributions: Floats
    staleness: Floats
    lag_s: Floats

    def after(self, first: int) -> Batches:
        """Without the first ones."""
        return Batches(*(column[first:] for column in self))

    def merged(self, count: int) -> Batches:
        """Each ``count`` neighbours as one; what is left over at the start is dropped."""
        spare = len(self.seconds) % count
        return Batches(*(column[spare:].reshape(-1, count).sum(axis=1) for column in self))

    def then(self, later: Batches) -> Batches:
        """With those of the next stretch."""
        return Batches(*(np.concatenate(pair) for pair in zip(self, later, strict=True)))


def nothing() -> Batches:
    """No batch yet."""
    return Batches(*np.zeros((5, 0)))


class Samples:
    """Staleness and lag of single contributions: of all, or of every 2nd, 4th … of many.

    Attributes:
        stride: of so many contributions one is kept.
        staleness, lag_s: [S] of those kept.
        seen: contributions so far.
        largest: staleness and lag, of all.
    """

    def __init__(self) -> None:
        self.stride, self.seen = 1, 0
        self.staleness, self.lag_s = np.zeros(0, np.int64), np.zeros(0)
        self.largest = (0.0, 0.0)

    def add(self, staleness: NDArray[Any], lag_s: Floats) -> None:
        """The next contributions."""
        kept = slice(-self.seen % self.stride, None, self.stride)
        self.staleness = np.concatenate([self.staleness, staleness[kept]])
        self.lag_s = np.concatenate([self.lag_s, lag_s[kept]])
        self.seen += len(staleness)
        if len(staleness):
            found = float(staleness.max()), float(lag_s.max())
            self.largest = max(self.largest[0], found[0]), max(self.largest[1], found[1])
        while len(self.staleness) > MOST_SAMPLES:
            self.staleness, self.lag_s = self.staleness[::2], self.lag_s[::2]
            self.stride *= 2

    def after(self, contributions: int) -> tuple[NDArray[Any], Floats]:
        """Staleness and lag of those kept, without the first so many contributions."""
        first = -(-contributions // self.stride)
        return self.staleness[first:], self.lag_s[first:]


class Stretch:
    """Sums over the batches of one stretch of a simulation, filled part by part.

    Attributes:
        batches: the sums.
        aged: folds since their reads of all contributions under way at the end, together.
    """

    def __init__(self, first: int, start_s: float, size: int, count: int) -> None:
        self.first, self.last_s, self.size, self.count = first, start_s, size, count
        self.batches = Batches(*np.zeros((5, count)))
        self.aged = 0.0

    @property
    def folded(self) -> float:
        """Contributions folded, at least 1."""
        return max(float(self.batches.contributions.sum()), 1.0)

    def add(self, part: Timeline) -> None:
        """What was folded in a part, and what is under way after the last."""
        rows, folds = part.folded(), part.folds
        times_s = np.diff(folds.time_s, prepend=self.last_s)
        self._sum(self.batches.seconds, folds.fold, times_s)
        self._sum(self.batches.minibatches, rows.fold, rows.steps)
        self._sum(self.batches.contributions, rows.fold, np.ones(len(rows)))
        self._sum(self.batches.staleness, rows.fold, part.staleness())
        self._sum(self.batches.lag_s, rows.fold, part.lag_s())
        if len(folds):
            self.last_s = float(folds.time_s[-1])
        each = float(rows.steps.mean()) if len(rows) else 0.0
        undone = part.restarts.version - part.restarts.restored_version
        self._sum(self.batches.minibatches, part.restarts.version - 1, -each * undone)
        end = self.first + self.size * self.count
        self.aged = float(np.maximum(end - part.in_flight().read_version, 0).sum())

    def _sum(self, into: Floats, folds: NDArray[np.int64], values: NDArray[Any]) -> None:
        """Add what belongs to folds to their batches."""
        place = (folds - self.first) // self.size
        inside = (place >= 0) & (place < self.count)
        into += np.bincount(place[inside], values[inside], self.count)

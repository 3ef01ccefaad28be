"""Progress of a long command on stderr: steps done, and an estimate of the time left."""

from __future__ import annotations

import time
from collections.abc import Callable

from harness.base.log import say

LONG_S = 10.0
"""Seconds; a command that takes less prints no progress."""
EVERY_S = 5.0
ENOUGH_S = 1.0
"""Seconds of work after which the time left is estimated from it."""


class Progress:
    """Progress of several pieces of work one after another, each in steps.

    Args:
        pieces: number of pieces.
        clock: returns seconds; only differences are used.
        say: receives a line.
    """

    def __init__(
        self,
        pieces: int,
        clock: Callable[[], float] = time.monotonic,
        say: Callable[[str], object] = say,
    ) -> None:
        self.pieces, self.clock = pieces, clock
        self.say = say
        self.began_s = self.clock()
        self.said_s = -EVERY_S
        self.piece = 0

    def begin(
        self, piece: int, name: str, unit: str, settled: bool = True
    ) -> Callable[[int, int], None]:
        """Begin a piece; returns a function of the steps done and the number of steps.

        Args:
            piece: number of the piece, from 1; a piece may begin several times.
            name: name of the work, as ``"8 workers"``.
            unit: unit of a step, as ``"folds"``.
            settled: whether the number of steps is known; otherwise it is an upper bound.
        """
        self.piece = piece
        start: tuple[int, float] | None = None  # steps and time of the first call, after compiling

        def watch(done: int, steps: int) -> None:
            nonlocal start
            start = start or (done, self.clock())
            spent_s = self.clock() - start[1]
            if spent_s < ENOUGH_S or done == start[0] or (settled and done >= steps):
                return
            left_s = spent_s * max(steps - done, 0) / (done - start[0])
            if settled:
                self._tell(name, f"{done:,} of {steps:,} {unit}, about {left_s:.0f} s left", left_s)
            else:  # the bound is often a hundred times what it takes, and so would be its time
                self._tell(name, f"{done:,} of at most {steps:,} {unit}", 0.0)

        return watch

    def _tell(self, name: str, done: str, left_s: float) -> None:
        now_s = self.clock()
        if now_s + left_s - self.began_s <= LONG_S or now_s - self.said_s < EVERY_S:
            return
        place = f" ({self.piece} of {self.pieces})" if self.pieces > 1 else ""
        self.said_s = now_s
        self.say(f"{name}{place}: {done}")

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
        clock: returns seconds; only differences are used.
        say: receives a line.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        say: Callable[[str], object] = say,
    ) -> None:
        self.clock, self.say = clock, say
        self.began_s = self.clock()
        self.said_s = -EVERY_S

    def begin(self, name: str, unit: str, settled: bool = True) -> Callable[[int, int], None]:
        """Begin a piece; returns a function of the steps done and the number of steps.

        Args:
            name: name of the work, as ``"8 workers"``.
            unit: unit of a step, as ``"folds"``.
            settled: whether the number of steps is known; otherwise it is an upper bound.
        """
        start: tuple[int, float] | None = None  # steps and time of the first call, after compiling

        def watch(done: int, steps: int) -> None:
            nonlocal start
            start = start or (done, self.clock())
            spent_s = self.clock() - start[1]
            if spent_s < ENOUGH_S or done == start[0] or (settled and done >= steps):
                return
            left_s = spent_s * max(steps - done, 0) / (done - start[0])
            # The bound is often a hundred times what it takes, and so would be its time.
            most, left = ("", f", about {left_s:.0f} s left") if settled else ("at most ", "")
            now_s = self.clock()
            is_long = now_s + left_s * settled - self.began_s > LONG_S
            if is_long and now_s - self.said_s >= EVERY_S:
                self.said_s = now_s
                self.say(f"{name}: {done:,} of {most}{steps:,} {unit}{left}")

        return watch

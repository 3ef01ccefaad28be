"""What a long command says on stderr while it works: how far it is, and how long it will take."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from harness.base.settings import format_quantity, format_seconds

__all__ = ["Progress"]

LONG_S = 10.0
"""Only a command that takes longer says anything."""
LARGE = 1e9
"""Bytes of memory that are worth a word."""
EVERY_S = 5.0
ENOUGH_S = 1.0
"""Time after which the rest can be foretold from what was done."""


def print_on_stderr(line: str) -> None:
    """One line, at once."""
    print(line, file=sys.stderr, flush=True)


class Progress:
    """Of several pieces of work one after another, each in steps.

    Args:
        pieces: how many there will be.
        clock: seconds; only differences count.
        say: what a line is given to.
    """

    def __init__(
        self,
        pieces: int,
        clock: Callable[[], float] = time.monotonic,
        say: Callable[[str], object] = print_on_stderr,
    ) -> None:
        self.pieces, self.clock = pieces, clock
        self.say = say
        self.began_s = self.clock()
        self.said_s = -EVERY_S
        self.piece = 0

    def foretell(self, seconds: float, size: float) -> None:
        """What all of it will take at least, said if it is long; before anything is done.

        Args:
            seconds: together.
            size: bytes of memory of what needs most.
        """
        if seconds > LONG_S:
            memory = f", and {format_quantity(size, 'B')} of memory" if size > LARGE else ""
            self.say(f"this will take some {_roughly(seconds)} or more{memory}")

    def begin(
        self, piece: int, name: str, unit: str, settled: bool = True, first_s: float = 0.0
    ) -> Callable[[int, int], None]:
        """Work on a piece begins; what is returned is told the steps done, and how many there are.

        Args:
            piece: which, from 1; one piece may take several such works.
            name: of the work, as ``"8 workers"``.
            unit: what a step is, as ``"folds"``.
            settled: whether the number of steps is known, and not only the most there may be.
            first_s: seconds that it takes before the first step, said if they are many.
        """
        self.piece = piece
        first: tuple[int, float] | None = None  # before it, much is compiled once
        if first_s > LONG_S:
            self._say(name, f"some {_roughly(first_s)} before the first of its {unit}")

        def watch(done: int, steps: int) -> None:
            nonlocal first
            first = first or (done, self.clock())
            spent_s = self.clock() - first[1]
            if spent_s < ENOUGH_S or done == first[0] or (settled and done >= steps):
                return
            left_s = spent_s * max(steps - done, 0) / (done - first[0])
            most = "" if settled else "at most "
            self._tell(name, f"{done:,} of {most}{steps:,} {unit}", left_s, settled)

        return watch

    def _tell(self, name: str, done: str, left_s: float, settled: bool) -> None:
        now_s = self.clock()
        long = now_s - self.began_s > LONG_S or (settled and now_s + left_s - self.began_s > LONG_S)
        if not long or now_s - self.said_s < EVERY_S:
            return
        word = "about" if settled else "at most"
        self._say(name, f"{done}, {word} {left_s:.0f} s left")

    def _say(self, name: str, what: str) -> None:
        place = f" ({self.piece} of {self.pieces})" if self.pieces > 1 else ""
        self.said_s = self.clock()
        self.say(f"{name}{place}: {what}")


def _roughly(seconds: float) -> str:
    """With two digits."""
    value, unit = format_seconds(seconds).split()
    return f"{float(value):.2g} {unit}"

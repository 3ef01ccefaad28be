"""What is said to a user whose command waits for a run that another process holds."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

from harness.store import owner

FIRST_S, TIMES = 5.0, 4.0
"""After how long a line is said first, and so many times as long again each further one."""
SILENT_S = 15.0
"""A holder that lives and has not counted for so long is stuck, or stopped."""


def _on_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


@dataclass
class Waiting:
    """Says now and then whom somebody waits for, how long, and what can be done.

    Args:
        what: is waited for.
        say: takes a line.
    """

    what: str
    say: Callable[[str], None] = _on_stderr

    def __post_init__(self) -> None:
        self._next_s = FIRST_S

    def __call__(self, holder: str, waited_s: float, still_s: float) -> None:
        """Be told of it.

        Args:
            holder: the word of a process (`owner`).
            waited_s: how long so far.
            still_s: since when the holder gave no sign of life.
        """
        if waited_s >= self._next_s:
            self._next_s *= TIMES
            self.say(f"{self.what}: waiting for {waited_s:.0f} s for {_told(holder, still_s)}")


def _told(holder: str, still_s: float) -> str:
    number, host = owner.number(holder), owner.host(holder)
    if not owner.lives(holder):
        return f"process {number} of {host}, which is taken over if it shows no life for a minute"
    if owner.stopped(holder):
        hand_over = f"kill -KILL {number} hands the run over"
        return (
            f"process {number}, which is suspended; kill -CONT {number} lets it go on, {hand_over}"
        )
    if still_s >= SILENT_S:
        silent = f"shows no life for {still_s:.0f} s"
        return f"process {number}, which lives and {silent}; kill -KILL {number} hands the run over"
    return f"process {number}, which is at work on it; its result is taken when it is there"

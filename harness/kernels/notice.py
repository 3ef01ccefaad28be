# pyright: reportMissingImports=false, reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false
"""Saying what is compiled, so that nobody wonders why a first command takes its time."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

__all__ = ["announce", "complain", "listen"]

_to_be_told: int | None = None
"""The process in which somebody waits; not one that it has forked."""


def announce() -> None:
    """From now on this process says on stderr what it compiles, and how long that took."""
    global _to_be_told
    _to_be_told = os.getpid()


def listen() -> None:
    """Hear of whatever numba compiles; what it loads is not compiled, and not mentioned."""
    # Only here: the command answers `--help` without importing numba.
    from numba.core import event

    class Compiling(event.Listener):
        """Functions that a kernel calls are compiled while it is, and go unmentioned."""

        def __init__(self) -> None:
            self.depth, self.start_s = 0, 0.0

        def on_start(self, event: Any) -> None:
            if self.depth == 0:
                self.start_s = time.perf_counter()
                _tell(f"compiling, once on this machine: {_name(event)} ...", end=" ")
            self.depth += 1

        def on_end(self, event: Any) -> None:
            self.depth -= 1
            if self.depth == 0:
                _tell(f"{time.perf_counter() - self.start_s:.1f} s", end="\n")

    event.register("numba:compile", Compiling())


def complain(line: str) -> None:
    """Say on stderr what is wrong with the kernels that are kept, to anybody."""
    print(f"kernel cache: {line}", file=sys.stderr)


def _name(event: Any) -> str:
    function = event.data["dispatcher"].py_func
    return f"{function.__module__}.{function.__qualname__}"


def _tell(text: str, end: str) -> None:
    if _to_be_told == os.getpid():
        print(text, end=end, file=sys.stderr, flush=True)

# pyright: reportMissingImports=false, reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false
"""Notices of compilations, which make a first command slow."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from harness.base.errors import UserError
from harness.base.log import LOG

Say = Callable[[str, float | None], None]
"""Callback: a kernel's name, and None when its compilation begins or its seconds when it ends."""

_told: tuple[int, Say] | None = None
"""Process id and callback of the announcing process; its forks announce nothing."""


def check_environment() -> None:
    """Refuse an environment in which numba compiles nothing.

    Raises:
        UserError: it is one.
    """
    if os.environ.get(name := "NUMBA_DISABLE_JIT", "0") not in ("", "0"):
        raise UserError(f"environment: {name}={os.environ[name]}: allowed: 0, or without it")


def announce(say: Say | None = None) -> None:
    """Announce each kernel that this process compiles from now on, and its seconds.

    Args:
        say: callback; writes to stderr if not given.
    """
    global _told
    _told = os.getpid(), say or _log_to_stderr


def listen() -> None:
    """Subscribe to numba's compilations; kernels loaded from the cache cause no events."""
    # Only here: the command answers `--help` without importing numba.
    from numba.core import event

    class Compiling(event.Listener):
        """Announces the outermost compilation only, not those of functions that a kernel calls."""

        def __init__(self) -> None:
            self.depth, self.start_s = 0, 0.0

        def on_start(self, event: Any) -> None:
            if self.depth == 0:
                self.start_s = time.perf_counter()
                _tell(_name(event), None)
            self.depth += 1

        def on_end(self, event: Any) -> None:
            self.depth -= 1
            if self.depth == 0:
                _tell(_name(event), time.perf_counter() - self.start_s)

    event.register("numba:compile", Compiling())


def complain(line: str) -> None:
    """Warn on stderr about a damaged cache file, whether or not compilations are announced."""
    LOG.warning(f"kernel cache: {line}")


def _name(event: Any) -> str:
    function = event.data["dispatcher"].py_func
    return f"{function.__module__}.{function.__qualname__}"


def _tell(kernel: str, seconds: float | None) -> None:
    if _told and _told[0] == os.getpid():
        _told[1](kernel, seconds)


def _log_to_stderr(kernel: str, seconds: float | None) -> None:
    begins = seconds is None
    text = f"compiling, once on this machine: {kernel} ..." if begins else f"{seconds:.1f} s"
    LOG.info(text, extra={"end": " " if begins else "\n"})

"""Compiling kernels: whether a process compiles or loads one, it computes the same bits.

With ``fastmath`` the machine code decides in which order a sum is taken. A process that compiles
a function and its caller would call the function's own code; a process that loads the caller
would use the copy that was optimised into it, whose sums may run in another order. So every
function that a kernel calls is compiled into it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from harness.kernels import compiling

__all__ = ["kernel", "part", "summing_part"]

_F = TypeVar("_F", bound=Callable[..., Any])

_FAST = {"reassoc", "nsz", "nnan", "contract"}
"""Sums may be taken in another order; nothing that enters them is NaN."""


def kernel(function: _F) -> _F:
    """Compile, and keep the machine code for the next process."""
    return compiling.kernel(function, nogil=True)


def part(function: _F) -> _F:
    """Compile into every kernel that calls it."""
    return compiling.part(function, nogil=True, forceinline=True)


def summing_part(function: _F) -> _F:
    """As `part`, and several numbers may be summed at a time."""
    return compiling.part(function, nogil=True, forceinline=True, fastmath=_FAST)

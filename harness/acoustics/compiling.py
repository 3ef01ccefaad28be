"""Compiling kernels so that whoever loads them computes the bits of whoever compiled them.

A sum that may be taken in any order is as good as its machine code. A process that compiles a
function calls the code made for it by itself; one that loads the caller calls the copy that was
optimised with the caller, whose sums may run in another order. So what a kernel calls becomes
part of it.
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

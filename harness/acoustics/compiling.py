"""Compilation of kernels: compiled or loaded from the cache, they give the same bits.

With ``fastmath`` the machine code determines the order of a sum. A process that compiles a
function and its caller would call the function's own code; a process that loads the caller from
the cache would use the inlined copy, whose sums may run in another order. So every function that
a kernel calls is inlined into it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from harness.kernels import compiling

_F = TypeVar("_F", bound=Callable[..., Any])

_FAST = {"reassoc", "nsz", "nnan", "contract"}
"""Flags that let the compiler reorder sums and assume that no operand is NaN."""


def kernel(function: _F) -> _F:
    """Compile a kernel without the GIL, and cache the machine code for later processes."""
    return compiling.kernel(function, nogil=True)


def part(function: _F) -> _F:
    """Compile a function into every kernel that calls it."""
    return compiling.part(function, nogil=True, forceinline=True)


def summing_part(function: _F) -> _F:
    """As `part`, with sums that may be vectorised, so reordered."""
    return compiling.part(function, nogil=True, forceinline=True, fastmath=_FAST)

"""Compiling kernels so that whoever loads them computes the bits of whoever compiled them.

A sum that may be taken in any order is as good as its machine code. A process that compiles a
function calls the code made for it by itself; one that loads the caller from numba's cache calls
the copy that was optimised with the caller, whose sums may run in another order. So what a kernel
calls becomes part of it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from harness.simulator.jit import cache_folder, cached

_F = TypeVar("_F", bound=Callable[..., Any])

_FOLDER = cache_folder(Path(__file__).parent)
_FAST = {"reassoc", "nsz", "nnan", "contract"}
"""Sums may be taken in another order; nothing that enters them is NaN."""


def kernel(function: _F) -> _F:
    """Compile, and keep the machine code for the next process."""
    return cached(function, _FOLDER, nogil=True)


def part(function: _F) -> _F:
    """Compile into every kernel that calls it."""
    return cached(function, _FOLDER, nogil=True, forceinline=True)


def summing_part(function: _F) -> _F:
    """As `part`, and several numbers may be summed at a time."""
    return cached(function, _FOLDER, nogil=True, forceinline=True, fastmath=_FAST)

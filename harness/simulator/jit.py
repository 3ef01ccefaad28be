"""Compiling kernels of the simulator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from harness.kernels import compiling

__all__ = ["kernel", "loop", "part"]

_F = TypeVar("_F", bound=Callable[..., Any])

# Kernels allocate no arrays, so counting references to those they are handed is wasted;
# with the counting a fold takes five times as long.
_OPTIONS = {"_nrt": False}


def kernel(function: _F) -> _F:
    """Compile for other kernels, which lend their named tuples, and for Python."""
    return compiling.shared(function, **_OPTIONS)


def loop(function: _F) -> _F:
    """Compile for Python alone, with the fields of its named tuples as variables of its own.

    A loop of few instructions keeps them in registers; with lent ones it would take 1.6 times
    as long. It calls `part` where it can: what it lends to a kernel is first copied.
    """
    return compiling.kernel(function, **_OPTIONS)


def part(function: _F) -> _F:
    """Compile as if it were written out in every kernel that calls it."""
    return compiling.kernel(function, inline="always", **_OPTIONS)

# pyright: reportMissingImports=false, reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false
"""Compiling the simulator's kernels once a machine."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numba
import numba.core.config

__all__ = ["kernel", "part"]

_F = TypeVar("_F", bound=Callable[..., Any])


def _source_digest() -> str:
    """A digest of every source file a kernel of this package may be made of."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _cache_folder() -> str:
    """Where compiled kernels are kept; nowhere for a user without a home."""
    try:
        home = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    except RuntimeError:
        return os.devnull
    return str(home / "lagbench" / "kernels" / _source_digest())


# Set by numba when it is imported; its own annotations do not list them.
config: Any = numba.core.config
_FOLDER = os.environ.get("NUMBA_CACHE_DIR") or _cache_folder()


def part(function: _F) -> _F:
    """Compile as `kernel` does, but into every kernel that calls it.

    Handing over a state of many arrays is dozens of machine words a call; in the innermost
    loop that is a quarter of the time.
    """
    return kernel(function, inline="always")


def kernel(function: _F, inline: str = "never") -> _F:
    """Compile with numba and keep the machine code for the next process.

    numba alone renews its cache only when the file of the outermost function changes, not
    when one it calls does; so the folder is named by a digest of all sources here. Where no
    cache can be written the function is compiled afresh in every process.
    """
    before = config.CACHE_DIR
    config.CACHE_DIR = _FOLDER
    try:
        return _compiled(function, cache=True, inline=inline)
    except (RuntimeError, OSError):
        return _compiled(function, cache=False, inline=inline)
    finally:
        config.CACHE_DIR = before


def _compiled(function: _F, cache: bool, inline: str) -> _F:
    # Kernels allocate no arrays, so counting references to those they are handed is wasted;
    # with the counting a fold takes five times as long.
    njit: Any = numba.njit  # its declared signature leaves `_nrt` out
    return njit(cache=cache, inline=inline, _nrt=False)(function)

# pyright: reportMissingImports=false, reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false
"""Compiling kernels once a machine."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numba
import numba.core.config

__all__ = ["cache_folder", "cached", "kernel", "part"]

_F = TypeVar("_F", bound=Callable[..., Any])


def _source_digest(package: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def cache_folder(package: Path) -> str:
    """Where compiled kernels of a package are kept; nowhere for a user without a home.

    numba alone renews its cache only when the file of the outermost function changes, not
    when one it calls does; so the folder is named by a digest of all sources of the package.
    """
    if named := os.environ.get("NUMBA_CACHE_DIR"):
        return named
    try:
        home = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    except RuntimeError:
        return os.devnull
    return str(home / "lagbench" / "kernels" / _source_digest(package))


# Set by numba when it is imported; its own annotations do not list them.
config: Any = numba.core.config
_FOLDER = cache_folder(Path(__file__).parent)


def part(function: _F) -> _F:
    """Compile as `kernel` does, but into every kernel that calls it.

    Handing over a state of many arrays is dozens of machine words a call; in the innermost
    loop that is a quarter of the time.
    """
    return kernel(function, inline="always")


def kernel(function: _F, inline: str = "never") -> _F:
    """Compile with numba and keep the machine code for the next process."""
    # Kernels allocate no arrays, so counting references to those they are handed is wasted;
    # with the counting a fold takes five times as long.
    return cached(function, _FOLDER, inline=inline, _nrt=False)


def cached(function: _F, folder: str, **options: Any) -> _F:
    """Compile with options of numba's and keep the machine code in a folder.

    Where no cache can be written the function is compiled afresh in every process.
    """
    njit: Any = numba.njit  # its declared signature leaves `_nrt` out
    before = config.CACHE_DIR
    config.CACHE_DIR = folder
    try:
        return njit(cache=True, **options)(function)
    except (RuntimeError, OSError):
        return njit(cache=False, **options)(function)
    finally:
        config.CACHE_DIR = before

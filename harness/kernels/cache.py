# pyright: reportMissingImports=false, reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportIncompatibleMethodOverride=false
# pyright: reportIncompatibleVariableOverride=false
"""Machine code of kernels, kept in files for the next process.

One file holds one kernel for one kind of arguments: a SHA-256 of its name and its content, then the
content, which is numba's. The name says everything the code depends on (`identity`), so a file
is right or absent; and a file that is not what was written is noticed before any of it is read.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import sys
import tempfile
from functools import cached_property
from pathlib import Path
from typing import Any

import numba
import numpy as np
from numba.core.caching import _Cache
from numba.core.compiler import CompileResult
from numba.core.serialize import dumps

from harness.kernels import notice
from harness.kernels.identity import identity, spelled

__all__ = ["KernelCache", "folder", "read", "write"]


def folder() -> Path | None:
    """Where kernels are kept; nowhere for a user without a home."""
    if named := os.environ.get("NUMBA_CACHE_DIR"):
        return Path(named)
    try:
        home = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    except RuntimeError:
        return None
    return home / "lagbench" / "kernels"


def write(path: Path, content: bytes) -> None:
    """Write a file that `read` takes, in one step for whoever reads it; where that fails, none."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as aside:
            whole = Path(aside) / path.name
            whole.write_bytes(_digest(path, content) + content)
            whole.chmod(0o600)
            whole.replace(path)


def read(path: Path) -> bytes | None:
    """The content that was written to a file; None where there is none of this user's.

    A digest tells damage and no forgery, and what is loaded is executed: so a file that somebody
    else owns, or may write, is not read.

    Raises:
        ValueError: the file is not as it was written.
    """
    try:
        if hasattr(os, "getuid") and not _is_own(path.stat()):
            return None
        stored = path.read_bytes()
    except OSError:
        return None
    length = hashlib.sha256().digest_size
    if stored[:length] != _digest(path, stored[length:]):
        raise ValueError("not as it was written")
    return stored[length:]


def _is_own(status: os.stat_result) -> bool:
    return status.st_uid == os.getuid() and not status.st_mode & 0o022


def _digest(path: Path, content: bytes) -> bytes:
    return hashlib.sha256(path.name.encode() + b"\n" + content).digest()


class KernelCache(_Cache):
    """numba's interface to the kept forms of one kernel.

    Args:
        dispatcher: numba's, of the kernel.
    """

    def __init__(self, dispatcher: Any) -> None:
        self._dispatcher = dispatcher
        function = dispatcher.py_func
        self._name = f"{function.__module__}.{function.__qualname__}".replace("<locals>", "")

    @cached_property
    def _identity(self) -> str:
        return identity(self._dispatcher)

    @property
    def cache_path(self) -> str:
        """The folder."""
        return str(folder())

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The kernel for arguments of these types; None if it is to be compiled."""
        target_context.refresh()
        path = self._path(sig, target_context.codegen())
        return None if path is None else _loaded(path, target_context)

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep what has been compiled."""
        for environment in data._find_referenced_environments():  # of code linked into it
            data.codegen.set_env(environment.env_name, environment)
        path = self._path(sig, data.codegen)
        if path is not None and not data.lifted and not data.library.has_dynamic_globals:
            write(path, dumps(data._reduce()))

    def _path(self, arguments: Any, codegen: Any) -> Path | None:
        where = folder()
        if where is None:
            return None
        kinds = [spelled(kind) for kind in arguments]
        versions = (sys.implementation.cache_tag, numba.__version__, np.__version__)
        key = repr((self._identity, kinds, codegen.magic_tuple(), versions))
        return where / f"{self._name}-{hashlib.sha256(key.encode()).hexdigest()[:32]}.kernel"

    def enable(self) -> None:
        """It always is."""

    def disable(self) -> None:
        """Not provided for."""

    def flush(self) -> None:
        """Not provided for: delete the folder instead."""


def _loaded(path: Path, target_context: Any) -> Any:
    """What a file keeps; a file that cannot be used is thrown away with a line on stderr."""
    try:
        content = read(path)
        return content and CompileResult._rebuild(target_context, *pickle.loads(content))
    except Exception as error:  # whatever a file makes numba raise, the kernel can be compiled
        notice.complain(f"{path} is damaged ({error}); it is thrown away and compiled anew")
        with contextlib.suppress(OSError):
            path.unlink()
        return None

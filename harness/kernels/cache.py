# pyright: reportMissingImports=false, reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportIncompatibleMethodOverride=false
# pyright: reportIncompatibleVariableOverride=false, reportPrivateUsage=false
"""Machine code of kernels, kept for the next process.

One file (`files`) holds one kernel for one kind of arguments; its content is numba's. The name says
everything the code depends on (`identity`), so a file is right or absent.
"""

from __future__ import annotations

import contextlib
import hashlib
import pickle
import sys
from functools import cached_property
from pathlib import Path
from typing import Any

import numba
import numpy as np
from numba.core.caching import _Cache
from numba.core.compiler import CompileResult
from numba.core.serialize import dumps

from harness.kernels import files, notice
from harness.kernels.identity import identity, spelled

__all__ = ["KernelCache"]


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
        return str(files.folder())

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
            files.write(path, dumps(data._reduce()))

    def _path(self, arguments: Any, codegen: Any) -> Path | None:
        where = files.folder()
        if where is None:
            return None
        kinds = [spelled(kind) for kind in arguments]
        versions = (sys.implementation.cache_tag, numba.__version__, np.__version__)
        key = repr((self._identity, kinds, codegen.magic_tuple(), versions))
        return where / f"{self._name}-{hashlib.sha256(key.encode()).hexdigest()[:32]}{files.SUFFIX}"

    def enable(self) -> None:
        """It always is."""

    def disable(self) -> None:
        """Not provided for."""

    def flush(self) -> None:
        """Not provided for: delete the folder instead."""


def _loaded(path: Path, target_context: Any) -> Any:
    """What a file keeps; a file that cannot be used is thrown away with a line on stderr."""
    try:
        content = files.read(path)
        return content and CompileResult._rebuild(target_context, *pickle.loads(content))
    except Exception as error:  # whatever a file makes numba raise, the kernel can be compiled
        notice.complain(f"{path} is damaged ({error}); it is thrown away and compiled anew")
        with contextlib.suppress(OSError):
            path.unlink()
        return None

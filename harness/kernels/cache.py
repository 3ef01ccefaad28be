# pyright: reportMissingImports=false, reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportIncompatibleMethodOverride=false
# pyright: reportIncompatibleVariableOverride=false, reportPrivateUsage=false
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false
# pyright: reportPrivateImportUsage=false
"""Machine code of kernels: its files, the digest that names them, and tuples passed by address.

A file holds the machine code of one kernel for one signature: a SHA-256 of name and content, then
numba's content. The name is a digest of everything the code depends on (`KernelCache`), so a file
is valid or absent, and damage is detected before anything is loaded. There are no locks: writes are
atomic, and a process that misses a file compiles the kernel again.

Named tuples are passed between compiled functions by address (`TuplePointer`). numba itself passes
a tuple by its parts, and an array by seven words. The state of a simulation is forty arrays in
tuples of tuples: 300 words, copied at every call, typed and lowered again in every function that
passes them on. A pointer is one word. The first function that calls another keeps the tuple in its
frame, which outlives every call below it. A pointer has the fields of its tuple; a tuple within it
is passed by address in turn.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numba
import numpy as np
from numba.core import cgutils, types
from numba.core.caching import NullCache
from numba.core.compiler import CompileResult
from numba.core.datamodel import models
from numba.core.imputils import impl_ret_borrowed, lower_cast, lower_getattr_generic
from numba.core.serialize import dumps
from numba.core.typeconv import Conversion
from numba.core.typing.templates import AttributeTemplate
from numba.extending import infer_getattr, register_model

from harness.kernels import notice


class KernelCache(NullCache):
    """Disk cache of one kernel's machine code, behind numba's cache interface.

    An edit of any source file in the kernel's folder, in `harness.simulator` or in
    `harness.kernels` compiles the kernel anew, so what a kernel calls and reads belongs there.
    Kernels of no file, such as a notebook's, and functions within others, which differ by what
    they capture, are not stored.

    Args:
        dispatcher: numba's dispatcher of the kernel.
    """

    def __init__(self, dispatcher: Any) -> None:
        function = dispatcher.py_func
        source, line = Path(function.__code__.co_filename), function.__code__.co_firstlineno
        self._name = f"{function.__module__}.{function.__qualname__}"
        self._is_stored = function.__qualname__.isidentifier() and source.is_file()
        # Now, as the module is imported: its files may change before the kernel is called.
        digest = _digest_once if source.is_relative_to(_HOUSE) else digest_sources
        self._identity = _SHARED, digest(source.parent), self._name, line

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Load the kernel for arguments of these types; None if it must be compiled."""
        target_context.refresh()
        path = self._path(sig, target_context.codegen())
        return None if path is None else _load(path, target_context)

    def save_overload(self, sig: Any, data: Any) -> None:
        """Store a compiled kernel, unless it has lifted loops or dynamic globals."""
        for environment in data._find_referenced_environments():  # of code linked into it
            data.codegen.set_env(environment.env_name, environment)
        path = self._path(sig, data.codegen)
        if path is not None and not data.lifted and not data.library.has_dynamic_globals:
            write(path, dumps(data._reduce()))

    def _path(self, arguments: Any, codegen: Any) -> Path | None:
        root = folder()
        if root is None or not self._is_stored:
            return None
        kinds = [str(kind) for kind in arguments]
        versions = (sys.implementation.cache_tag, numba.__version__, np.__version__)
        key = repr((self._identity, kinds, codegen.magic_tuple(), versions))
        return root / f"{self._name}-{hashlib.sha256(key.encode()).hexdigest()[:32]}{SUFFIX}"


def _load(path: Path, target_context: Any) -> Any:
    """The kernel stored in a file; a damaged file is deleted, with a warning on stderr.

    Raises:
        OSError: the machine refuses to read the file, or what the kernel needs.
    """
    try:
        content = read(path)
        return content and CompileResult._rebuild(target_context, *pickle.loads(content))
    except (OSError, MemoryError):
        raise
    except Exception as error:  # any: the kernel can be compiled instead
        notice.complain(f"{path} is damaged ({error}); it is deleted and the kernel compiled again")
        with contextlib.suppress(OSError):
            path.unlink()
        return None


SUFFIX = ".kernel"


def folder() -> Path | None:
    """Folder of the cache; None for a user without a home directory."""
    if path := os.environ.get("NUMBA_CACHE_DIR"):
        return Path(path)
    try:
        home = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    except RuntimeError:
        return None
    return home / "lagbench" / "kernels"


def write(path: Path, content: bytes) -> None:
    """Write a file for `read` atomically; a file that cannot be written is left out silently."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, aside = tempfile.mkstemp(SUFFIX, dir=path.parent)  # for this user alone
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(_digest(path, content) + content)
            Path(aside).replace(path)
        finally:
            Path(aside).unlink(missing_ok=True)


def read(path: Path) -> bytes | None:
    """The content of a cache file; None where there is no file that this user alone can write.

    The digest detects damage but not forgery, and loaded code is executed. So a file that another
    user owns or can write is not read.

    Raises:
        ValueError: the content does not match its digest.
        OSError: the machine refuses to read the file, which this user may.
    """
    try:
        if hasattr(os, "getuid") and not _is_own(path.stat()):
            return None
    except (FileNotFoundError, NotADirectoryError, PermissionError):  # or no folder of this user
        return None
    try:
        stored = path.read_bytes()
    except FileNotFoundError:  # another process found it damaged
        return None
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    length = hashlib.sha256().digest_size
    if stored[:length] != _digest(path, stored[length:]):
        raise ValueError("its content does not match its digest")
    return stored[length:]


def _is_own(status: os.stat_result) -> bool:
    return status.st_uid == os.getuid() and not status.st_mode & 0o022


def _digest(path: Path, content: bytes) -> bytes:
    return hashlib.sha256(path.name.encode() + b"\n" + content).digest()


def digest_sources(folder: Path, pattern: str = "*.py") -> str:
    """Digest of the names and contents of a folder's source files."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob(pattern)):
        with contextlib.suppress(OSError):  # an editor's lock: what cannot be read is not imported
            content = _digest(path, path.read_bytes())
            digest.update(f"{path.relative_to(folder)}\n".encode() + content)
    return digest.hexdigest()


_digest_once = cache(digest_sources)
"""For this project's folders; those of a user may be reloaded after an edit."""

_HOUSE = Path(__file__).parents[1]

_SHARED = digest_sources(_HOUSE / "kernels"), digest_sources(_HOUSE / "simulator", "**/*.py")
"""Digests of the way of compiling and of what every package's kernels call."""


class TuplePointer(types.Type):
    """The type of the address of a named tuple of type ``whole``."""

    def __init__(self, content: Any) -> None:
        self.content = content
        super().__init__(f"Lent({content})")

    @property
    def key(self) -> Any:
        """Identity of the type, for numba: the tuple type."""
        return self.content

    def can_convert_from(self, typingctx: Any, other: Any) -> Any:
        """Allow a tuple to be passed where its pointer is expected."""
        return Conversion.safe if other == self.content else None


def argument_type(kind: Any) -> Any:
    """The type under which a compiled function receives a value: a pointer for a named tuple."""
    return TuplePointer(kind) if isinstance(kind, types.BaseNamedTuple) else kind


@register_model(TuplePointer)
class _Address(models.PrimitiveModel):
    def __init__(self, dmm: Any, kind: TuplePointer) -> None:
        super().__init__(dmm, kind, dmm.lookup(kind.content).get_value_type().as_pointer())


@infer_getattr
class _Fields(AttributeTemplate):
    key = TuplePointer

    def generic_resolve(self, kind: TuplePointer, name: str) -> Any:
        if name not in kind.content.fields:
            return None
        return argument_type(kind.content[kind.content.fields.index(name)])


@lower_getattr_generic(TuplePointer)
def _field(context: Any, builder: Any, kind: TuplePointer, address: Any, name: str) -> Any:
    place = kind.content.fields.index(name)
    field, pointer = kind.content[place], cgutils.gep_inbounds(builder, address, 0, place)
    if isinstance(field, types.BaseNamedTuple):
        return pointer
    return impl_ret_borrowed(context, builder, field, builder.load(pointer))


@lower_cast(types.BaseNamedTuple, TuplePointer)
def _lend(context: Any, builder: Any, kind: Any, lent_kind: TuplePointer, value: Any) -> Any:
    return cgutils.alloca_once_value(builder, value)

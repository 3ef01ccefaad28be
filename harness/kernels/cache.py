# pyright: reportMissingImports=false, reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportIncompatibleMethodOverride=false
# pyright: reportIncompatibleVariableOverride=false, reportPrivateUsage=false
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false
# pyright: reportPrivateImportUsage=false
"""Machine code of kernels: the digest that names it, and the files that keep it.

Machine code of kernels, kept for the next process. One file (`files`) holds one kernel for one
kind of arguments; its content is numba's. The name says everything the code depends on
(`identity`), so a file is right or absent.

Files that hold a kernel each: a SHA-256 of name and content, then the content. A file that is not
what was written is noticed before any of it is used. Whoever writes one drops those that have not
been read for long, and the oldest where all are too large. Nobody waits for anybody: what is
dropped while another process would read it is compiled there once more.

What a kernel was made of, as a digest: its own code, and all of ours that it reaches. A kernel
reaches what its code names: functions that it calls, constants that it reads, tuples' fields, and
so on from each function. Code is compared as bytecode, constants by value, so a comment, a
docstring or a module that the kernel does not use changes nothing. Whatever is not ours comes with
numba, whose version is part of a kernel's name anyway.

Named tuples are handed from one compiled function to the next by their address. numba hands over a
tuple by its parts, and an array by seven words. The state of a simulation is forty arrays in
tuples of tuples: 300 words, copied at every call, typed and lowered again in every function that
passes them on. Lent, it is one word. The first function that calls another keeps the tuple in its
frame, which outlives whatever it calls. A lent tuple has the fields of the tuple; a tuple within
it is lent in turn.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import cache, cached_property
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numba
import numpy as np
from numba.core import cgutils, types
from numba.core.caching import _Cache
from numba.core.compiler import CompileResult
from numba.core.datamodel import models
from numba.core.imputils import impl_ret_borrowed, lower_cast, lower_getattr_generic
from numba.core.serialize import dumps
from numba.core.typeconv import Conversion
from numba.core.typing.templates import AttributeTemplate
from numba.extending import infer_getattr, register_model

from harness.kernels import notice

__all__ = [
    "MOST_BYTES",
    "SUFFIX",
    "UNUSED_S",
    "KernelCache",
    "TuplePointer",
    "argument_type",
    "folder",
    "format_type",
    "identity",
    "read",
    "write",
]


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
        return None if path is None else _load(path, target_context)

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
        kinds = [format_type(kind) for kind in arguments]
        versions = (sys.implementation.cache_tag, numba.__version__, np.__version__)
        key = repr((self._identity, kinds, codegen.magic_tuple(), versions))
        return where / f"{self._name}-{hashlib.sha256(key.encode()).hexdigest()[:32]}{SUFFIX}"

    def enable(self) -> None:
        """It always is."""

    def disable(self) -> None:
        """Not provided for."""

    def flush(self) -> None:
        """Not provided for: delete the folder instead."""


def _load(path: Path, target_context: Any) -> Any:
    """What a file keeps; a file that cannot be used is thrown away with a line on stderr."""
    try:
        content = read(path)
        return content and CompileResult._rebuild(target_context, *pickle.loads(content))
    except Exception as error:  # whatever a file makes numba raise, the kernel can be compiled
        notice.complain(f"{path} is damaged ({error}); it is thrown away and compiled anew")
        with contextlib.suppress(OSError):
            path.unlink()
        return None


SUFFIX = ".kernel"

UNUSED_S = 30 * 24 * 3600.0
"""How long a file is kept that nobody reads."""

MOST_BYTES = 256 * 2**20
"""What all may hold together; one version's kernels, for one processor, take 8 MB."""


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
        handle, aside = tempfile.mkstemp(SUFFIX, dir=path.parent)  # for this user alone
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(_digest(path, content) + content)
            Path(aside).replace(path)
        finally:
            Path(aside).unlink(missing_ok=True)
        _drop(path.parent)


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
    with contextlib.suppress(OSError):
        os.utime(path)  # when it was read last
    return stored[length:]


def _drop(where: Path) -> None:
    """Drop what nobody has read for long, and the oldest of what is too much."""
    left, oldest_s = MOST_BYTES, time.time() - UNUSED_S
    for used_s, size, path in sorted(_list_files(where), reverse=True):
        left -= size
        if used_s < oldest_s or left < 0:
            path.unlink(missing_ok=True)


def _list_files(where: Path) -> Iterator[tuple[float, int, Path]]:
    """When each file was read last, and its bytes."""
    for path in where.glob(f"*{SUFFIX}"):
        with contextlib.suppress(FileNotFoundError):  # another process dropped it
            status = path.stat()
            yield status.st_mtime, status.st_size, path


def _is_own(status: os.stat_result) -> bool:
    return status.st_uid == os.getuid() and not status.st_mode & 0o022


def _digest(path: Path, content: bytes) -> bytes:
    return hashlib.sha256(path.name.encode() + b"\n" + content).digest()


def identity(dispatcher: Any) -> str:
    """The digest of a compiled function and all of ours that it reaches."""
    digest = hashlib.sha256(_mechanism())
    found: dict[Any, Any] = {}
    for line in _describe_value(dispatcher, frozenset(), found):
        digest.update(line.encode() + b"\n")
    return digest.hexdigest()


@cache
def _mechanism() -> bytes:
    """How kernels are compiled is part of each."""
    return b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))


def _describe_value(value: Any, names: frozenset[str], found: dict[Any, Any]) -> Iterator[str]:
    """A line for each thing a value consists of; ``names`` are those its reader uses.

    Args:
        value: of a global or captured variable of a function.
        names: every name in that function's code.
        found: what has been gone through, by its address; a module also by the names that were
            asked of it, since each reader uses others.
    """
    if isinstance(value, (bool, int, float, str, bytes, type(None), np.generic, np.dtype)):
        yield f"{type(value).__name__} {value!r}"
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from _describe_value(part, names, found)
    elif isinstance(value, np.ndarray):
        yield f"{value.dtype} {value.shape} {hashlib.sha256(value.tobytes()).hexdigest()}"
    else:
        key = (id(value), names) if isinstance(value, ModuleType) else id(value)
        if key not in found:
            found[key] = value
            yield from _describe_object(value, names, found)


def _describe_object(value: Any, names: frozenset[str], found: dict[Any, Any]) -> Iterator[str]:
    """The same of what is told apart by what it is, and gone through once."""
    inner = getattr(value, "py_func", getattr(value, "_defn", value))  # of a kernel, an intrinsic
    if isinstance(inner, ModuleType):
        if _is_ours(inner.__name__):
            for name in sorted(names & vars(inner).keys()):
                yield name
                yield from _describe_value(vars(inner)[name], names, found)
    elif isinstance(inner, FunctionType) and _is_ours(inner.__module__):
        options = sorted(getattr(value, "targetoptions", {}).items())
        named = [(name, _format_constant(option)) for name, option in options]
        yield f"{inner.__qualname__} {named}"
        yield from _describe_value(inner.__defaults__ or (), names, found)
        yield from _describe_function(inner, found)
    elif isinstance(inner, type) and hasattr(inner, "_fields"):
        yield f"{inner.__qualname__} {inner._fields}"
    else:
        yield getattr(inner, "__qualname__", None) or repr(inner)


def _describe_function(function: FunctionType, found: dict[Any, Any]) -> Iterator[str]:
    code = function.__code__
    names = frozenset(_names(code))
    yield _format_code(code)
    for name in sorted(names & function.__globals__.keys()):
        yield name
        yield from _describe_value(function.__globals__[name], names, found)
    for cell in function.__closure__ or ():
        yield from _describe_value(cell.cell_contents, names, found)


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _format_code(code: CodeType) -> str:
    constants = [_format_constant(constant) for constant in code.co_consts]
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    shape = (code.co_argcount, code.co_kwonlyargcount, code.co_flags)
    return repr((code.co_code, constants, names, shape))


def _format_constant(constant: Any) -> str:
    if isinstance(constant, CodeType):
        return _format_code(constant)
    if isinstance(constant, (set, frozenset)):  # in another order in every process
        return repr(sorted(map(repr, constant)))
    return repr(constant)


def _is_ours(module: str | None) -> bool:
    return (module or "").partition(".")[0] not in ("", "numba", "numpy", "llvmlite", "math")


def format_type(kind: Any) -> str:
    """A type of an argument, with the names of a tuple's fields."""
    if isinstance(kind, TuplePointer):
        return f"lent {format_type(kind.whole)}"
    if isinstance(kind, types.BaseNamedTuple):
        fields = zip(kind.fields, kind.types, strict=True)
        inner = ", ".join(f"{name}={format_type(part)}" for name, part in fields)
        return f"{kind.instance_class.__qualname__}({inner})"
    if isinstance(kind, types.BaseTuple):
        return f"({', '.join(map(format_type, kind))})"
    return str(kind)


class TuplePointer(types.Type):
    """The type of the address of a named tuple of type ``whole``."""

    def __init__(self, whole: Any) -> None:
        self.whole = whole
        super().__init__(f"Lent({whole})")

    @property
    def key(self) -> Any:
        """What tells two such types apart."""
        return self.whole

    def can_convert_from(self, typingctx: Any, other: Any) -> Any:
        """A tuple can be lent."""
        return Conversion.safe if other == self.whole else None


def argument_type(kind: Any) -> Any:
    """The type as which a compiled function takes a value: lent if it is a named tuple."""
    return TuplePointer(kind) if isinstance(kind, types.BaseNamedTuple) else kind


@register_model(TuplePointer)
class _Address(models.PrimitiveModel):
    def __init__(self, dmm: Any, kind: TuplePointer) -> None:
        super().__init__(dmm, kind, dmm.lookup(kind.whole).get_value_type().as_pointer())


@infer_getattr
class _Fields(AttributeTemplate):
    key = TuplePointer

    def generic_resolve(self, kind: TuplePointer, name: str) -> Any:
        if name not in kind.whole.fields:
            return None
        return argument_type(kind.whole[kind.whole.fields.index(name)])


@lower_getattr_generic(TuplePointer)
def _field(context: Any, builder: Any, kind: TuplePointer, address: Any, name: str) -> Any:
    place = kind.whole.fields.index(name)
    field, there = kind.whole[place], cgutils.gep_inbounds(builder, address, 0, place)
    if isinstance(field, types.BaseNamedTuple):
        return there
    return impl_ret_borrowed(context, builder, field, builder.load(there))


@lower_cast(types.BaseNamedTuple, TuplePointer)
def _lend(context: Any, builder: Any, kind: Any, lent_kind: TuplePointer, value: Any) -> Any:
    return cgutils.alloca_once_value(builder, value)

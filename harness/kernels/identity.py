# pyright: reportMissingImports=false, reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportAttributeAccessIssue=false
# pyright: reportArgumentType=false, reportUnknownArgumentType=false
"""What a kernel was made of, as a digest: its own code, and all of ours that it reaches.

A kernel reaches what its code names: functions that it calls, constants that it reads, tuples'
fields, and so on from each function. Code is compared as bytecode, constants by value, so a
comment, a docstring or a module that the kernel does not use changes nothing. Whatever is not
ours comes with numba, whose version is part of a kernel's name anyway.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np
from numba.core import types

from harness.kernels.lending import Lent

__all__ = ["identity", "spelled"]


def identity(dispatcher: Any) -> str:
    """The digest of a compiled function and all of ours that it reaches."""
    digest = hashlib.sha256(_mechanism())
    found: dict[Any, Any] = {}
    for line in _reached(dispatcher, frozenset(), found):
        digest.update(line.encode() + b"\n")
    return digest.hexdigest()


@cache
def _mechanism() -> bytes:
    """How kernels are compiled is part of each."""
    return b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))


def _reached(value: Any, names: frozenset[str], found: dict[Any, Any]) -> Iterator[str]:
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
            yield from _reached(part, names, found)
    elif isinstance(value, np.ndarray):
        yield f"{value.dtype} {value.shape} {hashlib.sha256(value.tobytes()).hexdigest()}"
    else:
        key = (id(value), names) if isinstance(value, ModuleType) else id(value)
        if key not in found:
            found[key] = value
            yield from _things(value, names, found)


def _things(value: Any, names: frozenset[str], found: dict[Any, Any]) -> Iterator[str]:
    """The same of what is told apart by what it is, and gone through once."""
    inner = getattr(value, "py_func", getattr(value, "_defn", value))  # of a kernel, an intrinsic
    if isinstance(inner, ModuleType):
        if _ours(inner.__name__):
            for name in sorted(names & vars(inner).keys()):
                yield name
                yield from _reached(vars(inner)[name], names, found)
    elif isinstance(inner, FunctionType) and _ours(inner.__module__):
        options = sorted(getattr(value, "targetoptions", {}).items())
        yield f"{inner.__qualname__} {[(name, _constant(option)) for name, option in options]}"
        yield from _reached(inner.__defaults__ or (), names, found)
        yield from _of_function(inner, found)
    elif isinstance(inner, type) and hasattr(inner, "_fields"):
        yield f"{inner.__qualname__} {inner._fields}"
    else:
        yield getattr(inner, "__qualname__", None) or repr(inner)


def _of_function(function: FunctionType, found: dict[Any, Any]) -> Iterator[str]:
    code = function.__code__
    names = frozenset(_names(code))
    yield _spelled_code(code)
    for name in sorted(names & function.__globals__.keys()):
        yield name
        yield from _reached(function.__globals__[name], names, found)
    for cell in function.__closure__ or ():
        yield from _reached(cell.cell_contents, names, found)


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _spelled_code(code: CodeType) -> str:
    constants = [_constant(constant) for constant in code.co_consts]
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    shape = (code.co_argcount, code.co_kwonlyargcount, code.co_flags)
    return repr((code.co_code, constants, names, shape))


def _constant(constant: Any) -> str:
    if isinstance(constant, CodeType):
        return _spelled_code(constant)
    if isinstance(constant, (set, frozenset)):  # in another order in every process
        return repr(sorted(map(repr, constant)))
    return repr(constant)


def _ours(module: str | None) -> bool:
    return (module or "").partition(".")[0] not in ("", "numba", "numpy", "llvmlite", "math")


def spelled(kind: Any) -> str:
    """A type of an argument, with the names of a tuple's fields."""
    if isinstance(kind, Lent):
        return f"lent {spelled(kind.whole)}"
    if isinstance(kind, types.BaseNamedTuple):
        fields = zip(kind.fields, kind.types, strict=True)
        inner = ", ".join(f"{name}={spelled(part)}" for name, part in fields)
        return f"{kind.instance_class.__qualname__}({inner})"
    if isinstance(kind, types.BaseTuple):
        return f"({', '.join(map(spelled, kind))})"
    return str(kind)

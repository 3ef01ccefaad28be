"""Digests of modules, functions and data, for a run's identity.

A function or class is described by the code objects that run, not by a file that may have been
edited since, and by all it refers to: base classes, the functions and classes it names or imports
(in the user's modules too), the content of closures, values among its globals and members, hooks of
a module. Other objects are described as pickle does. A function compiled by numba is described by
its Python function. Code of an installed package is described by name and version instead. A digest
is the same in every process of one version of Python. Dependencies that exist only at run time are
not part of it: files that the code reads, attributes that it looks up by name, the environment.
"""

from __future__ import annotations

import copyreg
import dis
import functools
import hashlib
import importlib
import importlib.util
import inspect
import random
import sys
import sysconfig
import types
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from harness.base.errors import UserError

STANDARD = Path(sysconfig.get_path("stdlib")).resolve()
PACKAGES = {"site-packages", "dist-packages"}
"""Folders of installed packages, of any environment: one environment may use another's."""
OWN = ("harness", "lagbench", "data_synth", "reports", "reproductions")
"""Packages whose code is no part of identities."""
PLAIN = (str, int, float, bool, bytes, type(None), complex)
BUILTIN: tuple[type, ...] = (dict, list, tuple, set, frozenset, bytearray, *PLAIN)
"""Types whose content is read as such, of an object of a subclass beside its class."""
LOADS = ("LOAD_GLOBAL", "LOAD_NAME")
"""Instructions that read a global, of functions and of the bodies of classes."""
ADDRESS = " at 0x"
"""Part of the default `repr`, which contains a memory address and differs by process."""
HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
"""Attributes of a module with hooks, which change its outputs or gradients."""

PYTHONS = (
    *("__module__", "__doc__", "__annotations__", "__firstlineno__", "__static_attributes__"),
    *("__dict__", "__weakref__", "__slotnames__"),
)
"""Members that Python writes to a class, about its source and for itself."""

GENERATORS: list[object] = [
    torch.default_generator,
    cast(Any, random.random).__self__,
    cast(Any, np.random.random).__self__,
]
"""The global generators, whose states are no part of identities."""

WRAPPERS: tuple[type, ...] = (property, classmethod, staticmethod)
WRAPPED = ("__func__", "fget", "fset", "fdel")
"""What wraps functions in a class, and its attributes with them."""

COMPILERS = "_dynamo_"
"""Attributes of a tensor that `torch.compile` writes begin so."""

OF_TORCH = vars(nn.Module()).keys() - {"training"}
"""Attributes of a module in which PyTorch keeps its parts and hooks."""

Array = np.ndarray[Any, np.dtype[Any]]


class Seen(dict[int, tuple[int, object]]):
    """Objects described so far by id, with their number; held here so that no id is used again.

    Args:
        module: the module whose digest this is; its tensors are its state, see `digest_of_state`.

    Attributes:
        variables: name and value of each global, closure and attribute of a class or function that
            holds neither code nor a module, by `variable`.
    """

    def __init__(self, module: nn.Module | None = None) -> None:
        super().__init__()
        self.state = {id(tensor): k for k, tensor in enumerate(_tensors(module))} if module else {}
        self.variables: dict[str, tuple[str, object]] = {}

    def is_identity(self, key: str, name: str, value: object) -> bool:
        """Note a variable; returns whether its value is part of identities."""
        if not isinstance(value, types.FunctionType | type | types.ModuleType | nn.Module):
            self.variables[key] = name, value
        return key not in VARYING


VARYING: set[str] = set()
"""Names of globals, closures and attributes of classes that calls change, see `variable`: their
values identify no run."""


def variable(holder: Any, name: str) -> str:
    """The name in every process of a variable of a class, of a function, or of its globals."""
    if isinstance(holder, dict):
        return f"{cast('dict[str, object]', holder).get('__name__')}.{name}"
    return f"{holder.__module__}.{holder.__qualname__}.{name}"


def digest_of_code(value: object, called: str = "code", visited: Seen | None = None) -> str:
    """SHA-256 of a function, class or callable object with all it refers to, in hexadecimal.

    Args:
        value: the function, class or object.
        called: its name in messages.
        visited: notes the variables that it refers to.

    Raises:
        UserError: a part of it cannot be identified by source and values.
    """
    sha = hashlib.sha256()
    if visited is None:
        visited = Seen(value if isinstance(value, nn.Module) else None)
    try:
        for line in _describe(value, visited):
            sha.update(line.encode() + b"\n")
    except Exception as error:  # ours, or from a `repr` or attribute of the user's or a library's
        cause = f"{type(error).__name__}: {error}".partition("\n")[0]
        is_ours = isinstance(error, _DigestError)
        raise UserError(
            f"{called}: {error if is_ours else f'what it refers to cannot be read ({cause})'}; "
            "allowed: functions, classes and objects of Python, and what numba compiles of them"
        ) from error
    return sha.hexdigest()


class _DigestError(Exception):
    """A value that nothing readable distinguishes from others of its type."""

    def __init__(self, value: object, reason: str) -> None:
        super().__init__(f"{type(value).__qualname__} in it: {reason}, so it cannot identify a run")


def from_outside(value: object) -> bool:
    """Whether an object is of a class outside our packages, whose code is a part of identities."""
    return value is not None and type(value).__module__.partition(".")[0] not in OWN


def digest_of_state(module: nn.Module) -> str:
    """SHA-256 of every parameter and buffer: names, types, shapes and bytes."""
    sha = hashlib.sha256()
    names, visited = dict[int, str](), Seen(module)
    for kind in (module.named_parameters, module.named_buffers):
        for name, tensor in kind(remove_duplicate=False):
            # Two names of one tensor train otherwise than two tensors of the same content.
            if (former := names.setdefault(id(tensor), name)) != name:
                sha.update(f"{name} is {former}".encode())
                continue
            sha.update(f"{name} {tensor.requires_grad}".encode())
            sha.update(digest_of_tensor(tensor).encode())
            for line in _further(tensor, visited):
                sha.update(line.encode())
    return sha.hexdigest()


def _tensors(module: nn.Module) -> list[Tensor]:
    """The parameters and buffers of a module, a tied one once."""
    return [*module.parameters(), *module.buffers()]


def digest_of_part(value: object, called: str = "code") -> str:
    """`digest_of_code`, combined with the state of a module that has one, e.g. a weighted loss."""
    code = digest_of_code(value, called)
    if not isinstance(value, nn.Module) or not _tensors(value):
        return code
    return hashlib.sha256(f"{code} {digest_of_state(value)}".encode()).hexdigest()


def digest_of_tensor(tensor: Tensor) -> str:
    """SHA-256 of a tensor: type, shape and bytes."""
    plain = tensor.detach().cpu().contiguous()
    sha = hashlib.sha256(f"{plain.dtype} {list(plain.shape)}".encode())
    # As bytes, since numpy lacks some types of torch, such as bfloat16.
    sha.update(np.asarray(plain.reshape(-1).view(torch.uint8)).data if plain.numel() else b"")
    return sha.hexdigest()


# -- code ------------------------------------------------------------------------------------


def _describe(value: object, visited: Seen) -> Iterator[str]:
    """Lines that describe a value; a value described before is replaced by its number."""
    kind = type(value)
    if kind in PLAIN:
        yield f"{kind.__name__} {value!r}"
        return
    if id(value) in visited.state:
        yield f"state {visited.state[id(value)]}"
        return
    if id(value) in visited:
        yield f"again {visited[id(value)][0]}"
        return
    # Before its parts, which may contain it.
    visited[id(value)] = len(visited), value
    if any(value is generator for generator in GENERATORS):
        yield f"global {kind.__name__}"
    elif isinstance(value, types.ModuleType):
        yield f"module {value.__name__} {_version(value.__name__)}"
    elif isinstance(value, Tensor):
        yield f"tensor {digest_of_tensor(value)}{' trained' * value.requires_grad}"
        yield from _further(value, visited)
    elif isinstance(value, np.ndarray):
        yield from _array(cast(Array, value), visited)
        yield from _further(cast(object, value), visited)
    elif isinstance(value, functools.partial):
        call = cast("functools.partial[Any]", value)
        yield from _several("partial", (call.func, call.args, call.keywords), visited)
        yield from _further(call, visited)
    elif isinstance(value, type):
        yield from _class(value, visited)
    elif isinstance(value, types.MethodType):
        yield from _several("method", (value.__func__, value.__self__), visited)
    elif isinstance(value, types.FunctionType):
        yield from _function(value, visited)
    elif kind in BUILTIN:
        yield from _builtin_value(value, kind, visited)
    elif _is_compiled(value):
        yield from _digest_compiled(value, visited)
    elif callable(value) and not hasattr(value, "__dict__") and is_installed(kind.__module__):
        yield from _builtin(value, visited)  # a function in C
    else:
        yield from _object(value, visited)


def _builtin_value(value: Any, kind: type, visited: Seen) -> Iterator[str]:
    """Describe a value by what its ``kind`` of `BUILTIN` reads in it."""
    if kind in PLAIN:
        yield f"{kind.__name__} {cast(Any, kind).__repr__(value)}"
    elif kind is dict:
        yield from _table(cast("dict[Any, Any]", value), visited, is_ordered=True)
    else:
        parts = list[object](cast(Any, kind).__iter__(value))
        ordered = sorted(parts, key=_sort_key) if kind in (set, frozenset) else parts
        yield from _several("row" if kind is tuple else kind.__name__, ordered, visited)


def _further(value: object, visited: Seen) -> Iterator[str]:
    """Describe the class and the attributes of a tensor, array or partial that has its own."""
    if type(value) not in (Tensor, nn.Parameter, np.ndarray, functools.partial):
        yield from _describe(type(value), visited)
    members = attributes(value)
    members = {name: member for name, member in members.items() if not name.startswith(COMPILERS)}
    if members and not isinstance(value, np.memmap):  # where that is mapped from is no content
        yield from _table(members, visited)


def _table(table: dict[Any, Any], visited: Seen, *, is_ordered: bool = False) -> Iterator[str]:
    """Describe pairs, and their order if it counts, as in a dict, whose loops go by it."""
    pairs = list[tuple[object, object]](cast(Any, dict).items(table))
    keys = [_sort_key(key) for key, _ in pairs]
    order = sorted(range(len(keys)), key=keys.__getitem__)
    yield from _several("table", [part for k in order for part in pairs[k]], visited)
    if is_ordered and order != sorted(order):
        yield f"order {order}"


def _several(kind: str, values: Sequence[object], visited: Seen) -> Iterator[str]:
    yield f"{kind} of {len(values)}"
    for value in values:
        yield from _describe(value, visited)


def _sort_key(value: object) -> str:
    """Sort key of the elements of sets and tables, equal in every process."""
    return repr(value) if type(value) in PLAIN else digest_of_code(value)


def _array(value: Array, visited: Seen) -> Iterator[str]:
    """Describe an array by its bytes, an array of objects by its elements."""
    if value.dtype.hasobject:
        yield from _several("array", [value.shape, *value.ravel().tolist()], visited)
        return
    rows = np.ascontiguousarray(value).reshape(value.shape)
    try:
        yield f"array {digest_of_tensor(torch.as_tensor(rows))}"
    except TypeError:
        text = f"{value.dtype.descr} {list(value.shape)}".encode()
        yield f"array {hashlib.sha256(text + rows.tobytes()).hexdigest()}"


def _is_compiled(value: object) -> bool:
    """Whether ``value`` is a function compiled by numba, or its ufunc, and not a numba type."""
    kinds = [kind.__module__ for kind in type(value).__mro__]
    by_numba = any(name.partition(".")[0] == "numba" for name in kinds)
    return by_numba and not any(name.startswith("numba.core.types") for name in kinds)


def _digest_compiled(value: Any, visited: Seen) -> Iterator[str]:
    """Describe a compiled function by its Python function and its compile options."""
    function = getattr(value, "__wrapped__", None)
    if not isinstance(function, types.FunctionType):
        raise _DigestError(value, "numba keeps no Python function of it")
    yield f"compiled {type(value).__name__} {_version('numba')}"
    dispatcher = getattr(value, "_dispatcher", value)
    yield from _table(dict(getattr(dispatcher, "targetoptions", {})), visited)
    yield from _describe(function, visited)


def _builtin(value: Any, visited: Seen) -> Iterator[str]:
    """Describe a function in C by name and version, and by the object it is bound to."""
    module = getattr(value, "__module__", "") or ""
    name = str(getattr(value, "__qualname__", value))
    if ADDRESS in name:
        raise _DigestError(value, "it has no name of its own")
    yield f"builtin {module} {name} {_version(module)}"
    bound: object = getattr(value, "__self__", None)
    if bound is not None and not isinstance(bound, types.ModuleType):
        yield from _describe(bound, visited)


def _object(value: object, visited: Seen) -> Iterator[str]:
    """Describe an object by its class, attributes and content, one of a library as pickle does."""
    if isinstance(value, np.ufunc) and value.__name__.endswith("(vectorized)"):
        raise _DigestError(value, "numpy.frompyfunc keeps no Python function of it")
    yield "object"
    yield from _describe(type(value), visited)
    members = attributes(value)
    if "_orig_mod" in members.get("_modules", ()):  # the wrapper made by `torch.compile`
        members = {"compiled": members["_modules"]["_orig_mod"]}
    elif isinstance(value, nn.Module):
        if "_modules" not in members:
            raise _DigestError(value, "a traced module has no source")
        yield from _module(members, visited)
        # Recurrent layers keep their parameters a second time, and weak references to them.
        internal = {*OF_TORCH, "_flat_weights", "_flat_weight_refs"}
        members = {name: member for name, member in members.items() if name not in internal}
    elif is_installed(type(value).__module__) and "__wrapped__" not in members:
        with suppress(Exception):  # of what cannot be pickled
            yield from _describe_pickled(value, visited)
            return
        if type(value).__module__ == "builtins" and hasattr(value, "__len__"):  # as `dict.keys()`
            table = isinstance(value, types.MappingProxyType)
            parts = cast(Any, value).items() if table else cast(Any, value)
            yield from _several("view", [*parts], visited)
    elif kind := next((kind for kind in BUILTIN if isinstance(value, kind)), None):
        yield from _builtin_value(value, kind, visited)
    yield from _table(members, visited)


def _describe_pickled(value: Any, visited: Seen) -> Iterator[str]:
    """Describe an object by what pickle keeps of it: a name, or how it is made, and its state."""
    reduced = cast(Any, copyreg.dispatch_table).get(type(value))
    reduction: Any = reduced(value) if reduced else value.__reduce_ex__(4)
    if isinstance(reduction, str):
        yield from _describe(reduction, visited)
        return
    function, arguments, state, *items = [*reduction, None, None, None][:5]
    contents = [[*part] for part in items if part]  # elements and items
    yield from _several("made", (function, arguments, *contents), visited)
    if isinstance(state, dict):
        yield from _table(cast("dict[str, object]", state), visited)
    else:
        yield from _describe(state, visited)


def attributes(value: object) -> dict[str, Any]:
    """The attributes of an object, also those in ``__slots__`` of the user's classes."""
    kinds = [kind for kind in type(value).__mro__ if not is_installed(kind.__module__)]
    members = [pair for kind in kinds for pair in vars(kind).items()]
    names = [name for name, member in members if inspect.ismemberdescriptor(member)]
    slots = {name: getattr(value, name) for name in names if hasattr(value, name)}
    return {**getattr(value, "__dict__", {}), **slots}


def _module(members: Mapping[str, Any], visited: Seen) -> Iterator[str]:
    """Describe a module's children, hooks and tensors."""
    children = members["_modules"]
    yield from _several("children", [part for pair in children.items() for part in pair], visited)
    for name in HOOKS:
        if members.get(name):
            yield from _several(name, list(members[name].values()), visited)
    tensors = {**members["_parameters"], **members["_buffers"]}
    if any(tensor is not None and id(tensor) not in visited.state for tensor in tensors.values()):
        yield from _describe(tensors, visited)


def _class(kind: type, visited: Seen) -> Iterator[str]:
    if is_installed(kind.__module__):
        yield f"class {kind.__module__}.{kind.__qualname__} {_version(kind.__module__)}"
        return
    yield f"class {kind.__qualname__}"
    for base in (*kind.__bases__, type(kind)):
        yield from _describe(base, visited)
    members: list[tuple[str, Any]] = sorted(vars(kind).items())
    for name, member in members:
        if name in PYTHONS:
            continue
        parts: list[object] = [member]
        if issubclass(type(member), WRAPPERS):
            parts = [type(member), *(getattr(member, part, None) for part in WRAPPED)]
        is_function = len(parts) > 1 or isinstance(member, types.FunctionType)
        key, label = variable(kind, name), f"{kind.__name__}.{name}"
        if is_function or name.startswith("__") or visited.is_identity(key, label, member):
            yield f"member {name}"
            yield from _several("parts", parts, visited)


def _function(function: types.FunctionType, visited: Seen) -> Iterator[str]:
    module = str(function.__globals__.get("__name__"))  # `functools.wraps` copies `__module__`
    kinds: object = getattr(function, "registry", None)  # of `functools.singledispatch`
    if isinstance(kinds, types.MappingProxyType):
        yield from _describe(cast(object, kinds), visited)
    if is_installed(module):
        yield f"function {module}.{function.__qualname__} {_version(module)}"
        # An installed decorator, perhaps around a function of the user's.
        if "__wrapped__" in vars(function):
            yield from _describe(cast(Any, function).__wrapped__, visited)
        return
    yield f"function {function.__qualname__} {sys.version_info[:2]}"
    yield _instructions(function.__code__)
    yield from _names(function, visited)


def _names(function: types.FunctionType, visited: Seen) -> Iterator[str]:
    """Describe everything that a function refers to: defaults, closure and globals."""
    yield from _describe([function.__defaults__, function.__kwdefaults__], visited)
    for name, value in sorted(vars(function).items()):
        key, label = variable(function, name), f"{function.__name__}.{name}"
        if visited.is_identity(key, label, value):
            yield f"attribute {name}"
            yield from _describe(value, visited)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        key, value = variable(function, name), _content(cell)
        if name != "__class__" and visited.is_identity(key, name, value):
            yield f"held {name}"
            yield from _describe(value, visited)
    names = _attributes(function.__code__)
    for name in sorted(_global_names(function.__code__)):
        if name not in function.__globals__:
            continue
        key, value = variable(function.__globals__, name), function.__globals__[name]
        if visited.is_identity(key, name, value):
            yield f"global {name}"
            yield from _describe(value, visited)
            yield from _members(value, names, visited)
    for module in _imports(function.__code__, function.__globals__.get("__package__")):
        yield f"import {module.__name__}"
        yield from _members(module, names, visited)


def _members(value: object, names: set[str], visited: Seen) -> Iterator[str]:
    """Describe the members of a user's module that a function names as attributes."""
    if not isinstance(value, types.ModuleType) or is_installed(value.__name__):
        return
    for name in sorted(names & vars(value).keys()):
        yield f"member {name}"
        yield from _describe(vars(value)[name], visited)
        # Without the name, as modules may contain each other.
        yield from _members(vars(value)[name], names - {name}, visited)


def _content(cell: types.CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # nothing yet
        return None


def _global_names(code: types.CodeType) -> set[str]:
    """Names of the globals that a function and its inner functions and classes read."""
    loads = {str(i.argval) for i in dis.get_instructions(code) if i.opname in LOADS}
    return {name for name in loads if not (name.startswith("__") and name.endswith("__"))}.union(
        *map(_global_names, _within(code))
    )


def _attributes(code: types.CodeType) -> set[str]:
    """Names of attributes and globals in a function and its inner functions."""
    return set(code.co_names).union(*map(_attributes, _within(code)))


def _imports(code: types.CodeType, package: str | None) -> Iterator[types.ModuleType]:
    """The user's modules that a function and its inner functions import."""
    steps = list(dis.get_instructions(code))
    for level, _, step in zip(steps, steps[1:], steps[2:], strict=False):
        if step.opname == "IMPORT_NAME":
            with suppress(Exception):  # of a module that is not there, as on other machines
                name = "." * level.argval + step.argval
                module = importlib.import_module(importlib.util.resolve_name(name, package))
                if not is_installed(module.__name__):
                    yield module
    for inner in _within(code):
        yield from _imports(inner, package)


def _within(code: types.CodeType) -> list[types.CodeType]:
    return [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]


def _instructions(code: types.CodeType) -> str:
    """A code object without its places in a file; depends on Python's version."""
    counts = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags
    names = code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars
    steps = code.co_code.hex(), code.co_exceptiontable.hex()
    return f"{counts} {steps} {_constant(code.co_consts)} {names}"


def _constant(value: object) -> str:
    """A constant of a code object, with the elements of a set in order."""
    if isinstance(value, types.CodeType):
        return _instructions(value)
    if type(value) in (tuple, frozenset):
        elements = [_constant(element) for element in cast("Sequence[object]", value)]
        return f"{type(value).__name__} {elements if type(value) is tuple else sorted(elements)}"
    return f"{type(value).__name__} {value!r}"


# -- packages --------------------------------------------------------------------------------


@functools.cache
def is_installed(module: str) -> bool:
    """Whether a module comes from the standard library or an installed package."""
    top = module.partition(".")[0]
    if top in OWN or module == "__main__":
        return top in OWN
    # of a package's parts in C, which have no file, its own; none where code was sent by value
    files = [getattr(sys.modules.get(name), "__file__", None) for name in (module, top)]
    path = next((file for file in files if file), None)
    if path is None:
        return top in sys.stdlib_module_names or top.startswith("_cython_")
    place = Path(path).resolve()
    installed = place.is_relative_to(STANDARD) or not PACKAGES.isdisjoint(place.parts)
    return installed or any(top in _recorded(folder) for folder in place.parents)


@functools.cache
def _recorded(folder: Path) -> dict[str, str]:
    """Packages that an installer has recorded in a folder, with name and version: any folder.

    One that is installed for editing has its record elsewhere, and is the user's code.
    """
    return {
        line.partition("/")[0].removesuffix(".py"): record.parent.stem
        for record in folder.glob("*.dist-info/RECORD")
        for line in record.read_text("utf-8", "replace").splitlines()
        if ".py" in line.partition(",")[0]
    }


def _version(module: str) -> str:
    """The version of a module's package; empty for the standard library and the user's code."""
    if not is_installed(module):
        return ""
    top = module.partition(".")[0]
    package = sys.modules.get(top)
    path = Path(getattr(package, "__file__", None) or "/").resolve()
    records = (_recorded(folder).get(top, "") for folder in path.parents)
    return str(getattr(package, "__version__", "") or next(filter(None, records), ""))

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
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

from harness.base.errors import UserError

STANDARD = Path(sysconfig.get_path("stdlib")).resolve()
PACKAGES = {"site-packages", "dist-packages"}
"""Folders of installed packages, of any environment: one environment may use another's."""
OWN = ("harness", "lagbench", "data_synth", "reports", "reproductions")
"""Packages whose code is no part of identities."""
# A dataclass that travels by value has fields whose missing default is compared by identity.
copyreg.pickle(type(MISSING), lambda _: "MISSING")
PLAIN = (str, int, float, bool, bytes, type(None), complex)
BUILTIN: tuple[type, ...] = (dict, list, tuple, set, frozenset, bytearray, *PLAIN)
"""Types whose content is read as such, of an object of a subclass beside its class."""
LOADS = ("LOAD_GLOBAL", "LOAD_NAME")
"""Instructions that read a global, of functions and of the bodies of classes."""
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

CODE = (types.FunctionType, type, types.ModuleType, nn.Module, *WRAPPERS)
"""Types of values that are code, and no variables."""

COMPILERS = "_dynamo_"
"""Attributes of a tensor that `torch.compile` writes begin so."""

OF_TORCH = vars(nn.Module()).keys() - {"training", "_modules", "_parameters", "_buffers"}
"""Attributes of a module in which PyTorch keeps its hooks and the like."""

OF_RECURRENT = {"_flat_weights", "_flat_weight_refs"}
"""Attributes in which recurrent layers keep their parameters a second time, and references."""

NO_IDENTITY = (tuple, frozenset, types.CodeType)
"""Types of which equal objects may be one or several, as it comes; cycles pass through others."""


class Parts(NamedTuple):
    """What a value is, in a line, and the values and further parts that it consists of."""

    line: str
    values: Sequence[object] = ()


def _several(kind: str, values: Sequence[object]) -> Parts:
    return Parts(f"{kind} of {len(values)}", values)


def _table(table: Mapping[Any, object]) -> Parts:
    """A table in whose order is no meaning."""
    return _several(
        "table", [part for name in sorted(table, key=str) for part in (name, table[name])]
    )


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
        tensors = [*module.parameters(), *module.buffers()] if module else []
        self.state = {id(tensor): k for k, tensor in enumerate(tensors)}
        self.variables: dict[str, tuple[str, object]] = {}

    def take(self, holder: Any, table: Mapping[str, Any], label: str = "") -> Parts:
        """Note the variables in a table; returns those that are part of identities.

        Args:
            holder: see `variable`.
            table: values by name.
            label: start of their names in messages.
        """
        keys = {name: variable(holder, name) for name in table}
        for name, value in table.items():
            if not isinstance(value, CODE):
                self.variables[keys[name]] = f"{label}{name}", value
        return _table({name: table[name] for name in table if keys[name] not in VARYING})


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
        _describe(value, visited, lambda line: sha.update(f"{line}\n".encode()))
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
    kinds = (module.named_parameters, module.named_buffers)
    # Two names of one tensor train otherwise than two tensors of the same content.
    return digest_of_code([[*kind(remove_duplicate=False)] for kind in kinds], "model")


def digest_of_part(value: object, called: str = "code") -> str:
    """`digest_of_code`, with the tensors of a module that has some, e.g. a weighted loss."""
    return digest_of_code(value, called, Seen())


def digest_of_tensor(tensor: Tensor) -> str:
    """SHA-256 of a tensor: type, shape and bytes."""
    plain = tensor.detach().cpu().contiguous()
    sha = hashlib.sha256(f"{plain.dtype} {list(plain.shape)}".encode())
    # As bytes, since numpy lacks some types of torch, such as bfloat16.
    sha.update(np.asarray(plain.reshape(-1).view(torch.uint8)).data if plain.numel() else b"")
    return sha.hexdigest()


# -- code ------------------------------------------------------------------------------------


def _describe(value: object, visited: Seen, write: Callable[[str], object]) -> None:
    """Write lines that describe a value; one described before is replaced by its number."""
    kind = type(value)
    if kind in PLAIN:
        write(f"{kind.__name__} {value!r}")
    elif id(value) in visited.state:
        write(f"state {visited.state[id(value)]}")
    elif id(value) in visited:
        write(f"again {visited[id(value)][0]}")
    else:
        parts = value
        if not isinstance(parts, Parts):
            # Before its parts, which may contain it.
            visited[-len(visited) if kind in NO_IDENTITY else id(value)] = len(visited), value
            parts = _take_apart(value, visited)
        write(parts.line)
        for part in parts.values:
            _describe(part, visited, write)


def _take_apart(value: Any, visited: Seen) -> Parts:
    kind = cast("type[object]", type(value))
    if any(value is generator for generator in GENERATORS):
        return Parts(f"global {kind.__name__}")
    if isinstance(value, types.ModuleType):
        return Parts(f"module {value.__name__} {_version(value.__name__)}")
    if isinstance(value, type):
        return _class(value, visited)
    if isinstance(value, types.FunctionType):
        return _function(value, visited)
    if isinstance(value, types.CodeType):
        return Parts(_instructions(value), value.co_consts)
    if isinstance(value, weakref.ref):
        return _several("reference", [cast("weakref.ref[object]", value)()])
    if isinstance(value, types.MethodType):
        return _several("method", (value.__func__, value.__self__))
    if isinstance(value, WRAPPERS):
        return _several("wrapper", [kind, *(getattr(value, name, None) for name in WRAPPED)])
    if kind in BUILTIN:
        return _content(value, kind)
    return _object(value, visited)


def _content(value: Any, kind: Any) -> Parts:
    """What a ``kind`` of `BUILTIN` reads in a value, in an order equal in every process."""
    if kind in PLAIN:
        return Parts(f"{kind.__name__} {kind.__repr__(value)}")
    if kind is dict:
        return _several("table", [part for pair in dict[Any, Any].items(value) for part in pair])
    parts = kind.__iter__(value)
    ordered = sorted(parts, key=digest_of_code) if kind in (set, frozenset) else [*parts]
    return _several("row" if kind is tuple else kind.__name__, ordered)


def _object(value: Any, visited: Seen) -> Parts:
    """Take an object apart: its class, content and attributes, a library's as pickle does."""
    kind, members = cast("type[object]", type(value)), attributes(value)
    members = {name: member for name, member in members.items() if not name.startswith(COMPILERS)}
    line, content = "object", list[object]()
    if isinstance(value, Tensor):
        line = f"tensor {digest_of_tensor(value)}{' trained' * value.requires_grad}"
    elif isinstance(value, np.ndarray):
        line, content = _array(cast("np.ndarray[Any, np.dtype[Any]]", value))
        if isinstance(value, np.memmap):  # where it is mapped from is no content
            members = {}
    elif isinstance(value, functools.partial):
        line, content = "partial of 3", [value.func, value.args, value.keywords]
    elif "_orig_mod" in members.get("_modules", ()):  # the wrapper made by `torch.compile`
        members = {"compiled": members["_modules"]["_orig_mod"]}
    elif isinstance(value, nn.Module):
        if "_modules" not in members:
            raise _DigestError(value, "a traced module has no source")
        content = [_several("children", _content(members["_modules"], dict).values)]
        tensors = members["_parameters"] | members["_buffers"]
        tensors = {n: t for n, t in tensors.items() if t is not None and id(t) not in visited.state}
        hooks = {name: [*members[name].values()] for name in HOOKS if members.get(name)}
        plain = {name: members[name] for name in members.keys() - OF_TORCH - OF_RECURRENT}
        members = plain | hooks | tensors
    elif is_installed(kind.__module__):
        return _object_of_library(value, members)
    elif base := next((base for base in BUILTIN if isinstance(value, base)), None):
        content = [_content(value, base)]
    kinds = [] if kind is functools.partial else [kind]
    return Parts(line, [*kinds, *content, *([_table(members)] if members else [])])


def _array(array: np.ndarray[Any, np.dtype[Any]]) -> Parts:
    """An array by its bytes, an array of objects by its elements."""
    line = f"array {array.dtype} {array.shape}"
    if array.dtype.hasobject:
        return Parts(line, array.ravel().tolist())
    rows = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return Parts(f"{line} {hashlib.sha256(rows.data).hexdigest()}")


def _object_of_library(value: Any, members: Mapping[str, Any]) -> Parts:
    """Take an object apart by what it wraps, its name, or how pickle makes it, and its state."""
    kind, content = cast("type[object]", type(value)), list[object]()
    if "__wrapped__" in members:
        options = getattr(getattr(value, "_dispatcher", value), "targetoptions", {})  # of numba
        return Parts("wrapper", [kind, members["__wrapped__"], _table(options)])
    if isinstance(value, np.ufunc) and value.__name__.endswith("(vectorized)"):
        raise _DigestError(value, "numpy.frompyfunc keeps no Python function of it")
    if kind.__module__.startswith("numba.") and ".types" not in kind.__module__:
        raise _DigestError(value, "numba keeps no Python function of it")
    module = getattr(value, "__module__", None) or ""
    line = f"made {module} {getattr(value, '__qualname__', '')} {_version(module)}"
    try:
        reduced = cast(Any, copyreg.dispatch_table).get(kind)
        reduction: Any = reduced(value) if reduced else value.__reduce_ex__(4)
    except Exception as error:  # of what cannot be pickled
        if callable(value) and not hasattr(value, "__dict__"):
            raise _DigestError(value, "it has no name of its own") from error
        if kind is types.MappingProxyType:
            content = [*cast("Mapping[object, object]", value).items()]
        elif kind.__module__ == "builtins" and hasattr(value, "__len__"):  # as `dict.keys()`
            content = [*cast("Iterable[object]", value)]
        return Parts(line, [kind, _several("view", content), _table(members)])
    if isinstance(reduction, str):
        return Parts(line, [kind, reduction])
    function, arguments, state, *items = [*reduction, None, None, None][:5]
    state = _table(cast("dict[Any, Any]", state)) if isinstance(state, dict) else state
    return Parts(line, [kind, function, arguments, state, *([*part] for part in items if part)])


def attributes(value: object) -> dict[str, Any]:
    """The attributes of an object, also those in ``__slots__`` of the user's classes."""
    kinds = [kind for kind in type(value).__mro__ if not is_installed(kind.__module__)]
    members = [pair for kind in kinds for pair in vars(kind).items()]
    names = [name for name, member in members if inspect.ismemberdescriptor(member)]
    slots = {name: getattr(value, name) for name in names if hasattr(value, name)}
    return {**getattr(value, "__dict__", {}), **slots}


def _class(kind: type, visited: Seen) -> Parts:
    if is_installed(kind.__module__):
        return Parts(f"class {kind.__module__}.{kind.__qualname__} {_version(kind.__module__)}")
    members = {name: member for name, member in vars(kind).items() if name not in PYTHONS}
    bases = _several("bases", [*kind.__bases__, type(kind)])
    variables = visited.take(kind, members, f"{kind.__name__}.")
    return Parts(f"class {kind.__qualname__}", [bases, variables])


def _function(function: types.FunctionType, visited: Seen) -> Parts:
    """Take a function apart: its code, and everything that this refers to."""
    space, attached = function.__globals__, vars(function)
    module = str(space.get("__name__"))  # `functools.wraps` copies `__module__`
    if is_installed(module):
        line = f"function {module}.{function.__qualname__} {_version(module)}"
        # An installed decorator, perhaps around functions of the user's.
        return Parts(line, [attached[n] for n in ("registry", "__wrapped__") if n in attached])
    held = dict[str, object]()
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # of one with nothing in it yet
            held[name] = cell.cell_contents
    held.pop("__class__", None)
    codes = _codes(function.__code__)
    steps = [step for code in codes for step in _steps(code)]
    loaded = {str(step.argval) for step in steps if step.opname in LOADS} & space.keys()
    used = {n: space[n] for n in loaded if not (n.startswith("__") and n.endswith("__"))}
    imported = [*_imports(steps, space.get("__package__"))]
    names = {name for code in codes for name in code.co_names}
    values = [
        *(function.__code__, function.__defaults__, function.__kwdefaults__),
        visited.take(function, attached, f"{function.__name__}."),
        visited.take(function, held),
        visited.take(space, used),
        _several("import", imported),
        *(_members(module, names, visited) for module in (*_table(used).values, *imported)),
    ]
    return Parts(f"function {function.__qualname__} {sys.version_info[:2]}", values)


def _members(value: object, names: set[str], visited: Seen) -> Parts:
    """The members of a user's module that a function names as attributes."""
    if not isinstance(value, types.ModuleType) or is_installed(value.__name__):
        return Parts("no module")
    members = {name: vars(value)[name] for name in sorted(names & vars(value).keys())}
    # Without the name, as modules may contain each other.
    further = [_members(member, names - {name}, visited) for name, member in members.items()]
    return Parts("members", [visited.take(vars(value), members), *further])


def _imports(steps: Sequence[dis.Instruction], package: str | None) -> Iterator[types.ModuleType]:
    """The user's modules that instructions import."""
    for level, _, step in zip(steps, steps[1:], steps[2:], strict=False):
        if step.opname == "IMPORT_NAME":
            with suppress(Exception):  # of a module that is not there, as on other machines
                name = "." * level.argval + step.argval
                module = importlib.import_module(importlib.util.resolve_name(name, package))
                if not is_installed(module.__name__):
                    yield module


def _codes(code: types.CodeType) -> list[types.CodeType]:
    """The code of a function and of its inner functions and classes."""
    inner = [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return [code, *(part for constant in inner for part in _codes(constant))]


@functools.lru_cache(maxsize=1024)
def _steps(code: types.CodeType) -> list[dis.Instruction]:
    """The instructions of a code object, read once: a run asks for them several times."""
    return [*dis.get_instructions(code)]


def _instructions(code: types.CodeType) -> str:
    """A code object without its constants and places in a file; depends on Python's version."""
    counts = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags
    names = code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars
    return f"{counts} {code.co_code.hex()} {code.co_exceptiontable.hex()} {names}"


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
    if version := getattr(package, "__version__", ""):
        return str(version)
    path = Path(getattr(package, "__file__", None) or "/").resolve()
    return next(filter(None, (_recorded(folder).get(top) for folder in path.parents)), "")

"""State of a user's model, loss and metrics that is neither a parameter nor a buffer.

Attributes, closures and globals are one for all simulated workers and no part of a checkpoint, so
a result must not depend on what a call leaves in them. `refuse_hidden_state` calls copies a few
times and compares. What is written anew before it is read (a stored activation), only appended to
(a log), or computed once from no data (a cached mask) is harmless and stays, but what so changes
of globals, closures and classes identifies no run.
"""

from __future__ import annotations

import copy
import dis
import functools
import hashlib
import operator
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, NoReturn, cast

import numpy as np
import torch
from torch import Tensor, nn

from harness.base.errors import UserError
from harness.experiment.digests import HOOKS, attributes, variable
from harness.modules.network import copy_module

NOT_STATE = frozenset(vars(nn.Module()))
"""Attributes of every module: its parameters, buffers, submodules, hooks and mode."""

ADVICE = {
    "model": "a buffer: self.register_buffer(name, tensor), written in place",
    "loss": "a function of outputs and targets alone; what it keeps is a buffer of the model",
    "metric": "a function of outputs and targets alone",
}
"""What to do instead, by the part that holds the state."""

Place = tuple[str, Callable[[], Any], Callable[[Any], None] | None, str]
"""A variable: its name, functions that read it and write it, if one can, its name in digests."""

Frozen = tuple[Any, Any]
"""A value as a hashable description, with and without identities of its tensors."""


def refuse_hidden_state(
    parts: Mapping[str, Any], call: Callable[[Mapping[str, Any], bool], None]
) -> set[str]:
    """Refuse what keeps state between calls outside of parameters and buffers.

    Args:
        parts: model, loss and metrics by the name that messages have for them.
        call: calls the parts once; with True on other data of the same shapes.

    Returns:
        What calls change without harm, as `digests` name it.

    Raises:
        UserError: one of the parts does.
    """
    copied = _copy(parts)
    before = _freeze_all(copied)
    call(copied, False)
    once = _freeze_all(copied)
    written = [key for key, value in once.items() if before.get(key, value)[0] != value[0]]
    written += once.keys() - before.keys()  # attributes that the call has made
    if not written:
        return set()
    call(copied, False)
    twice = _freeze_all(copied)
    changed = _copy(parts)
    for parameter in changed["model"].parameters():  # that what is taken from them once differs
        parameter.data.mul_(0.9)
    call(changed, True)
    elsewhere = _freeze_all(changed)
    suspects = {
        key
        for key in written
        if twice[key][0] != once[key][0] or elsewhere.get(key, (0, 0))[1] != once[key][1]
    }
    if suspects and (culprit := _find_read(_copy(parts), suspects, call)):
        part, name = culprit
        mistake = f"{part}: {name!r} changes from call to call, and is neither parameter nor buffer"
        shared = "simulated workers would share it, a resumed run would lose it"
        raise UserError(f"{mistake}: {shared}; allowed: {ADVICE[part.partition(':')[0]]}")
    places = [(part, place) for part, value in copied.items() for place in _places(value)]
    return {place[3] for part, place in places if place[3] and (part, place[0]) in written}


def find_made(maker: Any, module: nn.Module, make: Callable[[], object]) -> set[str]:
    """What making a module anew changes of globals, closures and classes, as `digests` name it.

    Args:
        maker: the user's class or function.
        module: what it has made.
        make: calls it.
    """
    places = [
        *_places(module),
        *(_function_places(maker) if isinstance(maker, FunctionType) else ()),
    ]
    variables = [(place[3], place[1]) for place in places if place[3]]

    def freeze() -> list[Any]:
        return [_Freezer(set(), [], identities=False).freeze(getter()) for _, getter in variables]

    before, _, after = freeze(), make(), freeze()
    return {key for (key, _), a, b in zip(variables, before, after, strict=True) if a != b}


def _find_read(
    parts: Mapping[str, Any],
    suspects: set[tuple[str, str]],
    call: Callable[[Mapping[str, Any], bool], None],
) -> tuple[str, str] | None:
    """The variable among ``suspects`` that a call reads before it writes it, if one does."""
    places = [
        ((part, place[0]), place)
        for part, value in parts.items()
        for place in _places(value, is_loss=part != "model")
    ]
    values = [(place[2], place[1](), key) for key, place in places if key in suspects]
    try:
        for write, value, key in values:
            if write is None:  # nothing can stand in for an argument
                return key
            write(_Unread(key[1], value))
        call(parts, False)
    except _ReadError as error:
        return next(key for key in sorted(suspects) if key[1] == str(error))
    except Exception:  # by an operation that does not ask the value: torch's own, say
        return min(suspects)
    finally:
        for write, value, _ in values:
            if write is not None:
                write(value)
    return None


class _ReadError(Exception):
    """A variable was read; the message is its name."""


class _Unread:
    """Stands in for a value, and raises `_ReadError` when it is used; it can be logged to."""

    def __init__(self, name: str, value: object) -> None:
        self.__dict__ |= {"name": name, "is_array": isinstance(value, np.ndarray)}

    def append(self, *_: object) -> None:
        """Take what is logged."""

    add = extend = appendleft = append

    def __setitem__(self, *_: object) -> None:
        if self.__dict__["is_array"]:  # which may share the memory of a buffer
            self._read()

    @classmethod
    def __torch_function__(cls, *_: object) -> NoReturn:
        raise RuntimeError

    def _read(self, *_: object) -> NoReturn:
        raise _ReadError(self.__dict__["name"])

    __getattr__ = __bool__ = __len__ = __iter__ = __next__ = __getitem__ = __call__ = _read
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = _read
    __rtruediv__ = __floordiv__ = __mod__ = __pow__ = __rpow__ = __matmul__ = __neg__ = _read
    __eq__ = __lt__ = __le__ = __gt__ = __ge__ = __contains__ = _read  # pyright: ignore[reportAssignmentType]
    __int__ = __float__ = __index__ = __array__ = __or__ = __and__ = __xor__ = __enter__ = _read
    __hash__ = object.__hash__


def _copy(parts: Mapping[str, Any]) -> dict[str, Any]:
    """Copies of the parts; a function is itself."""
    copied: dict[str, Any] = {}
    for name, part in parts.items():
        try:
            copied[name] = copy_module(part) if name == "model" else copy.deepcopy(part)
        except UserError:
            raise
        except Exception:  # of whatever a user's object holds
            copied[name] = part
    return copied


def _freeze_all(parts: Mapping[str, Any]) -> dict[tuple[str, str], Frozen]:
    """Every variable of the parts as it is now, by part and name."""
    model: nn.Module = parts["model"]
    registered = set(map(id, (*model.modules(), *model.parameters(), *model.buffers())))
    alive: list[Any] = []
    frozen: dict[tuple[str, str], Frozen] = {}
    for part, value in parts.items():
        for name, getter, _, _ in _places(value, is_loss=part != "model"):
            frozen[part, name] = (
                _Freezer(registered, alive, identities=True).freeze(getter()),
                _Freezer(registered, alive, identities=False).freeze(getter()),
            )
    return frozen


def _places(part: Any, *, is_loss: bool = True) -> Iterator[Place]:
    """The variables that calls of a part can write: attributes, closures and globals.

    Args:
        part: model, loss or metric.
        is_loss: whether buffers are among them: only those of the model are carried.
    """
    if isinstance(part, nn.Module):
        submodules = cast("Iterator[tuple[str, nn.Module]]", part.named_modules())
        for prefix, module in submodules:
            variables = vars(module)
            entries = [(variables, name) for name in variables.keys() - NOT_STATE]
            if is_loss:
                entries += [(variables["_buffers"], name) for name in variables["_buffers"]]
            for owner, name in entries:
                yield _attribute(owner, name, f"{prefix}.{name}" if prefix else name)
            hooks = [hook for name in HOOKS for hook in variables[name].values()]
            for value in (*variables.values(), *hooks):
                if isinstance(value, FunctionType):
                    yield from _function_places(value)
            yield from _of_class(type(module))
    elif isinstance(part, MethodType):
        yield from _places(part.__self__)
        yield from _function_places(cast(FunctionType, part.__func__))
    elif isinstance(part, functools.partial):
        yield from _places(cast(Any, part).func)
        for name in part.keywords:
            yield _attribute(part.keywords, name, name)
        yield "an argument of partial", lambda: part.args, None, ""
    elif isinstance(part, FunctionType):
        yield from _function_places(part)
    elif not isinstance(part, type | BuiltinFunctionType | str):
        for name in attributes(part):
            yield _member(part, name, name, write=object.__setattr__)
        yield from _of_class(cast("type[Any]", type(part)))


def _attribute(variables: Any, name: str, label: str, key: str = "") -> Place:
    write = functools.partial(operator.setitem, variables, name)
    return label, lambda: variables[name], write, key


def _member(
    owner: Any, name: str, label: str, key: str = "", write: Callable[..., None] = setattr
) -> Place:
    partial = functools.partial
    return label, partial(getattr, owner, name), partial(write, owner, name), key


def _of_class(kind: type) -> Iterator[Place]:
    """Data in a user's class, and what its functions write of closures and globals."""
    for base in kind.__mro__:
        if _is_library(base):
            continue
        for name, value in list(vars(base).items()):
            function = getattr(value, "__func__", getattr(value, "fget", value))
            if isinstance(function, FunctionType):
                yield from _function_places(function)
            elif not (
                name.startswith("__") or isinstance(value, type) or hasattr(value, "__get__")
            ):
                yield _member(base, name, f"{base.__name__}.{name}", variable(base, name))


def _function_places(
    function: FunctionType, past: set[FunctionType] | None = None
) -> Iterator[Place]:
    """Attributes, closure and globals of a function and of those that it calls by their names."""
    past = set() if past is None else past
    if function in past:
        return
    past.add(function)
    if _is_library(function):
        if isinstance(wrapped := vars(function).get("__wrapped__"), FunctionType):
            yield from _function_places(wrapped, past)
        return
    further = (function.__kwdefaults__ or {}).values()
    for at, value in enumerate((*(function.__defaults__ or ()), *further)):
        if isinstance(value, FunctionType):
            yield from _function_places(value, past)
        elif not isinstance(value, type | nn.Module):
            yield f"default {at + 1} of {function.__name__}", lambda value=value: value, None, ""
    for name in vars(function):
        key = variable(function, name)
        yield _attribute(vars(function), name, f"{function.__name__}.{name}", key)
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    for name, cell in cells:
        if _is_full(cell) and isinstance(cell.cell_contents, FunctionType):
            yield from _function_places(cell.cell_contents, past)
        elif _is_full(cell) and not isinstance(cell.cell_contents, type | nn.Module):
            yield _member(cell, "cell_contents", name, variable(function, name))
    variables = function.__globals__
    stored, loaded = _globals_in(function.__code__)
    for name in sorted((stored | loaded) & variables.keys()):
        value = variables[name]
        if isinstance(value, FunctionType):
            yield from _function_places(value, past)
        elif name in stored or not isinstance(value, type | nn.Module | ModuleType):
            yield _attribute(variables, name, name, variable(variables, name))


@functools.lru_cache(maxsize=1024)
def _globals_in(code: CodeType) -> tuple[frozenset[str], frozenset[str]]:
    """The names of globals that code stores, and of those that it loads."""
    steps = list(dis.get_instructions(code))
    stored = frozenset(step.argval for step in steps if step.opname == "STORE_GLOBAL")
    return stored, frozenset(step.argval for step in steps if step.opname == "LOAD_GLOBAL")


def _is_library(code: type | FunctionType) -> bool:
    """Whether code is of this package or of the libraries below it, which keep no state here."""
    # `functools.wraps` copies the `__module__` of a function.
    module = code.__module__ if isinstance(code, type) else code.__globals__.get("__name__")
    return str(module).split(".")[0] in {"torch", "builtins", "numpy", "harness"}


def _is_full(cell: CellType) -> bool:
    try:
        return cell.cell_contents is not None or True
    except ValueError:
        return False


class _Freezer:
    """Describes values so that equal ones have equal descriptions.

    Args:
        known: ids of registered modules, parameters and buffers, which are no hidden state.
        kept: keeps tensors alive, so that no other gets their id.
        identities: whether tensors differ that are equal but were written or made anew.
    """

    def __init__(self, registered: set[int], alive: list[Any], *, identities: bool) -> None:
        self._seen, self._kept, self._identities = set(registered), alive, identities

    def freeze(self, value: Any) -> Any:
        """A hashable description of a value."""
        kind = type(value).__name__
        if value is None or isinstance(value, bool | int | float | complex | str | bytes):
            return kind, repr(value)
        if id(value) in self._seen:
            return "seen"
        self._seen.add(id(value))
        self._kept.append(value)
        if isinstance(value, Tensor):
            return kind, self._freeze_tensor(value)
        if isinstance(value, np.ndarray):
            array = cast(Any, value)
            if array.dtype == object:
                return kind, tuple(map(self.freeze, array.ravel().tolist()))
            return kind, array.shape, _digest(array)
        if isinstance(value, torch.Generator):
            return kind, self.freeze(value.get_state().numpy())
        if isinstance(value, type | ModuleType | FunctionType):
            return kind
        if isinstance(value, MethodType):
            return kind, self.freeze(value.__self__)
        module = cast("type[Any]", type(value)).__module__
        if not isinstance(value, nn.Module) and module.startswith("torch."):
            return kind
        state = attributes(value)
        if isinstance(value, Mapping):
            items = cast("Mapping[Any, Any]", value).items()
            parts: Any = [part for item in items for part in item]
        elif isinstance(value, list | tuple | set | frozenset | deque):
            parts = cast("Any", value)
        else:
            parts = _reduce(value)
        return kind, tuple(map(self.freeze, [*state.items(), *parts]))

    def _freeze_tensor(self, tensor: Tensor) -> Any:
        try:
            content = tensor.detach()
        except RuntimeError:  # of an ended call of `torch.func`; identity refuses it by name
            return id(tensor)
        if content.layout == torch.strided and content.device.type != "meta":
            digest = _digest(content.cpu().contiguous().flatten().view(torch.uint8).numpy())
        else:
            digest = ""
        content = tuple(tensor.shape), str(tensor.dtype), digest
        return (*content, id(tensor), tensor._version) if self._identities else content


def _digest(array: np.ndarray) -> str:
    return hashlib.sha256(array.tobytes()).hexdigest()


def _reduce(value: Any) -> Any:
    """What pickle keeps of an object, such as a generator or an iterator."""
    try:
        reduced: Any = value.__reduce_ex__(4)
    except Exception:  # of what cannot be pickled
        return ()
    if isinstance(reduced, str):
        return (reduced,)
    return (*reduced[1:3], *(list(items or ()) for items in reduced[3:5]))

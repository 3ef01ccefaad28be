"""State of a user's model, loss and metrics that is neither a parameter nor a buffer.

Attributes, closures and globals are one for all simulated workers and no part of a checkpoint, so
a result must not depend on what a call leaves in them. `refuse_hidden_state` calls copies with the
same data, once at first and once after other data, and compares. What is the same then (a stored
activation, a cached mask) or only grows (a log) is harmless and stays, but what calls so change of
globals, closures and classes identifies no run.
"""

from __future__ import annotations

import copy
import functools
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, NamedTuple, cast

from torch import nn

from harness.base.errors import UserError
from harness.experiment.digests import PLAIN, Seen, attributes, digest_of_code
from harness.modules.network import copy_module

NOT_STATE = frozenset(vars(nn.Module()))
"""Attributes of every module: its parameters, buffers, submodules, hooks and mode."""

ADVICE = {
    "model": "a buffer: self.register_buffer(name, tensor), written in place",
    "loss": "a function of outputs and targets alone; what it keeps is a buffer of the model",
    "metric": "a function of outputs and targets alone",
}
"""What to do instead, by the part that holds the state."""


class Frozen(NamedTuple):
    """A variable at a moment.

    Attributes:
        label: its name in messages.
        digest: of its value; its type's name if the value has none.
        size: number of entries of a collection; 0 of another value.
    """

    label: str
    digest: str
    size: int


def refuse_hidden_state(
    parts: Mapping[str, Any], call: Callable[[Mapping[str, Any], bool], Sequence[float]]
) -> set[str]:
    """Refuse what keeps state between calls outside of parameters and buffers.

    Args:
        parts: model, loss and metrics by the name that messages have for them.
        call: calls the parts once, and gives loss and scores; with True on other data of the same
            shapes.

    Returns:
        What calls change without harm, as `digests` name it.

    Raises:
        UserError: one of the parts does.
    """
    copied, changed = _copy(parts), _copy(parts)
    before = _freeze(copied)
    values, once = call(copied, False), _freeze(copied)
    _call_elsewhere(changed, call)
    again, twice = call(changed, False), _freeze(changed)
    # Attributes last: one may hold a function, and so what its globals hold.
    keys = sorted(twice, key=lambda key: (key[1].startswith("."), key))
    written = [key for key in keys if twice[key] != before.get(key)]
    for key in written:
        (part, _), now, then = key, twice[key], once.get(key, before.get(key))
        is_log = then is not None and now.size > then.size and str(again) == str(values)
        if (then is None or now.digest != then.digest) and not is_log:
            name = f"{part}: {now.label!r}"
            mistake = f"{name} changes from call to call, and is neither parameter nor buffer"
            shared = "simulated workers would share it, a resumed run would lose it"
            raise UserError(f"{mistake}: {shared}; allowed: {ADVICE[part.partition(':')[0]]}")
    return {key for _, key in written if "." in key and not key.startswith(".")}


def _call_elsewhere(
    parts: Mapping[str, Any], call: Callable[[Mapping[str, Any], bool], object]
) -> None:
    """Call a model with other data and weights; its parameters and buffers are as before then."""
    model: nn.Module = parts["model"]
    weights = [(p, p.detach().clone()) for p in model.parameters()]
    buffers = [
        (m, n, t.clone()) for m in model.modules() for n, t in m.named_buffers(recurse=False)
    ]
    for parameter, value in weights:
        parameter.data.copy_(0.9 * value)
    call(parts, True)
    for parameter, value in weights:
        parameter.data.copy_(value)
    for module, name, value in buffers:
        setattr(module, name, value)


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


def _freeze(parts: Mapping[str, Any]) -> dict[tuple[str, str], Frozen]:
    """Attributes, globals and closures of the parts as they are now, by part and name."""
    frozen: dict[tuple[str, str], Frozen] = {}
    for part, value in parts.items():
        for label, content in _attributes(value, is_loss=part != "model"):
            frozen[part, f".{label}"] = _freeze_value(label, content, parts["model"])
        visited = Seen(parts["model"])
        digest_of_code(value, visited=visited)
        for key, variable in visited.variables.items():
            frozen[part, key] = _freeze_value(*variable, parts["model"])
    return frozen


def _freeze_value(label: str, value: Any, model: nn.Module) -> Frozen:
    is_collection = isinstance(value, list | deque | dict | set)
    size = len(cast("list[object]", value)) if is_collection else 0
    if type(value) in PLAIN:  # most attributes of layers; a digest of each takes 0.3 ms
        return Frozen(label, repr(value), 0)
    try:
        return Frozen(label, digest_of_code(value, visited=Seen(model)), size)
    except UserError:  # of what nothing readable tells from another value
        return Frozen(label, type(value).__name__, size)


def _attributes(part: Any, *, is_loss: bool) -> Iterator[tuple[str, Any]]:
    """The attributes of a part's objects that calls can write.

    Args:
        part: model, loss or metric.
        is_loss: whether buffers are among them: only those of the model are carried.
    """
    if isinstance(part, nn.Module):
        submodules = cast("Iterator[tuple[str, nn.Module]]", part.named_modules())
        for prefix, module in submodules:
            table = {name: v for name, v in vars(module).items() if name not in NOT_STATE}
            table |= dict(module.named_buffers(recurse=False)) if is_loss else {}
            yield from ((f"{prefix}.{name}".removeprefix("."), v) for name, v in table.items())
    elif isinstance(part, MethodType):
        yield from _attributes(part.__self__, is_loss=is_loss)
    elif isinstance(part, functools.partial):
        yield from _attributes(cast(Any, part).func, is_loss=is_loss)
        yield from part.keywords.items()
        yield "an argument of partial", part.args
    elif not isinstance(part, type | FunctionType | BuiltinFunctionType | str):
        yield from attributes(part).items()

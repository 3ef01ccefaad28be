"""The keys of a settings file, from the classes that read it: for documentation and for tests."""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, fields
from typing import Any, Union, get_args, get_origin, get_type_hints

from harness.base.settings import Limits, Spec, allowed_words, format_quantity, limits_of
from harness.simulator.cluster import Device

__all__ = ["Key", "device_table", "keys_of", "markdown", "meanings"]

ENTRY = r"^    (\w[\w, ]*): (.*(?:\n {5,}.*)*)"
"""Of a docstring: names, and what is said of them."""
ANY_NAME, ANY_PLACE = "NAME", "[]"


@dataclass(frozen=True)
class Key:
    """One key of a file.

    Attributes:
        path: where it stands, e.g. ``("workers", "[]", "count")``; ``"[]"`` is any place in a
            list, ``"NAME"`` any name in a table.
        kind: its type.
        limits: what the type does not say.
        required: whether it must be there.
        default: its value where it is not.
        meaning: in a sentence.
        table: the settings class whose key it is.
    """

    path: tuple[str, ...]
    kind: Any
    limits: Limits
    required: bool
    default: object
    meaning: str
    table: type[Spec]

    @property
    def dotted(self) -> str:
        """``workers[].count``, ``devices.NAME.launch_s``."""
        return ".".join(self.path).replace(".[]", "[]")

    @property
    def takes(self) -> str:
        """What is allowed, in words."""
        return allowed_words(self.kind, self.limits)

    @property
    def inner(self) -> tuple[type[Spec], tuple[str, ...]] | None:
        """The settings class of the tables below this key and their path; none for a value."""
        return _inner(self.kind, self.path)


def keys_of(spec: type[Spec], path: tuple[str, ...] = ()) -> Iterator[Key]:
    """Every key of a settings class, those of nested tables after the key of their table."""
    hints, told = get_type_hints(spec), meanings(spec)
    for entry in fields(spec):
        key = Key(
            path=(*path, entry.name),
            kind=hints[entry.name],
            limits=limits_of(entry),
            required=entry.default is MISSING and entry.default_factory is MISSING,
            default=_default(entry),
            meaning=told.get(entry.name, ""),
            table=spec,
        )
        yield key
        if key.inner is not None:
            yield from keys_of(*key.inner)


def _default(entry: Field[Any]) -> object:
    if entry.default_factory is not MISSING:
        return entry.default_factory()
    return None if entry.default is MISSING else entry.default


def _inner(kind: Any, path: tuple[str, ...]) -> tuple[type[Spec], tuple[str, ...]] | None:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _inner(next(part for part in arguments if part is not type(None)), path)
    if origin is tuple:
        return _inner(arguments[0], (*path, ANY_PLACE))
    if origin is dict:
        return _inner(arguments[1], (*path, ANY_NAME))
    return (kind, path) if isinstance(kind, type) and issubclass(kind, Spec) else None


def meanings(documented: type) -> dict[str, str]:
    """What docstrings say of a class's entries, each on one line; those of its bases count too."""
    found: dict[str, str] = {}
    for each in reversed(documented.__mro__):
        text = inspect.cleandoc(each.__dict__.get("__doc__") or "")
        _, *section = re.split(r"^(?:Attributes|Args):\n", text, maxsplit=1, flags=re.MULTILINE)
        entries = re.findall(ENTRY, "".join(section), flags=re.MULTILINE)
        found |= {
            name.strip(): re.sub(r"\s+", " ", told).replace("``", "`")
            for names, told in entries
            for name in names.split(",")
        }
    return found


def markdown(spec: type[Spec]) -> str:
    """One section a table of the file, one row a key."""
    sections: dict[tuple[str, ...], list[Key]] = {}
    for key in keys_of(spec):
        sections.setdefault(key.path[:-1], []).append(key)
    return "\n".join(_section(path, keys) for path, keys in sections.items())


def _section(path: tuple[str, ...], keys: list[Key]) -> str:
    rows = [f"| `{key.path[-1]}` | {_takes(key)} | {_shown(key)} | {key.meaning} |" for key in keys]
    purpose = (inspect.getdoc(keys[0].table) or "").splitlines()[0]
    head = [f"### {_heading(path)}", "", purpose, "", "| key | takes | default | meaning |"]
    return "\n".join([*head, "|---|---|---|---|", *rows, ""])


def _heading(path: tuple[str, ...]) -> str:
    """``[link]`` for a table, ``[[workers]]`` for one that may stand several times."""
    if not path:
        return "At the top"
    if path[-1] == ANY_PLACE:
        return f"`[[{'.'.join(path[:-1])}]]`"
    return f"`[{'.'.join(path)}]`"


def _takes(key: Key) -> str:
    if key.inner is None:
        return key.takes
    return "tables, see below" if key.inner[1] != key.path else "a table, see below"


def _shown(key: Key) -> str:
    if key.required:
        return "**required**"
    if key.default in (None, "", (), {}) or isinstance(key.default, Spec):
        return ""
    text = f"{key.default:g}" if isinstance(key.default, float) else str(key.default)
    return f"`{text}`"


def device_table(devices: Mapping[str, Device]) -> str:
    """A row a device."""
    rows = [
        f"| `{name}` | {_rate(device.peak_flops_per_s)} | {_rate(device.achieved_flops_per_s)} |"
        f" {device.half_rate_frames:g} | {1e6 * device.launch_s:g} µs |"
        f" {_rate(device.memory_bytes_per_s, 'B/s')} |"
        for name, device in devices.items()
    ]
    head = "| name | peak | achieved | half rate at | launch | memory |\n|---|---|---|---|---|---|"
    return "\n".join([head, *rows])


def _rate(value: float | None, unit: str = "FLOP/s") -> str:
    return "" if value is None else format_quantity(value, unit)

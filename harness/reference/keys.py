"""Keys of cluster files and run files, from the classes that the files are built into."""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

from harness.base.registry import entries, load
from harness.base.settings import (
    Limits,
    Spec,
    dataclasses_below,
    describe_allowed,
    format_quantity,
    limits_of,
    meanings,
)
from harness.simulator import Cluster
from harness.simulator.cluster import Device
from harness.simulator.protocols.contract import TimingProtocol

__all__ = [
    "Key",
    "classes",
    "device_table",
    "entries_of",
    "keys_of",
    "kinds",
    "markdown",
    "run_file_keys",
    "tables_in",
]

ANY_NAME, ANY_PLACE = "NAME", "[]"


@dataclass(frozen=True)
class Key:
    """One key of a file.

    Attributes:
        path: path of the key, e.g. ``("workers", "[]", "count")``; ``"[]"`` is any position in a
            list, ``"NAME"`` any name in a table.
        kind: type of its value.
        limits: limits of its value.
        required: whether the key must be present.
        default: its value if absent.
        meaning: its description.
        table: the settings class that has this field.
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
        """The allowed values in words."""
        return describe_allowed(self.kind, self.limits)

    @property
    def inner(self) -> tuple[type[Spec], tuple[str, ...]] | None:
        """The settings class of the tables below this key and their path; none for a value."""
        return _inner(self.kind, self.path)


def keys_of(spec: type[Spec], path: tuple[str, ...] = ()) -> Iterator[Key]:
    """Every key of a settings class; keys of a nested table follow the table's own key."""
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


def markdown(spec: type[Spec]) -> str:
    """The keys of a settings class in Markdown: a section for each table, a row for each key."""
    sections: dict[tuple[str, ...], list[Key]] = {}
    for key in keys_of(spec):
        sections.setdefault(key.path[:-1], []).append(key)
    return "\n".join(_section(path, keys) for path, keys in sections.items())


def _section(path: tuple[str, ...], keys: list[Key]) -> str:
    rows = [
        f"| `{key.path[-1]}` | {_takes(key)} | {_format_default(key)} | {key.meaning} |"
        for key in keys
    ]
    purpose = (inspect.getdoc(keys[0].table) or "").splitlines()[0]
    head = [f"### {_heading(path)}", "", purpose, "", "| key | takes | default | meaning |"]
    return "\n".join([*head, "|---|---|---|---|", *rows, ""])


def _heading(path: tuple[str, ...]) -> str:
    """``[link]`` for a table, ``[[workers]]`` for a list of tables."""
    if not path:
        return "At the top"
    if path[-1] == ANY_PLACE:
        return f"`[[{'.'.join(path[:-1])}]]`"
    return f"`[{'.'.join(path)}]`"


def _takes(key: Key) -> str:
    if key.inner is None:
        return key.takes
    return "tables, see below" if key.inner[1] != key.path else "a table, see below"


def _format_default(key: Key) -> str:
    if key.required:
        return "**required**"
    if key.default in (None, "", (), {}) or isinstance(key.default, Spec):
        return ""
    text = f"{key.default:g}" if isinstance(key.default, float) else str(key.default)
    return f"`{text}`"


def device_table(devices: Mapping[str, Device]) -> str:
    """Devices of the catalogue in Markdown, a row each."""
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


OURS = "harness."
"""Prefix of the modules whose classes are documented; a user's own classes are not."""


def run_file_keys() -> str:
    """The keys of run files in Markdown: a section for each class, a row for each key."""
    return "\n".join(_section_of_run_files(each) for each in classes())


def kinds() -> list[type[Any]]:
    """Configuration classes of our own tasks, each followed by the task's further tables."""
    found = [load("tasks", name) for name, each in entries("tasks").items() if each.ours]
    return [kind for each in found for kind in (each.config, *each.tables)]


def classes() -> list[type[Any]]:
    """Every class that a run file may describe: configurations, then classes of their fields."""
    found: list[type[Any]] = kinds()
    for each in found:  # grows in the loop: classes of fields have fields of their own
        hints = get_type_hints(each)
        for entry in entries_of(each):
            found += [inner for inner in tables_in(hints[entry.name]) if inner not in found]
    return found


def tables_in(kind: Any) -> list[type[Any]]:
    """The classes that a table in this field may describe; none for a cluster, a file itself."""
    origin = get_origin(kind)
    if origin in (Union, types.UnionType, tuple):
        return [inner for part in get_args(kind) for inner in tables_in(part)]
    if not isinstance(kind, type) or kind is Cluster:
        return []
    plain = cast("type[Any]", kind)
    below = [plain] if is_dataclass(plain) else dataclasses_below(plain)
    ours = [
        each
        for each in below
        if each.__module__.startswith(OURS) and (each is plain or not _is_timing_only(each))
    ]
    return sorted(ours, key=lambda each: each.__name__) if len(ours) > 1 else ours


def _is_timing_only(kind: type[Any]) -> bool:
    """Whether a class is a protocol that hands out no data, so that it cannot train."""
    return issubclass(kind, TimingProtocol) and kind.handing is TimingProtocol.handing


def entries_of(table: type[Any]) -> Iterator[Field[Any]]:
    """The fields of a class that are keys of run files."""
    follows = _look_up(table, "follows", ("format",))
    return (entry for entry in fields(cast(Any, table)) if entry.name not in follows)


def _look_up(table: type[Any], attribute: str, otherwise: Any) -> Any:
    """An attribute of a configuration's application; ``otherwise`` for other classes."""
    applications = (load("tasks", name) for name in entries("tasks"))
    found = next((each for each in applications if each.config is table), None)
    return otherwise if found is None else getattr(found, attribute)


def _section_of_run_files(table: type[Any]) -> str:
    entries, hints, told = list(entries_of(table)), get_type_hints(table), meanings(table)
    first, _, _ = (inspect.getdoc(table) or "").partition("\n\n")
    rows = [
        f"| `{entry.name}` | {_kinds(entry, hints[entry.name])} | {_usual(table, entry)} |"
        f" {told.get(entry.name, '')} |"
        for entry in entries
    ]
    head = [f"### `{table.__name__}`", "", " ".join(first.split()).replace("``", "`"), ""]
    if not rows:
        return "\n".join([*head[:-1], "", "It has no keys.", ""])
    return "\n".join([*head, "| key | takes | default | meaning |", "|---|---|---|---|", *rows, ""])


def _kinds(entry: Field[Any], kind: Any) -> str:
    if kind is Cluster:
        return "a string, a [cluster file](clusters.md)"
    inner = tables_in(kind)
    if not inner:
        return describe_allowed(kind, limits_of(entry))
    several = "tables, each" if get_origin(kind) is tuple else "a table,"
    named = ", ".join(f"[`{each.__name__}`](#{each.__name__.lower()})" for each in inner)
    return f"{several} {named}"


def _usual(table: type[Any], entry: Field[Any]) -> str:
    """The default of a field: the application's, if it has one, else the class's."""
    usual: Mapping[str, Any] = _look_up(table, "usual", {})
    if entry.name == "timed_layers":
        return "those of the network"
    if entry.name in usual:
        default = usual[entry.name]
    elif entry.default_factory is not MISSING:
        default = entry.default_factory()
    elif entry.default is not MISSING:
        default = entry.default
    else:
        return "**required**"
    if default in (None, (), {}):
        return ""
    return f"`{type(default).__name__ if is_dataclass(default) else _plainly(default)}`"


def _plainly(value: object) -> str:
    """A value in TOML's notation."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    return f"{value:g}" if isinstance(value, float) else str(value)

"""Keys of cluster files and run files, from the classes that the files are built into."""

import types
from collections.abc import Iterator
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

from harness.base.registry import entries, load
from harness.base.settings import Limits, Spec, dataclasses_below, limits_of, meanings
from harness.simulator import Cluster
from harness.simulator.protocols.contract import TimingProtocol

__all__ = ["Key", "classes", "entries_of", "keys_of", "kinds", "tables_in"]

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
    def inner(self) -> tuple[type[Spec], tuple[str, ...]] | None:
        """The settings class of the tables below this key and their path; none for a value."""
        return _inner(self.kind, self.path)


def keys_of(spec: type[Spec], path: tuple[str, ...] = ()) -> Iterator[Key]:
    """Every key of a settings class; keys of a nested table follow the table's own key."""
    hints, told = get_type_hints(spec), meanings(spec)
    for entry in fields(spec):
        key = Key(
            path=(*path, entry.name), kind=hints[entry.name], limits=limits_of(entry),
            required=entry.default is MISSING and entry.default_factory is MISSING,
            default=_default(entry), meaning=told.get(entry.name, ""), table=spec,
        )  # fmt: skip
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


OURS = "harness."
"""Prefix of the modules whose classes are documented; a user's own classes are not."""


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
    follows = _look_up(table, "follows", ())
    return (entry for entry in fields(cast(Any, table)) if entry.name not in follows)


def _look_up(table: type[Any], attribute: str, otherwise: Any) -> Any:
    """An attribute of a configuration's application; ``otherwise`` for other classes."""
    applications = (load("tasks", name) for name in entries("tasks"))
    found = next((each for each in applications if each.config is table), None)
    return otherwise if found is None else getattr(found, attribute)

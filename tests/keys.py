"""Keys of cluster files and run files, from the classes that the files are built into."""

import types
from collections.abc import Iterator
from dataclasses import MISSING, Field, dataclass, fields
from typing import Any, Union, get_args, get_origin, get_type_hints

from harness.base.settings import Limits, Spec, limits_of, meanings

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

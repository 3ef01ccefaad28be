"""Which keys of settings a run reads: one that a user has set and nothing reads has no effect.

`watch` puts a descriptor in place of each field of the settings' classes. It is removed after the
first read of the field in every object that is watched, so loops read at their usual speed.
Comparing, copying and checking settings is no use of them.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, fields
from types import FrameType
from typing import Any, cast

from harness.base import settings
from harness.base.settings import default_of

NO_USE = (dataclasses.__file__, settings.__file__, __file__)
"""Files whose functions read fields without using them."""

GENERATED = ("__init__", "__eq__", "__hash__", "__repr__", "trouble")
"""Functions of a settings class that read its fields without using them."""

IDENTITY = ("to_dict", "to_identity", "plain", "plain_fields", "<dictcomp>", "<listcomp>")
"""Functions that convert settings to plain values, and what they call in these."""

REMARKS = ("name", "source", "peak_flops_per_s")
"""Keys of a cluster file that are for its reader."""

Key = tuple[type, str]
"""A class and the name of its field."""


class Reads:
    """The reads of settings while they are watched.

    Args:
        root: the settings, a dataclass whose fields may be such, or tuples and tables of such.
        usual: an object whose values count as defaults, for the one of its class in ``root``.
        name: of the run, by which `unread_keys` finds it.
    """

    def __init__(self, root: object, usual: object = None, name: str = "") -> None:
        self.root, self.usual, self.name = root, usual, name
        self.tables: dict[int, Any] = {id(table): table for table in _tables(root)}
        self.waiting: dict[Key, set[int]] = {}
        for number, table in self.tables.items():
            for entry in fields(table):
                key = cast("type[object]", type(table)), entry.name
                self.waiting.setdefault(key, set()).add(number)

    def note(self, key: Key, table: object) -> None:
        """Note a read; that of a copy counts for the tables from which the value may be."""
        waiting, name = self.waiting.get(key, set[int]()), key[1]
        if id(table) in self.tables:
            waiting.discard(id(table))
        else:
            value = vars(table)[name]
            waiting -= {address for address in waiting if vars(self.tables[address])[name] == value}

    def use(self, table: object) -> None:
        """Note that all of a table was read, before it was watched."""
        for waiting in self.waiting.values():
            waiting.discard(id(table))

    def unread(self) -> list[str]:
        """Dotted keys that are not at their defaults and that nothing has read."""
        return [*self._unread(self.root, None, "", False)]

    def _waits(self, table: object, name: str) -> bool:
        return id(table) in self.waiting[type(table), name]

    def _is_read(self, value: Any) -> bool:
        """Whether a value is a table of which something was read."""
        is_table = id(value) in self.tables
        return is_table and not all(self._waits(value, entry.name) for entry in fields(value))

    def _unread(self, value: Any, usual: Any, key: str, is_unread: bool) -> Iterator[str]:
        usual = self.usual if type(value) is type(self.usual) else usual
        parts = [*_items(value)]
        if id(value) in self.tables:
            for entry in fields(cast(Any, value)):
                content, dotted = vars(value)[entry.name], f"{key}.{entry.name}".removeprefix(".")
                alike = type(usual) is type(value)
                defaults = cast("dict[str, Any]", vars(usual)) if alike else {}
                default = defaults[entry.name] if alike else default_of(entry)
                if default is MISSING or content != default:
                    waits = self._waits(value, entry.name) and not self._is_read(content)
                    skipped = is_unread or (default is not MISSING and waits)
                    yield from self._unread(content, default, dotted, skipped)
        elif parts and any(id(item) in self.tables for _, item in parts):
            for name, item in parts:
                yield from self._unread(item, dict(_items(usual)).get(name), key + name, is_unread)
        elif is_unread:
            yield key


def _items(value: object) -> Iterator[tuple[str, object]]:
    """The entries of a tuple or table, each with the end of its key; none of another value."""
    if isinstance(value, tuple):
        yield from ((f"[{k}]", item) for k, item in enumerate(cast(tuple[object, ...], value)))
    elif isinstance(value, Mapping):
        yield from ((f".{k}", item) for k, item in cast(Mapping[str, object], value).items())


def _tables(value: Any) -> Iterator[Any]:
    """All dataclasses in a value, itself included."""
    if (
        dataclasses.is_dataclass(value)
        and not isinstance(value, type)
        and hasattr(value, "__dict__")
    ):
        yield value
        for entry in fields(value):
            yield from _tables(vars(value)[entry.name])
    for _, item in _items(value):
        yield from _tables(item)


def _find_described(frame: FrameType | None) -> object:
    """The settings whose identity a frame computes, which is no use of them; None of others.

    What else a run computes the identity of, as of one that it starts from, it does use.
    """
    while frame is not None and frame.f_code.co_name in IDENTITY:
        if frame.f_code.co_name == "to_dict":
            return frame.f_locals["self"]
        frame = frame.f_back
    return None


class _Wire:
    """Stands in place of a class's field until it has been read."""

    def __init__(self, key: Key) -> None:
        self.key, (kind, name) = key, key
        self.kept: Any = vars(kind).get(name, MISSING)  # the default
        setattr(kind, name, self)

    def __get__(self, table: Any, kind: type | None = None) -> Any:
        if table is None:
            if self.kept is MISSING:
                raise AttributeError(self.key[1])
            return self.kept
        caller = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
        code = caller.f_code
        if code.co_filename not in NO_USE and code.co_name not in GENERATED:
            described = _find_described(caller)
            for reads in _watched:
                if reads.root is not described:
                    reads.note(self.key, table)
            if not any(reads.waiting.get(self.key) for reads in _watched):
                self.remove()
        return cast("dict[str, Any]", vars(table))[self.key[1]]

    def __set__(self, table: Any, value: object) -> None:
        vars(table)[self.key[1]] = value

    def remove(self) -> None:
        """Put the default back."""
        if _wires.pop(self.key, None) is not None:
            kind, name = self.key
            if self.kept is MISSING:
                delattr(kind, name)
            else:
                setattr(kind, name, self.kept)


_watched: list[Reads] = []
_wires: dict[Key, _Wire] = {}


@contextmanager
def watch(reads: Reads) -> Generator[Reads]:
    """Note what is read within the block; blocks may be nested."""
    for key in reads.waiting:
        if key not in _wires:
            _wires[key] = _Wire(key)
    _watched.append(reads)
    try:
        yield reads
    finally:
        _watched.remove(reads)
        for wire in [] if _watched else [*_wires.values()]:
            wire.remove()


def unread_keys(name: str) -> list[str] | None:
    """The unread keys of a run that is watched; None if it is not."""
    return next((reads.unread() for reads in _watched if reads.name == name), None)


def describe_idle(keys: Sequence[Collection[str]]) -> list[str]:
    """A line for each key without effect on any of several simulations."""
    common = [key for key in keys[0] if all(key in group for group in keys)] if keys else []
    return [f"no effect: {key}" for key in common if not key.endswith(REMARKS)]

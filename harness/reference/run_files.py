"""The keys of a run file, from the classes that a file is built into."""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

from harness.base.settings import allowed_words, dataclasses_below, limits_of
from harness.reference.keys import meanings
from harness.runs.file import CORPUS, FOLLOWS, KINDS
from harness.simulator import Cluster
from harness.simulator.protocols.contract import TimingProtocol

__all__ = ["classes", "run_file_keys", "tables_in"]

OURS = "harness."
"""What the modules of classes begin with that everybody's file may name."""


def run_file_keys() -> str:
    """One section a class, one row a key; a class stands after the first that has it as a table."""
    return "\n".join(_section(each) for each in classes())


def classes() -> list[type[Any]]:
    """Every class that a run file may describe: the kinds of run, and what is in their tables."""
    found: list[type[Any]] = list(KINDS)
    for each in found:  # which grows
        hints = get_type_hints(each)
        for entry in _entries(each):
            found += [inner for inner in tables_in(hints[entry.name]) if inner not in found]
    return found


def tables_in(kind: Any) -> list[type[Any]]:
    """The classes that a field of a type takes a table for; a cluster is a file of its own."""
    origin = get_origin(kind)
    if origin in (Union, types.UnionType, tuple):
        return [inner for part in get_args(kind) for inner in tables_in(part)]
    if not isinstance(kind, type) or kind is Cluster:
        return []
    plain = cast("type[Any]", kind)
    below = [plain] if is_dataclass(plain) else dataclasses_below(plain)
    ours = [each for each in below if each.__module__.startswith(OURS) and not _timed_only(each)]
    return sorted(ours, key=lambda each: each.__name__) if len(ours) > 1 else ours


def _timed_only(kind: type[Any]) -> bool:
    """Whether a protocol hands out no data that could be trained on."""
    return issubclass(kind, TimingProtocol) and kind.handing is TimingProtocol.handing


def _entries(table: type[Any]) -> Iterator[Field[Any]]:
    """The fields that are keys."""
    return (entry for entry in fields(cast(Any, table)) if entry.name not in FOLLOWS)


def _section(table: type[Any]) -> str:
    entries, hints, told = list(_entries(table)), get_type_hints(table), meanings(table)
    first, _, _ = (inspect.getdoc(table) or "").partition("\n\n")
    rows = [
        f"| `{entry.name}` | {_takes(entry, hints[entry.name])} | {_shown(table, entry)} |"
        f" {told.get(entry.name, '')} |"
        for entry in entries
    ]
    head = [f"### `{table.__name__}`", "", " ".join(first.split()).replace("``", "`"), ""]
    if not rows:
        return "\n".join([*head[:-1], "", "It has no keys.", ""])
    return "\n".join([*head, "| key | takes | default | meaning |", "|---|---|---|---|", *rows, ""])


def _takes(entry: Field[Any], kind: Any) -> str:
    if kind is Cluster:
        return "a string, a [cluster file](clusters.md)"
    inner = tables_in(kind)
    if not inner:
        return allowed_words(kind, limits_of(entry))
    several = "tables, each" if get_origin(kind) is tuple else "a table,"
    named = ", ".join(f"[`{each.__name__}`](#{each.__name__.lower()})" for each in inner)
    return f"{several} {named}"


def _shown(table: type[Any], entry: Field[Any]) -> str:
    """The default; of a kind of run also what its reader fills in."""
    usual = {**CORPUS, **KINDS[table].usual} if table in KINDS else {}
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
    """As TOML has it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    return f"{value:g}" if isinstance(value, float) else str(value)

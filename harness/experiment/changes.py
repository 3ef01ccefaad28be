"""Changes of a run file's settings from the command line, before the file is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

from harness.base.errors import UserError
from harness.base.files import describe_choices, find_bundled
from harness.base.settings import KIND
from harness.experiment.contract import IMPORT, SHARED, TASK, Application

__all__ = ["Change", "put"]

Change = tuple[tuple[str, ...], object]
"""The path to a key, and its value."""

Table = dict[str, Any]


def put(
    path: Path, table: Table, change: Change, application: Callable[[], Application[Any]]
) -> None:
    """Set a key; missing tables are created. Whether the key is allowed is checked later.

    The last part of a key is enough for a key of ``[task]``, and where the file has one such key in
    its tables. Another class
    (``is``) begins with its own defaults: the keys of the former one are dropped. A cluster file is
    looked for where the command is called, not beside the run file.

    Args:
        path: the file, for messages.
        table: its content, changed in place.
        change: the key and its value.
        application: gives the file's application.

    Raises:
        UserError: several tables have the key, a part of it is no table, a cluster file is not
            there.
    """
    steps, value = change
    if len(steps) == 1 and steps[0] not in table and steps[0] not in (TASK, IMPORT, *SHARED):
        own = steps[0] in application().own_keys
        found = [f"{TASK}.{steps[0]}"] if own else list(_find(table, steps[0]))
        if len(found) > 1:
            told = f"{steps[0]} is a key of several tables; allowed: one of {', '.join(found)}"
            raise UserError(f"{path}: {told}")
        steps = tuple(found[0].split(".")) if found else steps
    here: Any = table
    for step in steps[:-1]:
        here = _only(cast(Table, here).setdefault(step, {})) if isinstance(here, dict) else None
    if not isinstance(here, dict):
        raise UserError(f"{path}: {'.'.join(steps)}: no key; allowed: a key of a table")
    inner = cast(Table, here)
    if steps[-1] == KIND and inner.get(KIND) != value:
        inner.clear()
    inner[steps[-1]] = _locate(value, path) if steps[-1] == "cluster" else value


def _only(value: Any) -> Any:
    """The table of a list that has one; any other value itself."""
    if isinstance(value, list) and len(cast("list[Any]", value)) == 1:
        return cast("list[Any]", value)[0]
    return cast(Any, value)


def _find(table: Table, key: str, before: str = "") -> Iterator[str]:
    """Dotted names of a key in all tables below a table."""
    for name, value in table.items():
        inner = _only(value)
        if isinstance(inner, dict):
            place = f"{before}{name}."
            if key in inner:
                yield place + key
            yield from _find(cast(Table, inner), key, place)


def _locate(cluster: object, path: Path) -> object:
    """A cluster file in the working folder by its whole path; any other value itself.

    Raises:
        UserError: there is no such file, neither there nor beside the run file.
    """
    if not isinstance(cluster, str) or cluster in find_bundled("cluster"):
        return cluster
    if Path(cluster).is_file():
        return str(Path(cluster).resolve())
    if Path(cluster).suffix and not (path.parent / cluster).is_file():
        told = f"no file {cluster!r} here or beside {path.name}"
        raise UserError(f"{path}: cluster: {told}; allowed: {describe_choices('cluster')}")
    return cluster

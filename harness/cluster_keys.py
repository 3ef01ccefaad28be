"""Dotted keys of a cluster file: ``workers[0].count``, ``devices.H100.launch_s``."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any, cast

from harness.base.errors import UserError, name_error
from harness.simulator.cluster import Cluster, with_catalogue

STEP = re.compile(r"([\w-]+)((?:\[\d{1,9}\])*)")


def is_key(text: str) -> bool:
    """Whether a text has the form of a key.

    Example:
        >>> is_key("network.levels[0].latency_s"), is_key("network..levels")
        (True, False)
    """
    return all(STEP.fullmatch(step) for step in text.split("."))


def put(table: dict[str, Any], key: str, value: object, origin: str) -> None:
    """Set a key, creating tables on the way; the schema checks the value later.

    Args:
        table: of the file; changed.
        key: of the form that `is_key` admits; also an element of a list of numbers, as
            ``faults[0].at_s[2]``.
        value: the new value.
        origin: the option or file with the key, for messages.

    Raises:
        UserError: there is no such key or element.
    """
    node, step = _find_parent(table, key, origin)
    is_table = isinstance(step, int) and isinstance(_enter(node, step, key, origin), dict | list)
    if is_table or (isinstance(step, str) and not isinstance(node, dict)):
        raise UserError(f"{origin}: {key!r} is not a key; allowed: a key of the cluster file")
    node[step] = value


def get(table: dict[str, Any], key: str, origin: str) -> object:
    """The value of a key (arguments as for `put`).

    Raises:
        UserError: the key is missing.
    """
    node, step = _find_parent(table, key, origin)
    if isinstance(node, dict) and step not in cast(dict[str, object], node):
        raise UserError(f"{origin}: {key!r} is not in the cluster file; allowed: a key that is")
    return _enter(cast(object, node), step, key, origin)


def _find_parent(table: dict[str, Any], key: str, origin: str) -> tuple[Any, str | int]:
    """The table or list that contains a key's last step, and that step."""
    steps: list[str | int] = []
    for name, places in (STEP.fullmatch(step).groups() for step in key.split(".")):  # pyright: ignore[reportOptionalMemberAccess]
        steps += [name, *(int(place) for place in re.findall(r"\d+", places))]
    if steps[0] == "devices":  # figures of the catalogue can be changed too
        with_catalogue(table)
    node: Any = table
    for step in steps[:-1]:
        node = _enter(node, _place(node, step), key, origin)
    return node, _place(node, steps[-1])


def _place(node: object, step: str | int) -> str | int:
    """A step into a list as a number, which may be written like a key: ``workers.0.count``."""
    return int(step) if isinstance(node, list) and str(step).isdigit() else step


def _enter(node: object, step: str | int, key: str, origin: str) -> object:
    if isinstance(step, int) and isinstance(node, list):
        items = cast(list[object], node)
        if step < len(items):
            return items[step]
    if isinstance(step, str) and isinstance(node, dict):
        return cast(dict[str, object], node).setdefault(step, {})
    table, names = key.partition(".")[0].partition("[")[0], [x.name for x in fields(Cluster)]
    if table not in names:
        raise name_error(f"{origin}: key", table, names)
    count = f" ({len(cast(list[object], node))} in all, from 0)" if isinstance(node, list) else ""
    mistake = f"leads nowhere in the cluster file: {step!r} is not there{count}"
    raise UserError(f"{origin}: {key!r} {mistake}")

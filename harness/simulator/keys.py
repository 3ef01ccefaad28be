"""Dotted keys of a cluster file: ``workers[0].count``, ``devices.H100.launch_s``."""

from __future__ import annotations

import re
from typing import Any, cast

from harness.base.errors import UserError
from harness.simulator.cluster import with_catalogue

__all__ = ["get", "is_key", "put"]

STEP = re.compile(r"([\w-]+)((?:\[\d{1,9}\])*)")


def is_key(text: str) -> bool:
    """Whether a text has the form of a key.

    Example:
        >>> is_key("network.levels[0].latency_s"), is_key("network..levels")
        (True, False)
    """
    return all(STEP.fullmatch(step) for step in text.split("."))


def put(table: dict[str, Any], key: str, value: object, where: str) -> None:
    """Set a key, creating tables on the way; the schema checks the value later.

    Args:
        table: of the file; changed.
        key: of the form that `is_key` admits; also an element of a list of numbers, as
            ``faults[0].at_s[2]``.
        value: the new value.
        where: the option or file with the key, for messages.

    Raises:
        UserError: there is no such key or element.
    """
    here, last = _find_parent(table, key, where)
    if isinstance(last, int) and isinstance(_enter(here, last, key, where), dict | list):
        raise UserError(f"{where}: {key!r} is not a key; allowed: a key of the cluster file")
    if isinstance(last, str) and not isinstance(here, dict):
        raise UserError(f"{where}: {key!r} is not a key; allowed: a key of the cluster file")
    here[last] = value


def get(table: dict[str, Any], key: str, where: str) -> object:
    """The value of a key (arguments as for `put`).

    Raises:
        UserError: the key is missing.
    """
    here, last = _find_parent(table, key, where)
    if isinstance(here, dict) and last not in cast(dict[str, object], here):
        raise UserError(f"{where}: {key!r} is not in the cluster file; allowed: a key that is")
    return _enter(cast(object, here), last, key, where)


def _find_parent(table: dict[str, Any], key: str, where: str) -> tuple[Any, str | int]:
    """The table or list that contains a key's last step, and that step."""
    steps: list[str | int] = []
    for name, places in (STEP.fullmatch(step).groups() for step in key.split(".")):  # pyright: ignore[reportOptionalMemberAccess]
        steps += [name, *(int(place) for place in re.findall(r"\d+", places))]
    if steps[0] == "devices":  # figures of the catalogue can be changed too
        with_catalogue(table)
    here: Any = table
    for step in steps[:-1]:
        here = _enter(here, step, key, where)
    return here, steps[-1]


def _enter(here: object, step: str | int, key: str, where: str) -> object:
    if isinstance(step, int) and isinstance(here, list):
        items = cast(list[object], here)
        if step < len(items):
            return items[step]
    if isinstance(step, str) and isinstance(here, dict):
        return cast(dict[str, object], here).setdefault(step, {})
    raise UserError(f"{where}: {key!r} leads nowhere in the cluster file: {step!r} is not there")

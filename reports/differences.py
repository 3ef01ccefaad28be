"""What sets runs apart: their configurations compared key by key."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

LONG = 70  # characters of a printed value


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """A configuration as dotted keys and values as text.

    Example:
        >>> flat({"schedule": {"is": "Hand", "rate": 0.1}})
        {'schedule.is': 'Hand', 'schedule.rate': '0.1'}
    """
    items: dict[str, str] = {}
    for key, value in config.items():
        inner = _inner(value)
        if inner:
            items |= flat(inner, f"{prefix}{key}.")
        else:
            items[prefix + key] = _text(value)
    return items


def alike(configs: Sequence[Mapping[str, Any]]) -> list[list[int]]:
    """Indices of configurations grouped by their keys: different keys, different kinds of run."""
    groups: dict[frozenset[str], list[int]] = {}
    for index, config in enumerate(configs):
        groups.setdefault(frozenset(config), []).append(index)
    return list(groups.values())


def split(configs: Sequence[Mapping[str, Any]]) -> tuple[dict[str, str], list[dict[str, str]]]:
    """What all configurations share, and what is left of each.

    Returns:
        The shared keys with their values, and for each configuration its own; long
        values are cut for printing, after they were compared.
    """
    flats = [flat(config) for config in configs]
    if not flats:
        return {}, []
    shared = {
        key: value for key, value in flats[0].items() if all(f.get(key) == value for f in flats)
    }
    own = [{k: v for k, v in each.items() if k not in shared} for each in flats]
    return _cut(shared), [_cut(each) for each in own]


def _inner(value: Any) -> Mapping[str, Any]:
    """What can be entered key by key: a table, or a list of tables by position."""
    if isinstance(value, Mapping):
        return cast(Mapping[str, Any], value)
    if isinstance(value, list):
        items = cast(list[object], value)
        if all(isinstance(each, Mapping) for each in items):
            return {str(position): each for position, each in enumerate(items, 1)}
    return {}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _cut(items: dict[str, str]) -> dict[str, str]:
    return {k: v if len(v) <= LONG else v[: LONG - 1] + "…" for k, v in items.items()}

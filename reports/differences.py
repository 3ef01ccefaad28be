"""What sets runs apart: their configurations compared key by key."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

LONG = 70  # characters of a printed value


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """A configuration as dotted keys and printable values.

    Example:
        >>> flat({"schedule": {"is": "Hand", "rate": 0.1}})
        {'schedule.is': 'Hand', 'schedule.rate': '0.1'}
    """
    items: dict[str, str] = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            items |= flat(value, f"{prefix}{key}.")
        else:
            items[prefix + key] = _text(value)
    return items


def split(configs: Sequence[Mapping[str, Any]]) -> tuple[dict[str, str], list[dict[str, str]]]:
    """What all configurations share, and what is left of each.

    Returns:
        The shared keys with their values, and for each configuration its own.
    """
    flats = [flat(config) for config in configs]
    if not flats:
        return {}, []
    shared = {
        key: value for key, value in flats[0].items() if all(f.get(key) == value for f in flats)
    }
    return shared, [{k: v for k, v in f.items() if k not in shared} for f in flats]


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= LONG else text[: LONG - 1] + "…"

"""``--sweep key=a,b,c``: the cluster file read once for every value of a key in it."""

from __future__ import annotations

import copy
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from harness.base.errors import UserError

if TYPE_CHECKING:
    from harness.simulator import Cluster

__all__ = ["Point", "points"]

MOST_POINTS = 1000
EXAMPLE = "--sweep link.latency_s=0,1e-5,1e-4"


@dataclass(frozen=True)
class Point:
    """One combination of swept values.

    Attributes:
        cluster: the file with those values put in.
        values: what was put in, by dotted key.
    """

    cluster: Cluster
    values: Mapping[str, object] = field(default_factory=dict[str, object])


def points(path: Path, sweeps: Sequence[str]) -> list[Point]:
    """Every combination of the swept values, the last key fastest; without any, the file itself.

    Args:
        path: the cluster file.
        sweeps: ``key=a,b,c``; a key is dotted and may have places, e.g. ``workers[0].count``.

    Raises:
        UserError: a sweep is malformed, or a value is not allowed where it is put.
    """
    from harness.base.settings import load_toml
    from harness.simulator.cluster import cluster_from
    from harness.simulator.keys import put

    table, swept = load_toml(path), _grid(sweeps)
    found: list[Point] = []
    for choice in product(*swept.values()):
        values = dict(zip(swept, choice, strict=True))
        changed = copy.deepcopy(table)
        for key, value in values.items():
            put(changed, key, value, "--sweep")
        found.append(Point(cluster_from(changed, path), values))
    return found


def _grid(sweeps: Sequence[str]) -> dict[str, list[object]]:
    """The values of each key."""
    from harness.simulator.keys import is_key

    grid: dict[str, list[object]] = {}
    size = 1
    for text in sweeps:
        key, _, listed = text.partition("=")
        parts = [part.strip() for part in listed.split(",")]
        if not all(parts) or not is_key(key.strip()):
            shown = text if len(text) <= 60 else f"{text[:57]}..."
            raise UserError(f"--sweep: {shown!r} is not allowed; allowed: key=a,b,c, as {EXAMPLE}")
        if key.strip() in grid:
            raise UserError(f"--sweep: {key.strip()!r} is given twice; allowed: once each")
        grid[key.strip()] = [_value(part) for part in parts]
        size *= len(parts)
    if size > MOST_POINTS:
        raise UserError(f"--sweep: {size} combinations; allowed: at most {MOST_POINTS}")
    return grid


def _value(text: str) -> object:
    """What TOML takes the text for; a word without quotes is a string."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, ValueError):
        return text

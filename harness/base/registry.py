"""What comes from outside: modules that a file names, and entry points of installed packages.

An algorithm, optimizer or protocol is known as soon as its class exists; a corpus or a paper is
known by the name of its entry point.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Literal

from harness.base.errors import UserError

Group = Literal["algorithms", "protocols", "corpora", "papers"]


@cache
def discovered(group: Group) -> dict[str, Any]:
    """What installed packages offer under ``lagbench.algorithms`` and so on, by name.

    Raises:
        UserError: one of them cannot be imported.
    """
    return {point.name: _loaded(point) for point in entry_points(group=f"lagbench.{group}")}


def _loaded(point: Any) -> Any:
    try:
        return point.load()
    except Exception as error:  # whatever somebody's module does as it is imported
        told = f"{type(error).__name__}: {error}"
        raise UserError(f"plugin {point.name} ({point.value}): {told}") from error


def imported(names: Iterable[object], where: str, folder: Path) -> None:
    """Import the modules that a file names, which may lie beside it.

    Args:
        names: of modules.
        where: the file and key, for messages.
        folder: of the file.

    Raises:
        UserError: one is no name, or cannot be imported.
    """
    if str(folder.resolve()) not in sys.path:
        sys.path.append(str(folder.resolve()))
    for name in names:
        if not isinstance(name, str):
            raise UserError(f"{where}: {name!r} is not allowed; allowed: names of modules")
        try:
            import_module(name)
        except Exception as error:  # as above
            told = f"{type(error).__name__}: {error}"
            raise UserError(f"{where}: {name!r} cannot be imported ({told})") from error

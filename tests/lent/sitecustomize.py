"""A machine that is lent for its GPU: what is usual there can be imported, and nothing else.

Python imports this by itself where this folder is on its path; processes that it starts inherit
that. Packages beyond the usual ones and what these require are as if they were not installed:
they have no modules and no versions.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from importlib.metadata import (
    Distribution,
    PackageNotFoundError,
    packages_distributions,
    requires,
)
from typing import Any

USUAL = (
    "torch", "numpy", "numba", "scipy", "pandas", "pyarrow", "matplotlib", "pytest-benchmark",
    "rich", "safetensors",
)  # fmt: skip


def plain(name: str) -> str:
    """A distribution's name as all spell it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def required(names: tuple[str, ...]) -> set[str]:
    """Distributions and all that they require, without extras."""
    found, left = set[str](), [plain(name) for name in names]
    while left:
        name = left.pop()
        if name in found:
            continue
        found.add(name)
        try:
            lines = requires(name) or []
        except PackageNotFoundError:  # not here, whoever might want it
            continue
        needed = (line for line in lines if "extra ==" not in line)
        left += [plain(re.match(r"[\w.-]+", line).group()) for line in needed]
    return found


class Without:
    """A finder of modules that does not find some."""

    def __init__(self, finder: Any, hidden: frozenset[str]) -> None:
        self._finder, self._hidden = finder, hidden

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """As the finder has it, unless it is hidden."""
        if name.partition(".")[0] in self._hidden:
            return None
        return self._finder.find_spec(name, path, target)

    def find_distributions(self, *context: Any) -> Iterator[Distribution]:
        """Likewise."""
        found = getattr(self._finder, "find_distributions", lambda *_: ())(*context)
        return (each for each in found if plain(each.name) in USED)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._finder, name)


USED = required(USUAL)
OURS = ("harness", "data_synth", "reproductions", "reports", "lagbench", "tests")
HIDDEN = frozenset(
    module
    for module, owners in packages_distributions().items()
    if module not in OURS and USED.isdisjoint(map(plain, owners))
)
sys.meta_path[:] = [Without(finder, HIDDEN) for finder in sys.meta_path]

"""Mutations as they are declared: one wrong line each, and the tests that must see it.

The tables lie beside this file, one a room. A mutation names no module: its line is looked for in
all packages and must stand there exactly once, so that modules may move. Tests are named by the
end of their path, for the same reason.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("harness", "data_synth", "reproductions", "reports")


class CannotApply(Exception):  # noqa: N818 (what is wrong with a declaration, said in one line)
    """A declaration that does not fit the sources or the tests any more."""


@dataclass(frozen=True)
class Mutation:
    """One line changed for the worse.

    Args:
        name: short, unique.
        source: text that stands exactly once in the packages; one line of it changes.
        becomes: the text that takes its place.
        wrong: what the change does to whoever uses the program.
        tests: of its own room: ``end/of/path.py``, perhaps with ``::name``.
        file: the end of the module's path, where the text alone stands in several.
        survives_because: why no test can catch it, if none can.
    """

    name: str
    source: str
    becomes: str
    wrong: str
    tests: tuple[str, ...]
    file: str = ""
    survives_because: str = ""


def declared(folder: Path = Path(__file__).parent) -> list[Mutation]:
    """Every mutation of the tables in a folder, named ``room/name``."""
    found: list[Mutation] = []
    for path in sorted(folder.glob("*.toml")):
        for entry in tomllib.loads(path.read_text(encoding="utf-8"))["mutation"]:
            name, tests = f"{path.stem}/{entry.pop('name')}", tuple(entry.pop("tests"))
            found.append(Mutation(name, tests=tests, **entry))
    return found


def module_of(mutation: Mutation, root: Path = ROOT) -> Path:
    """The one module that has a mutation's source text, relative to ``root``.

    Raises:
        CannotApply: the text is nowhere, or stands more than once.
    """
    places = [
        path
        for path, text in _sources(root).items()
        for _ in range(text.count(mutation.source))
        if _ends_with(path, mutation.file)
    ]
    if len(places) == 1:
        return places[0]
    where = f"stands {len(places)} times: {', '.join(map(str, places))}" if places else "is gone"
    raise CannotApply(f"{mutation.name}: the source text {where}; it must stand exactly once")


def mutated(mutation: Mutation, root: Path = ROOT) -> str:
    """The module's text with the mutation in it."""
    return _sources(root)[module_of(mutation, root)].replace(mutation.source, mutation.becomes)


def paths_of(mutation: Mutation, root: Path = ROOT) -> list[str]:
    """What pytest is to be asked for, relative to ``root``.

    Raises:
        CannotApply: no such test, or several.
    """
    return [_test(mutation, named, root) for named in mutation.tests]


def _test(mutation: Mutation, named: str, root: Path) -> str:
    end, _, name = named.partition("::")
    found = [path for path in _tests(root) if _ends_with(path, end)]
    if len(found) != 1:
        raise CannotApply(f"{mutation.name}: {len(found)} test files end in {end}; there must be 1")
    if name and f"def {name}(" not in (root / found[0]).read_text(encoding="utf-8"):
        raise CannotApply(f"{mutation.name}: {found[0]} has no test {name}")
    return "::".join([found[0].as_posix(), *([name] if name else [])])


def _ends_with(path: Path, end: str) -> bool:
    parts = Path(end).parts
    return path.parts[len(path.parts) - len(parts) :] == parts


@cache
def _sources(root: Path) -> dict[Path, str]:
    paths = (path for package in PACKAGES for path in sorted((root / package).rglob("*.py")))
    return {path.relative_to(root): path.read_text(encoding="utf-8") for path in paths}


@cache
def _tests(root: Path) -> list[Path]:
    return [path.relative_to(root) for path in sorted((root / "tests").rglob("test_*.py"))]

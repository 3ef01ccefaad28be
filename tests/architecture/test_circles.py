"""No file, and no room, needs at however many removes what needs it."""

import ast
import tomllib
from collections.abc import Iterator, Mapping, Set
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("lagbench", "harness", "data_synth", "reports", "reproductions")
Graph = Mapping[str, set[str]]
"""What each file, or room, imports."""


def modules(root: Path) -> dict[str, Path]:
    """Every Python file of the packages below ``root``, by its module's name."""
    found: dict[str, Path] = {}
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def names(path: Path) -> Iterator[str]:
    """What a file imports anywhere in it: also within functions, and for types alone."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def run_by(module: str, name: str, known: Mapping[str, Path]) -> set[str]:
    """The files that ``module`` runs by importing ``name``: packages that it enters run too."""
    parts = name.split(".")
    outer = [".".join(parts[:count]) for count in range(1, len(parts) + 1)]
    files = [place for place in outer if place in known]
    entered = {place for place in files if not f"{module}.".startswith(f"{place}.")}
    return entered | set(files[-1:])


def files_of(root: Path, without: Set[tuple[str, str]] = frozenset()) -> Graph:
    """For every file, the others that it imports; some imports may be left out."""
    known = modules(root)

    def needed(module: str, path: Path) -> Iterator[str]:
        for name in names(path):
            found = run_by(module, name, known)
            if not any((module, other) in without for other in found):
                yield from found

    return {module: set(needed(module, path)) - {module} for module, path in known.items()}


def to_be_dissolved() -> set[tuple[str, str]]:
    """Imports of files that the layers in ``pyproject.toml`` still let go up."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    layers = [each for each in contracts if each["type"] == "layers"]
    lines = [line for each in layers for line in each.get("ignore_imports", [])]
    return {(before, after) for before, _, after in (line.partition(" -> ") for line in lines)}


def room(module: str) -> str:
    """`harness.simulator`, say, or a whole package that is none of the harness's."""
    return ".".join(module.split(".")[: 2 if module.startswith("harness.") else 1])


def rooms_of(files: Graph) -> Graph:
    """For every room, the others that its files import."""
    found: dict[str, set[str]] = {room(module): set() for module in files}
    for module, others in files.items():
        found[room(module)] |= {room(other) for other in others} - {room(module)}
    return found


def circles(graph: Graph) -> set[frozenset[str]]:
    """The groups in which each needs all others of its group."""
    needs = {node: reachable(graph, node) for node in graph}
    return {
        frozenset(other for other in needs[node] if node in needs[other])
        for node in graph
        if node in needs[node]
    }


def reachable(graph: Graph, start: str) -> set[str]:
    """Everything that ``start`` imports, directly or not."""
    found, waiting = set[str](), [start]
    while waiting:
        new = graph[waiting.pop()] - found
        found |= new
        waiting += new
    return found


@pytest.fixture(scope="module")
def graphs() -> dict[str, Graph]:
    return {"files": files_of(ROOT), "rooms": rooms_of(files_of(ROOT, to_be_dissolved()))}


@pytest.mark.parametrize("kind", ["files", "rooms"])
def test_nothing_needs_what_needs_it(kind: str, graphs: dict[str, Graph]) -> None:
    assert [sorted(circle) for circle in circles(graphs[kind])] == []


def test_circles_are_found_in_functions_in_types_and_through_packages(tmp_path: Path) -> None:
    sources = {
        "harness/__init__.py": "",
        "harness/a.py": "def f():\n    from harness import b",
        "harness/b.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import harness.a",
        "harness/c.py": "import data_synth.inner",
        "data_synth/__init__.py": "from harness.c import anything",
        "data_synth/inner.py": "import data_synth.other",
        "data_synth/other.py": "import harness.a",
    }
    for name, text in sources.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    files = files_of(tmp_path)
    assert files["data_synth.inner"] == {"data_synth.other"}
    assert circles(files) == {
        frozenset({"harness.a", "harness.b"}),
        frozenset({"harness.c", "data_synth"}),
    }

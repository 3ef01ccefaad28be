"""The list of mutations cannot rot: each still fits the sources, compiles, and has its tests."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutations.declared import (
    ROOT,
    CannotApply,
    Mutation,
    declared,
    module_of,
    mutated,
    paths_of,
)

EVERY = declared()
NAMES = [mutation.name for mutation in EVERY]


def test_there_are_at_least_forty_and_no_two_of_one_name():
    assert len(EVERY) >= 40
    assert len(set(NAMES)) == len(NAMES)


@pytest.mark.parametrize("mutation", EVERY, ids=NAMES)
def test_a_mutation_changes_one_line_of_one_module_and_compiles(mutation):
    before = (ROOT / module_of(mutation)).read_text(encoding="utf-8")
    after = mutated(mutation)
    lines = zip(before.splitlines(), after.splitlines(), strict=True)
    assert sum(one != other for one, other in lines) == 1
    assert ast.dump(ast.parse(after)) != ast.dump(ast.parse(before))
    assert paths_of(mutation)


def of(**changes) -> Mutation:
    standard = {"name": "toy/m", "source": "a + b", "becomes": "a - b", "wrong": "", "tests": ()}
    return Mutation(**{**standard, **changes})


@pytest.fixture
def toy(tmp_path):
    """A tree of two modules and their tests."""
    for path, text in {
        "harness/__init__.py": "",
        "harness/adds.py": "def add(a, b):\n    return a + b\n",
        "harness/twice.py": "def twice(a):\n    return 2 * a if a else 2 * a\n",
        "tests/test_adds.py": "from harness.adds import add\n\n\n"
        "def test_nothing_is_added():\n    assert add(3, 0) == 3\n\n\n"
        "def test_something_is_added():\n    assert add(3, 4) == 7\n",
        "tests/more/test_adds.py": "",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text, encoding="utf-8")
    return tmp_path


def test_what_does_not_fit_is_said_in_one_line(toy):
    assert module_of(of(), toy) == Path("harness/adds.py")
    with pytest.raises(CannotApply, match="toy/m: the source text is gone"):
        module_of(of(source="a * b"), toy)
    with pytest.raises(CannotApply, match=r"stands 2 times: harness/twice\.py, harness/twice\.py"):
        module_of(of(source="2 * a"), toy)
    with pytest.raises(CannotApply, match="stands 2 times"):
        module_of(of(source="return"), toy)
    assert module_of(of(source="def", file="adds.py"), toy) == Path("harness/adds.py")
    assert paths_of(of(tests=("tests/test_adds.py",)), toy) == ["tests/test_adds.py"]
    with pytest.raises(CannotApply, match=r"2 test files end in test_adds.py"):
        paths_of(of(tests=("test_adds.py",)), toy)
    with pytest.raises(CannotApply, match="has no test test_nobody"):
        paths_of(of(tests=("tests/test_adds.py::test_nobody",)), toy)


TRIES = """
import sys
from pathlib import Path
from tests.mutations.declared import Mutation
from tests.mutations.trial import Copy

root, work = map(Path, sys.argv[1:])
ways = {
    "caught": ("a - b", "test_adds.py"),
    "survived": ("a - b", "test_adds.py::test_nothing_is_added"),
    "broken": ("a + c", "test_adds.py"),
}
made = {
    name: Mutation(name, "a + b", becomes, "", (f"tests/{test}",))
    for name, (becomes, test) in ways.items()
}
copy = Copy(work, root)
print(copy.begin(list(made.values()), 60.0).verdict)
print(*(f"{name}={copy.tried(mutation, 60.0).verdict}" for name, mutation in made.items()))
"""


def test_a_trial_tells_caught_from_survived_and_from_no_program(toy, tmp_path_factory):
    subprocess.run(["git", "init", "--quiet"], cwd=toy, check=True)
    work = tmp_path_factory.mktemp("work")
    done = subprocess.run(
        [sys.executable, "-c", TRIES, str(toy), str(work)],
        cwd=ROOT,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [
        "survived",
        "caught=caught",
        "survived=survived",
        "broken=broken",
    ]
    assert (toy / "harness/adds.py").read_text() == "def add(a, b):\n    return a + b\n"

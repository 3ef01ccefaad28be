"""The reference of run files is complete: it has every key that a file can have."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from harness.algorithms.catalogue import Algorithm, LocalOptimizer
from harness.algorithms.schedules import Schedule
from harness.base.registry import entries
from harness.base.settings import KIND, dataclasses_below, load_toml, meanings
from harness.reference.keys import classes, entries_of, kinds
from harness.tasks.contract import TASK

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "run-files.md").read_text(encoding="utf-8")
SECTIONS = {
    name: set(re.findall(r"^\| `(\w+)` \|", body, flags=re.MULTILINE))
    for name, body in re.findall(r"^### `(\w+)`\n(.*?)(?=^### |\Z)", PAGE, re.MULTILINE | re.DOTALL)
}


@pytest.mark.parametrize("table", classes(), ids=lambda table: table.__name__)
def test_every_key_of_a_class_is_there_and_has_a_meaning(table):
    keys = {entry.name for entry in entries_of(table)}
    assert SECTIONS[table.__name__] == keys
    assert keys <= {name for name, told in meanings(table).items() if told}


@pytest.mark.parametrize("kind", [Algorithm, LocalOptimizer, Schedule])
def test_every_class_that_can_be_named_has_a_section(kind):
    ours = [each for each in dataclasses_below(kind) if each.__module__.startswith("harness.")]
    assert len(ours) > 2
    assert {each.__name__ for each in ours} <= SECTIONS.keys()


@pytest.mark.parametrize(
    "path", sorted((ROOT / "reproductions/runs").glob("*.toml")), ids=lambda p: p.stem
)
def test_every_key_of_a_documented_run_is_found(path):
    every = set[str]().union(*SECTIONS.values(), {KIND})

    def look(value: Any) -> None:
        if isinstance(value, dict):
            assert value.keys() <= every
            assert value.get(KIND, "RunConfig") in SECTIONS
        for inner in value.values() if isinstance(value, dict) else value:
            if isinstance(inner, dict | list):
                look(inner)

    table = load_toml(path)
    task = table.pop(TASK, {})
    assert task.pop(KIND, "module") in entries("tasks")
    look({**table, **task})


def test_kinds_of_run_come_first():
    assert classes()[: len(kinds())] == kinds()

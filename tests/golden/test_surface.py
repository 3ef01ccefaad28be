"""What users write stays: names of ``lagbench``, commands with their options, keys of both files.

The list may grow. A name that goes breaks programs and files of users: that is a major version, and
the list is recorded anew with ``python -m tests.golden.test_surface``.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import lagbench
from harness.cli import parser_of
from harness.simulator import Cluster
from tests.keys import classes, entries_of, keys_of

LIST = Path(__file__).with_name("surface.json")


def surface() -> dict[str, list[str]]:
    (commands,) = (
        action
        for action in parser_of(None, every=True)._actions
        if isinstance(action, argparse._SubParsersAction)
    )
    options = {
        f"{name} {option}"
        for name, parser in commands.choices.items()
        for action in parser._actions
        for option in action.option_strings or [action.dest]
    }
    keys = {f"{kind.__name__}.{entry.name}" for kind in classes() for entry in entries_of(kind)}
    return {
        "lagbench": sorted(lagbench.__all__),
        "commands": sorted(commands.choices),
        "options": sorted(options),
        "cluster keys": sorted({key.dotted for key in keys_of(Cluster)}),
        "run keys": sorted(keys),
    }


def test_no_name_that_users_write_is_lost():
    known, found = json.loads(LIST.read_text(encoding="utf-8")), surface()
    assert {kind: sorted(set(names) - set(found[kind])) for kind, names in known.items()} == {
        kind: [] for kind in known
    }


if __name__ == "__main__":
    LIST.write_text(json.dumps(surface(), indent=1) + "\n", encoding="utf-8")

"""Modules that were moved: users' imports go on, and identities of what derives from ours."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path

from harness.runs import digests

TABLE = Path(digests.__file__).with_name("former_modules.json")


def test_what_has_been_moved_is_where_the_table_says():
    for now, rows in json.loads(TABLE.read_text()).items():
        for names in rows.values():
            assert {name for name in names if not hasattr(import_module(now), name)} == set(), now


def test_a_class_of_a_user_is_known_by_the_first_names_of_its_bases(monkeypatch):
    from harness.algorithms.async_sgd import Gradients

    class Mine(Gradients):
        """Derives from what has been moved."""

    here = digests.digest_of_code(Mine)
    told = "class harness.algorithms.gradients.Gradients"
    assert any(line.startswith(told) for line in digests._describe(Mine, {}))
    monkeypatch.setattr(digests, "former_module", lambda module, name: module)
    assert digests.digest_of_code(Mine) != here

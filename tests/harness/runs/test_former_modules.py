"""Modules that were moved: users' imports go on, and identities of what derives from ours."""

from __future__ import annotations

import json
import sys
import warnings
from importlib import import_module, reload
from pathlib import Path

import pytest

from harness.base.log import FormerWarning
from harness.runs import digests

TABLE = Path(digests.__file__).with_name("former_modules.json")
FORWARDED = [
    ("harness.acoustics.dnn", "Dnn"),
    ("harness.acoustics.stack", "Layout"),
    ("harness.algorithms.gradients", "Gradients"),
    ("harness.algorithms.outer_step", "OuterNesterov"),
    ("harness.network", "Network"),
    ("harness.simulator.exchange", "AllReduce"),
    ("harness.simulator.topology", "wire"),
]


def test_what_has_been_moved_is_where_the_table_says():
    for now, rows in json.loads(TABLE.read_text()).items():
        for names in rows.values():
            assert {name for name in names if not hasattr(import_module(now), name)} == set(), now


@pytest.mark.parametrize(("old", "name"), FORWARDED)
def test_a_former_module_gives_the_same_objects_and_warns_once(old, name):
    with warnings.catch_warnings(action="ignore"):
        import_module(old)
    with pytest.warns(FormerWarning, match=old):
        module = reload(sys.modules[old])  # a first import may be another test's
    value = getattr(module, name)
    assert value is getattr(import_module(value.__module__), name)
    assert digests.former_module(value.__module__, name) == old


def test_a_class_of_a_user_is_known_by_the_first_names_of_its_bases(monkeypatch):
    from harness.algorithms.async_sgd import Gradients

    class Mine(Gradients):
        """Derives from what has been moved."""

    here = digests.digest_of_code(Mine)
    told = "class harness.algorithms.gradients.Gradients"
    assert any(line.startswith(told) for line in digests._describe(Mine, {}))
    monkeypatch.setattr(digests, "former_module", lambda module, name: module)
    assert digests.digest_of_code(Mine) != here

from __future__ import annotations

import json
from subprocess import CompletedProcess

import pytest

from tests.portable import __main__ as portable
from tests.portable.probes import PROBES
from tests.portable.settings import DEFAULT, SET, SETTINGS, TESTS, THREADS

MIXED = """
import os, pytest
def test_holds(): pass
def test_fails_without_vectors(): assert "ATEN_CPU_CAPABILITY" not in os.environ
@pytest.mark.skip
def test_skipped(): pass
"""


@pytest.fixture(autouse=True)
def probed(monkeypatch):
    """Probes cost seconds; by these, every setting but the default changes training."""
    monkeypatch.setattr(portable, "_probed", lambda s: {"torch": "", "training": s.name})


@pytest.fixture
def reproduced(monkeypatch):
    """Settings under which a paper would be reproduced, where one changes sequences alone."""
    asked = []

    def started(setting, module):
        asked.append(setting.name)
        return CompletedProcess(module, 0, "done", "")

    only = {"generic": {"sequence"}, "default": {"training", "sequence", "natural gradient"}}
    changed = lambda setting, usual: only.get(setting.name.partition("=")[2], set())  # noqa: E731
    monkeypatch.setattr(portable, "_python", started)
    monkeypatch.setattr(portable, "_changed", changed)
    return asked


@pytest.mark.parametrize(("paper", "generic"), [("paper1", []), ("paper3", ["generic"])])
def test_a_paper_is_reproduced_where_what_it_trains_with_changes(paper, generic, reproduced):
    assert portable.main(["--smoke", paper]) == 0
    assert reproduced == [
        "default",
        "ATEN_CPU_CAPABILITY=default",
        *(f"NUMBA_CPU_NAME={name}" for name in generic),
    ]


def test_what_papers_train_with_is_probed_and_every_outer_gradient_has_entries():
    assert set().union(*portable.TRAINS.values()) <= PROBES.keys()
    assert all(gradient.any(1).mean() > 0.5 for gradient in PROBES["sequence"]())


def test_a_setting_inherits_nothing_that_another_sets(monkeypatch, tmp_path):
    for name in SET | {"NUMBA_CACHE_DIR"}:
        monkeypatch.setenv(name, "of the user")
    (tmp_path / "told.py").write_text("import json, os; print(json.dumps(dict(os.environ)))")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (setting,) = (each for each in SETTINGS if each.name == "NUMBA_CPU_NAME=generic")
    found = json.loads(portable._python(setting, ["told"]).stdout)
    assert {name: found[name] for name in SET & found.keys()} == {
        **dict.fromkeys(THREADS, "1"),
        "NUMBA_CPU_NAME": "generic",
    }
    assert found["NUMBA_CACHE_DIR"] == "of the user"


@pytest.fixture
def mixed(tmp_path):
    path = tmp_path / "test_mixed.py"
    path.write_text(MIXED)
    return str(path)


def test_a_setting_that_fails_is_counted_and_ends_with_1(mixed, capsys):
    only = ["--only", "default", "--only", "ATEN_CPU_CAPABILITY=default"]
    assert portable.main([*only, mixed]) == 1
    said = capsys.readouterr()
    rows = [line.split() for line in said.out.splitlines()[1:]]
    assert [(name, *map(int, counts)) for name, *counts in (row[:4] for row in rows)] == [
        ("default", 2, 0, 1),
        ("ATEN_CPU_CAPABILITY=default", 1, 1, 1),
    ]
    assert [row[5] for row in rows] == ["none", "training"]
    assert "test_fails_without_vectors" in said.err


def test_where_nothing_fails_it_ends_with_0(mixed):
    assert portable.main(["--only", "threads=2", mixed]) == 0


def test_an_unknown_setting_is_answered_with_those_there_are(capsys):
    with pytest.raises(SystemExit, match="2"):
        portable.main(["--only", "nowhere"])
    assert "OPENBLAS_CORETYPE=Zen" in capsys.readouterr().err


def test_settings_have_names_of_their_own_and_the_tests_are_there():
    assert len({setting.name for setting in SETTINGS}) == len(SETTINGS)
    assert SETTINGS[0] is DEFAULT
    assert all((portable.ROOT / path).exists() for path in TESTS)

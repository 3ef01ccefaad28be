import sys
from pathlib import Path

import pytest

from harness import cli
from harness.base.errors import UserError
from harness.base.registry import forget, import_modules, load_plugins
from tests.run_files import ASYNCHRONOUS, written

SOURCE = """
from dataclasses import dataclass
from harness.algorithms.async_sgd import AsyncSgd

@dataclass(frozen=True)
class {name}(AsyncSgd):
    fade: float = 0.5
"""


@pytest.fixture(autouse=True)
def restored(monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    forget()


def installed(folder: Path, group: str, points: str) -> None:
    """A package with entry points, as pip would leave it."""
    info = folder / "mine-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[lagbench.{group}]\n{points}\n")
    sys.path.insert(0, str(folder))
    forget()


def test_a_run_file_trains_an_algorithm_that_it_imports_from_beside_it(tmp_path, capsys):
    (tmp_path / "beside_it.py").write_text(SOURCE.format(name="BesideIt"), encoding="utf-8")
    run = ASYNCHRONOUS.replace("AveragedSgd", "BesideIt").replace("Halving", "Constant")
    path = written(tmp_path, 'import = ["beside_it"]\n' + run)
    assert cli.main(["train", str(path), "--out", str(tmp_path / "store")]) == 0
    assert "done" in capsys.readouterr().out


def test_an_installed_algorithm_goes_by_the_name_of_its_class(tmp_path, capsys):
    (tmp_path / "installed_one.py").write_text(SOURCE.format(name="InstalledOne"), encoding="utf-8")
    installed(tmp_path, "algorithms", "one = installed_one:InstalledOne")
    assert cli.main(["check-algorithm", "InstalledOne"]) == 0
    assert capsys.readouterr().out.count("kept") == 6


def test_a_plugin_that_cannot_be_imported_is_one_line(tmp_path):
    (tmp_path / "broken_one.py").write_text("raise RuntimeError('no')", encoding="utf-8")
    installed(tmp_path, "corpora", "mine = broken_one:make")
    with pytest.raises(UserError, match=r"plugin mine \(broken_one:make\): RuntimeError: no"):
        load_plugins("corpora")


def test_an_import_that_fails_names_the_file_and_the_module(tmp_path):
    with pytest.raises(UserError, match=r"run\.toml: import: 'nowhere_at_all' cannot be imported"):
        import_modules(["nowhere_at_all"], "run.toml: import", tmp_path)
    with pytest.raises(UserError, match=r"run\.toml: import: 3 is not allowed"):
        import_modules([3], "run.toml: import", tmp_path)

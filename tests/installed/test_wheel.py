"""The wheel holds every file that a command reads, and nothing that only the checkout needs."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from email.parser import HeaderParser
from fnmatch import fnmatch
from pathlib import Path
from zipfile import ZipFile

import pytest

from lagbench_start import PACKAGES

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
NOT_IN_IT = ("reports/published/*.pdf", "reports/published/*/overnight/*", "reports/out/*")


@pytest.fixture
def told(wheel):
    """The wheel's metadata."""
    with ZipFile(wheel) as archive:
        (name,) = [each for each in archive.namelist() if each.endswith("dist-info/METADATA")]
        return HeaderParser().parsestr(archive.read(name).decode())


def test_the_wheel_holds_every_file_of_the_packages_and_no_other(wheel):
    listed = ["git", "ls-files", *PACKAGES, "lagbench_start.py"]
    kept = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True)
    files = {
        name
        for name in kept.stdout.splitlines()
        if not any(fnmatch(name, left_out) for left_out in NOT_IN_IT)
    }
    with ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert packed == files
    assert {f"{name}/py.typed" for name in PACKAGES} <= packed
    assert {"reproductions/clusters/k20m-server.toml", "reproductions/runs/diloco.toml"} <= packed
    assert "reports/published/paper1/laptop/results.json" in packed


def test_its_metadata_names_what_is_imported_and_whose_it_is(told):
    assert (told["Name"], told["Version"]) == ("lagbench", PROJECT["version"])
    names = {name for name in told.get_all("Import-Name") if not name.endswith("; private")}
    assert names == set(PACKAGES)
    assert told["Author"] == "lagbench authors"
    assert "Typing :: Typed" in told.get_all("Classifier")
    assert told["Requires-Python"] == PROJECT["requires-python"]


def test_in_another_folder_it_tells_its_version_and_simulates_what_comes_along(site, tmp_path):
    def lagbench(*words: str) -> str:
        code = "import sys; from lagbench_start import main; sys.exit(main())"
        where = {"PYTHONPATH": str(site), "HOME": str(Path.home())}
        done = subprocess.run(
            [sys.executable, "-P", "-c", code, *words],
            cwd=tmp_path,
            env=where,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert lagbench("--version").startswith(f"lagbench {PROJECT['version']} (")
    assert "K20m server" in lagbench("simulate", "k20m-server", "--workers", "2", "--folds", "20")

"""Every example runs as a user would run it, in a folder of its own."""

import json
import re
import shutil
from importlib.metadata import distributions
from pathlib import Path

import pytest

from harness.cli import main
from tests.docs.pages import blocks, install
from tests.processes import run

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs" / "examples"
DATA, OF_A_RUN = "own_data.py", "recognise.py"
RUN = """
import runpy, sys
sys.argv[1:] = {!r}
sys.path.insert(0, ".")
runpy.run_path({!r}, {{}}, "__main__")
"""
SENTENCES = """
cluster = "k20m-server"
workers = 1
tested = "never"
[task]
is = "frames"
corpus = "voice-search-small"
hidden = [32]
[algorithm]
is = "AsyncSgd"
[schedule]
is = "Constant"
rate = 0.008
[[stages]]
minibatch = 64
timed_minibatch = 64
"""

COMMANDS = [
    line
    for page in sorted((ROOT / "docs/howto").glob("*.md"))
    for block in blocks(page.read_text(encoding="utf-8"))
    if block.told == "run"
    for line in block.text.splitlines()
]
PACKAGES = sorted(path.parent for path in EXAMPLES.glob("*/pyproject.toml"))


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A copy of the examples, somewhere else, and where we are."""
    copied = Path(shutil.copytree(EXAMPLES, tmp_path / "examples"))
    monkeypatch.chdir(copied)
    return copied


def executed(name: str, *arguments: str) -> str:
    """What a script prints that is run in this folder."""
    done = run(["-c", RUN.format(list(arguments), name)])
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_a_stored_run_recognises_the_test_sets_of_sentences(folder):
    run_file = folder / "sentences.toml"
    run_file.write_text(SENTENCES, encoding="utf-8")
    assert main(["train", str(run_file), "--out", str(folder / "runs")]) == 0
    (stored,) = (folder / "runs").glob("*/run.json")
    text = executed(OF_A_RUN, str(stored.parent))
    assert "insertion penalty" in text
    assert re.search(r"^test: %WER \d+\.\d+ \[ \d+ / \d+, \d+ ins, \d+ del", text, re.M)


def test_the_notebook_runs_cell_by_cell(folder):
    cells = json.loads((folder / "own_model.ipynb").read_text(encoding="utf-8"))["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    (folder / "cells.py").write_text(code, encoding="utf-8")
    assert "sync" in executed("cells.py")


def test_pages_run_programs_of_at_most_forty_lines_and_no_program_is_left_out():
    programs = {line.split("/")[-1] for line in COMMANDS if line.startswith("python ")}
    assert programs | {DATA, OF_A_RUN} == {path.name for path in EXAMPLES.glob("*.py")}
    parts = [path for package in PACKAGES for path in package.glob("*.py")]
    for path in [*parts, *(EXAMPLES / name for name in programs)]:
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 40, path


def test_the_algorithm_of_the_package_keeps_the_promises(folder, monkeypatch):
    monkeypatch.chdir(folder / "fading")
    said = run(["-m", "harness", "check-algorithm", "Fading", "--import", "fading"]).stdout
    assert said.count("kept") == 6
    assert "BROKEN" not in said


def test_pip_installs_what_the_page_puts_there(tmp_path):
    pytest.importorskip("setuptools")
    package = PACKAGES[0]
    assert {f"pip install {each.relative_to(ROOT)}" for each in PACKAGES} < set(COMMANDS)
    copied = shutil.copytree(package, tmp_path / "copied")  # pip builds in the source's folder
    for folder in ("ours", "theirs"):
        (tmp_path / folder).mkdir()
    install(package, tmp_path / "ours")
    into = ["--target", str(tmp_path / "theirs"), "--no-build-isolation", "--no-deps", "--no-index"]
    done = run(["-m", "pip", "install", *into, str(copied)])
    assert done.returncode == 0, done.stderr
    found = [
        {
            (each.group, each.name, each.value)
            for dist in distributions(path=[str(place)])
            for each in dist.entry_points
        }
        for place in (tmp_path / "ours", tmp_path / "theirs")
    ]
    assert found[0] == found[1] != set()
    modules = [
        {path.name for path in (tmp_path / each).glob("*.py")} for each in ("ours", "theirs")
    ]
    assert modules[0] == modules[1] == {f"{package.name}.py"}

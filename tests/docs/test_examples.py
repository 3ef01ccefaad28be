"""Every example runs as a user would run it, in a folder of its own."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.processes import run

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs" / "examples"
RUN = """
import runpy, sys
from harness.modules import step_time
step_time.LONGEST_S = 0.0  # how exactly a step is timed is not what an example is about
sys.path.insert(0, ".")
runpy.run_path({!r}, {{}}, "__main__")
"""
SHOWN = {
    "dataloader.py": ("async", None),
    "large_iterable.py": ("sync", None),
    "dirichlet.py": ("workers' data differ", None),
    "gpt_recipe.py": ("diloco:8", None),
    "own_optimizer.py": ("localsgd:10", None),
    "dict_model.py": ("async with 4 workers", None),
    "lora.py": ("1064 numbers trained", None),
    "residual_cnn.py": ("tensor([", None),
    "own_model.py": ("averaging:10", "out/comparison.svg"),
    "own_algorithm.py": ("Fading", None),
    "spot_instances.py": ("spot", "out/spot/table.csv"),
    "wide_area.py": ("diloco:20", "out/index.html"),
    "tolerance.py": ("tolerated up to", "out/tolerance.svg"),
}


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A copy of the examples, somewhere else, and where we are."""
    copied = Path(shutil.copytree(EXAMPLES, tmp_path / "examples"))
    monkeypatch.chdir(copied)
    return copied


def executed(name: str) -> str:
    """What a script prints that is run in this folder."""
    done = run(["-c", RUN.format(name)])
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.parametrize("name", SHOWN)
def test_an_example_runs_and_shows_what_it_is_about(name, folder):
    text, file = SHOWN[name]
    assert text in executed(name)
    assert file is None or (folder / file).stat().st_size > 100


def test_the_notebook_runs_cell_by_cell(folder):
    cells = json.loads((folder / "own_model.ipynb").read_text(encoding="utf-8"))["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    (folder / "cells.py").write_text(code, encoding="utf-8")
    assert "sync" in executed("cells.py")


def test_the_algorithm_outside_the_tree_has_thirty_lines_and_keeps_the_promises(folder):
    source = (folder / "own_algorithm.py").read_text(encoding="utf-8")
    own = source[source.index("@dataclass") : source.index('if __name__ == "__main__"')]
    assert len(own.strip().splitlines()) <= 30
    said = run(["-m", "harness", "check-algorithm", "Fading", "--import", "own_algorithm"]).stdout
    assert said.count("kept") == 7
    assert "BROKEN" not in said


def test_every_example_is_run():
    scripts = {path.name for path in EXAMPLES.glob("*.py")} - {"own_data.py"}
    assert scripts == set(SHOWN)

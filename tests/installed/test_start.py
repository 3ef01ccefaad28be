"""What shadows a package of ours is named in one line; a file where one works shadows none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lagbench_start import PACKAGES, shadow

ROOT = Path(__file__).parents[2]
STRANGE = "raise RuntimeError('not ours')\n"


def command(folder: Path, *words: str, path: str = str(ROOT)) -> tuple[int, str]:
    """Exit code and stderr of ``python WORDS`` in a folder."""
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={"PYTHONPATH": path, "HOME": str(Path.home())},
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stderr


def test_what_is_imported_is_ours():
    assert [shadow(name) for name in PACKAGES] == [None] * len(PACKAGES)


@pytest.mark.parametrize(
    ("module", "words", "told"),
    [
        ("harness", ["runs", "nowhere"], "no store in 'nowhere'"),
        ("reproductions", ["papr1"], "did you mean 'paper1'"),
        ("harness.train", ["diloc"], "did you mean 'diloco'"),
    ],
)
def test_a_file_of_that_name_where_one_works_is_not_imported(tmp_path, module, words, told):
    for name in ("reports.py", "data_synth.py"):
        (tmp_path / name).write_text(STRANGE)
    code, err = command(tmp_path, "-m", module, *words)
    assert (code, err.count("\n")) == (2, 1)
    assert told in err


@pytest.mark.parametrize("name", ["reports", "data_synth", "lagbench"])
def test_a_package_before_ours_is_named_in_one_line(tmp_path, name):
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text(STRANGE)
    code, err = command(tmp_path, "-m", "harness", "--help", path=f"{tmp_path}:{ROOT}")
    assert (code, err.count("\n")) == (2, 1)
    assert err.startswith(f"error: {name}: {tmp_path / name / '__init__.py'} shadows lagbench's")


OTHER = """
try:
    import lagbench
    lagbench.train
except ImportError:
    pass
1 / 0
"""


@pytest.mark.parametrize("name", ["harness", "reports"])
def test_a_file_beside_a_program_is_named_in_one_line(tmp_path, name):
    own = tmp_path / f"{name}.py"
    own.write_text(STRANGE)
    (tmp_path / "program.py").write_text("import lagbench\nlagbench.train\n")
    code, err = command(tmp_path, "program.py")
    assert (code, err.count("\n")) == (1, 1)
    assert err.startswith(f"error: {name}: {own} shadows lagbench's own; allowed: rename, move or")
    (tmp_path / "program.py").write_text(OTHER)
    code, err = command(tmp_path, "program.py")  # the user's own error has its traceback
    assert code == 1
    assert err.startswith("Traceback")
    assert err.endswith("ZeroDivisionError: division by zero\n")


@pytest.mark.parametrize("name", ["harness", "reports"])
def test_a_package_written_over_by_another_distribution_is_named_in_one_line(site, tmp_path, name):
    start = ["-c", "import sys; from lagbench_start import main; sys.exit(main())"]
    (site / name / "__init__.py").write_text(STRANGE)
    code, err = command(tmp_path, *start, "--help", path=str(site))
    assert (code, err.count("\n")) == (2, 1)
    assert err.startswith(f"error: {name}: another distribution has written over")


def test_a_package_that_is_gone_is_named_in_one_line(site, tmp_path):
    (site / "reports" / "__init__.py").unlink()
    start = ["-c", "import sys; from lagbench_start import main; sys.exit(main())"]
    code, err = command(tmp_path, *start, "--help", path=str(site))
    assert (code, err.count("\n")) == (2, 1)
    assert err.startswith("error: reports: ")

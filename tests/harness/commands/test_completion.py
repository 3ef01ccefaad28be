from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from harness.cli import COMMANDS, main

COMPLETE = """
source ./complete.bash
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
_shtab_lagbench
echo "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """A folder with what bash is to source."""
    folder = tmp_path_factory.mktemp("completion")
    told = subprocess.run(
        [sys.executable, "-m", "harness", "completion", "bash"], capture_output=True, text=True
    )
    (folder / "complete.bash").write_text(told.stdout)
    (folder / "mine.toml").write_text("")
    return folder


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("si", "simulate"),
        ("simulate k20", "k20m-server"),
        ("simulate mi", "mine.toml"),
        ("train async", "async-averaged"),
        ("predict diloco --cluster spot", "spot-32"),
        ("corpus imp", "import"),
        ("simulate k20m-server --swe", "--sweep"),
        ("completion z", "zsh"),
    ],
)
def test_bash_completes_commands_options_names_and_files(program, words, completed):
    told = subprocess.run(
        ["bash", "-c", COMPLETE, "bash", "lagbench", *words.split()],
        cwd=program,
        capture_output=True,
        text=True,
    )
    assert told.stdout.split() == [completed], told.stderr


@pytest.mark.parametrize("shell", ["zsh", "tcsh"])
def test_other_shells_are_given_every_command(capsys, shell):
    assert main(["completion", shell]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in COMMANDS)


def test_without_shtab_it_is_said_how_to_get_it(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["completion", "bash"]) == 2
    assert "pip install 'lagbench[completion]'" in capsys.readouterr().err

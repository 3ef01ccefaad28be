"""What is said of compiling, and to whom."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numba
import pytest

from harness import cli, train
from harness.kernels import notice
from harness.processes import rank_main

CLUSTER = Path(__file__).parents[3] / "reproductions" / "clusters" / "k20m-server.toml"
LINE = r"compiling, once on this machine: harness\.simulator\.[\w.]+ \.\.\. \d+\.\d s"


def simulate(folder, *words):
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(folder)}
    command = [sys.executable, *words, str(CLUSTER), "--folds", "20", "--workers", "2"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True)


@pytest.mark.nightly
def test_the_command_says_what_it_compiles_the_first_time_alone(tmp_path):
    first, second = (simulate(tmp_path, "-m", "harness", "simulate") for _ in range(2))
    compiled = first.stderr.splitlines()
    assert compiled
    assert all(re.fullmatch(LINE, line) for line in compiled)
    assert not second.stderr
    assert first.stdout == second.stdout


def test_a_program_that_calls_the_command_hears_nothing_of_compiling(compiled, capsys):
    assert cli.main(["simulate", str(CLUSTER), "--folds", "20", "--workers", "2"]) == 0
    compiled[0]()
    assert "compiling" not in capsys.readouterr().err


def test_a_kernel_is_named_once_and_what_it_calls_is_not(computed):
    said = computed()[1].splitlines()
    assert len(said) == 1
    assert re.fullmatch(
        r"compiling, once on this machine: __main__\.total \.\.\. \d+\.\d s", said[0]
    )


@pytest.fixture(autouse=True)
def restored(monkeypatch):
    """Who is told, and where, is afterwards what it was."""
    monkeypatch.setattr(notice, "_told", None)


@pytest.fixture
def compiled():
    """Compiles a kernel; the name that is told."""

    def compiles(*_):
        kernel = numba.njit(lambda value: value + 1)
        return kernel(1) - 2

    return compiles, f"{__name__}.compiled.<locals>.compiles.<locals>.<lambda>"


@pytest.mark.parametrize("rank", [0, 1])
def test_of_a_group_of_processes_the_server_says_what_is_compiled(
    rank, monkeypatch, capsys, compiled
):
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setattr(rank_main, "run_rank", compiled[0])
    assert train.main(["async-averaged"]) == 0
    said = capsys.readouterr().err.splitlines()
    assert [line.rpartition(" ... ")[0] for line in said] == [
        f"compiling, once on this machine: {compiled[1]}"
    ] * (1 - rank)

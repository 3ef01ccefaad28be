"""What is said of compiling, and to whom."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

CLUSTER = Path(__file__).parents[3] / "reproductions" / "clusters" / "k20m-server.toml"
LINE = r"compiling, once on this machine: harness\.simulator\.[\w.]+ \.\.\. \d+\.\d s"


def simulate(folder, *words):
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(folder)}
    command = [sys.executable, *words, str(CLUSTER), "--folds", "20", "--workers", "2"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True)


def test_the_command_says_what_it_compiles_the_first_time_alone(tmp_path):
    first, second = (simulate(tmp_path, "-m", "harness", "simulate") for _ in range(2))
    assert first.stderr
    assert all(re.fullmatch(LINE, line) for line in first.stderr.splitlines())
    assert second.stderr == ""
    assert first.stdout == second.stdout
    quiet = "from harness.cli import main; import sys; main(['simulate', *sys.argv[1:]])"
    (tmp_path / "other").mkdir()
    assert simulate(tmp_path / "other", "-c", quiet).stderr == ""


def test_a_kernel_is_named_once_and_what_it_calls_is_not(computed):
    said = computed()[1].splitlines()
    assert len(said) == 1
    assert re.fullmatch(
        r"compiling, once on this machine: __main__\.total \.\.\. \d+\.\d s", said[0]
    )

"""How soon the command answers, and the simulator is there: beside the imports of others."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

HELP = ("-m", "harness", "--help")
TORCH = ("-c", "import torch")
SIMULATOR = ("-c", "import harness.simulator")
NUMBA = ("-c", "import numba, scipy.stats, pyarrow.parquet")


def seconds(arguments: tuple[str, ...]) -> float:
    """How long a fresh interpreter works: in processor time, less disturbed than the clock."""
    before = os.times()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    after = os.times()
    used = after.children_user - before.children_user
    return used + after.children_system - before.children_system


@pytest.mark.parametrize(
    ("asked", "other"), [(HELP, TORCH), (SIMULATOR, NUMBA)], ids=["help-torch", "simulator-numba"]
)
def test_a_start_over_an_import(benchmark, asked, other):
    rounds = 5 if benchmark.enabled else 1
    times = [(seconds(asked), seconds(other)) for _ in range(rounds)]
    benchmark.extra_info["ratio"] = min(a for a, _ in times) / min(o for _, o in times)
    benchmark.pedantic(seconds, (asked,), rounds=1)
